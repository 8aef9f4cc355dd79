"""A run owns its folder: files written whole, a log, the config, and a manifest that says how it ended.

    with open_run("runs/first", "find_sinks", config) as folder:
        folder.record(model=model.describe(), checks=checks)
        folder.write("table.csv", table.to_csv(index=False).encode())
        folder.log.info("scored %d heads", len(table))

The manifest says `running` from the first moment, `done` or `failed` in the end. A run that stops
with an `InterpError` takes its folder away again; one that is interrupted, or finds the disk full,
keeps what it has finished. A lock that ends with the process keeps a second run out. A run that
`overwrite` replaces is put aside and only deleted when its successor is done.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import BaseModel

from interp import strict_yaml
from interp.environment import describe_environment, peak_memory
from interp.errors import InterpError
from interp.lock import FolderLock

MANIFEST = "manifest.json"
LOG = "log.txt"
CONFIG = "config.yaml"
_TEMPORARY = ".tmp-"
_ASIDE = ".replaced-"

Content = bytes | str | Callable[[Path], object]


def open_run(
    out: str | os.PathLike[str] | None,
    name: str,
    config: BaseModel,
    *,
    overwrite: bool = False,
    command: Sequence[str] | None = None,
) -> RunFolder:
    """Make the folder of a run, prove that it can be written, and lock it.

    Args:
        out: the folder; None for runs/NAME/ and the time in UTC.
        name: the experiment.
        config: what is run, saved as config.yaml and in the manifest.
        overwrite: replace the run that is in `out`; any other folder that is not empty is refused.
        command: the command line, for the manifest; this process's if None.

    Raises:
        InterpError: the folder can't be made or written, is in use, or holds something already.
    """
    try:
        root, made = _make(Path(out).expanduser() if out is not None else None, name)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        raise InterpError(f"out: cannot make the folder {out or 'runs'}: {reason}") from error
    try:
        return RunFolder(root, made, name, config, overwrite, command)
    except BaseException as error:
        _remove_made(made)
        if isinstance(error, OSError):
            raise InterpError(f"out: cannot write in {root}: {error.strerror}") from error
        raise


class RunFolder:
    """A run's folder while the run lasts; see the module. Make one with `open_run`.

    Attributes:
        root: the folder.
        name: the experiment.
        log: writes to log.txt, times in UTC; apart from all other logging.
        manifest: what manifest.json holds.
    """

    def __init__(
        self,
        root: Path,
        made: Sequence[Path],
        name: str,
        config: BaseModel,
        overwrite: bool,
        command: Sequence[str] | None,
    ) -> None:
        self.root, self.name, self._made = root, name, made
        self._lock = FolderLock(root)
        try:
            self._aside = _put_aside(root, overwrite)
            self.log, self._log_file = _open_log(root / LOG, name)
        except BaseException:
            self._lock.release()
            raise
        resolved = config.model_dump(mode="json")
        self.manifest: dict[str, Any] = {
            "tool": "interp",
            "experiment": name,
            "status": "running",
            "error": None,
            "started": _now(),
            "finished": None,
            "folder": str(root.resolve()),
            "command": list(sys.argv if command is None else command),
            "process": os.getpid(),
            "seed": resolved.get("seed"),
            "threads": resolved.get("threads"),
            "config": resolved,
            "environment": describe_environment(),
        }
        try:
            self.write(CONFIG, f"# {name}\n{strict_yaml.dump(resolved)}")
            self._write_manifest()
        except BaseException:
            self._discard()
            raise

    def path(self, name: str) -> Path:
        """The path of a file in the folder; subfolders in it are made.

        Raises:
            ValueError: the name leads out of the folder.
        """
        path = self.root / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{name!r} leads out of the run folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, name: str, content: Content) -> Path:
        """Write a file of the folder, whole or not at all; see `atomic_write`."""
        return atomic_write(self.path(name), content)

    def record(self, **sections: Any) -> None:
        """Add sections to the manifest (model, prompts, checks, attention, …) and write it.

        NaN and infinities become null, for strict JSON has none.
        """
        self.manifest |= {name: plain(section) for name, section in sections.items()}
        self._write_manifest()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        passing = isinstance(error, KeyboardInterrupt | BrokenPipeError) or is_full(error)
        if isinstance(error, InterpError) or (passing and not any(self._results())):
            self._discard()
            return
        try:
            if error is not None:
                with suppress(OSError):  # the disk may be full: the error itself is what counts
                    self.log.error("failed", exc_info=error)
                    self._finish("failed", repr(error))
            else:
                self._finish("done", None)
        finally:
            self._close()
        if error is None and self._aside is not None:
            shutil.rmtree(self._aside, ignore_errors=True)

    def _finish(self, status: str, error: str | None) -> None:
        self.manifest |= {
            "status": status,
            "error": error,
            "finished": _now(),
            "peak_memory_bytes": peak_memory(),
            "files": {
                path.relative_to(self.root).as_posix(): {
                    "sha256": _sha256(path),
                    "bytes": path.stat().st_size,
                }
                for path in self._results(CONFIG)
            },
        }
        self._write_manifest()

    def _results(self, *more: str) -> Iterator[Path]:
        """The files that the experiment wrote, in order of name."""
        ours = {MANIFEST, LOG, CONFIG} - set(more)
        for path in sorted(self.root.rglob("*")):
            inner = path.relative_to(self.root)
            if path.is_file() and not inner.parts[0].startswith(".") and str(inner) not in ours:
                yield path

    def _write_manifest(self) -> None:
        text = json.dumps(self.manifest, indent=2, ensure_ascii=False, allow_nan=False)
        self.write(MANIFEST, text + "\n")

    def _close(self) -> None:
        with suppress(OSError):  # a full disk: the last lines of the log
            self._log_file.close()
        self._lock.release()

    def _discard(self) -> None:
        """Take away all that this run wrote, and put back what it was to replace."""
        self._close()
        for path in self.root.iterdir():
            if path != self._aside:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if self._aside is not None:
            for path in self._aside.iterdir():
                path.rename(self.root / path.name)
            self._aside.rmdir()
        _remove_made(self._made)


# --- files ---------------------------------------------------------------------------------------


def atomic_write(path: Path, content: Content) -> Path:
    """Write a file whole or not at all: to a temporary neighbour first, which then takes its place.

    Args:
        path: the file; one that is there is replaced.
        content: bytes, text (UTF-8), or a function that writes to the path it is given. That path
            has the same ending, which some writers go by.

    Raises:
        OSError: it can't be written; the old file, if any, is untouched.
    """
    temporary = path.with_name(f"{_TEMPORARY}{secrets.token_hex(4)}-{path.name}")
    try:
        if callable(content):
            content(temporary)
        else:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())  # or a power cut could leave the new name on an empty file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def is_full(error: BaseException | None) -> bool:
    """Whether the error says that the disk is full, or the user's share of it."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def plain(value: Any) -> Any:
    """A value as strict JSON knows it: NaN and infinities become None, tuples lists, paths text.

    Raises:
        TypeError: there is no such form.
    """
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # numpy and torch, without importing them
        return plain(value.tolist())
    raise TypeError(f"a manifest can't hold {type(value).__name__}: {value!r}")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


# --- the folder ----------------------------------------------------------------------------------


def _make(out: Path | None, name: str) -> tuple[Path, list[Path]]:
    """Make the folder; with it those that were made on the way, outermost first."""
    if out is None:
        stamp = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H-%M-%SZ")
        out = Path("runs") / name / stamp
        tries = 1
        while out.exists():  # two runs in one second
            tries += 1
            out = out.with_name(f"{stamp}-{tries}")
    made: list[Path] = []
    for folder in [*reversed(out.parents), out]:
        if folder.exists() and not folder.is_dir():
            _remove_made(made)
            raise InterpError(f"out: {folder} is a file, not a folder")
        if not folder.exists():
            try:
                folder.mkdir(exist_ok=True)
            except OSError:
                _remove_made(made)
                raise
            made.append(folder)
    return out, made


def _remove_made(made: Sequence[Path]) -> None:
    """Remove the folders that this run made, as far as they are empty."""
    for folder in reversed(made):
        with suppress(OSError):
            folder.rmdir()


def _put_aside(root: Path, overwrite: bool) -> Path | None:
    """Make room: move the run that is there into a folder beside the new one's files.

    Raises:
        InterpError: the folder holds a run and `overwrite` was not asked for, or no run of ours.
    """
    held = [path for path in root.iterdir() if path.name != FolderLock.FILE]
    if not held:
        return None
    status = _status_of(root)
    if status is None:
        raise InterpError(f"out: {root} is not empty and holds no run; choose another folder")
    if not overwrite:
        which = "a finished run" if status == "done" else "an unfinished run"
        raise InterpError(f"out: {root} holds {which}; overwrite=true replaces it")
    aside = root / f"{_ASIDE}{secrets.token_hex(4)}"
    aside.mkdir()
    for path in held:
        path.rename(aside / path.name)
    return aside


def _status_of(root: Path) -> str | None:
    """The status of the run in a folder; None if there is none."""
    try:
        manifest = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(manifest, dict) or manifest.get("tool") != "interp":
        return None
    return str(manifest.get("status"))


class _LogFile(logging.FileHandler):
    """A log file whose write errors are errors (logging would print a traceback and go on)."""

    def handleError(self, record: logging.LogRecord) -> None:
        raise


def _open_log(path: Path, name: str) -> tuple[logging.Logger, logging.Handler]:
    handler = _LogFile(path, encoding="utf-8")
    formatter = logging.Formatter("%(asctime)sZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = __import__("time").gmtime
    handler.setFormatter(formatter)
    log = logging.Logger(name, logging.INFO)  # not in logging's registry: nobody else's
    log.addHandler(handler)
    return log, handler
