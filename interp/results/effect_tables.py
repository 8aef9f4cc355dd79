"""Columns of effects: what an edit does to a metric. effect = metric after − metric before, in its unit.

Rows are means over templates, since prompts of one template are dependent.
"""

from __future__ import annotations

import pandera.pandas as pa

from interp.results.columns import KEYS, contract, count, ends, or_none, share


def _perhaps(description: str) -> pa.Column:
    """A column of numbers that not every table has, and that may be undefined."""
    return pa.Column(float, required=False, nullable=True, description=description)


EDITED = {
    "model": KEYS["model"],
    "site": pa.Column(
        str, required=False, description="kind of activation: see interp/editing/sites.py"
    ),
    "unit": pa.Column(str, required=False, description="what head counts: head, kv_head, or layer"),
    "layer": KEYS["layer"],
    "head": pa.Column(int, pa.Check.ge(0), required=False, description="head of that unit, from 0"),
    "place": pa.Column(str, required=False, description="named place, or position, in the prompt"),
    "receiver": pa.Column(str, required=False, description="where a path ends: q of 1.3, logits"),
    "task": pa.Column(
        str, description="what the model was to do: see interp/inputs/tasks.py, sentences.py"
    ),
    "edit": pa.Column(str, description="what was done there, and with what"),
    "metric": pa.Column(str, description="what was measured, see interp/editing/metrics.py"),
}


def _one_row_each(*more: str) -> pa.Check:
    """No two rows of the same thing; which of its columns a table has differs."""
    keys = ["run", *EDITED, *more]
    return pa.Check(
        lambda table: not table.duplicated([key for key in keys if key in table]).any(),
        error=f"two rows agree in all of {', '.join(keys)}",
    )


EFFECTS_PER_PROMPT = contract(
    EDITED
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
    ordered=False,
    checks=_one_row_each("prompt"),
    name="effects_per_prompt",
)

EFFECTS = contract(
    EDITED
    | {
        "position": pa.Column(float, required=False, description="of the place, mean over prompts"),
        "effect": pa.Column(
            float, description="metric after the edit − before, mean over templates"
        ),
        **ends("ci", "bootstrap over templates"),
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
        "n_templates": count("independent groups of prompts"),
        "n_prompts": count("prompts measured"),
    },
    checks=_one_row_each(),
    name="effects",
)

AUDIT = contract(
    {name: column for name, column in EDITED.items() if name != "receiver"}
    | {
        "estimate": pa.Column(float, description="effect by gradients, mean over templates"),
        "exact": pa.Column(float, description="effect of the patch itself, mean over templates"),
        "in_top": pa.Column(bool, description="chosen because its estimate is among the largest"),
        "in_random": pa.Column(bool, description="drawn at random"),
    },
    checks=_one_row_each(),
    name="audit",
)


_TOGETHER = {name: EDITED[name] for name in ("model", "task", "edit", "metric")} | {
    "heads": pa.Column(str, description="ablated together, layer.head each"),
    "kind": pa.Column(
        str,
        pa.Check.isin(["named", "random"]),
        description="random: as many other heads of the same layers",
    ),
    "n_heads": count("heads in the set"),
}

ABLATED_SETS_PER_PROMPT = contract(
    _TOGETHER
    | {
        "prompt": pa.Column(str, description="name of the prompt"),
        "template": pa.Column(str, description="prompts of one template are dependent"),
        "effect": pa.Column(float, description="metric with the set ablated − metric without"),
        "baseline": pa.Column(float, description="metric before"),
    },
    unique=["model", "heads", "prompt"],
    name="ablated_sets_per_prompt",
)

ABLATED_SETS = contract(
    _TOGETHER
    | {
        "effect": pa.Column(float, description="metric after − before, mean over templates"),
        **ends("ci", "bootstrap over templates"),
        "baseline": pa.Column(float, description="metric before, mean over templates"),
        "p": share("named: (1 + n_as_large) / (1 + n_random)"),
        "n_as_large": pa.Column(
            "Int64",
            pa.Check.ge(0),
            nullable=True,
            description="random sets of as large an |effect|",
        ),
        "n_random": count("random sets", 0),
        "n_templates": count("independent groups of prompts"),
        "n_prompts": count("prompts measured"),
    },
    unique=["model", "heads"],
    name="ablated_sets",
)

_KNOCKED = {
    "model": KEYS["model"],
    "layer": pa.Column(
        "Int64", pa.Check.ge(0), nullable=True, coerce=True, description="from 0; empty: all layers"
    ),
    "knock_out": pa.Column(str, description="in which way: see edits.knock_out"),
    "n_keys": count("how many of the first positions", 0),
}
_OF_SINKS = _KNOCKED | {
    "metric": pa.Column(str, description="loss or kl: see interp/editing/metrics.py")
}


SINK_EFFECTS_PER_PROMPT = contract(
    _OF_SINKS
    | {
        "prompt": pa.Column(str, description="name of the prompt"),
        "template": pa.Column(str, description="prompts of one template are dependent"),
        "effect": pa.Column(float, description="metric after the knock-out − before"),
        "control": or_none("of as many random positions, mean over draws"),
        "baseline": pa.Column(float, description="metric before"),
    },
    unique=[*_OF_SINKS, "prompt"],
    name="sink_effects_per_prompt",
)

SINK_EFFECTS = contract(
    _OF_SINKS
    | {
        "effect": pa.Column(float, description="metric after the knock-out − before, mean"),
        **ends("ci", "bootstrap over templates"),
        "control": or_none("of as many random positions, mean over draws and prompts"),
        **ends("control", "bootstrap over templates"),
        "baseline": pa.Column(float, description="metric before, mean"),
        "p": share(
            "effect not 0: two-sided sign flips over templates; undefined for kl, never < 0"
        ),
        "p_control": share("effect not the control's: two-sided sign flips over templates"),
        "q": share("p with false discoveries over all rows held"),
        "q_control": share("p_control with false discoveries over all rows held"),
        "n_templates": count("independent groups of prompts"),
        "n_prompts": count("prompts measured"),
    },
    unique=[*_OF_SINKS],
    name="sink_effects",
)

SINK_MASSES = contract(
    {name: column for name, column in _KNOCKED.items() if name != "layer"}
    | {
        "key": pa.Column(
            str, description="a position, current (the query's), others, learned sink, nowhere"
        ),
        "mass": share("attention there; mean over queries, heads, layers and prompts"),
        **ends("ci", "bootstrap over prompts", share),
        "n_prompts": count("prompts measured"),
    },
    unique=["model", "knock_out", "n_keys", "key"],
    name="sink_masses",
)
