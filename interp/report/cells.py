"""Values as a page's data: tables column by column, arrays as base64, nothing that JSON can't say.

Undefined is null. Infinities, which strict JSON has not, are the texts "Infinity" and "-Infinity", which
JavaScript's Number reads back; floats have all their digits, and each column says to how many places it is
shown.
"""

from __future__ import annotations

import base64
import math
from typing import Any, Literal

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_float_dtype, is_integer_dtype

from interp.results.tables import TOKENS, schema_of

Kind = Literal["number", "count", "flag", "token", "text"]

# Digits that the largest number of a column is shown with, and places behind the point at most.
DIGITS, PLACES = 4, 6


def table_data(table: pd.DataFrame, most_rows: int) -> dict[str, Any]:
    """A table as plain values: its columns, and how many rows it has.

    What is the same in every row of several is said once, under "same", as are columns without a value.

    Args:
        table: one of ours; see ``interp.results.tables``.
        most_rows: rows that are given, from the first.
    """
    about = {str(name): column.description for name, column in schema_of(table).columns.items()}
    same = [name for name in table if len(table) > 1 and table[name].nunique(dropna=False) == 1]
    shown = table.head(most_rows)
    return {
        "rows": len(shown),
        "all_rows": len(table),
        "same": [
            {
                "name": str(name),
                "about": about[str(name)] or "",
                "value": _plain(table[name].iloc[0]),
            }
            for name in same
        ],
        "columns": [
            _column(str(name), shown[name], about[str(name)]) for name in shown if name not in same
        ],
    }


def _column(name: str, values: pd.Series, about: str | None) -> dict[str, Any]:
    kind = _kind(name, values)
    return {
        "name": name,
        "about": about or "",
        "kind": kind,
        "places": places(values.to_numpy(float)) if kind == "number" else 0,
        "values": [_plain(value) for value in values],
    }


def _kind(name: str, values: pd.Series) -> Kind:
    if is_bool_dtype(values):
        return "flag"
    if is_integer_dtype(values):
        return "count"
    if is_float_dtype(values):
        return "number"
    return "token" if name in TOKENS else "text"


def _plain(value: Any) -> Any:
    if pd.isna(value):
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value if isinstance(value, bool | int | float) else str(value)


def places(values: np.ndarray) -> int:
    """Places behind the point, the same for a whole column so that its numbers stand in line."""
    sizes = np.abs(values[np.isfinite(values)])
    largest = float(sizes.max(initial=0.0))
    if largest == 0 or (sizes == np.round(sizes)).all():
        return 0
    return min(PLACES, max(0, DIGITS - 1 - math.floor(math.log10(largest))))


def packed(values: np.ndarray, kind: Literal["<i4", "<f4"]) -> str:
    """An array as base64 of its little-endian bytes."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode("ascii")
