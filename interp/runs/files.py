"""Files written whole or not at all, and JSON that every reader takes."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

TEMPORARY = ".tmp-"
"""How the names of half-written files begin; a killed process may leave one."""

Content = bytes | str | Callable[[Path], object]


def atomic_write(path: Path, content: Content) -> Path:
    """Write a file whole or not at all: to a temporary neighbour first, which then takes its place.

    Args:
        path: the file; one that is there is replaced.
        content: bytes, text (UTF-8), or a function that writes to the path it is given. That path
            has the same ending, which some writers go by.

    Raises:
        OSError: it can't be written; the old file, if any, is untouched.
    """
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(4)}-{path.name}")
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
    """Whether the error says that the disk is full, or a share of it, or a file may not grow."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return isinstance(error, OSError) and error.errno in full


def strict_json(value: Any) -> str:
    """A value as JSON. Strict JSON has no NaN and no infinity: they become null.

    Raises:
        TypeError: the value holds something that JSON has no form for.
    """
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """A value as JSON knows it: NaN and infinities None, tuples and arrays lists, paths text.

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
    raise TypeError(f"JSON has no form for {type(value).__name__}: {value!r}")


def sha256(path: Path) -> str:
    """The sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
