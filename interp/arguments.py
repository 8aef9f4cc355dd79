"""Numbers that a caller hands over, checked where they come in: counts, positions, shares.

Whole numbers may be of any kind that Python takes for an index (NumPy's, a tensor of one), and series of
them of any kind that can be gone through (a list, a range, an array). Text, fractions and truth values are
none: 1.5 is not cut to 1, and a mask is no series of positions.
"""

from __future__ import annotations

import operator
from typing import Any

from interp.errors import InterpError


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """A whole number as Python's own.

    Raises:
        InterpError: it is none, or below ``least``.
    """
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or (least is not None and found < least):
        more = "" if least is None else f" of {least} or more"
        raise InterpError(f"{name}={value!r:.60}: expected a whole number{more}")
    return found


def whole_numbers(name: str, values: Any) -> tuple[int, ...]:
    """Any series of whole numbers as a tuple.

    Raises:
        InterpError: it is no series, or holds something else.
    """
    try:
        given = list(values)
    except TypeError:
        raise InterpError(
            f"{name}={values!r:.60}: expected whole numbers, such as (0, 2)"
        ) from None
    return tuple(whole_number(name, value) for value in given)


def check_share(name: str, value: float) -> None:
    """Refuse what is not between 0 and 1, such as 95 for 95 %."""
    if not 0 < value < 1:
        raise InterpError(f"{name}={value}: expected a share between 0 and 1, such as 0.95")
