"""A result that is one file and no run: its place is proved before the work, and it is there whole or not.

with open_file("report.html", "report", ".html", mark="interp report") as path:
    files.atomic_write(path, text)
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from interp.errors import InterpError
from interp.runs.run_folder import fresh

# Of a file that is there already, how much is read to see whose it is.
HEAD = 2000


@contextmanager
def open_file(
    out: str | os.PathLike[str] | None,
    name: str,
    ending: str,
    *,
    mark: str,
    overwrite: bool = False,
) -> Iterator[Path]:
    """The path of a file that can be written; the folders it is in are made, and taken away after an error.

    Args:
        out: the file; None for runs/NAME/ and the time in UTC.
        name: what makes it.
        ending: how its name ends.
        mark: text near the beginning of each such file: others are never replaced.
        overwrite: replace one that is there.

    Raises:
        InterpError: it is a folder, has another ending, can't be written, or is there already.
    """
    try:
        path = Path(out).expanduser() if out is not None else fresh(name, ending)
        _check(path, ending, mark, overwrite)
        made = [folder for folder in path.parents if not folder.exists()]  # innermost first
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except (OSError, RuntimeError, ValueError) as error:  # ~nobody; a null byte
        reason = getattr(error, "strerror", None) or error
        raise InterpError(f"out: cannot write {out}: {reason}") from error
    try:
        yield path
    except BaseException:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


def _check(path: Path, ending: str, mark: str, overwrite: bool) -> None:
    if "\0" in str(path):
        raise InterpError("out: a path can't hold a null byte")
    if path.is_dir():
        raise InterpError(
            f"out: {path} is a folder; expected a file such as {path / f'report{ending}'}"
        )
    for folder in path.parents:
        if folder.exists() and not folder.is_dir():
            raise InterpError(f"out: {path}: {folder} is a file, not a folder")
    if path.suffix != ending:
        raise InterpError(f"out: {path}: expected a name that ends in {ending}")
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        ours = mark in file.read(HEAD)
    if not ours:
        raise InterpError(f"out: {path} is there and is none of ours; choose another name")
    if not overwrite:
        raise InterpError(f"out: {path} is there already; overwrite=true replaces it")
