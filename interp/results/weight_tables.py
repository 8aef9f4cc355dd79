"""Columns of what the weights say: copying scores of heads, composition of pairs of heads."""

from __future__ import annotations

import pandera.pandas as pa

from interp.results.columns import KEYS, contract, count, ends, share

_SCORE = pa.Column(
    float,
    pa.Check.in_range(-1.001, 1.001),
    nullable=True,
    description="see interp/weights/composition.py",
)

COPYING = contract(
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
        "n_random": count("random heads", 2),
    },
    unique=["model", "layer", "head"],
    name="copying",
)

_KIND = pa.Column(str, pa.Check.isin(["q", "k", "v"]), description="what head 2 does with it")
_ENDS = {
    f"{end}_{unit}": count(f"{unit} of the {which} head", 0)
    for end, which in (("sender", "earlier"), ("receiver", "later"))
    for unit in ("layer", "head")
}

COMPOSITION = contract(
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
    unique=["model", *_ENDS, "kind"],
    name="composition",
)

NAMED_PAIRS = contract(
    {
        "model": KEYS["model"],
        "kind": _KIND,
        "composition": share("mean over the named pairs"),
        "others": share("mean over the other pairs of the same layers"),
        **ends("null", "interval of the mean under relabelled heads", share),
        "baseline": share("random factors, mean"),
        "p": share("share of relabellings with a mean as large"),
        "n_pairs": count("named pairs", 0),
        "n_others": count("other pairs of the same layers", 0),
        "n_relabellings": count("gone through, or drawn", 0),
        "exact": pa.Column(bool, description="whether these are all there are"),
    },
    unique=["model", "kind"],
    name="named_pairs",
)
