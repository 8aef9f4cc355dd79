"""Does a run come out again? Its tables held against those of a second run, column by column.

    identical          every value the same, undefined where it was undefined
    within tolerance   |again − before| ≤ atol + rtol · |before| everywhere      (numbers only)
    different          anything else; also a row, a column or a table that only one of them has

On one machine the same config, seed and thread count give identical tables. Across machines sums are
taken in another order: float32 rounds at 1e-7, twenty or thirty layers make 1e-5 of it. A p-value is
a share of random flips, and moves in steps: it has a tolerance of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import is_float_dtype

from interp.errors import InterpError
from interp.results import tables
from interp.results.columns import is_p_value
from interp.results.tables import DIFFERENT, IDENTICAL, VERDICTS, WITHIN
from interp.runs import files
from interp.runs.run_folder import CONFIG, MANIFEST

P_TOLERANCE = 0.01
"""What p-values may move by when a sum near a tie rounds otherwise."""
# What stands for a place that one of two manifests lacks.
ABSENT = "(not there)"
# What the manifest of every finished run has.
_SECTIONS = ("config", "environment", "files")
# What of a manifest is of one run only.
_OF_THE_RUN = ("started", "finished", "resumed", "command", "files", "peak_memory_bytes", "status")


class Tolerance(NamedTuple):
    """How far a number may be from what it was: atol + rtol · |before|."""

    atol: float = 1e-4
    rtol: float = 1e-3


USUAL = Tolerance()


def finished_run(folder: Path) -> dict[str, Any]:
    """The manifest of a finished run whose config and tables are as it wrote them.

    Raises:
        InterpError: no run of ours, one that is not done, or a config or table that was changed since.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InterpError(
            f"{folder}: expected a run folder with a manifest.json that can be read: {error}"
        ) from error
    if not isinstance(manifest, dict) or manifest.get("tool") != "interp":
        raise InterpError(f"{folder}: its manifest.json is not of a run of interp")
    if (status := manifest.get("status")) != "done":
        raise InterpError(f"{folder}: the run is {status}, expected done; run it to its end first")
    lacking = [name for name in _SECTIONS if not isinstance(manifest.get(name), dict)]
    if lacking or not isinstance(manifest.get("experiment"), str):
        raise InterpError(
            f"{folder}: its manifest.json is not as a run writes it: no {(*lacking, 'experiment')[0]}"
        )
    for name in (*tables_of(manifest), *({CONFIG} & manifest["files"].keys())):
        if not (folder / name).exists():
            raise InterpError(f"{folder}: {name} is in the manifest, but not in the folder")
        if files.sha256(folder / name) != manifest["files"][name]["sha256"]:
            raise InterpError(
                f"{folder}: {name} is not what the run wrote (its hash differs from the manifest's)"
            )
    return manifest


def compare(before: Path, again: Path, tolerance: Tolerance = USUAL) -> pd.DataFrame:
    """A verdict for each column of each table of two finished runs, as ``VERDICTS`` describes.

    Raises:
        InterpError: see :func:`finished_run`; the first run has no table.
    """
    names, others = (tables_of(finished_run(run)) for run in (before, again))
    if not names:
        raise InterpError(f"{before}: the run has no table to compare")
    found: list[tuple[Any, ...]] = []
    for name in sorted({*names, *others}):
        if name in names and name in others:
            first, second = tables.read(before / name), tables.read(again / name)
            found += [(name, *verdict) for verdict in _columns(first, second, tolerance)]
        else:
            found.append((name, "(rows)", DIFFERENT, np.nan, 0, 0))
    return VERDICTS.validate(pd.DataFrame(found, columns=list(VERDICTS.columns)))


def differences(before: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What two manifests say otherwise of the environment, model, prompts and checks: place → (before,
    again)."""
    first, second = (dict(_flat("", manifest)) for manifest in (before, again))
    return {
        place: (first.get(place, ABSENT), second.get(place, ABSENT))
        for place in sorted(first.keys() | second.keys())
        if first.get(place, ABSENT) != second.get(place, ABSENT)
    }


def tables_of(manifest: Mapping[str, Any]) -> list[str]:
    """The names of the tables that a run wrote, by its manifest."""
    return [name for name in manifest["files"] if name.endswith((".csv", ".parquet"))]


def _columns(
    before: pd.DataFrame, again: pd.DataFrame, tolerance: Tolerance
) -> Iterator[tuple[str, str, float, int, int]]:
    """(column, verdict, largest difference, values that differ, rows) of two tables."""
    shared = [str(name) for name in before if name in again]
    keys = [name for name in shared if not is_float_dtype(before[name])]
    before, again = (_in_order(table, keys) for table in (before, again))
    if len(before) != len(again):
        yield "(rows)", DIFFERENT, np.nan, abs(len(before) - len(again)), len(before)
        return
    for name in [*before, *(name for name in again if name not in before)]:
        if name in before and name in again:
            yield name, *_verdict(before[name], again[name], tolerance), len(before)
        else:
            yield name, DIFFERENT, np.nan, len(before), len(before)


def _in_order(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Rows by what they are of, not by rank: two near the same place may change it."""
    if not keys or table.duplicated(keys).any():
        return table.reset_index(drop=True)
    return table.sort_values(keys, kind="stable").reset_index(drop=True)


def _verdict(before: pd.Series, again: pd.Series, tolerance: Tolerance) -> tuple[str, float, int]:
    one_undefined = before.isna() != again.isna()
    if not is_float_dtype(before):
        unlike = ((before != again) & before.notna() & again.notna()).fillna(False) | one_undefined
        return DIFFERENT if unlike.any() else IDENTICAL, np.nan, int(unlike.sum())
    x, y = before.to_numpy(float), again.to_numpy(float)
    # Infinities of one sign are the same; their difference is not a number.
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    gap = np.abs(np.subtract(y, x, where=~same, out=np.zeros_like(x)))
    allowed = tolerance.atol + tolerance.rtol * np.abs(np.nan_to_num(x))
    if is_p_value(str(before.name)):
        allowed = np.maximum(allowed, P_TOLERANCE)
    largest = float(np.max(gap, initial=0.0, where=~np.isnan(gap)))
    if same.all():
        return IDENTICAL, largest, 0
    near = ~one_undefined.to_numpy() & (gap <= allowed) & np.isfinite(gap)
    return WITHIN if (same | near).all() else DIFFERENT, largest, int((~same).sum())


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Nested mappings as dotted path → value, without what is of one run only."""
    if not isinstance(value, Mapping):
        yield prefix, value
        return
    for key, inner in value.items():
        place = f"{prefix}.{key}" if prefix else key
        if place not in _OF_THE_RUN and place not in ("config.out", "config.overwrite"):
            yield from _flat(place, inner)
