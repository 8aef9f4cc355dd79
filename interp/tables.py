"""The tables: their columns, what each means, and how they are written and read back.

Layer and head are two integer columns. A number never travels alone: with the mass go its interval,
chance, the null, the number of queries and prompts, and why it is undefined where it is (never 0, and
never ranked first). Schemas are pandera's; a table that breaks its contract is not written.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pandera.pandas as pa

from interp import stats
from interp.columns import KEYS, or_none, share
from interp.errors import InterpError
from interp.lesson.tables import SCHEMAS as LESSON

MASSES = {
    "mass": share("attention mass on the role's targets"),
    "mass_off_sink": pa.Column(
        float, nullable=True, description="share of the attention off position 0 that is on targets"
    ),
    "learned_sink": share("mass on the model's learned sink"),
    "chance": share("mass if uniform over the keys in reach"),
    "null": share("mass on position-matched wrong targets"),
}
REASON = pa.Column(str, nullable=True, description="why the mass is undefined, where it is")
PATH = pa.Column(str, description="fused, tiled (both exact) or transformer_lens (weights written)")

PER_PROMPT = pa.DataFrameSchema(
    KEYS
    | {"prompt": pa.Column(str, description="name of the prompt")}
    | MASSES
    | {
        "n_queries": pa.Column(int, pa.Check.ge(0), description="queries scored in this prompt"),
        "position": pa.Column(
            "Int64", nullable=True, description="sink_any: the position found in this prompt"
        ),
        "undefined_reason": REASON,
        "attention_path": PATH,
    },
    strict=True,
    unique=["model", "layer", "head", "role", "prompt"],
    name="per_prompt",
)

SUMMARY = pa.DataFrameSchema(
    KEYS
    | {
        "mass": MASSES["mass"],
        "ci_low": share("bootstrap interval over prompts, low end"),
        "ci_high": share("bootstrap interval over prompts, high end"),
    }
    | {name: MASSES[name] for name in ("chance", "null", "mass_off_sink", "learned_sink")}
    | {
        "p": share("mass above null: sign flips over prompts"),
        "q": share("p with false discoveries over all heads held"),
        "position": pa.Column(
            "Int64", nullable=True, description="sink_any: the position found most often"
        ),
        "n_queries": pa.Column(int, pa.Check.ge(0), description="queries scored, all prompts"),
        "n_prompts": pa.Column(int, pa.Check.ge(0), description="prompts with a defined mass"),
        "n_undefined": pa.Column(int, pa.Check.ge(0), description="prompts without one"),
        "undefined_reason": REASON,
        "attention_path": PATH,
    },
    strict=True,
    ordered=True,
    unique=["model", "layer", "head", "role"],
    name="summary",
)


ROW = pa.DataFrameSchema(
    {
        "model": KEYS["model"],
        "layer": KEYS["layer"],
        "head": KEYS["head"],
        "query": pa.Column(int, pa.Check.ge(0), description="position of the query token"),
        "query_token": pa.Column(str, description="its text"),
        "key": pa.Column(int, pa.Check.ge(0), description="position of the token looked at"),
        "key_token": pa.Column(str, description="its text"),
        "weight": pa.Column(float, pa.Check.in_range(0, 1 + 1e-4), description="attention weight"),
    },
    strict=True,
    ordered=True,
    unique=["query", "key"],
    name="row",
)

STEP = pa.Column(int, pa.Check.ge(0), description="training step of the checkpoint")

FORMATION = pa.DataFrameSchema(
    {"model": KEYS["model"], "step": STEP}
    | {name: column for name, column in SUMMARY.columns.items() if name != "model"},
    strict=True,
    ordered=True,
    unique=["model", "step", "layer", "head", "role"],
    name="formation",
)

LOSSES = pa.DataFrameSchema(
    {
        "model": KEYS["model"],
        "step": STEP,
        "tokens": pa.Column(str, pa.Check.isin(["fresh", "repeat"]), description="which tokens"),
        "loss": pa.Column(float, description="mean cross-entropy, nats a token"),
        "ci_low": pa.Column(float, nullable=True, description="bootstrap over prompts, low end"),
        "ci_high": pa.Column(float, nullable=True, description="bootstrap over prompts, high end"),
        "n_prompts": SUMMARY.columns["n_prompts"],
    },
    strict=True,
    ordered=True,
    unique=["model", "step", "tokens"],
    name="losses",
)

_LOSS = pa.Column(float, nullable=True, description="nats a token, see interp/training.py")
_RIGHT = pa.Column(float, pa.Check.in_range(0, 1), description="share of held-out pairs all right")

TRAINING = pa.DataFrameSchema(
    {
        "step": STEP,
        "tokens": pa.Column(int, pa.Check.ge(0), description="training tokens seen"),
        "learning_rate": pa.Column(float, description="of the step just taken"),
    }
    | dict.fromkeys(("train_loss", "story_loss", "fresh_loss", "repeat_loss"), _LOSS)
    | dict.fromkeys(("indirect_object", "pronoun", "recurring_name", "possession"), _RIGHT),
    strict=True,
    ordered=True,
    unique=["step"],
    name="training",
)


def _perhaps(description: str) -> pa.Column:
    """A column of numbers that not every table has, and that may be undefined."""
    return pa.Column(float, required=False, nullable=True, description=description)


_EDITED = {
    "model": KEYS["model"],
    "site": pa.Column(str, required=False, description="kind of activation: see interp/sites.py"),
    "unit": pa.Column(str, required=False, description="what head counts: head, kv_head, or layer"),
    "layer": KEYS["layer"],
    "head": pa.Column(int, pa.Check.ge(0), required=False, description="head of that unit, from 0"),
    "place": pa.Column(str, required=False, description="named place, or position, in the prompt"),
    "receiver": pa.Column(str, required=False, description="where a path ends: q of 1.3, logits"),
    "task": pa.Column(
        str, description="what the model was to do: see interp/tasks.py, sentences.py"
    ),
    "edit": pa.Column(str, description="what was done there, and with what"),
    "metric": pa.Column(str, description="what was measured, see interp/metrics.py"),
}
EFFECT_KEYS = tuple(_EDITED)


def _one_row_each(*more: str) -> pa.Check:
    """No two rows of the same thing; which of its columns a table has differs."""
    keys = [*_EDITED, *more]
    return pa.Check(
        lambda table: not table.duplicated([key for key in keys if key in table]).any(),
        error=f"two rows agree in all of {', '.join(keys)}",
    )


EFFECTS_PER_PROMPT = pa.DataFrameSchema(
    _EDITED
    | {
        "prompt": pa.Column(str, description="name of the prompt"),
        "template": pa.Column(str, description="prompts of one template are dependent"),
        "position": pa.Column(int, required=False, description="of the place in this prompt"),
        "donor": pa.Column(str, required=False, description="prompt that activations are from"),
        "n_unseen": pa.Column(
            int,
            required=False,
            description="mean by token: positions whose token no donor shows, mean over all there",
        ),
        "effect": pa.Column(float, description="metric after the edit − before"),
        "baseline": pa.Column(float, description="metric before the edit"),
        "clean": pa.Column(float, required=False, description="metric of the clean prompt"),
        "corrupted": pa.Column(float, required=False, description="metric of the corrupted prompt"),
    },
    strict=True,
    checks=_one_row_each("prompt"),
    name="effects_per_prompt",
)

EFFECTS = pa.DataFrameSchema(
    _EDITED
    | {
        "position": pa.Column(float, required=False, description="of the place, mean over prompts"),
        "effect": pa.Column(
            float, description="metric after the edit − before, mean over templates"
        ),
        "ci_low": pa.Column(float, nullable=True, description="bootstrap over templates, low end"),
        "ci_high": pa.Column(
            float, nullable=True, description="bootstrap over templates, high end"
        ),
        "normalised": _perhaps("0: as the corrupted prompt, 1: as the clean one"),
        "normalised_low": _perhaps("bootstrap over templates"),
        "normalised_high": _perhaps("bootstrap over templates"),
        "baseline": pa.Column(float, description="metric before the edit, mean over templates"),
        "clean": pa.Column(float, required=False, description="metric of the clean prompts, mean"),
        "corrupted": pa.Column(float, required=False, description="of the corrupted prompts, mean"),
        "p": share("effect not 0: two-sided sign flips over templates"),
        "q": share("p with false discoveries over all rows held"),
        "n_unseen": pa.Column(
            int, required=False, description="mean by token: positions without, over all prompts"
        ),
        "n_templates": pa.Column(int, pa.Check.ge(1), description="independent groups of prompts"),
        "n_prompts": pa.Column(int, pa.Check.ge(1), description="prompts measured"),
    },
    strict=True,
    ordered=True,
    checks=_one_row_each(),
    name="effects",
)

AUDIT = pa.DataFrameSchema(
    {name: column for name, column in _EDITED.items() if name != "receiver"}
    | {
        "estimate": pa.Column(float, description="effect by gradients, mean over templates"),
        "exact": pa.Column(float, description="effect of the patch itself, mean over templates"),
        "in_top": pa.Column(bool, description="chosen because its estimate is among the largest"),
        "in_random": pa.Column(bool, description="drawn at random"),
    },
    strict=True,
    ordered=True,
    checks=_one_row_each(),
    name="audit",
)

_SCORE = pa.Column(
    float, pa.Check.in_range(-1.001, 1.001), nullable=True, description="see interp/composition.py"
)

COPYING = pa.DataFrameSchema(
    {
        "model": KEYS["model"],
        "layer": KEYS["layer"],
        "head": KEYS["head"],
        "copying_ov": _SCORE,
        "ov_baseline": pa.Column(float, description="the same of random heads, mean"),
        "ov_sd": pa.Column(float, description="and its standard deviation over them"),
        "copying_full": _SCORE,
        "full_baseline": pa.Column(
            float, description="random heads, the model's W_E and W_U; mean"
        ),
        "full_sd": pa.Column(float, description="and its standard deviation over them"),
        "n_random": pa.Column(int, pa.Check.ge(2), description="random heads"),
    },
    strict=True,
    ordered=True,
    unique=["model", "layer", "head"],
    name="copying",
)

_KIND = pa.Column(str, pa.Check.isin(["q", "k", "v"]), description="what head 2 does with it")
_ENDS = {
    f"{end}_{unit}": pa.Column(int, pa.Check.ge(0), description=f"{unit} of the {which} head")
    for end, which in (("sender", "earlier"), ("receiver", "later"))
    for unit in ("layer", "head")
}

COMPOSITION = pa.DataFrameSchema(
    {"model": KEYS["model"]}
    | _ENDS
    | {
        "kind": _KIND,
        "composition": share("|W_OV X| / |W_OV| |X|; undefined where a head's weights are 0"),
        "baseline": share("the same of random factors, mean; about 1 / sqrt(d_model)"),
        "baseline_sd": pa.Column(float, pa.Check.ge(0), description="its standard deviation"),
        "percentile": share("of the other pairs of this kind, the share below"),
        "layers_percentile": share("of the other pairs of this kind and these layers"),
        "named": pa.Column(bool, description="whether the pair was asked about"),
    },
    strict=True,
    ordered=True,
    unique=["model", *_ENDS, "kind"],
    name="composition",
)

NAMED_PAIRS = pa.DataFrameSchema(
    {
        "model": KEYS["model"],
        "kind": _KIND,
        "composition": share("mean over the named pairs"),
        "others": share("mean over the other pairs of the same layers"),
        "null_low": share("interval of the mean under relabelled heads, low end"),
        "null_high": share("interval of the mean under relabelled heads, high end"),
        "baseline": share("random factors, mean"),
        "p": share("share of relabellings with a mean as large"),
        "n_pairs": pa.Column(int, pa.Check.ge(0), description="named pairs"),
        "n_others": pa.Column(int, pa.Check.ge(0), description="other pairs of the same layers"),
        "n_relabellings": pa.Column(int, pa.Check.ge(0), description="gone through, or drawn"),
        "exact": pa.Column(bool, description="whether these are all there are"),
    },
    strict=True,
    ordered=True,
    unique=["model", "kind"],
    name="named_pairs",
)

_WEIGHED = {
    "model": KEYS["model"],
    "layer": KEYS["layer"],
    "head": KEYS["head"],
    "task": pa.Column(str, description="what the model was to do: see interp/tasks.py"),
    "target": pa.Column(str, description="where the head was expected to look"),
    "metric": pa.Column(str, description="what effects are on, see interp/metrics.py"),
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

INFLUENCE_PER_PROMPT = pa.DataFrameSchema(
    _WEIGHED
    | {
        "prompt": pa.Column(str, description="name of the prompt"),
        "template": pa.Column(str, description="prompts of one template are dependent"),
        "null": share("mass on position-matched wrong targets"),
        "chance": share("mass if uniform over the keys in reach"),
        "n_queries": pa.Column(int, pa.Check.ge(0), description="queries with a target"),
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
    strict=True,
    ordered=True,
    unique=["model", "layer", "head", "prompt"],
    name="influence_per_prompt",
)

INFLUENCE = pa.DataFrameSchema(
    _WEIGHED
    | {"quadrant": pa.Column(str, description="looked and used, see interp/influence.py")}
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
        "share": pa.Column(
            float, nullable=True, description="judging effect / (corrupted − clean)"
        ),
        "n_templates": pa.Column(int, pa.Check.ge(1), description="independent groups of prompts"),
        "n_prompts": pa.Column(int, pa.Check.ge(1), description="prompts measured"),
        "n_undefined": pa.Column(int, pa.Check.ge(0), description="prompts without a target"),
    },
    strict=True,
    ordered=True,
    unique=["model", "layer", "head"],
    name="influence",
)

AGREEMENT = pa.DataFrameSchema(
    {
        "model": KEYS["model"],
        "weight": pa.Column(str, description="how heads are ranked by what they look at or write"),
        "influence": pa.Column(str, description="how they are ranked by the size of an effect"),
        "spearman": pa.Column(float, nullable=True, description="rank correlation over heads"),
        "ci_low": pa.Column(float, nullable=True, description="bootstrap over templates, low end"),
        "ci_high": pa.Column(
            float, nullable=True, description="bootstrap over templates, high end"
        ),
        "top_effect": pa.Column(float, description="mean |effect| of the heads of most weight"),
        "random_effect": pa.Column(float, description="of random heads of the same layers, mean"),
        "random_low": pa.Column(float, description="95 % range over draws, low end"),
        "random_high": pa.Column(float, description="95 % range over draws, high end"),
        "p": share("share of draws with as large an effect"),
        "n_top": pa.Column(int, pa.Check.ge(1), description="heads of most weight"),
        "n_draws": pa.Column(int, pa.Check.ge(1), description="draws of random heads"),
        "n_heads": pa.Column(int, pa.Check.ge(1), description="heads ranked"),
        "n_templates": pa.Column(int, pa.Check.ge(1), description="independent groups of prompts"),
    },
    strict=True,
    ordered=True,
    unique=["model", "weight", "influence"],
    name="agreement",
)

_SETS = {
    "model": KEYS["model"],
    "task": _EDITED["task"],
    "edit": pa.Column(
        str, description="what ablated heads give: mean, mean by template, resample, zero"
    ),
    "metric": _EDITED["metric"],
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

_TOGETHER = {name: _EDITED[name] for name in ("model", "task", "edit", "metric")} | {
    "heads": pa.Column(str, description="ablated together, layer.head each"),
    "kind": pa.Column(
        str,
        pa.Check.isin(["named", "random"]),
        description="random: as many other heads of the same layers",
    ),
    "n_heads": pa.Column(int, pa.Check.ge(1), description="heads in the set"),
}

ABLATED_SETS_PER_PROMPT = pa.DataFrameSchema(
    _TOGETHER
    | {
        "prompt": pa.Column(str, description="name of the prompt"),
        "template": pa.Column(str, description="prompts of one template are dependent"),
        "effect": pa.Column(float, description="metric with the set ablated − metric without"),
        "baseline": pa.Column(float, description="metric before"),
    },
    strict=True,
    ordered=True,
    unique=["model", "heads", "prompt"],
    name="ablated_sets_per_prompt",
)

ABLATED_SETS = pa.DataFrameSchema(
    _TOGETHER
    | {
        "effect": pa.Column(float, description="metric after − before, mean over templates"),
        "ci_low": pa.Column(float, nullable=True, description="bootstrap over templates, low end"),
        "ci_high": pa.Column(
            float, nullable=True, description="bootstrap over templates, high end"
        ),
        "baseline": pa.Column(float, description="metric before, mean over templates"),
        "p": share("named: (1 + n_as_large) / (1 + n_random)"),
        "n_as_large": pa.Column(
            "Int64",
            pa.Check.ge(0),
            nullable=True,
            description="random sets of as large an |effect|",
        ),
        "n_random": pa.Column(int, pa.Check.ge(0), description="random sets"),
        "n_templates": pa.Column(int, pa.Check.ge(1), description="independent groups of prompts"),
        "n_prompts": pa.Column(int, pa.Check.ge(1), description="prompts measured"),
    },
    strict=True,
    ordered=True,
    unique=["model", "heads"],
    name="ablated_sets",
)

_KNOCKED = {
    "model": KEYS["model"],
    "layer": pa.Column(
        "Int64", pa.Check.ge(0), nullable=True, coerce=True, description="from 0; empty: all layers"
    ),
    "knock_out": pa.Column(str, description="in which way: see edits.knock_out"),
    "n_keys": pa.Column(int, pa.Check.ge(0), description="how many of the first positions"),
}
_OF_SINKS = _KNOCKED | {"metric": pa.Column(str, description="loss or kl: see interp/metrics.py")}


SINK_EFFECTS_PER_PROMPT = pa.DataFrameSchema(
    _OF_SINKS
    | {
        "prompt": pa.Column(str, description="name of the prompt"),
        "effect": pa.Column(float, description="metric after the knock-out − before"),
        "control": or_none("of as many random positions, mean over draws"),
        "baseline": pa.Column(float, description="metric before"),
    },
    strict=True,
    ordered=True,
    unique=[*_OF_SINKS, "prompt"],
    name="sink_effects_per_prompt",
)

SINK_EFFECTS = pa.DataFrameSchema(
    _OF_SINKS
    | {
        "effect": pa.Column(float, description="metric after the knock-out − before, mean"),
        "ci_low": or_none("bootstrap over prompts, low end"),
        "ci_high": or_none("bootstrap over prompts, high end"),
        "control": or_none("of as many random positions, mean over draws and prompts"),
        "control_low": or_none("bootstrap over prompts, low end"),
        "control_high": or_none("bootstrap over prompts, high end"),
        "baseline": pa.Column(float, description="metric before, mean"),
        "p": share("effect not 0: two-sided sign flips over prompts; undefined for kl, never < 0"),
        "p_control": share("effect not the control's: two-sided sign flips over prompts"),
        "q": share("p with false discoveries over all rows held"),
        "q_control": share("p_control with false discoveries over all rows held"),
        "n_prompts": pa.Column(int, pa.Check.ge(1), description="prompts measured"),
    },
    strict=True,
    ordered=True,
    unique=[*_OF_SINKS],
    name="sink_effects",
)

SINK_MASSES = pa.DataFrameSchema(
    {name: column for name, column in _KNOCKED.items() if name != "layer"}
    | {
        "key": pa.Column(
            str, description="a position, current (the query's), others, learned sink, nowhere"
        ),
        "mass": share("attention there; mean over queries, heads, layers and prompts"),
        "ci_low": share("bootstrap over prompts, low end"),
        "ci_high": share("bootstrap over prompts, high end"),
        "n_prompts": pa.Column(int, pa.Check.ge(1), description="prompts measured"),
    },
    strict=True,
    ordered=True,
    unique=["model", "knock_out", "n_keys", "key"],
    name="sink_masses",
)

IDENTICAL, WITHIN, DIFFERENT = "identical", "within tolerance", "different"

VERDICTS = pa.DataFrameSchema(
    {
        "table": pa.Column(str, description="the file, by its path in the run folder"),
        "column": pa.Column(str, description="the column; (rows): which rows there are"),
        "verdict": pa.Column(
            str, pa.Check.isin([IDENTICAL, WITHIN, DIFFERENT]), description="see interp/rerun.py"
        ),
        "largest_difference": or_none("of two numbers in one place; empty for text"),
        "n_different": pa.Column(int, pa.Check.ge(0), description="values that are not the same"),
        "n_rows": pa.Column(int, pa.Check.ge(0), description="rows compared"),
    },
    name="verdicts",
    strict=True,
    ordered=True,
)


SCHEMAS = {
    schema.name: schema
    for schema in (
        PER_PROMPT,
        SUMMARY,
        ROW,
        FORMATION,
        LOSSES,
        TRAINING,
        EFFECTS_PER_PROMPT,
        EFFECTS,
        AUDIT,
        INFLUENCE_PER_PROMPT,
        INFLUENCE,
        AGREEMENT,
        COPYING,
        COMPOSITION,
        NAMED_PAIRS,
        HEAD_SETS_PER_PROMPT,
        HEAD_SETS,
        FAITHFULNESS_AREAS,
        HEAD_RANKING,
        ABLATED_SETS_PER_PROMPT,
        ABLATED_SETS,
        SINK_EFFECTS_PER_PROMPT,
        SINK_EFFECTS,
        SINK_MASSES,
        VERDICTS,
        *LESSON,
    )
}


def write(table: pd.DataFrame, path: Path) -> None:
    """Write a table that keeps its contract, as CSV or Parquet by the path's ending.

    Numbers are written so that they read back as the same floats; undefined is an empty field.
    """
    table = schema_of(table).validate(table)
    if path.suffix == ".parquet":
        table.to_parquet(path, index=False)
    else:
        # Text in quotes where a token may be "\r", which a reader would take for the end of a line.
        quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if "key_token" in table else csv.QUOTE_MINIMAL
        table.to_csv(path, index=False, lineterminator="\n", quoting=quoting)


def read(path: Path) -> pd.DataFrame:
    """Read a table back as it was written: tokens such as "NA" or "1e5" stay text.

    Raises:
        InterpError: no such file, one that is no table, or its columns are those of none of ours.
    """
    try:
        if path.suffix == ".parquet":
            table = pd.read_parquet(path)
        else:
            columns = pd.read_csv(path, nrows=0).columns
            schema = schema_of(columns)
            text = [name for name in columns if _is_text(schema.columns[name])]
            table = pd.read_csv(
                path,
                dtype=dict.fromkeys(text, "str"),
                keep_default_na=False,
                na_values={name: [""] for name in columns if name not in _TOKENS},
            )
    except FileNotFoundError:
        raise InterpError(f"no table {path}") from None
    except (OSError, ValueError) as error:  # pandas' and pyarrow's own errors are ValueErrors
        raise InterpError(f"{path} is no table: {error}") from error
    schema = schema_of(table)
    for name, column in schema.columns.items():
        if name not in table:
            continue
        if str(column.dtype) == "Int64":
            table[name] = table[name].astype("Int64")
        elif column.dtype is not None and str(column.dtype).startswith("float"):
            table[name] = table[name].astype(float)
    return schema.validate(table)


def schema_of(table: pd.DataFrame | pd.Index) -> pa.DataFrameSchema:
    """The contract a table falls under, by its columns."""
    columns = set(table.columns if isinstance(table, pd.DataFrame) else table)
    for schema in SCHEMAS.values():
        needed = {name for name, column in schema.columns.items() if column.required}
        if needed <= columns <= set(schema.columns):
            return schema
    raise InterpError(f"no table of ours has the columns {sorted(columns)}")


def as_text(table: pd.DataFrame) -> str:
    """A few rows for the terminal: short numbers, no column that is the same for all or empty."""
    said_elsewhere = ["model", "role", "task", "edit", "metric"]
    rarely_wanted = ["undefined_reason", "attention_path", "n_undefined"]
    shown = table.dropna(axis="columns", how="all").drop(
        columns=[*said_elsewhere, *rarely_wanted], errors="ignore"
    )
    if "key_token" in shown:
        shown["key_token"] = shown["key_token"].map(repr)
    for name in shown.select_dtypes("float"):
        digits = "{:.2g}" if name in ("p", "q", "p_without") else "{:.4f}"
        shown[name] = shown[name].map(digits.format, na_action="ignore")
    return shown.astype(object).where(shown.notna(), "").to_string(index=False)


_TOKENS = ("query_token", "key_token")


def _is_text(column: pa.Column) -> bool:
    return column.dtype == REASON.dtype  # as pandera names text, which depends on the version


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
    keys = [key for key in EFFECT_KEYS if key in per_prompt]
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
