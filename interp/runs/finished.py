"""A finished run, opened again: its tables, its figures and what was run.

run = interp.read_run("runs/first")
run.table()                           table.csv; run.tables names the others
run.figure()                          as it was saved; run.figures names them
run.config, run.manifest              every setting; versions, hashes, checks
run.compare(other)                    does it say the same?
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from interp.errors import InterpError
from interp.results import tables
from interp.results.figures import DPI
from interp.runs import rerun


@dataclass(frozen=True)
class Picture:
    """A saved figure, which a notebook shows."""

    path: Path

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """The file, and its size on the page in CSS pixels, of which an inch has 96."""
        png = self.path.read_bytes()
        width, height = struct.unpack(">II", png[16:24])  # where every PNG has them
        return png, {"width": width * 96 // DPI, "height": height * 96 // DPI}


@dataclass(frozen=True)
class Run:
    """What a finished run left behind.

    Attributes:
        folder: the run folder.
        manifest: what its manifest.json holds.
    """

    folder: Path
    manifest: dict[str, Any]

    @property
    def experiment(self) -> str:
        """Its name."""
        return str(self.manifest["experiment"])

    @property
    def config(self) -> dict[str, Any]:
        """Every setting, defaults included."""
        return dict(self.manifest["config"])

    @property
    def tables(self) -> list[str]:
        """The names of its tables."""
        return rerun.tables_of(self.manifest)

    @property
    def figures(self) -> list[str]:
        """The names of its figures."""
        return [name for name in self.manifest["files"] if name.endswith(".png")]

    def table(self, name: str = "table.csv") -> pd.DataFrame:
        """One of the tables, by its name.

        Raises:
            InterpError: the run has no such table.
        """
        return tables.read(self.folder / self._one_of(self.tables, name, "table"))

    def figure(self, name: str | None = None) -> Picture:
        """One of the figures; by default the first.

        Raises:
            InterpError: the run has no such figure.
        """
        first = next(iter(self.figures), "")
        found = self._one_of(self.figures, first if name is None else name, "figure")
        return Picture(self.folder / found)

    def compare(self, again: Run, tolerance: rerun.Tolerance = rerun.USUAL) -> pd.DataFrame:
        """A verdict for each column of each table; see :func:`interp.runs.rerun.compare`."""
        return rerun.compare(self.folder, again.folder, tolerance)

    def __repr__(self) -> str:
        return (
            f"Run({self.experiment} in {self.folder}: {', '.join([*self.tables, *self.figures])})"
        )

    def _one_of(self, names: list[str], name: str, what: str) -> str:
        if name not in names:
            there = ", ".join(names) or "none"
            raise InterpError(f"{self.folder}: the run has no {what} {name!r}; expected of {there}")
        return name


def read_run(folder: str | Path) -> Run:
    """Open a finished run.

    Raises:
        InterpError: no run of ours, one that is not done, or a table that was changed since.
    """
    folder = Path(folder).expanduser()
    return Run(folder, rerun.finished_run(folder))
