"""Columns of scores: where heads look, with chance, null and interval; one row of weights; training.

With the mass go its interval, chance, the null, the number of queries and prompts, and why it is
undefined where it is (never 0, and never ranked first).
"""

from __future__ import annotations

import pandera.pandas as pa

from interp.results.columns import KEYS, contract, count, ends, or_none, share

MASSES = {
    "mass": share("attention mass on the role's targets"),
    "mass_off_sink": or_none("share of the attention off position 0 that is on targets"),
    "learned_sink": share("mass on the model's learned sink"),
    "chance": share("mass if uniform over the keys in reach"),
    "null": share("mass on position-matched wrong targets"),
}
REASON = pa.Column(str, nullable=True, description="why the mass is undefined, where it is")
PATH = pa.Column(str, description="fused, tiled (both exact) or transformer_lens (weights written)")

PER_PROMPT = contract(
    KEYS
    | {
        "prompt": pa.Column(str, description="name of the prompt"),
        "template": pa.Column(
            str, required=False, description="prompts of one template are dependent"
        ),
    }
    | MASSES
    | {
        "n_queries": count("queries scored in this prompt", 0),
        "position": pa.Column(
            "Int64", nullable=True, description="sink_any: the position found in this prompt"
        ),
        "undefined_reason": REASON,
        "attention_path": PATH,
    },
    ordered=False,
    unique=["model", "layer", "head", "role", "prompt"],
    name="per_prompt",
)

SUMMARY = contract(
    KEYS
    | {
        "mass": MASSES["mass"],
        **ends("ci", "bootstrap interval over prompts (or templates)", share),
    }
    | {name: MASSES[name] for name in ("chance", "null", "mass_off_sink", "learned_sink")}
    | {
        "p": share("mass above null: sign flips over prompts (or templates)"),
        "q": share("p with false discoveries over all heads held"),
        "position": pa.Column(
            "Int64", nullable=True, description="sink_any: the position found most often"
        ),
        "n_queries": count("queries scored, all prompts", 0),
        "n_prompts": count("prompts with a defined mass", 0),
        "n_templates": pa.Column(
            int, pa.Check.ge(0), required=False, description="independent groups of these prompts"
        ),
        "n_undefined": count("prompts without one", 0),
        "undefined_reason": REASON,
        "attention_path": PATH,
    },
    unique=["model", "layer", "head", "role"],
    name="summary",
)

NULLS = contract(
    KEYS
    | {
        "null": pa.Column(
            str,
            pa.Check.isin(["random_init", "shuffled"]),
            description="what was scored in its place: see interp/scoring/nulls.py",
        ),
        "mass": MASSES["mass"],
        "null_mass": share("mass of the same head under the null"),
        **ends("null", "bootstrap interval over prompts (or templates)", share),
        "null_largest": share("mass of the head that has most under the null, of any layer"),
        "share_as_large": share("of all heads under the null, those with as much mass as this one"),
        "n_heads": count("heads with a mass under the null", 0),
        "n_prompts": count("prompts with one, of this head", 0),
        "undefined_reason": REASON,
    },
    unique=["model", "layer", "head", "role", "null"],
    name="nulls",
)


def _agreement(description: str) -> pa.Column:
    return pa.Column(
        float, pa.Check.in_range(-1.001, 1.001), nullable=True, description=description
    )


STABILITY = contract(
    {
        "model": KEYS["model"],
        "ranking": pa.Column(str, description="a role; or an edit, and the metric of its effects"),
        "measure": pa.Column(
            str, description="split half (rank correlation), or top k (share of the k first)"
        ),
        "n_prompts": count("prompts (or templates) in a half, or a subsample", 0),
        "agreement": _agreement("of halves, or of a subsample with all; mean over draws"),
        "low": _agreement("range of the draws, low end: no interval for other prompts"),
        "high": _agreement("range of the draws, high end"),
        "chance": pa.Column(float, description="agreement of rankings that have nothing in common"),
        "needed": pa.Column(
            "Int64",
            pa.Check.ge(2),
            nullable=True,
            description="top k: prompts from which on it agrees by 0.9; empty: at none of these",
        ),
        "n_draws": count("splits, or subsamples", 0),
        "n_heads": count("heads (or rows) ranked", 0),
        "n_total": count("prompts (or templates) in all", 0),
        "undefined_reason": REASON,
    },
    unique=["model", "ranking", "measure", "n_prompts"],
    name="stability",
)


SINK_RATE = contract(
    {
        "layer": pa.Column(str, description="layer, from 0; all: the whole model"),
        "sink_rate": share(
            "heads whose sink score exceeds epsilon, see interp/scoring/sink_rate.py"
        ),
        **ends("ci", "bootstrap over prompts", share),
        "epsilon": pa.Column(float, description="threshold on the sink score"),
        "tokens": count("first tokens of a prompt that count"),
        "n_heads": count("heads counted"),
        "n_prompts": count("prompts measured"),
    },
    unique=["layer"],
    name="sink_rate",
)

ROW = contract(
    {
        "model": KEYS["model"],
        "layer": KEYS["layer"],
        "head": KEYS["head"],
        "query": count("position of the query token", 0),
        "query_token": pa.Column(str, description="its text"),
        "key": count("position of the token looked at", 0),
        "key_token": pa.Column(str, description="its text"),
        "weight": pa.Column(float, pa.Check.in_range(0, 1 + 1e-4), description="attention weight"),
    },
    unique=["query", "key"],
    name="row",
)

STEP = count("training step of the checkpoint", 0)

FORMATION = contract(
    {"model": KEYS["model"], "step": STEP}
    | {name: column for name, column in SUMMARY.columns.items() if name != "model"},
    unique=["model", "step", "layer", "head", "role"],
    name="formation",
)

LOSSES = contract(
    {
        "model": KEYS["model"],
        "step": STEP,
        "tokens": pa.Column(str, pa.Check.isin(["fresh", "repeat"]), description="which tokens"),
        "loss": pa.Column(float, description="mean cross-entropy, nats a token"),
        **ends("ci", "bootstrap over prompts"),
        "n_prompts": SUMMARY.columns["n_prompts"],
    },
    unique=["model", "step", "tokens"],
    name="losses",
)

_LOSS = or_none("nats a token, see interp/pretraining/training.py")
_RIGHT = pa.Column(float, pa.Check.in_range(0, 1), description="share of held-out pairs all right")

TRAINING = contract(
    {
        "step": STEP,
        "tokens": count("training tokens seen", 0),
        "learning_rate": pa.Column(float, description="of the step just taken"),
    }
    | dict.fromkeys(("train_loss", "story_loss", "fresh_loss", "repeat_loss"), _LOSS)
    | dict.fromkeys(("indirect_object", "pronoun", "recurring_name", "possession"), _RIGHT),
    unique=["step"],
    name="training",
)
