"""Columns of scores: where heads look, with chance, null and interval; one row of weights; training.

With the mass go its interval, chance, the null, the number of queries and prompts, and why it is
undefined where it is (never 0, and never ranked first).
"""

from __future__ import annotations

import pandera.pandas as pa

from interp.results.columns import KEYS, share

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

_LOSS = pa.Column(
    float, nullable=True, description="nats a token, see interp/little_world/training.py"
)
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
