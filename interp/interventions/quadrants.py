"""Looked at, and used? The verdict on each head, and how far weights and effects rank heads alike.

    looked at   mass above its null (q below the level), above chance, and at least ``least_mass``
    used        the judging effect is not 0 (q below the level), and at least ``least_share`` of
                |corrupted − clean|: what sets the two prompts apart

Both limits keep out what is certain and too small to speak of; they go into the manifest. Observations are
templates, whose prompts are dependent. Ranks are compared by Spearman's correlation over heads, with a
bootstrap interval over templates; beside it stand the effects of the heads of most weight and, as a
control, those of heads drawn at random from the same layers.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.figure import Figure

from interp.interventions.influence_figure import weight_and_influence
from interp.results import stats
from interp.results.findings import Findings
from interp.results.influence_tables import AGREEMENT, INFLUENCE, QUADRANTS, QUANTITIES

WEIGHTS = ("mass", "value_weighted", "direct_logit")
EFFECTS = ("total_zero", "total_mean", "total_resample", "direct", "attribution")
HEAD = ["layer", "head"]
N_DRAWS = 2_000

PerTemplate = dict[str, Float[np.ndarray, "template head"]]


class Influence(Findings):
    """Weights and effects of every head: ``tables.INFLUENCE_PER_PROMPT``, summed up as ``tables.INFLUENCE``.

    Attributes:
        judge: the effect that decides whether a head is used: a name of ``EFFECTS``.
    """

    judge: str

    def __new__(
        cls, per_prompt: pd.DataFrame, largest_difference: float, judged_by: str = "resample"
    ) -> Influence:
        """Also by which ablation heads are judged."""
        self = super().__new__(cls, per_prompt, largest_difference)
        self.judge = f"total_{judged_by}"
        return self

    @cached_property
    def summary(self) -> pd.DataFrame:
        """The verdict on each head; see :func:`summarise_influence`."""
        return summarise_influence(self.per_prompt, judged_by=self.judge)

    @cached_property
    def agreement(self) -> pd.DataFrame:
        """How far weights and effects rank heads alike; see :func:`rank_agreement`."""
        return rank_agreement(self.per_prompt)

    def top(self, n: int = 10) -> pd.DataFrame:
        """The ``n`` heads of the largest judging effects, without what is best seen in the figure."""
        return short(self.summary, self.judge).head(n)

    def figure(self) -> Figure:
        """Heads as dots, mass against effect; and the rank agreement of every weight with every effect."""
        return weight_and_influence(self.summary, self.agreement, self.judge)


def short(summary: pd.DataFrame, judge: str) -> pd.DataFrame:
    """The columns of a short table."""
    shown = ["quadrant", *HEAD, "mass", "null", "value_weighted", "direct_logit"]
    shown += [judge, f"{judge}_low", f"{judge}_high", "share", "direct", "attribution", "q_effect"]
    return summary[shown]


def summarise_influence(
    per_prompt: pd.DataFrame,
    *,
    judged_by: str = "total_resample",
    least_mass: float = 0.1,
    least_share: float = 0.05,
    level: float = stats.LEVEL,
    confidence: float = 0.95,
    correction: stats.Correction = "bh",
    seed: int = 0,
) -> pd.DataFrame:
    """Every quantity of every head with its interval, and the quadrant; used heads first.

    Args:
        per_prompt: a table as ``tables.INFLUENCE_PER_PROMPT`` describes.
        judged_by: the effect that decides: a name of ``EFFECTS``.
        correction: how both q hold false discoveries over all heads.
    """
    values, heads = by_template(per_prompt)
    table = heads.copy()
    first = per_prompt.iloc[0]
    for name in ("model", "task", "target", "metric"):
        table[name] = first[name]
    for name in QUANTITIES:
        table[name] = _mean(values[name])
        table[f"{name}_low"], table[f"{name}_high"] = stats.bootstrap_interval(
            values[name], confidence=confidence, seed=seed
        )
    for name in ("null", "chance"):
        table[name] = _mean(values[name])
    above = stats.sign_flip_p(values["mass"] - values["null"], seed=seed)
    table["q_mass"] = stats.false_discovery_q(above, correction)
    effect = values[judged_by]
    table["q_effect"] = stats.false_discovery_q(stats.two_sided_p(effect, seed=seed), correction)
    gap = values["corrupted"] - values["clean"]
    table["share"], _, _ = stats.ratio_interval(effect, gap, confidence=confidence, seed=seed)
    looked = (table.q_mass < level) & (table.mass > table.chance) & (table.mass >= least_mass)
    size = np.abs(table[judged_by]) / np.abs(_mean(gap))
    used = (table.q_effect < level) & (size >= least_share)
    table["quadrant"] = np.select(
        [looked & used, looked & ~used, ~looked & used], QUADRANTS[:3], QUADRANTS[3]
    )
    counts = per_prompt.groupby(HEAD)
    table["n_templates"] = per_prompt["template"].nunique()
    table["n_prompts"] = counts["prompt"].count().to_numpy()
    table["n_undefined"] = counts["mass"].apply(lambda mass: int(mass.isna().sum())).to_numpy()
    order = table[judged_by].abs().sort_values(ascending=False, kind="stable").index
    return INFLUENCE.validate(table.loc[order, list(INFLUENCE.columns)].reset_index(drop=True))


def by_template(per_prompt: pd.DataFrame) -> tuple[PerTemplate, pd.DataFrame]:
    """Each quantity's mean in each template, heads in order; and which heads these are."""
    names = [*QUANTITIES, "null", "chance", "clean", "corrupted"]
    means = per_prompt.groupby([*HEAD, "template"])[names].mean()
    heads = means.groupby(HEAD).mean().index
    values = {name: means[name].unstack("template").loc[heads].to_numpy().T for name in names}
    return values, heads.to_frame(index=False)


def rank_agreement(
    per_prompt: pd.DataFrame,
    *,
    n_top: int = 5,
    n_draws: int = N_DRAWS,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Does the weight of a head tell its effect? A row for each weight-like and influence-like column.

    Both are ranked by size: an effect either way is an effect, and so is what a head writes against
    the answer.

    Args:
        n_top: heads of most weight whose effects are held against random heads of their layers.
        n_draws: sets of random heads.
    """
    values, heads = by_template(per_prompt)
    layers = heads.layer.to_numpy()
    n_top = min(n_top, len(heads))
    rows = []
    for weight in WEIGHTS:
        size = np.nan_to_num(np.abs(_mean(values[weight])), nan=-1.0)
        top = np.argsort(-size, kind="stable")[:n_top]
        draws = _alike(top, layers, n_draws, seed)
        for influence in EFFECTS:
            found = stats.spearman_interval(
                values[weight],
                values[influence],
                absolute=(True, True),
                confidence=confidence,
                seed=seed,
            )
            effect = np.abs(_mean(values[influence]))
            random = effect[draws].mean(1)
            low, high = np.quantile(random, [0.025, 0.975])
            most = float(effect[top].mean())
            rows.append(
                dict(zip(("spearman", "ci_low", "ci_high"), found, strict=True))
                | {
                    "model": per_prompt.model.iloc[0],
                    "weight": weight,
                    "influence": influence,
                    "top_effect": most,
                    "random_effect": float(random.mean()),
                    "random_low": float(low),
                    "random_high": float(high),
                    # The set itself counts as one of the draws, so that no p is 0.
                    "p": float((1 + (random >= most - 1e-12).sum()) / (1 + n_draws)),
                    "n_top": n_top,
                    "n_draws": n_draws,
                    "n_heads": len(heads),
                    "n_templates": len(values[weight]),
                }
            )
    return AGREEMENT.validate(pd.DataFrame(rows)[list(AGREEMENT.columns)])


def _alike(chosen: np.ndarray, layers: np.ndarray, n_draws: int, seed: int) -> np.ndarray:
    """(draw, head): as many heads of each layer as are chosen there."""
    rng = np.random.default_rng([seed, 4])
    parts = []
    for layer, count in zip(*np.unique(layers[chosen], return_counts=True), strict=True):
        pool = np.flatnonzero(layers == layer)
        parts.append(rng.permuted(np.tile(pool, (n_draws, 1)), axis=1)[:, :count])
    return np.concatenate(parts, axis=1)


def _mean(values: Float[np.ndarray, "template head"]) -> Float[np.ndarray, " head"]:
    """Mean over the templates in which it is defined; NaN where it is in none."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0.0).sum(0) / known.sum(0)
