"""One run at a time in a folder: a lock that ends with the process that holds it.

The operating system holds it (`flock`, or `locking` on Windows), so a killed process leaves no lock
behind. On file systems that have no such locks, the process id written in the file decides: a dead
process has no claim.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import IO, ClassVar

from interp.errors import InterpError


class FolderLock:
    """Held from when it is made until `release`.

    Raises:
        InterpError: another process, or another run of this one, holds it.
        OSError: the folder can't be written.
    """

    FILE: ClassVar[str] = ".lock"

    def __init__(self, folder: Path) -> None:
        self._path = folder / self.FILE
        self._stream = self._path.open("a+", encoding="utf-8")
        holder = _read(self._stream)
        taken = _lock(self._stream)
        if taken is None:
            taken = not _alive(holder)
        if not taken or not self._is_still_there():
            self._stream.close()
            raise InterpError(f"out: {folder} is in use by another run ({holder or 'just begun'})")
        try:
            self._stream.truncate(0)
            self._stream.write(f"process {os.getpid()} on {socket.gethostname()}")
            self._stream.flush()
        except OSError:  # a full disk
            self.release()
            raise

    def release(self) -> None:
        """Give the lock up and remove its file."""
        if os.name == "nt":  # an open file can't be removed there
            self._close()
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        else:  # removed while it is still held, so that nobody locks a file that is about to go
            self._path.unlink(missing_ok=True)
            self._close()

    def _close(self) -> None:
        with suppress(OSError):  # a full disk: what could not be written
            self._stream.close()

    def _is_still_there(self) -> bool:
        """Whether our file is the one in the folder: its last holder may have removed it since."""
        try:
            return os.path.samestat(os.fstat(self._stream.fileno()), os.stat(self._path))
        except FileNotFoundError:
            return False


def _read(stream: IO[str]) -> str:
    stream.seek(0)
    try:
        return stream.read(200).strip()
    except OSError:  # Windows: the holder has locked it
        return ""


def _lock(stream: IO[str]) -> bool | None:
    """Whether we have the lock now; None where the file system has none."""
    try:
        import fcntl
    except ImportError:
        return _lock_windows(stream)
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _lock_windows(stream: IO[str]) -> bool:
    import msvcrt

    stream.seek(0)
    try:
        msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError:
        return False
    return True


def _alive(holder: str) -> bool:
    """Whether the process named in the file may still run: on another machine nobody can tell."""
    words = holder.split()
    if len(words) != 4 or not words[1].isdigit():
        return False
    if words[3] != socket.gethostname():
        return True
    try:
        os.kill(int(words[1]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
