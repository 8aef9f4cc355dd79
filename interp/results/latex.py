"""A table for a paper: LaTeX with booktabs' rules, the first rows of each role, numbers with intervals.

    0.91 [0.89, 0.93]      a number and its interval: NAME, NAME_low, NAME_high, or ci_low, ci_high behind it
    1.2 × 10^-5            where three places behind the point would say 0
    --                     undefined; the caption says so
    ␣the                   a token: spaces are seen, ends of lines are \\n

Columns that are the same in all rows are left to the caption. Written by pandas' Styler.
"""

from __future__ import annotations

import math
from functools import partial

import pandas as pd

from interp.results.columns import is_p_value
from interp.results.tables import TOKENS

UNDEFINED = "--"
LEAST = 0.0005
"""Numbers nearer to 0 are written as powers of ten."""
_UNWANTED = ("undefined_reason", "attention_path", "n_undefined")
_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    # In the fonts that LaTeX takes by itself these would come out as other characters.
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "−": "$-$",
    "␣": r"\textvisiblespace{}",
} | {character: rf"\{character}" for character in "&%$#_{}"}


def as_latex(table: pd.DataFrame, *, top: int = 10, caption: str = "", label: str = "") -> str:
    """The first rows of a table as a LaTeX float; needs \\usepackage{booktabs}.

    Args:
        table: as `tables.read` gives it, best first.
        top: rows kept; of each role, where the table has several.
        caption: text; it is escaped. What is the same in all rows and how many rows there are is added.
        label: of \\label.

    Returns:
        The source. Text is escaped, so that a token such as ``%`` or ``\\`` is shown as it is.
    """
    groups = ["role"] if "role" in table and table["role"].nunique() > 1 else []
    shown = table.groupby(groups, sort=False).head(top) if groups else table.head(top)
    shown = shown.drop(columns=[name for name in _UNWANTED if name in shown])
    shown = shown.dropna(axis="columns", how="all")
    same = {name: shown[name].iloc[0] for name in shown if _is_said_once(shown[name])}
    cells = _cells(shown.drop(columns=[*same]))
    said = [escape(f"{name} {value}") for name, value in same.items()]
    if len(shown) < len(table):
        said.append(f"{len(shown)} of {len(table)} rows")
    if cells.isin([UNDEFINED]).any(axis=None):
        said.append(f"{UNDEFINED}: undefined")
    whole = ". ".join(part for part in (escape(caption.rstrip(".")), "; ".join(said)) if part)
    numbers = "".join("l" if _is_text(shown[name]) else "r" for name in cells)
    cells.columns = [escape(name) for name in cells.columns]
    return cells.style.hide(axis="index").to_latex(
        hrules=True,
        column_format=numbers,
        position="tb",
        position_float="centering",
        caption=whole + ".",
        label=label or None,
    )


def escape(text: str) -> str:
    """Text as LaTeX shows it unchanged."""
    shown = "".join(_ESCAPES.get(character, character) for character in text)
    return shown.replace("--", "-{}-")  # two hyphens are no dash


def _is_said_once(column: pd.Series) -> bool:
    """Whether it goes into the caption: text or counts that are the same all the way down."""
    once = len(column) > 1 and column.nunique(dropna=False) == 1
    return (
        once and (column.name not in ("layer", "head")) and not pd.api.types.is_float_dtype(column)
    )


def _cells(shown: pd.DataFrame) -> pd.DataFrame:
    """The same as LaTeX, every number beside its interval."""
    names = [str(name) for name in shown]
    ends = {
        name: (f"{name}_low", f"{name}_high")
        for name in names
        if f"{name}_low" in names and f"{name}_high" in names
    }
    if "ci_low" in names:  # of the number that stands before it
        ends[names[names.index("ci_low") - 1]] = ("ci_low", "ci_high")
    within = {end for pair in ends.values() for end in pair}
    found = {}
    for name in names:
        if name in within:
            continue
        write = _token if name in TOKENS else partial(_number, as_p=is_p_value(name))
        column = [write(value) for value in shown[name]]
        if name in ends:
            low, high = (shown[end] for end in ends[name])
            column = [
                cell if math.isnan(a) or math.isnan(b) else f"{cell} [{_number(a)}, {_number(b)}]"
                for cell, a, b in zip(column, low, high, strict=True)
            ]
        found[name] = column
    return pd.DataFrame(found)


def _number(value: object, as_p: bool = False) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return UNDEFINED
    if not isinstance(value, float):
        return escape(str(value))
    size = abs(value)
    if math.isinf(value):
        return r"$\infty$" if value > 0 else r"$-\infty$"
    small = as_p or 0 < size < LEAST
    digits = ".2g" if small else ".3f" if size < 1 else ".2f" if size < 1000 else ",.0f"
    digit, _, exponent = f"{value:{digits}}".replace("-", "$-$", value < 0).partition("e")
    return rf"{digit} $\times 10^{{{int(exponent)}}}$" if exponent else digit


def _token(token: str) -> str:
    seen = (character if character.isprintable() else repr(character)[1:-1] for character in token)
    return escape("".join(seen).replace(" ", "␣"))


def _is_text(column: pd.Series) -> bool:
    return not pd.api.types.is_numeric_dtype(column)
