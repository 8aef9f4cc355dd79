"""How much of what the model does to a task is done by a set of heads.

    f(S) = (m(S) − m(∅)) / (m(M) − m(∅))      m: the metric's mean over templates; M: all heads; ∅: none

    f = 1: as the whole model; 0: as with no head at all; below 0 and above 1 are possible (heads that work
    against the others are left out). f(S) is *faithfulness*; ``without`` is f(M ∖ S), what is left if only
    the set is taken away (0: nothing else would do; near 1: nothing is lost, the set is not needed).

Where the bootstrap interval of m(M) − m(∅) holds 0 nothing is there to be explained: undefined, NaN.

    p           share of random sets (as many heads in every layer) whose f is at least as near to 1
    p_without   share of random sets whose loss leaves f at most as large
    CPR = ∫ f dk,  CMD = ∫ |1 − f| dk          trapezoids over growing sets, k: share of all heads, from
                                               the smallest to 1 (MIB, 2504.13151, there of edges)

A set as good as the model from the smallest share on has CPR = 1 − smallest share and CMD = 0. Both weigh
what happens at half of all heads far more than a small circuit. Every p is (1 + as good) / (1 + drawn),
so that it is never 0 (Phipson & Smyth, 1603.05766). Intervals are percentile bootstraps over templates, of
the ratio or of the whole curve: heads and random sets are held.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.figure import Figure

from interp.circuits.faithfulness_figure import growing_and_named
from interp.errors import InterpError
from interp.results import stats
from interp.results.findings import Findings
from interp.results.tables import FAITHFULNESS_AREAS, HEAD_SETS

UNDEFINED = "the interval of metric(all heads) − metric(no heads) holds 0"
ONE_SIZE = "all growing sets are of one size"
ASKED = ["model", "task", "edit", "metric"]
SHORT = ["set", "size", "faithfulness", "ci_low", "ci_high", "random", "p"]
SHORT += ["without", "random_without", "p_without"]
"""Columns of a short table."""


class Faithfulness(Findings):
    """What sets of heads do, alone and taken away, summed up as ``tables.HEAD_SETS`` in their order."""

    @cached_property
    def summary(self) -> pd.DataFrame:
        """The faithfulness of each set; see :func:`summarise`."""
        return summarise(self.per_prompt)

    @cached_property
    def areas(self) -> pd.DataFrame:
        """CPR and CMD of growing sets; see :func:`areas`."""
        return areas(self.per_prompt)

    def top(self, n: int = 10) -> pd.DataFrame:
        """The first ``n`` sets in short."""
        return self.summary[SHORT].head(n)

    def figure(self) -> Figure:
        """Growing sets as curves, named ones as bars, beside random sets.

        Raises:
            InterpError: no growing sets.
        """
        return growing_and_named(self.summary, self.areas)


def summarise(per_prompt: pd.DataFrame, *, confidence: float = 0.95, seed: int = 0) -> pd.DataFrame:
    """The faithfulness of each set and of what is left without it, beside random sets.

    Args:
        per_prompt: as ``tables.HEAD_SETS_PER_PROMPT`` describes.
        confidence: of the intervals, and the share of random sets between ``random_low`` and ``random_high``.

    Returns:
        a table as ``tables.HEAD_SETS`` describes, in the order of the sets.
    """
    of = _explained(per_prompt)
    shape = of.above.shape[1:]
    gap = np.broadcast_to(of.gap[:, None], (len(of.gap), int(np.prod(shape))))
    found = stats.ratio_interval(of.above.reshape(gap.shape), gap, confidence=confidence, seed=seed)
    f, low, high = (part.reshape(shape) + 0.0 for part in found)  # 0 over a gap below 0 is 0 too
    table = of.sets.assign(**_same(per_prompt), n_random=shape[1] - 1)
    for kept, column, ends in ((0, "faithfulness", "ci"), (1, "without", "without")):
        table[column] = f[:, 0, kept]
        table[f"{ends}_low"], table[f"{ends}_high"] = low[:, 0, kept], high[:, 0, kept]
        table = table.assign(**_random(f[:, :, kept], "_without" * kept, confidence))
    table["p"] = _p(np.abs(1 - f[:, :, 0]))
    table["p_without"] = _p(f[:, :, 1])
    table["no_heads"], table["all_heads"] = of.none.mean(), (of.none + of.gap).mean()
    table["value"] = table["no_heads"] + of.above[:, :, 0, 0].mean(0)
    table["undefined_reason"] = table["faithfulness"].isna().map({True: UNDEFINED, False: None})
    table["undefined_reason"] = table["undefined_reason"].astype("str")
    return HEAD_SETS.validate(table[list(HEAD_SETS.columns)])


def areas(per_prompt: pd.DataFrame, *, confidence: float = 0.95, seed: int = 0) -> pd.DataFrame:
    """CPR and CMD of the growing sets, beside those of growing random sets.

    Returns:
        a table as ``tables.FAITHFULNESS_AREAS`` describes, of two rows; undefined if there is one size.

    Raises:
        InterpError: no growing sets.
    """
    of = _explained(per_prompt[(per_prompt["family"] == "growing") | (per_prompt["size"] == 0)])
    if not len(of.sets):
        raise InterpError("areas: no growing sets are in the table; expected those of a ranking")
    above = of.above[..., 0][:, np.argsort(of.sets["size"])]  # (template, size, draw)
    shares = np.sort(of.sets["share"])
    gap = np.broadcast_to(of.gap[:, None], (len(above), above[0].size))
    f, _, _ = stats.ratio_interval(above.reshape(gap.shape), gap, seed=seed)
    f = f.reshape(above.shape[1:]).T  # (draw, size)
    reason = UNDEFINED if np.isnan(f).any() else ONE_SIZE if len(shares) == 1 else None
    samples = np.full((1, len(shares)), np.nan)  # (resample, size)
    if reason is None and len(above) > 1:
        samples = stats.resampled_ratios(above[:, :, 0], gap[:, : len(shares)], seed=seed)
    rows = []
    for name, perfect in (("CPR", 1 - shares[0]), ("CMD", 0.0)):
        found, spread = (
            np.trapezoid(curves if name == "CPR" else np.abs(1 - curves), shares)
            + (0 if reason is None else np.nan)  # one size alone would add up to 0
            for curves in (f, samples)
        )
        low, high = np.quantile(spread, _tails(confidence))
        row = {"area": name, "value": found[0], "ci_low": low, "ci_high": high, "perfect": perfect}
        beside = _random(found[None], "", confidence)
        row |= {column: part[0] for column, part in beside.items()}
        p = _p(-found[None] if name == "CPR" else found[None])  # CPR: more is better; CMD: less
        rows.append(row | {"p": p[0], "undefined_reason": reason})
    table = pd.DataFrame(rows).assign(**_same(per_prompt), n_random=len(f) - 1)
    table = table.assign(smallest_share=shares[0], n_sizes=len(shares))
    table["undefined_reason"] = table["undefined_reason"].astype("str")
    return FAITHFULNESS_AREAS.validate(table[list(FAITHFULNESS_AREAS.columns)])


@dataclass(frozen=True)
class _Explained:
    """What is explained of what there is to explain, by template.

    Attributes:
        sets: a row a set: set, family, size, share.
        above: metric less that of no heads; draw 0 is the set itself, kept 0: only it, 1: the others.
        gap: metric of all heads less that of no heads.
        none: metric of no heads.
    """

    sets: pd.DataFrame
    above: Float[np.ndarray, "template set draw kept"]
    gap: Float[np.ndarray, " template"]
    none: Float[np.ndarray, " template"]


def _explained(per_prompt: pd.DataFrame) -> _Explained:
    value = per_prompt["baseline"] + per_prompt["effect"]
    keys = ["template", "set", "draw", "kept"]
    means = per_prompt.assign(value=value).groupby(keys)["value"].mean()
    baseline = per_prompt.groupby("template")["baseline"].mean()
    sets = per_prompt[per_prompt["size"] > 0].drop_duplicates("set")
    sets = sets[["set", "family", "size", "share"]].reset_index(drop=True)
    draws = sorted(per_prompt["draw"].unique())
    shape = len(baseline), len(sets), len(draws), 2
    every = pd.MultiIndex.from_product([baseline.index, sets["set"], draws, ["set", "others"]])  # type: ignore[list-item]
    full = means.reindex(every).to_numpy().reshape(shape)
    empty = per_prompt[per_prompt["size"] == 0].assign(value=value)
    none = empty.groupby("template")["value"].mean().reindex(baseline.index).to_numpy()
    return _Explained(sets, full - none[:, None, None, None], baseline.to_numpy() - none, none)


def _same(per_prompt: pd.DataFrame) -> dict[str, Any]:
    """What all rows of a summary have alike."""
    one = per_prompt[per_prompt["size"] == 0]
    counts = {"n_templates": one["template"].nunique(), "n_prompts": len(one)}
    return {column: one[column].iloc[0] for column in ASKED} | counts


def _tails(confidence: float) -> tuple[float, float]:
    return (1 - confidence) / 2, (1 + confidence) / 2


def _random(
    found: Float[np.ndarray, "row draw"], kind: str, confidence: float
) -> dict[str, Float[np.ndarray, " row"]]:
    """Mean and range of the random sets: all draws but the first."""
    drawn = found[:, 1:] if found.shape[1] > 1 else np.full_like(found, np.nan)
    low, high = np.quantile(drawn, _tails(confidence), axis=1)
    name = f"random{kind}"
    return {name: drawn.mean(1), f"{name}_low": low, f"{name}_high": high}


def _p(found: Float[np.ndarray, "row draw"]) -> Float[np.ndarray, " row"]:
    """(1 + random sets with as small a value as the first) / (1 + random sets)."""
    p = (found <= found[:, :1]).mean(1)  # the first is as small as itself
    return np.where(np.isnan(found[:, 0]) | (found.shape[1] < 2), np.nan, p)
