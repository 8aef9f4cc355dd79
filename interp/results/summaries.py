"""From a row a prompt to a row a head: means, intervals, tests.

Scores are averaged over prompts, effects over templates, since prompts of one template are dependent.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from interp.results import stats
from interp.results.effect_tables import EDITED, EFFECTS
from interp.results.score_tables import SUMMARY


def summarise(per_prompt: pd.DataFrame, *, confidence: float = 0.95, seed: int = 0) -> pd.DataFrame:
    """Means over prompts with interval, null test and false-discovery control; best first by role.

    Every prompt counts the same, however many queries it has; prompts without a defined mass are
    counted in ``n_undefined`` and left out of the mean.
    """
    parts = []
    for role, rows in per_prompt.groupby("role", sort=False):
        # (prompt, head) arrays: one order of heads for all measures.
        index = rows.set_index(["prompt", "model", "layer", "head"])
        mass = index["mass"].unstack("prompt")
        null = index["null"].unstack("prompt").reindex(mass.index)[mass.columns]
        by_head = rows.groupby(["model", "layer", "head"])
        means = by_head[["mass", "chance", "null", "mass_off_sink", "learned_sink"]].mean()
        table = means.reindex(mass.index)
        values = mass.to_numpy().T
        table["ci_low"], table["ci_high"] = stats.bootstrap_interval(
            values, confidence=confidence, seed=seed
        )
        table["p"] = stats.sign_flip_p(values - null.to_numpy().T, seed=seed)
        table["q"] = stats.false_discovery_q(table["p"].to_numpy())
        table["position"] = by_head["position"].agg(_most_frequent).astype("Int64")
        table["n_queries"] = by_head["n_queries"].sum()
        table["n_prompts"] = by_head["mass"].count()
        table["n_undefined"] = by_head["mass"].size() - table["n_prompts"]
        undefined = by_head["undefined_reason"].first()
        table["undefined_reason"] = undefined.where(table["n_prompts"] == 0).astype("str")
        table["attention_path"] = by_head["attention_path"].first()
        table = table.reset_index()
        table["role"] = role
        order = ["mass", "model", "layer", "head"]
        parts.append(
            table.sort_values(order, ascending=[False, True, True, True], na_position="last")
        )
    summary = pd.concat(parts, ignore_index=True)[list(SUMMARY.columns)]
    return SUMMARY.validate(summary)


def _most_frequent(positions: pd.Series) -> float:
    found = positions.mode()  # the smallest of several
    return float(found.iloc[0]) if len(found) else np.nan


def summarise_effects(
    per_prompt: pd.DataFrame, *, confidence: float = 0.95, seed: int = 0
) -> pd.DataFrame:
    """Mean effect of each edit with interval and tests over templates, the largest in size first.

    Prompts of one template are dependent, so each template's mean is one observation. Where the table
    holds the clean and the corrupted value, the normalised effect is a ratio of means over templates:
    (after the edit − corrupted) / (clean − corrupted); undefined where the interval of
    clean − corrupted holds 0, for then nothing is there to be restored or lost.
    """
    keys = [key for key in EDITED if key in per_prompt]
    measured = [
        name
        for name in ("position", "effect", "baseline", "clean", "corrupted")
        if name in per_prompt
    ]
    by_template = per_prompt.groupby([*keys, "template"])[measured].mean()
    effects = by_template["effect"].unstack("template")
    table = by_template.groupby(keys).mean().reindex(effects.index)
    values = effects.to_numpy().T
    table["ci_low"], table["ci_high"] = stats.bootstrap_interval(
        values, confidence=confidence, seed=seed
    )
    if "clean" in per_prompt:
        clean, corrupted, before = (
            by_template[name].unstack("template").to_numpy().T
            for name in ("clean", "corrupted", "baseline")
        )
        ratio, low, high = stats.ratio_interval(
            before + values - corrupted, clean - corrupted, confidence=confidence, seed=seed
        )
        table["normalised"], table["normalised_low"], table["normalised_high"] = ratio, low, high
    table["p"] = stats.two_sided_p(values, seed=seed)
    table["q"] = stats.false_discovery_q(table["p"].to_numpy())
    table["n_templates"] = effects.notna().sum(axis=1)
    table["n_prompts"] = per_prompt.groupby(keys)["prompt"].count()
    if "n_unseen" in per_prompt:
        table["n_unseen"] = per_prompt.groupby(keys)["n_unseen"].sum()
    table = table.reset_index()
    order = table["effect"].abs().sort_values(ascending=False, kind="stable").index
    columns = [name for name in EFFECTS.columns if name in table]
    return EFFECTS.validate(table.loc[order, columns].reset_index(drop=True))
