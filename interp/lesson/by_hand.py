"""Attention by hand: one small example, step by step, in numbers that can be checked on paper.

    score[q, k]  = query[q] · key[k]
    scaled[q, k] = score[q, k] / √d_k
    weight[q, k] = exp(scaled[q, k]) / Σ_j exp(scaled[q, j])      over the keys j that q may see
    output[q]    = Σ_k weight[q, k] · value[k]

With the causal mask a query sees the keys up to its own position; queries are the last positions, so that a
single one is the last token's. A query that sees one key gives it weight 1, whatever its score. Axes: queries
(query, d_k), keys (key, d_k), values (key, d_v). All in float64. Source: Vaswani et al. (1706.03762), eq. 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.errors import InterpError
from interp.lesson.tables import BY_HAND, BY_HAND_OUTPUTS

Rows = Sequence[Sequence[float]]

LARGEST = 1e6


class Steps(NamedTuple):
    """Every step of one example."""

    scores: Float[Tensor, "query key"]
    scaled: Float[Tensor, "query key"]
    visible: Bool[Tensor, "query key"]
    weights: Float[Tensor, "query key"]
    values: Float[Tensor, "key d_v"]
    outputs: Float[Tensor, "query d_v"]


def attend(queries: Rows, keys: Rows, values: Rows, *, causal: bool = False) -> Steps:
    """Attention of each query, step by step.

    Raises:
        InterpError: no rows, rows of no or of unequal length, queries and keys of different width, keys and
            values of different number, more queries than keys under the causal mask.
    """
    q, k, v = matrix("queries", queries), matrix("keys", keys), matrix("values", values)
    if q.shape[1] != k.shape[1]:
        raise InterpError(
            f"queries have width {q.shape[1]}, keys have width {k.shape[1]}; expected the same, d_k"
        )
    if len(k) != len(v):
        raise InterpError(f"{len(k)} keys and {len(v)} values; expected a value for each key")
    scores = q @ k.mT
    scaled = scores / math.sqrt(k.shape[1])
    visible, weights = weigh(scaled, causal=causal)
    return Steps(scores, scaled, visible, weights, v, weights @ v)


def weigh(
    scaled: Float[Tensor, "query key"], *, causal: bool
) -> tuple[Bool[Tensor, "query key"], Float[Tensor, "query key"]]:
    """(which keys each query may see, its softmax over them).

    Raises:
        InterpError: more queries than keys under the causal mask.
    """
    n_queries, n_keys = scaled.shape
    if causal and n_queries > n_keys:
        raise InterpError(
            f"{n_queries} queries and {n_keys} keys under the causal mask; expected a key for each query"
        )
    visible = torch.ones_like(scaled, dtype=torch.bool)
    if causal:
        visible = visible.tril(n_keys - n_queries)  # queries are the last positions
    masked = scaled.masked_fill(~visible, -torch.inf)
    exponentials = torch.exp(masked - masked.amax(-1, keepdim=True))  # so that none overflows
    return visible, exponentials / exponentials.sum(-1, keepdim=True)


def matrix(name: str, rows: Rows) -> Float[Tensor, "row column"]:
    """Rows of numbers as a float64 matrix.

    Raises:
        InterpError: none, empty ones, or of unequal length; NaN, or a number above :data:`LARGEST`.
    """
    widths = [len(row) for row in rows]
    if not widths or not widths[0]:
        there = "row 0 is empty" if widths else "there is no row"
        raise InterpError(f"{name}: {there}; expected rows of at least one number")
    for i, width in enumerate(widths):
        if width != widths[0]:
            raise InterpError(
                f"{name}: row {i} has length {width}, row 0 has length {widths[0]}; expected the same"
            )
    wrong = [number for row in rows for number in row if not abs(number) <= LARGEST]
    if wrong:
        raise InterpError(
            f"{name}: {wrong[0]:g}: expected numbers from {-LARGEST:g} to {LARGEST:g}, to be checked on paper"
        )
    return torch.tensor([list(row) for row in rows], dtype=torch.float64)


def steps_table(example: str, steps: Steps, tokens: Sequence[str]) -> pd.DataFrame:
    """A row a query and key, as ``tables.BY_HAND`` describes; ``chance`` is uniform over what it sees.

    Raises:
        InterpError: not a token for each key.
    """
    return _pairs(example, steps.scores, steps.scaled, steps.visible, steps.weights, tokens)


def masked_table(example: str, scores: Rows) -> pd.DataFrame:
    """The same for rows of scores as they are (not scaled), under the causal mask."""
    rows = matrix("masked_scores", scores)
    visible, weights = weigh(rows, causal=True)
    tokens = [str(i) for i in range(rows.shape[1])]
    return _pairs(example, rows, rows, visible, weights, tokens)


def outputs_table(steps: Steps, tokens: Sequence[str]) -> pd.DataFrame:
    """A row a query and dimension of its output, as ``tables.BY_HAND_OUTPUTS`` describes."""
    n_queries, n_keys = steps.scores.shape
    uniform = steps.visible.double() / steps.visible.sum(-1, keepdim=True) @ steps.values
    query, dimension = torch.meshgrid(
        torch.arange(n_queries), torch.arange(steps.outputs.shape[1]), indexing="ij"
    )
    positions = _positions(query, n_keys)
    table = pd.DataFrame(
        {
            "query": positions,
            "query_token": [_token(tokens, position) for position in positions],
            "dimension": dimension.flatten().numpy(),
            "output": steps.outputs.flatten().numpy(),
            "uniform": uniform.flatten().numpy(),
        }
    )
    return BY_HAND_OUTPUTS.validate(table)


def _pairs(
    example: str,
    scores: Tensor,
    scaled: Tensor,
    visible: Tensor,
    weights: Tensor,
    tokens: Sequence[str],
) -> pd.DataFrame:
    n_queries, n_keys = scores.shape
    if len(tokens) != n_keys:
        raise InterpError(f"{len(tokens)} tokens and {n_keys} keys; expected a token for each key")
    query, key = torch.meshgrid(torch.arange(n_queries), torch.arange(n_keys), indexing="ij")
    positions = _positions(query, n_keys)
    table = pd.DataFrame(
        {
            "example": example,
            "query": positions,
            "query_token": [_token(tokens, position) for position in positions],
            "key": key.flatten().numpy(),
            "key_token": [tokens[i] for i in key.flatten().tolist()],
            "score": scores.flatten().numpy(),
            "scaled": scaled.flatten().numpy(),
            "visible": visible.flatten().numpy(),
            "weight": weights.flatten().numpy(),
            "chance": (visible.double() / visible.sum(-1, keepdim=True)).flatten().numpy(),
        }
    )
    return BY_HAND.validate(table)


def _positions(query: Tensor, n_keys: int) -> list[int]:
    """Queries are the last positions; more of them than keys are counted from 0."""
    return (query + max(0, n_keys - len(query))).flatten().tolist()


def _token(tokens: Sequence[str], position: int) -> str:
    return tokens[position] if position < len(tokens) else f"query {position}"
