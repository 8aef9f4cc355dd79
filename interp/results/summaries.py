"""From a row a prompt to a row a head: means, intervals, tests.

Prompts of one template are dependent: where a table names templates, each template's mean is one
observation, else each prompt is. Means, intervals and tests are over these.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from interp.results import stats
from interp.results.effect_tables import EDITED, EFFECTS
from interp.results.score_tables import MASSES, SUMMARY

HEAD = ["model", "layer", "head"]


def by_observation(rows: pd.DataFrame, keys: list[str], values: list[str]) -> pd.DataFrame:
    """Means in each observation, a template where there are such and else a prompt: (keys, observation)."""
    one = "template" if "template" in rows else "prompt"
    return rows.groupby([*keys, one])[values].mean().rename_axis([*keys, "observation"])


def summarise(
    per_prompt: pd.DataFrame,
    *,
    confidence: float = 0.95,
    correction: stats.Correction = "bh",
    seed: int = 0,
) -> pd.DataFrame:
    """Means over prompts with interval, null test and false-discovery control; best first by role.

    Every prompt (of a template) counts the same, however many queries it has; prompts without a defined
    mass are counted in ``n_undefined`` and left out of the mean.

    Args:
        per_prompt: a table as ``tables.PER_PROMPT`` describes.
        correction: how q holds false discoveries over all heads of a role.
    """
    parts = []
    for role, rows in per_prompt.groupby("role", sort=False):
        observed = by_observation(rows, HEAD, list(MASSES))
        table = observed.groupby(HEAD).mean()
        # (observation, head) arrays: one order of heads for all measures.
        mass, null = (
            observed[name].unstack("observation").to_numpy().T for name in ("mass", "null")
        )
        by_head = rows.groupby(HEAD)
        table["ci_low"], table["ci_high"] = stats.bootstrap_interval(
            mass, confidence=confidence, seed=seed
        )
        table["p"] = stats.sign_flip_p(mass - null, seed=seed)
        table["q"] = stats.false_discovery_q(table["p"].to_numpy(), correction)
        table["position"] = by_head["position"].agg(_most_frequent).astype("Int64")
        table["n_queries"] = by_head["n_queries"].sum()
        table["n_prompts"] = by_head["mass"].count()
        if "template" in rows:
            table["n_templates"] = np.isfinite(mass).sum(0)
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
    summary = pd.concat(parts, ignore_index=True)
    return SUMMARY.validate(summary[[name for name in SUMMARY.columns if name in summary]])


def _most_frequent(positions: pd.Series) -> float:
    found = positions.mode()  # the smallest of several
    return float(found.iloc[0]) if len(found) else np.nan


def summarise_effects(
    per_prompt: pd.DataFrame,
    *,
    confidence: float = 0.95,
    correction: stats.Correction = "bh",
    seed: int = 0,
) -> pd.DataFrame:
    """Mean effect of each edit with interval and tests over templates, the largest in size first.

    Prompts of one template are dependent, so each template's mean is one observation. Where the table
    holds the clean and the corrupted value, the normalised effect is a ratio of means over templates:
    (after the edit − corrupted) / (clean − corrupted); undefined where the interval of
    clean − corrupted holds 0, for then nothing is there to be restored or lost.

    Args:
        per_prompt: a table as ``tables.EFFECTS_PER_PROMPT`` describes.
        correction: how q holds false discoveries over all rows.
    """
    keys = [key for key in EDITED if key in per_prompt]
    measured = [
        name
        for name in ("position", "effect", "baseline", "clean", "corrupted")
        if name in per_prompt
    ]
    observed = by_observation(per_prompt, keys, measured)
    table = observed.groupby(keys).mean()
    values = observed["effect"].unstack("observation").to_numpy().T
    table["ci_low"], table["ci_high"] = stats.bootstrap_interval(
        values, confidence=confidence, seed=seed
    )
    if "clean" in per_prompt:
        clean, corrupted, before = (
            observed[name].unstack("observation").to_numpy().T
            for name in ("clean", "corrupted", "baseline")
        )
        ratio, low, high = stats.ratio_interval(
            before + values - corrupted, clean - corrupted, confidence=confidence, seed=seed
        )
        table["normalised"], table["normalised_low"], table["normalised_high"] = ratio, low, high
    table["p"] = stats.two_sided_p(values, seed=seed)
    table["q"] = stats.false_discovery_q(table["p"].to_numpy(), correction)
    table["n_templates"] = np.isfinite(values).sum(0)
    table["n_prompts"] = per_prompt.groupby(keys)["prompt"].count()
    if "n_unseen" in per_prompt:
        table["n_unseen"] = per_prompt.groupby(keys)["n_unseen"].sum()
    table = table.reset_index()
    order = table["effect"].abs().sort_values(ascending=False, kind="stable").index
    columns = [name for name in EFFECTS.columns if name in table]
    return EFFECTS.validate(table.loc[order, columns].reset_index(drop=True))
