"""How long prompts must be for their first keys to be taken away: known before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence

# Keys whose mass is told apart.
SHOWN = 8


def least_for_effects(first_keys: Sequence[int], n_random: int) -> int:
    """Tokens, so that a query behind the first keys predicts one, and the control has as many keys.

    Args:
        first_keys: how many of the first keys are taken away, each number in turn.
        n_random: draws of the control, from the first half of the prompt less the first keys; 0: none.
    """
    return 4 * max(first_keys) if n_random else max(first_keys) + 2


def least_for_masses(first_keys: Sequence[int]) -> int:
    """Tokens, so that a query sees the keys told apart and those taken away, and is none of them."""
    return max(SHOWN, *first_keys) + 1
