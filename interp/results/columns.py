"""Columns that many tables have: pandera's, each with what it means."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandera.pandas as pa

KEYS = {
    "model": pa.Column(str, description="name the model was loaded by"),
    "layer": pa.Column(int, pa.Check.ge(0), description="layer, from 0"),
    "head": pa.Column(int, pa.Check.ge(0), description="query head, from 0"),
    "role": pa.Column(str, description="what the head was scored for: see interp/scoring/roles.py"),
}


def share(description: str) -> pa.Column:
    """A column of numbers from 0 to 1, or undefined."""
    check = pa.Check.in_range(-1e-4, 1 + 1e-4)
    return pa.Column(float, check, nullable=True, description=description)


def or_none(description: str) -> pa.Column:
    """A column of numbers that may be undefined."""
    return pa.Column(float, nullable=True, description=description)


def count(description: str, least: int = 1) -> pa.Column:
    """A column of whole numbers of that size or more."""
    return pa.Column(int, pa.Check.ge(least), description=description)


def ends(
    name: str, description: str, column: Callable[[str], pa.Column] = or_none
) -> dict[str, pa.Column]:
    """The two columns of an interval or range: NAME_low and NAME_high."""
    return {f"{name}_{end}": column(f"{description}, {end} end") for end in ("low", "high")}


def is_p_value(name: str) -> bool:
    """Whether a column holds p-values, or what is made of them: p, q, p_control, q_mass."""
    return name.partition("_")[0] in ("p", "q")


def contract(
    columns: Mapping[str, pa.Column],
    *,
    name: str,
    unique: list[str] | None = None,
    checks: pa.Check | None = None,
    ordered: bool = True,
) -> pa.DataFrameSchema:
    """A table's contract: these columns and no others, in this order unless told otherwise.

    Args:
        unique: columns in which no two rows agree.
        checks: of whole tables.
        name: of the table.
    """
    return pa.DataFrameSchema(
        dict(columns), strict=True, ordered=ordered, unique=unique, checks=checks, name=name
    )
