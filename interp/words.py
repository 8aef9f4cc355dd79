"""Counts in words."""

from typing import SupportsIndex


def counted(n: SupportsIndex, what: str) -> str:
    """`1 prompt`, `2 prompts`: a number and what it counts.

    Args:
        n: how many, an integer of Python or numpy.
        what: one of them; several have an s behind it.
    """
    return f"{n} {what}{'' if n == 1 else 's'}"
