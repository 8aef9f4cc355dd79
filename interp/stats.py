"""Intervals and tests over prompts. Rows are prompts, columns are heads (or whatever is compared).

- *interval*: percentile bootstrap over prompts (scipy), NaN with fewer than two.
- *sign flips*: one-sided test that paired differences are above 0. Under the null each prompt's
  difference is as likely to have the other sign; with n prompts no p can be below 2⁻ⁿ, and where all
  sign patterns can be listed the test is exact (scipy.stats.permutation_test).
- *false discoveries*: Benjamini–Hochberg over all heads (statsmodels). Heads share prompts, so their
  p-values are dependent; BH holds under positive dependence, Benjamini–Yekutieli under any.

NaN marks a prompt on which a value is undefined: it is left out, never counted as 0.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy import stats as scipy_stats

# All sign patterns of up to 13 prompts; beyond that as many are drawn at random.
SIGN_PATTERNS = 9_999


def bootstrap_interval(
    values: Float[np.ndarray, "prompt column"],
    *,
    confidence: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> tuple[Float[np.ndarray, " column"], Float[np.ndarray, " column"]]:
    """(low, high) percentile bootstrap interval of each column's mean over prompts."""
    low, high = (np.full(values.shape[1], np.nan) for _ in range(2))
    for rows, columns in _complete_blocks(values):
        if len(rows) < 2:
            continue
        block = values[np.ix_(rows, columns)]
        interval = scipy_stats.bootstrap(
            (block,),
            np.mean,
            axis=0,
            vectorized=True,
            confidence_level=confidence,
            n_resamples=resamples,
            method="percentile",
            # Chunks of resamples, so that memory stays near 100 MB whatever the number of heads.
            batch=max(1, 10_000_000 // block.size),
            rng=np.random.default_rng(seed),
        ).confidence_interval
        low[columns], high[columns] = interval.low, interval.high
    return low, high


def sign_flip_p(
    differences: Float[np.ndarray, "prompt column"], *, seed: int = 0
) -> Float[np.ndarray, " column"]:
    """One-sided p that each column's mean is above 0, by flipping signs; NaN below two prompts."""
    p = np.full(differences.shape[1], np.nan)
    for rows, columns in _complete_blocks(differences):
        if len(rows) < 2:
            continue
        block = differences[np.ix_(rows, columns)]
        p[columns] = scipy_stats.permutation_test(
            (block,),
            np.mean,
            permutation_type="samples",
            alternative="greater",
            vectorized=True,
            axis=0,
            n_resamples=SIGN_PATTERNS,
            batch=max(1, 10_000_000 // block.size),
            rng=np.random.default_rng(seed),
        ).pvalue
    return p


def smallest_p(n_prompts: int) -> float:
    """The smallest p that :func:`sign_flip_p` can give with so many prompts."""
    return max(2.0**-n_prompts, 1 / (SIGN_PATTERNS + 1))


def false_discovery_q(
    p: Float[np.ndarray, " column"], method: Literal["bh", "by"] = "bh"
) -> Float[np.ndarray, " column"]:
    """Benjamini–Hochberg ("bh") or –Yekutieli ("by") adjusted p; an undefined p stays undefined."""
    from statsmodels.stats.multitest import multipletests

    q = np.full(p.shape, np.nan)
    known = ~np.isnan(p)
    if known.any():
        q[known] = multipletests(p[known], method=f"fdr_{method}")[1]
    return q


def _complete_blocks(values: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Columns grouped by which prompts are defined for them: (rows, columns), nothing missing inside."""
    if not values.shape[1]:
        return []
    known = ~np.isnan(values)
    patterns, group = np.unique(known, axis=1, return_inverse=True)
    return [
        (np.flatnonzero(patterns[:, i]), np.flatnonzero(group.ravel() == i))
        for i in range(patterns.shape[1])
    ]
