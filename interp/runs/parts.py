"""Finished pieces of a long measurement, kept in a folder, so that one that was stopped goes on.

Every piece is a file of its own, written whole or not at all, which carries the key of the measurement
that it belongs to and is checked when it is read: a damaged piece is measured again, and a piece of
another measurement (another model, other prompts, edits or metrics) is refused.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from interp.errors import InterpError
from interp.runs.files import atomic_write


class Parts:
    """The pieces of one measurement.

    Args:
        folder: where they are; made when the first is written.
        of: what is measured, in texts that differ where the measurement does.
    """

    def __init__(self, folder: Path, of: Iterable[str]) -> None:
        self.folder = folder
        self.key = hashlib.sha256(json.dumps([*of]).encode()).hexdigest()
        self._loaded: list[Path] = []

    @property
    def n_loaded(self) -> int:
        """How many pieces were found, those under this one included."""
        return len(self._loaded)

    def under(self, name: str) -> Parts:
        """The pieces of one of several measurements of this one."""
        part = Parts(self.folder / name, ())
        part.key, part._loaded = self.key, self._loaded
        return part

    def load(self, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """A finished piece, or None if there is none that is whole.

        Raises:
            InterpError: it belongs to another measurement.
        """
        path = self._path(name)
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                key, values = str(file["key"]), file["values"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile):
            # Half written or damaged: measured again, and written over. A changed bit may also make it
            # look encrypted, or of a later version of the format: RuntimeError.
            return None
        if key != self.key or values.shape != shape:
            raise InterpError(
                f"{path} is of another measurement (other model, prompts, edits or metric): "
                "take another folder, or overwrite=true"
            )
        self._loaded.append(path)
        return values

    def save(self, name: str, values: np.ndarray) -> None:
        """Write a piece."""
        self.folder.mkdir(parents=True, exist_ok=True)

        def write(path: Path) -> None:
            np.savez(path, key=np.array(self.key), values=values)

        atomic_write(self._path(name), write)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.npz"
