"""Columns of sets of heads: f, the share of the model's work that a set does. 0 as no head, 1 as all."""

from __future__ import annotations

import pandera.pandas as pa

from interp.results.columns import KEYS, share
from interp.results.effect_tables import EDITED
from interp.results.score_tables import REASON

_SETS = {
    "model": KEYS["model"],
    "task": EDITED["task"],
    "edit": pa.Column(
        str, description="what ablated heads give: mean, mean by template, resample, zero"
    ),
    "metric": EDITED["metric"],
    "family": pa.Column(str, description="growing: one of a row of sets; named: by itself"),
    "set": pa.Column(str, description="such as top 5 (of the ranking) or circuit"),
    "size": pa.Column(int, pa.Check.ge(0), description="heads in it"),
    "share": share("of all heads"),
}

HEAD_SETS_PER_PROMPT = pa.DataFrameSchema(
    _SETS
    | {
        "draw": pa.Column(
            int, pa.Check.ge(-1), description="−1: the set itself; else a random one"
        ),
        "kept": pa.Column(
            str,
            pa.Check.isin(["set", "others"]),
            description="set: all other heads are ablated; others: only the set is",
        ),
        "prompt": pa.Column(str, description="name of the prompt"),
        "template": pa.Column(str, description="prompts of one template are dependent"),
        "effect": pa.Column(float, description="metric with only the kept heads − with all"),
        "baseline": pa.Column(float, description="metric with all heads"),
    },
    strict=True,
    ordered=True,
    unique=["model", "set", "draw", "kept", "prompt"],
    name="head_sets_per_prompt",
)


def _fraction(description: str) -> pa.Column:
    """A column of f: 0 as without any head, 1 as with all; beyond both is possible."""
    return pa.Column(float, nullable=True, description=description)


HEAD_SETS = pa.DataFrameSchema(
    _SETS
    | {
        "faithfulness": _fraction("f with only these heads: 1 as the whole model, 0 as no head"),
        "ci_low": _fraction("bootstrap over templates, low end"),
        "ci_high": _fraction("bootstrap over templates, high end"),
        "random": _fraction("f of random sets, as many heads in each layer; mean"),
        "random_low": _fraction("range of random sets, low end"),
        "random_high": _fraction("range of random sets, high end"),
        "p": share("random sets whose f is as near to 1"),
        "without": _fraction("f of all other heads: what is left without these"),
        "without_low": _fraction("bootstrap over templates, low end"),
        "without_high": _fraction("bootstrap over templates, high end"),
        "random_without": _fraction("what is left without a random set, mean"),
        "random_without_low": _fraction("range of random sets, low end"),
        "random_without_high": _fraction("range of random sets, high end"),
        "p_without": share("random sets without which as little is left"),
        "value": pa.Column(float, description="metric with only these heads, mean over templates"),
        "all_heads": pa.Column(float, description="metric of the whole model"),
        "no_heads": pa.Column(float, description="metric with every head ablated"),
        "n_random": pa.Column(int, pa.Check.ge(0), description="random sets"),
        "n_templates": pa.Column(int, pa.Check.ge(1), description="independent groups of prompts"),
        "n_prompts": pa.Column(int, pa.Check.ge(1), description="prompts measured"),
        "undefined_reason": REASON,
    },
    strict=True,
    ordered=True,
    unique=["model", "set"],
    name="head_sets",
)

FAITHFULNESS_AREAS = pa.DataFrameSchema(
    {name: _SETS[name] for name in ("model", "task", "edit", "metric")}
    | {
        "area": pa.Column(str, pa.Check.isin(["CPR", "CMD"]), description="∫ f dk or ∫ |1 − f| dk"),
        "value": _fraction("of the sets of the ranking"),
        "ci_low": _fraction("bootstrap over templates, low end"),
        "ci_high": _fraction("bootstrap over templates, high end"),
        "perfect": pa.Column(float, description="of sets as good as the model from the first on"),
        "random": _fraction("of growing random sets, mean"),
        "random_low": _fraction("range of random sets, low end"),
        "random_high": _fraction("range of random sets, high end"),
        "p": share("random sets as good"),
        "smallest_share": share("where the integral begins; it ends at 1"),
        "n_sizes": pa.Column(int, pa.Check.ge(1), description="sets that grow"),
        "n_random": pa.Column(int, pa.Check.ge(0), description="growing random sets"),
        "n_templates": pa.Column(int, pa.Check.ge(1), description="independent groups of prompts"),
        "n_prompts": pa.Column(int, pa.Check.ge(1), description="prompts measured"),
        "undefined_reason": REASON,
    },
    strict=True,
    ordered=True,
    unique=["model", "area"],
    name="faithfulness_areas",
)

HEAD_RANKING = pa.DataFrameSchema(
    {
        "model": KEYS["model"],
        "rank": pa.Column(int, pa.Check.ge(1), description="1: kept first"),
        "layer": KEYS["layer"],
        "head": KEYS["head"],
        "score": pa.Column(float, nullable=True, description="ranked by its size"),
        "by": pa.Column(str, description="what the score is"),
    },
    strict=True,
    ordered=True,
    unique=["layer", "head"],
    name="head_ranking",
)
