"""Columns of sets of heads: f, the share of the model's work that a set does. 0 as no head, 1 as all."""

from __future__ import annotations

import pandera.pandas as pa

from interp.results.columns import KEYS, contract, count, ends, or_none, share
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
    "size": count("heads in it", 0),
    "share": share("of all heads"),
}

HEAD_SETS_PER_PROMPT = contract(
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
    unique=["model", "set", "draw", "kept", "prompt"],
    name="head_sets_per_prompt",
)


HEAD_SETS = contract(
    _SETS
    | {
        "faithfulness": or_none("f with only these heads: 1 as the whole model, 0 as no head"),
        **ends("ci", "bootstrap over templates"),
        "random": or_none("f of random sets, as many heads in each layer; mean"),
        **ends("random", "range of random sets"),
        "p": share("random sets whose f is as near to 1"),
        "without": or_none("f of all other heads: what is left without these"),
        **ends("without", "bootstrap over templates"),
        "random_without": or_none("what is left without a random set, mean"),
        **ends("random_without", "range of random sets"),
        "p_without": share("random sets without which as little is left"),
        "value": pa.Column(float, description="metric with only these heads, mean over templates"),
        "all_heads": pa.Column(float, description="metric of the whole model"),
        "no_heads": pa.Column(float, description="metric with every head ablated"),
        "n_random": count("random sets", 0),
        "n_templates": count("independent groups of prompts"),
        "n_prompts": count("prompts measured"),
        "undefined_reason": REASON,
    },
    unique=["model", "set"],
    name="head_sets",
)

FAITHFULNESS_AREAS = contract(
    {name: _SETS[name] for name in ("model", "task", "edit", "metric")}
    | {
        "area": pa.Column(str, pa.Check.isin(["CPR", "CMD"]), description="∫ f dk or ∫ |1 − f| dk"),
        "value": or_none("of the sets of the ranking"),
        **ends("ci", "bootstrap over templates"),
        "perfect": pa.Column(float, description="of sets as good as the model from the first on"),
        "random": or_none("of growing random sets, mean"),
        **ends("random", "range of random sets"),
        "p": share("random sets as good"),
        "smallest_share": share("where the integral begins; it ends at 1"),
        "n_sizes": count("sets that grow"),
        "n_random": count("growing random sets", 0),
        "n_templates": count("independent groups of prompts"),
        "n_prompts": count("prompts measured"),
        "undefined_reason": REASON,
    },
    unique=["model", "area"],
    name="faithfulness_areas",
)

HEAD_RANKING = contract(
    {
        "model": KEYS["model"],
        "rank": count("1: kept first"),
        "layer": KEYS["layer"],
        "head": KEYS["head"],
        "score": or_none("ranked by its size"),
        "by": pa.Column(str, description="what the score is"),
    },
    unique=["layer", "head"],
    name="head_ranking",
)
