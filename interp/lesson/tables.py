"""The tables of the lesson: their columns, and what each means (read and written by results/tables.py)."""

from __future__ import annotations

import pandera.pandas as pa

from interp.results.columns import KEYS, contract, count, ends, or_none, share

# --- attention by hand ---------------------------------------------------------------------------

_QUERY = {
    "query": count("position of the query", 0),
    "query_token": pa.Column(str, description="its text"),
}

BY_HAND = contract(
    {"example": pa.Column(str, description="from vectors (scaled), or from scores as they are")}
    | _QUERY
    | {
        "key": count("position of the key", 0),
        "key_token": pa.Column(str, description="its text"),
        "score": pa.Column(float, description="query · key"),
        "scaled": pa.Column(float, description="score / √d_k; what goes into the softmax"),
        "visible": pa.Column(bool, description="whether the mask lets the query see the key"),
        "weight": share("softmax over the visible keys"),
        "chance": share("weight if uniform over the visible keys"),
    },
    unique=["example", "query", "key"],
    name="by_hand",
)

BY_HAND_OUTPUTS = contract(
    _QUERY
    | {
        "dimension": count("of the value vectors, from 0", 0),
        "output": pa.Column(float, description="Σ weight · value"),
        "uniform": pa.Column(float, description="the same with uniform weights"),
    },
    unique=["query", "dimension"],
    name="by_hand_outputs",
)

MULTI_HEAD_FLOPS = contract(
    {
        "n_heads": count("heads"),
        "d_head": count("width of each"),
        "projection_flops": count("counted, query, key, value and output projections"),
        "attention_flops": count("counted, scores and weighted sums"),
        "flops": count("counted, all matrix products"),
        "exponentials": count("of the softmax: no matrix products, not among the FLOPs"),
    },
    unique=["n_heads"],
    name="multi_head_flops",
)

# --- scores and their scaling --------------------------------------------------------------------

SCALING = contract(
    {
        "d_k": count("width of the random vectors"),
        "scaling": pa.Column(str, description="what scores are multiplied by: 1/√d_k, or none"),
        "quantity": pa.Column(str, description="see interp/lesson/scaling.py"),
        "value": pa.Column(float, description="mean over draws"),
        "ci_low": pa.Column(float, description="bootstrap over draws, low end"),
        "ci_high": pa.Column(float, description="bootstrap over draws, high end"),
        "reference": pa.Column(float, description="variance: by theory; else of uniform weights"),
        "n_keys": count("keys in a draw", 2),
        "n_draws": count("queries, each with keys of its own", 2),
    },
    unique=["d_k", "scaling", "quantity"],
    name="scaling",
)

_RESCALED = pa.Column(str, description="own, none or uniform: see interp/lesson/rescaling.py")

RESCALED_HEADS = contract(
    {
        "model": KEYS["model"],
        "scaling": _RESCALED,
        "layer": KEYS["layer"],
        "head": KEYS["head"],
        "scale": pa.Column(float, description="the model's own factor of the scores"),
        "entropy": pa.Column(float, description="of attention rows, nats, mean"),
        **ends("entropy", "bootstrap over prompts"),
        "uniform_entropy": pa.Column(float, description="if uniform over the keys in reach"),
        "largest_weight": share("of attention rows, mean"),
        **ends("largest_weight", "bootstrap over prompts", share),
        "chance": share("if uniform over the keys in reach"),
        "n_prompts": count("prompts measured"),
    },
    unique=["model", "scaling", "layer", "head"],
    name="rescaled_heads",
)

RESCALED_LOSSES = contract(
    {
        "model": KEYS["model"],
        "layer": pa.Column(
            "Int64", pa.Check.ge(0), nullable=True, coerce=True, description="empty: all layers"
        ),
        "scaling": _RESCALED,
        "loss": pa.Column(float, description="nats a token, mean over prompts"),
        **ends("loss", "bootstrap over prompts"),
        "change": pa.Column(float, description="loss − that with the model's own scaling"),
        **ends("change", "bootstrap over prompts"),
        "p": share("change not 0: two-sided sign flips over prompts"),
        "n_prompts": count("prompts measured"),
    },
    unique=["model", "layer", "scaling"],
    name="rescaled_losses",
)

# --- the causal mask -----------------------------------------------------------------------------

_CUT = {
    "model": KEYS["model"],
    "mask": pa.Column(str, description="own: the model's; none: every query sees every key"),
    "last_kept": count("t: every token after it was replaced", 0),
}
_DIFFERENCE = pa.Column(float, pa.Check.ge(0), description="largest |logit after − before|")

CAUSAL_CUTS = contract(
    _CUT
    | {
        "side": pa.Column(str, description="kept: positions 0 … t; changed: those after"),
        "difference": _DIFFERENCE,
        "kl": pa.Column(float, description="KL(before ‖ after), nats, mean"),
        **ends("ci", "bootstrap over prompts"),
        "n_positions": count("predictions compared, all prompts"),
        "n_prompts": count("prompts measured"),
    },
    unique=[*_CUT, "side"],
    name="causal_cuts",
)

CAUSAL_POSITIONS = contract(
    _CUT
    | {
        "position": count("of the prediction", 0),
        "difference": _DIFFERENCE,
        "kl": pa.Column(float, description="KL(before ‖ after), nats, mean over prompts"),
        **ends("ci", "bootstrap over prompts"),
        "n_prompts": count("prompts measured"),
    },
    unique=[*_CUT, "position"],
    name="causal_positions",
)

CAUSAL_PREFIXES = contract(
    {
        "model": KEYS["model"],
        "prompt": pa.Column(str, description="name of the prompt"),
        "position": count("last token of the prefix", 0),
        "difference": pa.Column(float, description="largest |logit in one pass − of the prefix|"),
        "rounding": pa.Column(float, description="what rounding can do: metrics.last_places"),
        "same_top": pa.Column(bool, description="whether both have the same most likely token"),
        "loss": or_none("of the next token in one pass over the prompt, nats"),
        "loss_alone": or_none("the same from a pass over the prefix alone"),
    },
    unique=["model", "prompt", "position"],
    name="causal_prefixes",
)

# --- what attention costs ------------------------------------------------------------------------

_WAY = pa.Column(str, description="eager, fused, ours or online: see interp/lesson/cost.py")

ATTENTION_COST = contract(
    {
        "way": _WAY,
        "length": count("n, tokens", 2),
        "seconds": pa.Column(float, pa.Check.gt(0), description="of one call, median"),
        "fastest": pa.Column(float, pa.Check.gt(0), description="call"),
        "slowest": pa.Column(float, pa.Check.gt(0), description="call"),
        "memory": or_none("bytes by which the first call raised the peak; empty: not known"),
        "flops": or_none("counted; empty: an operator, inside which nothing is counted"),
        "formula": count("4·n²·d·H, the causal mask not used to save work"),
        "difference": pa.Column(float, description="largest |output − that of eager attention|"),
        "n_heads": count("H"),
        "d_head": count("d"),
        "n_repeats": count("calls that were timed"),
    },
    unique=["way", "length"],
    name="attention_cost",
)

COST_EXPONENTS = contract(
    {
        "way": _WAY,
        "quantity": pa.Column(str, description="seconds, memory or flops"),
        "exponent": or_none("b in quantity ∝ n^b; empty: fewer than 3 lengths above 0"),
        "standard_error": or_none("of b, over the lengths"),
        "n_lengths": count("lengths with a value above 0", 0),
    },
    unique=["way", "quantity"],
    name="cost_exponents",
)

# --- the key-value cache -------------------------------------------------------------------------

_CACHED = pa.Column(
    str, description="the model, or numbers of layers, query heads, and their width"
)

CACHE_SIZES = contract(
    {
        "name": _CACHED,
        "scheme": pa.Column(
            str, pa.Check.isin(["MHA", "GQA", "MQA", "latent"]), description="kind"
        ),
        "full_layers": count("layers that keep all tokens", 0),
        "sliding_layers": count("layers that keep a window", 0),
        "other_layers": count("layers that keep none: shared, or without attention", 0),
        "window": pa.Column("Int64", nullable=True, description="tokens; the smallest, if several"),
        "values_per_token": count("numbers a token, all layers, no window full"),
        "bytes_per_token": pa.Column(float, description="the same in bytes"),
        "share_of_mha": pa.Column(float, description="of what MHA with as many heads would keep"),
        "context": count("tokens of each user"),
        "bytes_per_user": pa.Column(float, description="windows taken into account"),
        "users": count("users"),
        "bytes": pa.Column(float, description="for all of them"),
        "memory": or_none("bytes at hand; empty: not known"),
        "users_that_fit": pa.Column("Int64", nullable=True, description="into that memory"),
    },
    unique=["name"],
    name="cache_sizes",
)

CACHE_GROWTH = contract(
    {
        "name": _CACHED,
        "context": count("tokens"),
        "bytes": pa.Column(float, description="of one user's cache"),
    },
    unique=["name", "context"],
    name="cache_growth",
)

CACHE_MEASURED = contract(
    {
        "name": _CACHED,
        "tokens": count("read by the model"),
        "formula_bytes": count("by the formula, a window less the current token"),
        "cache_bytes": count("of the keys and values that transformers keeps"),
        "bytes_per_value": count("of the dtype that was loaded"),
        "equal": pa.Column(bool, description="whether both are the same"),
    },
    unique=["name", "tokens"],
    name="cache_measured",
)

# --- eviction ------------------------------------------------------------------------------------

_POLICY = {
    "model": KEYS["model"],
    "policy": pa.Column(str, description="what leaves the cache: see interp/lesson/eviction.py"),
    "n_pinned": count("tokens that never leave", 0),
    "positions": pa.Column(
        str,
        pa.Check.isin(["kept", "reindexed", "recomputed"]),
        description="of the tokens left: see interp/lesson/cache_steps.py",
    ),
    "budget": count("tokens that the cache keeps"),
}
_LOSS = pa.Column(float, description="nats a token, second half of the text")
_WHOLE = pa.Column(float, description="the same of a cache that keeps all")
_TEXTS = count("texts measured")
_RISE = {
    "effect": pa.Column(
        float, description="loss − that of a cache that keeps all, mean over texts"
    ),
    **ends("ci", "bootstrap over texts"),
}
_TESTS = {
    "p": share("effect not 0: two-sided sign flips over texts"),
    "q": share("p with false discoveries over all rows held"),
}

EVICTION_PER_PROMPT = contract(
    _POLICY
    | {
        "prompt": pa.Column(str, description="name of the text"),
        "loss": _LOSS,
        "baseline": _WHOLE,
        "n_scored": count("tokens scored in this text"),
    },
    ordered=False,
    unique=[*_POLICY, "prompt"],
    name="eviction_per_prompt",
)

EVICTION = contract(
    _POLICY
    | {
        "perplexity": pa.Column(float, pa.Check.ge(1), description="e^loss"),
        "perplexity_low": or_none("e^loss_low"),
        "perplexity_high": or_none("e^loss_high"),
        "loss": _LOSS,
        **ends("loss", "bootstrap over texts"),
    }
    | _RISE
    | _TESTS
    | {"n_scored": count("tokens scored, all texts"), "n_prompts": _TEXTS},
    unique=[*_POLICY],
    name="eviction",
)

EVICTION_POSITIONS = contract(
    _POLICY
    | {
        "position": count("of the token predicted"),
        "loss": pa.Column(float, description="its loss, nats, mean over texts"),
        **ends("ci", "bootstrap over texts"),
        "n_prompts": _TEXTS,
    },
    unique=[*_POLICY, "position"],
    name="eviction_positions",
)

_HEAD = {name: KEYS[name] for name in ("model", "layer", "head")}

EVICTED_HEADS_PER_PROMPT = contract(
    _HEAD
    | {
        "prompt": pa.Column(str, description="name of the text"),
        "sink_mass": share("attention mass on the first token, from all later ones"),
        "effect": pa.Column(float, description="rise of the loss when this head alone evicts"),
        "baseline": _WHOLE,
    },
    ordered=False,
    unique=[*_HEAD, "prompt"],
    name="evicted_heads_per_prompt",
)

EVICTED_HEADS = contract(
    _HEAD
    | {
        "sink_mass": share("attention mass on the first token, mean over texts"),
        **ends("mass", "bootstrap over texts", share),
    }
    | _RISE
    | {"baseline": _WHOLE}
    | _TESTS
    | {"n_prompts": _TEXTS},
    unique=[*_HEAD],
    name="evicted_heads",
)

SINKS_AND_EVICTIONS = contract(
    {
        "model": KEYS["model"],
        "spearman": or_none("rank correlation over heads of sink mass and effect"),
        **ends("ci", "bootstrap over texts"),
        "n_heads": count("heads ranked"),
        "n_prompts": _TEXTS,
    },
    unique=["model"],
    name="sinks_and_evictions",
)

# --- hypotheses ----------------------------------------------------------------------------------

_HYPOTHESIS = {
    "model": KEYS["model"],
    "kind": pa.Column(str, pa.Check.isin(["made-up", "real"]), description="random, or of a role"),
    "hypothesis": count("number of the draw", 0),
    "layer": KEYS["layer"],
    "head": KEYS["head"],
}
_SEEN = {
    "weight": share("attention weight from the query to its key"),
    "null": share("to another key of the query, at another distance from the same draw"),
    "uniform": share("if attention were even over the keys in reach"),
    "rise": pa.Column(float, description="of the loss of the token after the query, head's z at 0"),
    "rise_control": pa.Column(float, description="the same at another query"),
}

HYPOTHESES_PER_PROMPT = contract(
    _HYPOTHESIS
    | {
        "prompt": pa.Column(str, description="name of the prompt"),
        "query": count("position that is said to look", 0),
        "key": count("position that it is said to look at", 0),
        "null_key": count("position of the null", 0),
        "control_query": count("position of the control of the ablation", 0),
    }
    | _SEEN,
    ordered=False,
    unique=[*_HYPOTHESIS, "prompt"],
    name="hypotheses_per_prompt",
)

HYPOTHESIS_TESTS = contract(
    _HYPOTHESIS
    | _SEEN
    | {
        "one_map": share("weight in the first prompt alone"),
        "p_uniform": share("weight above uniform: sign flips over prompts"),
        "p": share("weight above null: sign flips over prompts"),
        "q_bh": share("p with false discoveries over all of its kind held, Benjamini–Hochberg"),
        "q_by": share("the same, Benjamini–Yekutieli"),
        "p_ablation": share("rise above control, for heads above null; else undefined"),
        "q_ablation": share("p_ablation with false discoveries over those ablated held"),
        "n_prompts": count("prompts"),
    },
    unique=[*_HYPOTHESIS],
    name="hypothesis_tests",
)

HYPOTHESES = contract(
    {
        "model": KEYS["model"],
        "kind": _HYPOTHESIS["kind"],
        "criterion": pa.Column(str, description="see interp/lesson/hypotheses.py"),
        "n_striking": count("heads that meet it, over all hypotheses", 0),
        "expected": or_none("level × tests: how many meet it by chance"),
        "share": share("of heads that meet it, mean over hypotheses"),
        **ends("ci", "bootstrap over hypotheses", share),
        "any_head": share("of hypotheses for which some head meets it"),
        **ends("any", "bootstrap over hypotheses", share),
        "n_tests": count("heads × hypotheses that were tested", 0),
        "n_hypotheses": count("draws"),
        "n_heads": count("heads"),
        "n_prompts": count("prompts"),
    },
    unique=["model", "kind", "criterion"],
    name="hypotheses",
)

# --- pronouns ------------------------------------------------------------------------------------

_TASK = {
    "model": KEYS["model"],
    "task": pa.Column(str, description="little_world_pronoun, or pronouns"),
}
_READING = pa.Column(
    str, description="partial, question, and controls: interp/lesson/pronouns.py, partial_scores.py"
)
_FRAMES = {
    "n_frames": count("frames of two sentences, or a published set's twins: what is independent"),
    "n_prompts": count("sentences measured"),
}

PREFERENCES_PER_PROMPT = contract(
    _TASK
    | {
        "reading": _READING,
        "prompt": pa.Column(str, description="name of the sentence"),
        "template": pa.Column(str, description="its frame"),
        "preference": pa.Column(float, description="score of the right noun − of the wrong one"),
    },
    ordered=False,
    unique=["model", "task", "reading", "prompt"],
    name="preferences_per_prompt",
)

PREFERENCES = contract(
    _TASK
    | {
        "reading": _READING,
        "preference": pa.Column(float, description="right − wrong, mean over frames; 0 by chance"),
        **ends("preference", "bootstrap over frames"),
        "accuracy": share("of sentences with a preference above 0; a tie counts half"),
        **ends("accuracy", "bootstrap over frames", share),
        "chance": share("accuracy by chance"),
        "both_right": share(
            "of frames of several sentences, all right; 0 if what differs is not read"
        ),
        **ends("both_right", "bootstrap over frames", share),
        "p": share("preference not 0: two-sided sign flips over frames"),
        "verdict": pa.Column(
            str, pa.Check.isin(["at chance", "better than chance", "worse than chance"])
        ),
    }
    | _FRAMES,
    unique=["model", "task", "reading"],
    name="preferences",
)

LOOKS = contract(
    _TASK
    | {
        "layer": KEYS["layer"],
        "head": KEYS["head"],
        "query": pa.Column(str, pa.Check.isin(["it", "adjective", "END"]), description="who looks"),
        "right": share("attention weight on the right noun, mean over frames"),
        "wrong": share("on the wrong one"),
        "flip": pa.Column(
            float, description="right − wrong; of it 0, for the adjective comes later"
        ),
        **ends("ci", "bootstrap over frames"),
        "p": share("flip not 0: two-sided sign flips over frames; of it undefined"),
        "q": share("p with false discoveries over all heads and queries held"),
    }
    | _FRAMES,
    unique=["model", "task", "layer", "head", "query"],
    name="looks",
)

SCHEMAS: tuple[pa.DataFrameSchema, ...] = (
    BY_HAND,
    BY_HAND_OUTPUTS,
    MULTI_HEAD_FLOPS,
    SCALING,
    RESCALED_HEADS,
    RESCALED_LOSSES,
    CAUSAL_CUTS,
    CAUSAL_POSITIONS,
    CAUSAL_PREFIXES,
    ATTENTION_COST,
    COST_EXPONENTS,
    CACHE_SIZES,
    CACHE_GROWTH,
    CACHE_MEASURED,
    EVICTION_PER_PROMPT,
    EVICTION,
    EVICTION_POSITIONS,
    EVICTED_HEADS_PER_PROMPT,
    EVICTED_HEADS,
    SINKS_AND_EVICTIONS,
    HYPOTHESES_PER_PROMPT,
    HYPOTHESIS_TESTS,
    HYPOTHESES,
    PREFERENCES_PER_PROMPT,
    PREFERENCES,
    LOOKS,
)
