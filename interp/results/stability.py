"""A stability card: would other prompts rank the heads alike, and how many does that take?

    split half   Spearman's correlation between the heads' means over two halves of the prompts: 1 where both
                 rank all heads alike, 0 where the ranking is noise
    top k        share of the k first heads of all N prompts that are among the k first of n < N of them; by
                 chance k / heads
    needed       the smallest n from which on the top k agrees by ``ENOUGH`` or more

Both are means over splits and subsamples drawn at random, without replacement (all there are, if they are no
more than ``N_DRAWS``). ``low`` and ``high`` hold a share ``confidence`` of the draws: how much it depends on
which prompts are taken, and no interval for other prompts, since draws from the same prompts are dependent. A
subsample is part of the whole that it is held against, which flatters it, the more the larger it is. Heads of
the same mean are put in an order drawn anew for every draw: what ties decide is chance.

Drawn are templates where prompts share one, else prompts. Scores are ranked by mean mass, effects by the size
of the mean. No model is asked: a table of values by prompt is enough. What is found on few prompts may not be
found on others (of circuits: Méloux et al., 2510.00845).
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from interp.results import stats
from interp.results.effect_tables import EDITED
from interp.results.score_tables import STABILITY
from interp.results.summaries import HEAD, by_observation
from interp.words import counted

TOP = (1, 3, 5)
ENOUGH = 0.9
N_DRAWS = 200
SPLIT_HALF = "split half"


def stability(per_prompt: pd.DataFrame, *, confidence: float = 0.95, seed: int = 0) -> pd.DataFrame:
    """The card of every ranking in a table of scores (one a role) or of effects (one an edit and metric).

    Args:
        per_prompt: a table as ``tables.PER_PROMPT`` or ``tables.EFFECTS_PER_PROMPT`` describes.
        confidence: share of the draws between ``low`` and ``high``.

    Returns:
        a table as ``tables.STABILITY`` describes; of a ranking that can't be split it holds one row, with
        the reason.
    """
    scores = "mass" in per_prompt
    value, by = ("mass", ["role"]) if scores else ("effect", ["edit", "metric"])
    keys = HEAD if scores else [key for key in EDITED if key in per_prompt]
    cards = []
    for names, rows in per_prompt.groupby(by, sort=False):
        values = by_observation(rows, keys, [value])[value].unstack("observation").to_numpy().T
        card = rank_stability(values, by_size=not scores, confidence=confidence, seed=seed)
        cards.append(card.assign(ranking=", ".join(map(str, names))))
    whole = pd.concat(cards, ignore_index=True).assign(model=per_prompt["model"].iloc[0])
    return STABILITY.validate(whole[list(STABILITY.columns)])


def rank_stability(
    values: Float[np.ndarray, "prompt head"],
    *,
    by_size: bool = False,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """The card of one ranking of columns by their mean: ``tables.STABILITY`` without model and ranking.

    Prompts and heads without any value are left out.

    Args:
        by_size: rank by the size of the mean.
    """
    known = ~np.isnan(values)
    values = values[known.any(1)][:, known.any(0)]
    total, n_heads = values.shape
    rng = np.random.default_rng([seed, 8])
    rows: list[dict[str, object]] = []
    ties = np.random.default_rng([seed, 9])  # of its own: what is drawn does not depend on ties

    def add(measure: str, n: int, agreement: Float[np.ndarray, " draw"], chance: float) -> None:
        found = agreement[~np.isnan(agreement)]
        ends = [(1 - confidence) / 2, (1 + confidence) / 2]
        low, high = np.quantile(found, ends) if len(found) else (np.nan, np.nan)
        mean = found.mean() if len(found) else np.nan
        reason = None if len(found) else _why(total, n_heads)
        rows.append(
            {"measure": measure, "n_prompts": n, "agreement": mean, "low": low, "high": high}
            | {"chance": chance, "n_draws": len(found), "undefined_reason": reason}
        )

    def means(chosen: Bool[np.ndarray, "draw prompt"]) -> Float[np.ndarray, "draw head"]:
        found = stats.weighted_means(chosen.astype(float), values)
        return np.abs(found) if by_size else found

    half = _subsets(total, total // 2, rng)
    add(SPLIT_HALF, total // 2, stats.spearman(means(half), means(~half)), 0.0)
    whole = means(np.ones((1, total), bool))
    sizes = [2**i for i in range(1, total.bit_length()) if 2**i < total]
    drawn = {n: means(_subsets(total, n, rng)) for n in sizes}
    for k in (k for k in TOP if k < n_heads):
        for n, found in drawn.items():
            best = _first(np.broadcast_to(whole, found.shape), k, ties)
            shared = (_first(found, k, ties)[:, :, None] == best[:, None]).any(2).mean(1)
            add(f"top {k}", n, shared, k / n_heads)
    card = pd.DataFrame(rows).assign(n_total=total, n_heads=n_heads)
    card["needed"] = card["measure"].map(lambda name: _needed(card[card["measure"] == name]))
    card["needed"] = card["needed"].where(card["measure"] != SPLIT_HALF).astype("Int64")
    card["undefined_reason"] = card["undefined_reason"].astype("str")
    return card


def summary_card(card: pd.DataFrame) -> pd.DataFrame:
    """A row a ranking for the terminal: split-half agreement, and the prompts that each top k needs.

    Args:
        card: a table as ``tables.STABILITY`` describes.
    """
    rows = []
    for ranking, part in card.groupby("ranking", sort=False):
        first = part.iloc[0]
        row = {"ranking": ranking, "split_half": first.agreement, "low": first.low}
        row |= {"high": first.high}
        for measure, curve in part[part.measure != SPLIT_HALF].groupby("measure", sort=False):
            one = curve.iloc[0]
            row[f"{measure} from"] = (
                f"> {curve.n_prompts.max()}" if pd.isna(one.needed) else one.needed
            )
        rows.append(row)
    return pd.DataFrame(rows)


def _subsets(total: int, n: int, rng: np.random.Generator) -> Bool[np.ndarray, "draw prompt"]:
    """Sets of n out of total: all there are, or as many as ``N_DRAWS`` drawn at random; none if n is 0."""
    if n == 0:
        return np.empty((0, total), bool)
    if comb(total, n) <= N_DRAWS:
        chosen = np.array([*combinations(range(total), n)])
    else:
        chosen = rng.random((N_DRAWS, total)).argsort(1)[:, :n]
    found = np.zeros((len(chosen), total), bool)
    np.put_along_axis(found, chosen, True, axis=1)
    return found


def _first(
    means: Float[np.ndarray, "draw head"], k: int, ties: np.random.Generator
) -> Int[np.ndarray, "draw k"]:
    """The k largest of each draw, ties in random order; what is undefined there comes last."""
    sizes = -np.nan_to_num(means, nan=-np.inf)
    return np.lexsort((ties.random(means.shape), sizes), axis=1)[:, :k]


def _why(total: int, n_heads: int) -> str:
    """Why there is no rank correlation of two halves."""
    if total < 2:
        return f"{counted(total, 'observation')} can't be split"
    if n_heads < 3:
        return f"the ranks of {counted(n_heads, 'head')} can't be correlated; it takes three"
    return "all heads have the same mean in one half"


def _needed(curve: pd.DataFrame) -> float:
    """The smallest number of prompts from which on the agreement is enough; NaN if it is so at none."""
    below = curve.n_prompts[~(curve.agreement >= ENOUGH)]
    left = curve.n_prompts[curve.n_prompts > below.max()] if len(below) else curve.n_prompts
    return float(left.min()) if len(left) else np.nan
