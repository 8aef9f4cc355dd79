"""A run owns its folder: whole files, a log, the config, and a manifest that says how it ended.

    with open_run("runs/first", "find_sinks", config) as folder:
        folder.record(model=model.describe(), checks=checks)
        folder.write("table.csv", table.to_csv(index=False))
        folder.log.info("scored %d heads", len(table))

The manifest says `running` from the first moment, `done` or `failed` in the end; a killed run stays
`running`. A run that stops with an `InterpError` takes away all it wrote; one that is interrupted,
or finds the disk full, keeps what it has finished. A lock that ends with the process keeps a second
run out. A run that `overwrite` replaces is put aside, and deleted when its successor is done.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import BaseModel

from interp.errors import IncompleteError, InterpError
from interp.runs import files, strict_yaml
from interp.runs.environment import describe_environment, peak_memory
from interp.runs.lock import FolderLock

MANIFEST = "manifest.json"
LOG = "log.txt"
CONFIG = "config.yaml"
KEPT_NOTE = "run folder: "
"""How the note begins that an exception takes along if it has left a run's folder behind."""
_ASIDE = ".replaced-"


def open_run(
    out: str | os.PathLike[str] | None,
    name: str,
    config: BaseModel,
    *,
    overwrite: bool = False,
    resume: bool = False,
    command: Sequence[str] | None = None,
) -> RunFolder:
    """Make the folder of a run, prove that it can be written, and lock it.

    Args:
        out: the folder; None for runs/NAME/ and the time in UTC.
        name: the experiment.
        config: what is run; saved as config.yaml and in the manifest.
        overwrite: replace the run that is in `out`; a folder that holds anything else, or beside a finished
            run something that it did not write, is refused.
        resume: go on where an unfinished run of the same config in `out` was stopped: its files stay.
        command: the command line, for the manifest; this process's if None.

    Raises:
        InterpError: the folder can't be made or written, is in use, or holds something already; an
            unfinished run of another config (the keys that differ are named); it is inside a finished run.
    """
    try:
        root = Path(out).expanduser() if out is not None else fresh(name)
    except RuntimeError as error:  # ~nobody
        raise InterpError(f"out: {out}: {error}") from error
    if "\0" in str(root):
        raise InterpError("out: a path can't hold a null byte")
    _check_outside(root)
    made: list[Path] = []
    try:
        _make(root, made)
        return RunFolder(
            root, made, name, config, overwrite=overwrite, resume=resume, command=command
        )
    except OSError as error:
        raise InterpError(f"out: cannot write in {root}: {error.strerror or error}") from error
    finally:
        _remove_empty(made)  # a folder in which a run has begun is not empty


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
        *,
        overwrite: bool,
        resume: bool,
        command: Sequence[str] | None,
    ) -> None:
        self.root, self.name = root, name
        self.log = logging.Logger(name, logging.INFO)  # not in logging's registry, which is global
        self._log_file = _LogFile(root / LOG)
        self._made, self._aside = made, root / f"{_ASIDE}{secrets.token_hex(4)}"
        self._written: set[str] = set()  # top-level names; nothing else is ever taken away
        resolved = config.model_dump(mode="json")
        self.manifest: dict[str, Any] = {
            "tool": "interp",
            "experiment": name,
            "status": "running",
            "error": None,
            "started": _now(),
            "finished": None,
            "command": list(sys.argv if command is None else command),
            "seed": resolved.get("seed"),
            "threads": resolved.get("threads"),
            "config": resolved,
            "environment": describe_environment(),
        }
        self._lock = FolderLock(root)
        self._resumed = False
        try:
            if resume and not overwrite and (before := _unfinished(root)) is not None:
                _check_same_config(root, before["config"], resolved)
                self._resumed = True
                for half_written in root.rglob(f"{files.TEMPORARY}*"):
                    half_written.unlink()
                self.manifest["resumed"] = [*before.get("resumed", ()), before["started"]]
            else:
                self._put_aside(_held(root, overwrite))
            self._written.add(LOG)
            self.log.addHandler(self._log_file)
            self.log.info("%s begins", name)
            self.write(CONFIG, f"# {name}\n{strict_yaml.dump(resolved)}")
            self.record()
        except BaseException:
            self._close() if self._resumed else self._discard()
            raise

    def path(self, name: str) -> Path:
        """The path of a file (or folder) of this run; the subfolders it is in are made.

        Raises:
            ValueError: the name leads out of the folder.
        """
        path = self.root / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{name!r} leads out of the run folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._written.add(Path(name).parts[0])
        return path

    def write(self, name: str, content: files.Content) -> Path:
        """Write a file of this run, whole or not at all; see `interp.runs.files.atomic_write`."""
        return files.atomic_write(self.path(name), content)

    def remove(self, name: str) -> None:
        """Take away a file or folder that this run wrote for its own use."""
        shutil.rmtree(self.path(name), ignore_errors=True)
        self.path(name).unlink(missing_ok=True)
        self._written.discard(name)

    def record(self, **sections: Any) -> None:
        """Add sections to the manifest (model, prompts, checks, attention, …) and write it.

        NaN and infinities become null: strict JSON has neither.
        """
        self.manifest |= {name: files.plain(section) for name, section in sections.items()}
        self.write(MANIFEST, files.strict_json(self.manifest))

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        outside = isinstance(error, KeyboardInterrupt | BrokenPipeError) or files.is_full(error)
        refused = isinstance(error, InterpError) and not isinstance(error, IncompleteError)
        stopped = refused or (outside and not any(self._results()))
        if stopped and not self._resumed:
            self._discard()
            return
        try:
            if error is None:
                self.log.info("%s is done", self.name)
                self._finish("done", None)
            else:
                with suppress(OSError):  # a full disk: what counts is the error that comes first
                    self.log.error("%s failed", self.name, exc_info=error)
                    self._finish("failed", repr(error))
                error.add_note(f"{KEPT_NOTE}{self.root}")
        finally:
            self._close()
        if error is None:
            shutil.rmtree(self._aside, ignore_errors=True)

    def _finish(self, status: str, error: str | None) -> None:
        paths = [self.root / CONFIG, *self._results()]
        self.record(
            status=status,
            error=error,
            finished=_now(),
            peak_memory_bytes=peak_memory(),
            files={
                path.relative_to(self.root).as_posix(): {
                    "sha256": files.sha256(path),
                    "bytes": path.stat().st_size,
                }
                for path in paths
            },
        )

    def _results(self) -> Iterator[Path]:
        """The files that the experiment wrote, in order of name."""
        for name in sorted(self._written - {MANIFEST, LOG, CONFIG}):
            top = self.root / name
            found = sorted(top.rglob("*")) if top.is_dir() else [top]
            yield from (path for path in found if path.is_file())

    def _close(self) -> None:
        with suppress(OSError):  # a full disk: the log's last lines
            self._log_file.close()
        self._lock.release()

    def _discard(self) -> None:
        """Take away what this run wrote and nothing else, and put back what it was to replace."""
        self._close()
        for path in (self.root / name for name in self._written):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        if self._aside.exists():
            for path in [*self._aside.iterdir()]:
                path.rename(self.root / path.name)
            self._aside.rmdir()
        _remove_empty(self._made)

    def _put_aside(self, held: Sequence[Path]) -> None:
        """Move what is in the folder into a subfolder, from where `_discard` puts it back."""
        if held:
            self._aside.mkdir()
        for path in held:
            path.rename(self._aside / path.name)


class _LogFile(logging.FileHandler):
    """A log whose write errors are errors; logging itself would print a traceback and go on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", delay=True)
        formatter = logging.Formatter("%(asctime)sZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
        self.setFormatter(formatter)

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exception()
        if error is not None:
            raise error


# --- the folder ----------------------------------------------------------------------------------


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def fresh(name: str, ending: str = "") -> Path:
    """A path where nothing is yet: runs/NAME/, the time, and the ending."""
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    out = Path("runs") / name / f"{stamp}{ending}"
    number = 1
    while out.exists():  # two runs in one second
        number += 1
        out = out.with_name(f"{stamp}-{number}{ending}")
    return out


def _check_outside(out: Path) -> None:
    """Refuse a folder inside a finished run: what replaces that run would take this one away, too."""
    for folder in out.absolute().parents:
        if _status_of(folder) == "done":
            raise InterpError(
                f"out: {out} is inside {folder}, which holds a finished run; choose another folder"
            )


def _make(out: Path, made: list[Path]) -> None:
    """Make the folder; adds to `made` what was not there, outermost first."""
    for folder in [*reversed(out.parents), out]:
        if folder.is_dir():
            continue
        if folder.exists():
            raise InterpError(f"out: {folder} is a file, not a folder")
        folder.mkdir(exist_ok=True)
        made.append(folder)


def _remove_empty(made: Sequence[Path]) -> None:
    """Remove the folders that this run made, as far as they are empty."""
    for folder in reversed(made):
        with suppress(OSError):
            folder.rmdir()


def _held(root: Path, overwrite: bool) -> list[Path]:
    """What is in the folder already: nothing, or a run that is to be replaced.

    Raises:
        InterpError: the folder holds a run and `overwrite` is false, or anything that is no run.
    """
    held = [path for path in root.iterdir() if path.name != FolderLock.FILE]
    status = _status_of(root)
    if held and status is None:
        raise InterpError(f"out: {root} is not empty and holds no run; choose another folder")
    if held and not overwrite:
        which = "a finished run" if status == "done" else "an unfinished run"
        raise InterpError(f"out: {root} holds {which}; overwrite=true replaces it")
    others = _not_of_the_run(root, held) if status == "done" else []
    if others:
        raise InterpError(
            f"out: {root} holds {others[0]}, which the run in it did not write; take it out of there, or "
            "choose another folder"
        )
    return held


def _not_of_the_run(root: Path, held: Sequence[Path]) -> list[str]:
    """Names in the folder of a finished run that its manifest does not know; hidden ones don't count."""
    manifest = _manifest_of(root) or {}
    own = {MANIFEST, LOG, CONFIG, *(Path(name).parts[0] for name in manifest.get("files", ()))}
    return sorted(p.name for p in held if p.name not in own and not p.name.startswith("."))


def _status_of(root: Path) -> str | None:
    """The status of the run in a folder; None if there is no run of ours."""
    manifest = _manifest_of(root)
    return None if manifest is None else str(manifest.get("status"))


def _manifest_of(root: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    ours = isinstance(manifest, dict) and manifest.get("tool") == "interp"
    return manifest if ours else None


def _unfinished(root: Path) -> dict[str, Any] | None:
    """The manifest of a run that was stopped before it was done, or None."""
    manifest = _manifest_of(root)
    return manifest if manifest is not None and manifest["status"] != "done" else None


def unlike(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys in which two configs differ, those about the folder aside."""
    keys = sorted((before.keys() | now.keys()) - {"out", "overwrite"})
    return [key for key in keys if before.get(key) != now.get(key)]


def _check_same_config(root: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to go on under another config: a table must not mix two."""
    keys = [f"{key} ({before.get(key)} there, {now.get(key)} here)" for key in unlike(before, now)]
    if keys:
        raise InterpError(
            f"out: {root} holds an unfinished run of another config: {', '.join(keys)}; give the same "
            "config, or another folder, or overwrite=true"
        )
