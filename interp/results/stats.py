"""Intervals and tests over prompts. Rows are prompts, columns are heads (or whatever is compared).

Rows are independent observations: where prompts share a template, its mean is the row.

- *interval*: percentile bootstrap over prompts (scipy), NaN with fewer than two; of a ratio of two
  means, the same over pairs. With few prompts it is too short: see tests/results/test_stats.py.
- *sign flips*: test that paired differences are above 0 (one-sided), or not 0 (two-sided). Under the null
  each prompt's difference is as likely to have the other sign; with n prompts no one-sided p can be below
  2⁻ⁿ. Exact for up to 16 prompts, by all their sign patterns; beyond that 99,999 are drawn. One matrix
  product for all columns: several times as fast as scipy.stats.permutation_test, which the tests hold
  it against.
- *false discoveries*: Benjamini–Hochberg or –Yekutieli over all heads (statsmodels). Heads share prompts,
  so their p-values are dependent; BH holds under positive dependence, BY under any, at the price of a
  factor Σ 1/j (5.55 for 144 heads).
- *too few prompts*: the smallest p, times the number of tests, is the q that a single real effect reaches
  at best; :class:`Family` says so before anything is run.
- *rank agreement*: Spearman's correlation between the means of two quantities, with a bootstrap interval
  over prompts in which both rankings are made anew. Noise in means weakens a correlation, and resampling adds
  as much noise again, so that percentiles lie too low: the interval is symmetric (Hall 1988), as far to both
  sides as a share `confidence` of the resamples is from the correlation found.

NaN marks a prompt on which a value is undefined: it is left out, never counted as 0. Infinity is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float
from scipy import stats as scipy_stats

from interp.arguments import check_share, whole_number
from interp.errors import InterpError
from interp.words import counted

Sides = Literal[1, 2]
Correction = Literal["bh", "by"]
"""How false discoveries are held: Benjamini–Hochberg, or Benjamini–Yekutieli."""
LEVEL = 0.05
# All sign patterns of up to 16 prompts; beyond that as many are drawn at random.
SIGN_PATTERNS = 99_999


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


def over_templates(
    values: Float[np.ndarray, "prompt column"], templates: Sequence[str]
) -> Float[np.ndarray, "template column"]:
    """Means over the prompts of each template, in the order in which templates first come."""
    found: dict[str, list[int]] = {}
    for row, template in enumerate(templates):
        found.setdefault(template, []).append(row)
    return np.stack([values[rows].mean(0) for rows in found.values()])


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
    _refuse_infinite(denominator)
    known = ~(np.isnan(numerator) | np.isnan(denominator))
    numerator, denominator = (np.where(known, part, np.nan) for part in (numerator, denominator))
    ratio, low, high = (np.full(numerator.shape[1], np.nan) for _ in range(3))
    for rows, columns in _complete_blocks(numerator):
        if not len(rows):
            continue
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
    above, _ = _both_tails(differences, seed)
    return above


def two_sided_p(
    differences: Float[np.ndarray, "prompt column"], *, seed: int = 0
) -> Float[np.ndarray, " column"]:
    """Two-sided p that each column's mean is not 0: twice the smaller of both one-sided."""
    above, below = _both_tails(differences, seed)
    return np.minimum(1, 2 * np.minimum(above, below))


def _both_tails(
    differences: Float[np.ndarray, "prompt column"], seed: int
) -> Float[np.ndarray, "2 column"]:
    """Shares of sign patterns that give a sum as large, and as small, as the one found.

    Among drawn patterns the one found counts too, so that no p is 0 (Phipson & Smyth, 1603.05766).
    """
    p = np.full((2, differences.shape[1]), np.nan)
    for rows, columns in _complete_blocks(differences):
        if len(rows) < 2:
            continue
        block = differences[np.ix_(rows, columns)]
        found = block.sum(0)
        slack = 1e-12 * np.abs(block).sum(0)  # sums that differ by rounding are ties
        counts = np.zeros((2, len(columns)))
        # Chunks of patterns, so that memory stays near 100 MB whatever the number of heads.
        for signs in _sign_patterns(len(rows), 10_000_000 // max(block.shape) + 1, seed):
            sums = signs @ block
            counts += (sums >= found - slack).sum(0), (sums <= found + slack).sum(0)
        exact = _listed(len(rows))
        p[:, columns] = counts / 2 ** len(rows) if exact else (1 + counts) / (1 + SIGN_PATTERNS)
    return p


def _listed(n_prompts: int) -> bool:
    """Whether all sign patterns are gone through."""
    return 2**n_prompts <= SIGN_PATTERNS + 1


def _sign_patterns(
    n_prompts: int, chunk: int, seed: int
) -> Iterator[Float[np.ndarray, "pattern prompt"]]:
    """All patterns of +1 and −1, or as many as ``SIGN_PATTERNS`` drawn at random, some at a time."""
    rng = np.random.default_rng(seed)
    total = 2**n_prompts if _listed(n_prompts) else SIGN_PATTERNS
    for start in range(0, total, chunk):
        count = min(chunk, total - start)
        if _listed(n_prompts):
            bits = np.arange(start, start + count)[:, None] >> np.arange(n_prompts) & 1
        else:
            bits = rng.integers(0, 2, (count, n_prompts), dtype=np.int8)
        yield 2.0 * bits - 1


def spearman(
    a: Float[np.ndarray, "*ranking column"], b: Float[np.ndarray, "*ranking column"]
) -> Float[np.ndarray, "*ranking"]:
    """Rank correlations along the last axis; NaN where fewer than three columns are defined in both, or one
    does not vary."""
    known = ~(np.isnan(a) | np.isnan(b))
    ranks = [
        scipy_stats.rankdata(np.where(known, part, np.nan), axis=-1, nan_policy="omit")
        for part in (a, b)
    ]
    n = known.sum(-1, keepdims=True)
    x, y = (np.where(known, part - (n + 1) / 2, 0.0) for part in ranks)
    spread = np.sqrt((x**2).sum(-1) * (y**2).sum(-1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((n[..., 0] > 2) & (spread > 0), (x * y).sum(-1) / spread, np.nan)


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

    The interval is a symmetric bootstrap over prompts: both rankings are made anew from each resample. It is
    NaN where no resample has a correlation.

    Args:
        absolute: whether to rank by the size of the mean of a, of b.
    """
    _check(confidence, seed)

    def ranked(means: Float[np.ndarray, "*resample column"], size: bool) -> np.ndarray:
        return np.abs(means) if size else means

    def correlation(
        x: Float[np.ndarray, "*resample column"], y: Float[np.ndarray, "*resample column"]
    ) -> Float[np.ndarray, "*resample"]:
        return spearman(ranked(x, absolute[0]), ranked(y, absolute[1]))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column that is undefined in all prompts
        whole = float(correlation(np.nanmean(a, axis=0), np.nanmean(b, axis=0)))
    if len(a) < 2 or np.isnan(whole):
        return whole, float("nan"), float("nan")
    weights = _resampled_means(len(a), resamples, seed)
    found = correlation(*(weighted_means(weights, part) for part in (a, b)))
    distances = np.abs(found - whole)[~np.isnan(found)]
    away = float(np.quantile(distances, confidence)) if len(distances) else float("nan")
    return whole, max(-1.0, whole - away), min(1.0, whole + away)


def weighted_means(
    weights: Float[np.ndarray, "resample prompt"], values: Float[np.ndarray, "prompt column"]
) -> Float[np.ndarray, "resample column"]:
    """Means over the prompts that are defined for a column; NaN where a resample holds none."""
    known = ~np.isnan(values)
    share = weights @ known.astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(share > 0, weights @ np.where(known, values, 0.0) / share, np.nan)


def smallest_p(n_prompts: int, *, sides: Sides = 1) -> float:
    """The smallest p that sign flips can give with so many prompts, one- or two-sided."""
    return min(1.0, sides * max(2.0**-n_prompts, 1 / (SIGN_PATTERNS + 1)))


@dataclass(frozen=True)
class Family:
    """A family of sign-flip tests, false discoveries held over all of it: what it can show at best.

    Attributes:
        count: how many tests, such as one a head.
        sides: of each: 1, above 0; 2, not 0.
        correction: "bh" or "by".
    """

    count: int
    sides: Sides = 1
    correction: Correction = "bh"

    def smallest_q(self, n_prompts: int) -> float:
        """The q of a single real effect that no prompt speaks against, where the p of all others are 1."""
        p = np.ones(self.count)
        p[0] = smallest_p(n_prompts, sides=self.sides)
        return float(false_discovery_q(p, self.correction)[0])

    def prompts_needed(self, level: float = LEVEL) -> int | None:
        """The fewest prompts with which such an effect reaches q < level; None: with no number it does."""
        # One more prompt than can be listed has the smallest p there is.
        enough = range(2, SIGN_PATTERNS.bit_length() + 1)
        return next((n for n in enough if self.smallest_q(n) < level), None)

    def too_few(self, n_prompts: int, unit: str = "prompt", level: float = LEVEL) -> str | None:
        """What so few prompts can't show and how many would, in one line; None if they are enough, or
        nothing is tested.

        Args:
            unit: what is flipped: "prompt", or "template" where prompts share one.
        """
        if self.count == 0:
            return None
        q, needed = self.smallest_q(n_prompts), self.prompts_needed(level)
        if n_prompts > 1 and q < level:
            return None
        cure = f"take {needed} {unit}s or more"
        if needed is None:
            cure = f"no number of {unit}s is enough, for no p is below {self.sides / (SIGN_PATTERNS + 1):.2g}"
        smallest = f"no p is below {smallest_p(n_prompts, sides=self.sides):.2g}"
        return (
            f"with {counted(n_prompts, unit)} "
            f"{smallest if n_prompts > 1 else 'nothing can be tested'}; a single real effect among "
            f"{counted(self.count, 'test')} can't reach q < {level:g} ({self.correction.upper()}: at best "
            f"{q:.2g}): {cure}"
        )


def false_discovery_q(
    p: Float[np.ndarray, " column"], correction: Correction = "bh"
) -> Float[np.ndarray, " column"]:
    """Benjamini–Hochberg ("bh") or –Yekutieli ("by") adjusted p; an undefined p stays undefined.

    Raises:
        InterpError: another correction.
    """
    from statsmodels.stats.multitest import multipletests

    check_correction(correction)
    q = np.full(p.shape, np.nan)
    known = ~np.isnan(p)
    if known.any():
        q[known] = multipletests(p[known], method=f"fdr_{correction}")[1]
    return q


def check_correction(correction: str) -> None:
    """Refuse what is neither "bh" nor "by"."""
    if correction not in get_args(Correction):
        raise InterpError(f"correction={correction!r}: expected bh or by")


def _refuse_infinite(values: np.ndarray) -> None:
    if np.isinf(values).any():
        raise InterpError("values: some are infinite; expected numbers, or NaN where undefined")


def _complete_blocks(values: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Columns grouped by which prompts are defined for them: (rows, columns), nothing missing inside."""
    if not values.shape[1]:
        return []
    _refuse_infinite(values)
    known = ~np.isnan(values)
    patterns, group = np.unique(known, axis=1, return_inverse=True)
    return [
        (np.flatnonzero(patterns[:, i]), np.flatnonzero(group.ravel() == i))
        for i in range(patterns.shape[1])
    ]
