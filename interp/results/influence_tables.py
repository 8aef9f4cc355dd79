"""Columns of weight beside influence: what a head looked at, and what it was worth."""

from __future__ import annotations

import pandera.pandas as pa

from interp.results.columns import KEYS, contract, count, ends, or_none, share

_WEIGHED = {
    "model": KEYS["model"],
    "layer": KEYS["layer"],
    "head": KEYS["head"],
    "task": pa.Column(str, description="what the model was to do: see interp/inputs/tasks.py"),
    "target": pa.Column(str, description="where the head was expected to look"),
    "metric": pa.Column(str, description="what effects are on, see interp/editing/metrics.py"),
}
QUANTITIES = {
    "mass": "attention mass on the target, from where the metric reads",
    "value_weighted": "length of what is fetched from the target, in the residual stream",
    "direct_logit": "what the head adds to right less wrong logit, through the final norm as it was",
    "total_zero": "z zeroed: metric after − before",
    "total_mean": "z replaced by its mean over donors: metric after − before",
    "total_resample": "z replaced by a donor's: metric after − before",
    "direct": "the judging ablation, all else held: metric after − before",
    "attribution": "gradient estimate of total_resample",
}
UNWEIGHED = ("mass", "value_weighted")
"""Those that may be undefined: a prompt may have no target."""

QUADRANTS = ("looked at, used", "looked at, unused", "used, hardly looked at", "neither")

INFLUENCE_PER_PROMPT = contract(
    _WEIGHED
    | {
        "prompt": pa.Column(str, description="name of the prompt"),
        "template": pa.Column(str, description="prompts of one template are dependent"),
        "null": share("mass on position-matched wrong targets"),
        "chance": share("mass if uniform over the keys in reach"),
        "n_queries": count("queries with a target", 0),
    }
    | {
        name: pa.Column(float, nullable=name in UNWEIGHED, description=text)
        for name, text in QUANTITIES.items()
    }
    | {
        "baseline": pa.Column(float, description="metric before"),
        "clean": pa.Column(float, description="metric of the clean prompt"),
        "corrupted": pa.Column(float, description="metric of the corrupted prompt"),
    },
    unique=["model", "layer", "head", "prompt"],
    name="influence_per_prompt",
)

INFLUENCE = contract(
    _WEIGHED
    | {
        "quadrant": pa.Column(
            str,
            pa.Check.isin(QUADRANTS),
            description="looked and used, see interp/interventions/quadrants.py",
        )
    }
    | {
        column: pa.Column(
            float, nullable=name in UNWEIGHED or column != name, description=text + what
        )
        for name, text in QUANTITIES.items()
        for column, what in (
            (name, ""),
            (f"{name}_low", ", bootstrap over templates, low end"),
            (f"{name}_high", ", high end"),
        )
    }
    | {
        "null": share("mass on position-matched wrong targets"),
        "chance": share("mass if uniform over the keys in reach"),
        "q_mass": share("is mass above null? false discoveries over all heads held"),
        "q_effect": share("is the judging effect not 0? false discoveries over all heads held"),
        "share": or_none("judging effect / (corrupted − clean)"),
        "n_templates": count("independent groups of prompts"),
        "n_prompts": count("prompts measured"),
        "n_undefined": count("prompts without a target", 0),
    },
    unique=["model", "layer", "head"],
    name="influence",
)

AGREEMENT = contract(
    {
        "model": KEYS["model"],
        "weight": pa.Column(str, description="how heads are ranked by what they look at or write"),
        "influence": pa.Column(str, description="how they are ranked by the size of an effect"),
        "spearman": or_none("rank correlation over heads"),
        **ends("ci", "bootstrap over templates"),
        "top_effect": pa.Column(float, description="mean |effect| of the heads of most weight"),
        "random_effect": pa.Column(float, description="of random heads of the same layers, mean"),
        "random_low": pa.Column(float, description="95 % range over draws, low end"),
        "random_high": pa.Column(float, description="95 % range over draws, high end"),
        "p": share("share of draws with as large an effect"),
        "n_top": count("heads of most weight"),
        "n_draws": count("draws of random heads"),
        "n_heads": count("heads ranked"),
        "n_templates": count("independent groups of prompts"),
    },
    unique=["model", "weight", "influence"],
    name="agreement",
)
