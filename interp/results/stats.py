"""Intervals and tests over prompts. Rows are prompts, columns are heads (or whatever is compared).

- *interval*: percentile bootstrap over prompts (scipy), NaN with fewer than two; of a ratio of two
  means, the same over pairs.
- *sign flips*: one-sided test that paired differences are above 0. Under the null each prompt's
  difference is as likely to have the other sign; with n prompts no p can be below 2⁻ⁿ, and where all
  sign patterns can be listed the test is exact (scipy.stats.permutation_test).
- *false discoveries*: Benjamini–Hochberg over all heads (statsmodels). Heads share prompts, so their
  p-values are dependent; BH holds under positive dependence, Benjamini–Yekutieli under any.

- *rank agreement*: Spearman's correlation between the means of two quantities, with a bootstrap interval
  over prompts in which both rankings are made anew.

NaN marks a prompt on which a value is undefined: it is left out, never counted as 0.
"""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy import stats as scipy_stats

from interp.arguments import check_share, whole_number

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
    _check(confidence, seed)
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


def _check(confidence: float, seed: int) -> None:
    check_share("confidence", confidence)
    whole_number("seed", seed, least=0)


def ratio_interval(
    numerator: Float[np.ndarray, "prompt column"],
    denominator: Float[np.ndarray, "prompt column"],
    *,
    confidence: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> tuple[
    Float[np.ndarray, " column"], Float[np.ndarray, " column"], Float[np.ndarray, " column"]
]:
    """(ratio, low, high) of each column's ratio of means over prompts, percentile bootstrap.

    All three are NaN where the interval of the denominator's mean holds 0, or its mean is 0: a ratio to
    something that may be nothing is undefined. With one prompt there is a ratio but no interval.
    """
    _check(confidence, seed)
    known = ~(np.isnan(numerator) | np.isnan(denominator))
    numerator, denominator = (np.where(known, part, np.nan) for part in (numerator, denominator))
    ratio, low, high = (np.full(numerator.shape[1], np.nan) for _ in range(3))
    for rows, columns in _complete_blocks(numerator):
        above, below = (part[np.ix_(rows, columns)] for part in (numerator, denominator))
        means = [part.mean(0) for part in (above, below)]
        defined = np.abs(means[1]) > 1e-9
        if len(rows) > 1:
            one = _resampled_means(len(rows), resamples, seed)
            shares = np.array([(1 - confidence) / 2, (1 + confidence) / 2])
            for start in range(0, len(columns), 500):  # resamples × columns are held at a time
                part = slice(start, start + 500)
                tops, bottoms = one @ above[:, part], one @ below[:, part]
                edges = np.quantile(bottoms, shares, axis=0)
                defined[part] &= (edges[0] > 0) | (edges[1] < 0)
                with np.errstate(divide="ignore", invalid="ignore"):
                    found = np.quantile(tops / bottoms, shares, axis=0)
                low[columns[part]], high[columns[part]] = np.where(defined[part], found, np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio[columns] = np.where(defined, means[0] / means[1], np.nan)
    return ratio, low, high


def resampled_ratios(
    numerator: Float[np.ndarray, "prompt column"],
    denominator: Float[np.ndarray, "prompt column"],
    *,
    resamples: int = 2_000,
    seed: int = 0,
) -> Float[np.ndarray, "resample column"]:
    """Ratios of means in bootstrap samples over prompts, those of :func:`ratio_interval`, side by side.

    For what is worked out from several columns of one sample; every value must be defined.
    """
    weights = _resampled_means(len(numerator), resamples, seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (weights @ numerator) / (weights @ denominator)


def _resampled_means(n: int, resamples: int, seed: int) -> Float[np.ndarray, "resample prompt"]:
    """Weights that give the mean of each bootstrap sample of n prompts."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(n, np.full(n, 1 / n), size=resamples) / n


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


def two_sided_p(
    differences: Float[np.ndarray, "prompt column"], *, seed: int = 0
) -> Float[np.ndarray, " column"]:
    """Two-sided p that each column's mean is not 0: twice the smaller of both :func:`sign_flip_p`."""
    above, below = (sign_flip_p(sign * differences, seed=seed) for sign in (1, -1))
    return np.minimum(1, 2 * np.minimum(above, below))


def spearman(a: Float[np.ndarray, " column"], b: Float[np.ndarray, " column"]) -> float:
    """Rank correlation; NaN where fewer than three columns are defined in both, or one does not vary."""
    known = ~(np.isnan(a) | np.isnan(b))
    a, b = a[known], b[known]
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(scipy_stats.spearmanr(a, b).statistic)


def spearman_interval(
    a: Float[np.ndarray, "prompt column"],
    b: Float[np.ndarray, "prompt column"],
    *,
    absolute: tuple[bool, bool] = (False, False),
    confidence: float = 0.95,
    resamples: int = 1_000,
    seed: int = 0,
) -> tuple[float, float, float]:
    """(rank correlation, low, high) between the means of two quantities over the same prompts.

    The interval is a percentile bootstrap over prompts: both rankings are made anew from each resample.

    Args:
        absolute: whether to rank by the size of the mean of a, of b.
    """
    _check(confidence, seed)

    def ranked(means: Float[np.ndarray, "*resample column"], size: bool) -> np.ndarray:
        return np.abs(means) if size else means

    def correlation(x: np.ndarray, y: np.ndarray) -> float:
        return spearman(ranked(x, absolute[0]), ranked(y, absolute[1]))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column that is undefined in all prompts
        whole = correlation(np.nanmean(a, axis=0), np.nanmean(b, axis=0))
    if len(a) < 2 or np.isnan(whole):
        return whole, float("nan"), float("nan")
    weights = _resampled_means(len(a), resamples, seed)
    x, y = (_weighted_means(weights, part) for part in (a, b))
    found = [correlation(one, other) for one, other in zip(x, y, strict=True)]
    low, high = np.nanquantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return whole, float(low), float(high)


def _weighted_means(
    weights: Float[np.ndarray, "resample prompt"], values: Float[np.ndarray, "prompt column"]
) -> Float[np.ndarray, "resample column"]:
    """Means over the prompts that are defined for a column; NaN where a resample holds none."""
    known = ~np.isnan(values)
    share = weights @ known.astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(share > 0, weights @ np.where(known, values, 0.0) / share, np.nan)


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
