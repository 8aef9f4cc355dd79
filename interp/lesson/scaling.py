"""Why scores are divided by √d_k: without it the softmax of wide vectors lets one key win.

    score = Σ_i q_i k_i,  q_i and k_i independent with mean 0 and variance 1:  variance d_k, deviation √d_k

    largest weight   max_k weight[k]                      uniform over n keys: 1 / n    one key wins: 1
    entropy          −Σ_k weight[k] log weight[k], nats                        log n                  0
    gradient         Σ_k ∂weight[k] / ∂score[k] = 1 − Σ_k weight[k]²           1 − 1 / n              0

The last is the trace of the softmax's Jacobian: where one key has won, no score moves any weight, and nothing
is learnt from where one looks. Source: Vaswani et al. (1706.03762), section 3.2.1 and footnote 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InterpError
from interp.lesson.tables import SCALING
from interp.results import stats
from interp.runs.environment import available_memory

SCALINGS = ("1/√d_k", "none")


def softmax_of_random(
    d_k: Sequence[int],
    *,
    n_keys: int = 64,
    n_draws: int = 400,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """What softmax does to scores of random vectors, with and without the scaling, for each d_k.

    Each draw is a query and its own ``n_keys`` keys, all of standard normal numbers; the same draws serve
    both scalings.

    Returns:
        a table as ``tables.SCALING`` describes, with intervals over draws.

    Raises:
        InterpError: a d_k below 1, fewer than 2 keys or draws, or more numbers than there is memory for.
    """
    if min(d_k, default=0) < 1:
        raise InterpError(f"d_k={list(d_k)}: expected widths of 1 or more")
    if n_keys < 2 or n_draws < 2:
        raise InterpError(f"n_keys={n_keys}, n_draws={n_draws}: expected 2 or more of each")
    # Of each key its vector, and some ten numbers of 8 bytes on the way from its score to a gradient.
    needed, there = n_draws * n_keys * (4 * max(d_k) + 80), available_memory()
    if there is not None and needed > there:
        raise InterpError(
            f"d_k={max(d_k)}, n_keys={n_keys}, n_draws={n_draws}: the keys take {needed / 1e9:.1f} GB, and "
            f"{there / 1e9:.1f} GB are free; take smaller numbers"
        )
    tables = []
    for d in d_k:
        generator = torch.Generator().manual_seed(seed)
        query = torch.randn(n_draws, 1, d, generator=generator)
        key = torch.randn(n_draws, n_keys, d, generator=generator)
        scores = (key @ query.mT)[..., 0].double()
        for scaling, factor in zip(SCALINGS, (1 / math.sqrt(d), 1.0), strict=True):
            of_draws = quantities(scores * factor)
            values = np.stack([column.numpy() for column in of_draws.values()], axis=1)
            low, high = stats.bootstrap_interval(values, confidence=confidence, seed=seed)
            expected = {
                "variance": d * factor**2,
                "largest_weight": 1 / n_keys,
                "entropy": math.log(n_keys),
                "gradient": 1 - 1 / n_keys,
            }
            table = pd.DataFrame(
                {"quantity": [*of_draws], "value": values.mean(0), "ci_low": low, "ci_high": high}
            )
            table["reference"] = table.quantity.map(expected)
            tables.append(table.assign(d_k=d, scaling=scaling, n_keys=n_keys, n_draws=n_draws))
    whole = pd.concat(tables, ignore_index=True)
    return SCALING.validate(whole[list(SCALING.columns)])


def quantities(scores: Float[Tensor, "draw key"]) -> dict[str, Float[Tensor, " draw"]]:
    """The variance of the scores (about 0, which is their mean) and what softmax makes of them."""
    weights = scores.softmax(-1)
    return {
        "variance": scores.square().mean(-1),
        "largest_weight": weights.amax(-1),
        "entropy": -torch.xlogy(weights, weights).sum(-1),
        "gradient": 1 - weights.square().sum(-1),
    }
