"""What a key-value cache holds, from a model's config alone.

    multi-head, grouped or multi-query   n_kv · (d_key + d_value) numbers a token and layer   (2 · n_kv · d)
    latent (DeepSeek-V2, 2405.04434)     d_latent + d_rope, shared by all heads
    a layer with a window of W           the same, for min(T, W) of T tokens
    a layer that reuses another's cache, or has no attention   0

    bytes = Σ over layers of tokens held · numbers · bytes a number, for each user

n_kv is the number of key-value heads: that of query heads (MHA), fewer (GQA; Ainslie et al., 2305.13245) or
one (MQA; Shazeer, 1911.02150). transformers keeps W − 1 tokens of a window, since the current one makes W:
held against a real cache, the formula takes that. The fixed-size state of layers without attention (Mamba and
its like) is no cache of tokens and is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

import pandas as pd
import torch
from transformers import PreTrainedConfig

from interp.errors import InterpError
from interp.lesson.tables import CACHE_GROWTH, CACHE_MEASURED, CACHE_SIZES
from interp.models.model import Model, d_head_of, evaluating, kv_heads_of

# transformers' kinds of layers: the key of the config that holds the window, all tokens, or no keys at all.
_WINDOWED = {
    "sliding_attention": "sliding_window",
    "hybrid_sliding": "sliding_window",
    "chunked_attention": "attention_chunk_size",
}
_WHOLE = {"full_attention", "attention", "hybrid"}
_WITHOUT = {"linear_attention", "conv", "mamba", "recurrent", "moe", "mlp"}
# Architectures whose code makes another cache than their configs tell.
_UNTOLD = {
    "mimo_v2_flash": "has twice its key-value heads in layers with a window",
    "dory": "keeps a cache for each of its loops",
}


# No model has as many layers or heads.
_MOST = 1_000_000


@dataclass(frozen=True)
class LayerCache:
    """What one layer keeps.

    Attributes:
        values: numbers for each token.
        window: tokens at most; None: all.
    """

    values: int
    window: int | None = None

    def held(self, tokens: int, *, without_current: bool = False) -> int:
        """Numbers held after so many tokens; ``without_current``: a window less one, as in transformers."""
        kept = tokens if self.window is None else min(tokens, self.window - without_current)
        return self.values * kept


@dataclass(frozen=True)
class CacheShape:
    """The cache of a whole model.

    Attributes:
        name: what it is called.
        scheme: MHA, GQA, MQA or latent.
        layers: of each layer.
        as_mha: numbers a token if every query head had keys and values of its own.
        limit: the longest context in tokens; None: not said.
    """

    name: str
    scheme: Literal["MHA", "GQA", "MQA", "latent"]
    layers: tuple[LayerCache, ...]
    as_mha: int
    limit: int | None = None

    @property
    def values(self) -> int:
        """Numbers a token, as long as no window is full."""
        return sum(layer.values for layer in self.layers)

    def held(self, tokens: int, *, without_current: bool = False) -> int:
        """Numbers held after so many tokens."""
        return sum(layer.held(tokens, without_current=without_current) for layer in self.layers)


def shape_by_hand(n_layers: int, n_heads: int, n_kv_heads: int, d_head: int) -> CacheShape:
    """A model of full attention, by its numbers.

    Raises:
        InterpError: a number below 1, or query heads that can't share so many key-value heads.
    """
    numbers = {"n_layers": n_layers, "n_heads": n_heads, "n_kv_heads": n_kv_heads, "d_head": d_head}
    for name, number in numbers.items():
        if number < 1:
            raise InterpError(f"{name}={number}: expected 1 or more")
    if n_heads % n_kv_heads:
        raise InterpError(f"{n_heads} query heads cannot share {n_kv_heads} key-value heads")
    layers = (LayerCache(2 * n_kv_heads * d_head),) * n_layers
    name = f"{n_layers} × {n_heads} × {d_head}, {n_kv_heads} key-value head{'s' * (n_kv_heads > 1)}"
    return CacheShape(name, _scheme(n_heads, n_kv_heads), layers, 2 * n_layers * n_heads * d_head)


def shape_of(config: PreTrainedConfig, name: str) -> CacheShape:
    """The cache of a model, from its config.

    Raises:
        InterpError: no layer of it has attention, layers of an unknown kind, query heads that can't share so
            many key-value heads, numbers that no model has, or a cache of which the config does not tell.
    """
    text = config.get_text_config(decoder=True)
    limit = getattr(text, "max_position_embeddings", None)
    _check(name, "num_hidden_layers", text.num_hidden_layers, least=0)
    if limit is not None:
        _check(name, "max_position_embeddings", limit, most=_MOST**2)
    if text.model_type in _UNTOLD:
        raise InterpError(
            f"{name}: {text.model_type} {_UNTOLD[text.model_type]}, of which its config says nothing: its "
            "cache can't be worked out from that alone"
        )
    windows = _windows(text, name)
    own = [text] * len(windows)
    if getattr(text, "is_heterogeneous", False):  # layers of several sizes: Gemma 4
        own = [text.per_layer_config[layer] for layer in range(len(windows))]
    found = [
        None if window == 0 else _layer(one, window)
        for one, window in zip(own, windows, strict=True)
    ]
    keeping = [one for one in found if one is not None]
    for cache, heads, kv_heads, _ in keeping:
        _check(name, "query heads of a layer", heads)
        _check(name, "key-value heads of a layer", kv_heads)
        _check(name, "numbers that a layer keeps of a token", cache.values, most=_MOST**2)
        if cache.window is not None:
            _check(name, "tokens in a window", cache.window, most=_MOST**2)
    if not keeping:
        raise InterpError(
            f"{name}: {text.model_type} has no layer with attention, so no cache of keys"
        )
    heads, kv_heads, as_mha = (
        sum(numbers) for numbers in zip(*(one[1:] for one in keeping), strict=True)
    )
    return CacheShape(
        name,
        "latent"
        if getattr(own[0], "kv_lora_rank", None)
        else _scheme(heads, kv_heads, len(keeping)),
        tuple(LayerCache(0) if one is None else one[0] for one in found),
        as_mha,
        limit,
    )


def _check(name: str, what: str, number: int, *, least: int = 1, most: int = _MOST) -> None:
    """Refuse a config's number that no model has."""
    if not least <= number <= most:
        raise InterpError(f"{name}: {what}: {number}; expected {least} to {most:,}")


def _layer(config: PreTrainedConfig, window: int | None) -> tuple[LayerCache, int, int, int]:
    """(what a layer keeps, its query heads, its key-value heads, numbers a token as MHA)."""

    def own(name: str, other: int) -> int:
        """Layers with a window may have heads of their own."""
        return (getattr(config, f"swa_{name}", None) if window else None) or other

    heads = own("num_attention_heads", config.num_attention_heads)
    kv_heads = own("num_key_value_heads", kv_heads_of(config))
    if heads % kv_heads:
        raise InterpError(
            f"{config.model_type}: {heads} query heads cannot share {kv_heads} key-value heads"
        )
    latent = getattr(config, "kv_lora_rank", None)
    if latent:
        cache = LayerCache(latent + config.qk_rope_head_dim, window)
        return cache, heads, kv_heads, 2 * heads * config.v_head_dim
    key = own("head_dim", d_head_of(config))
    value = own("v_head_dim", getattr(config, "v_head_dim", None) or key)
    return (
        LayerCache(kv_heads * (key + value), window),
        heads,
        kv_heads,
        heads * (key + value),
    )


def _windows(text: PreTrainedConfig, name: str) -> list[int | None]:
    """For each layer its window, None for all tokens, 0 for a layer that keeps no keys."""
    n_layers = text.num_hidden_layers
    kinds = getattr(text, "layer_types", None)
    if kinds is None:  # one kind for all
        found = [getattr(text, key, None) for key in ("sliding_window", "attention_chunk_size")]
        return [found[0] or found[1]] * n_layers
    windows: list[int | None] = []
    for layer, kind in enumerate(kinds):
        if kind in _WINDOWED:
            windows.append(getattr(text, _WINDOWED[kind], 0) or _no_window(name, layer, kind))
        elif kind in _WHOLE or kind in _WITHOUT:
            windows.append(None if kind in _WHOLE else 0)
        else:
            raise InterpError(
                f"{name}: layer {layer} is of kind {kind!r}, whose cache is not known here; expected one of "
                f"{', '.join(sorted({*_WINDOWED, *_WHOLE, *_WITHOUT}))}"
            )
    shared = getattr(text, "num_kv_shared_layers", None) or 0  # Gemma 3n: the last layers reuse
    return windows[: n_layers - shared] + [0] * shared


def _no_window(name: str, layer: int, kind: str) -> NoReturn:
    raise InterpError(
        f"{name}: layer {layer} is of kind {kind!r}, and the config has no {_WINDOWED[kind]}"
    )


def _scheme(n_heads: int, n_kv: int, n_layers: int = 1) -> Literal["MHA", "GQA", "MQA"]:
    """By the heads of so many layers together."""
    if n_kv == n_heads:
        return "MHA"
    return "MQA" if n_kv == n_layers else "GQA"


def sizes(
    shapes: Sequence[CacheShape],
    *,
    context: int | None = None,
    users: int = 1,
    bytes_per_value: int | float = 2,
    memory: int | float | None = None,
) -> pd.DataFrame:
    """Bytes a token, for a context and so many users, and how many fit, as ``tables.CACHE_SIZES`` describes.

    Args:
        context: tokens of each user; None: 4,096, or the model's limit if that is less.
        bytes_per_value: 2 for bfloat16 and float16.
        memory: bytes that are there for caches; None: not known.

    Raises:
        InterpError: a context over a model's limit.
    """
    rows = []
    for shape in shapes:
        tokens = _context(shape, context)
        each = shape.held(tokens) * bytes_per_value
        windows = sorted({layer.window for layer in shape.layers if layer.window})
        rows.append(
            {
                "name": shape.name,
                "scheme": shape.scheme,
                "full_layers": sum(x.values > 0 and x.window is None for x in shape.layers),
                "sliding_layers": sum(x.values > 0 and x.window is not None for x in shape.layers),
                "other_layers": sum(x.values == 0 for x in shape.layers),
                "window": windows[0] if windows else None,
                "values_per_token": shape.values,
                "bytes_per_token": shape.values * bytes_per_value,
                "share_of_mha": shape.values / shape.as_mha,
                "context": tokens,
                "bytes_per_user": each,
                "users": users,
                "bytes": each * users,
                "memory": float("nan") if memory is None else memory,
                "users_that_fit": None if memory is None else int(memory // each),
            }
        )
    table = pd.DataFrame(rows).astype({"window": "Int64", "users_that_fit": "Int64"})
    floats = ["bytes_per_token", "bytes_per_user", "bytes", "memory"]
    return CACHE_SIZES.validate(table.astype(dict.fromkeys(floats, float)))


def growth(
    shapes: Sequence[CacheShape], *, context: int | None = None, bytes_per_value: int | float = 2
) -> pd.DataFrame:
    """Bytes of one user's cache at contexts of powers of two, as ``tables.CACHE_GROWTH`` describes."""
    rows = []
    for shape in shapes:
        tokens = _context(shape, context)
        steps = sorted({*(2**i for i in range(tokens.bit_length())), tokens})
        rows += [
            {"name": shape.name, "context": n, "bytes": float(shape.held(n) * bytes_per_value)}
            for n in steps
        ]
    return CACHE_GROWTH.validate(pd.DataFrame(rows))


def _context(shape: CacheShape, context: int | None) -> int:
    if context is None:
        return min(4096, shape.limit or 4096)
    if shape.limit is not None and context > shape.limit:
        raise InterpError(
            f"context={context}: {shape.name} has a context of {shape.limit} tokens; expected no more"
        )
    return context


@torch.no_grad()
def measure(model: Model, shape: CacheShape, lengths: Sequence[int]) -> pd.DataFrame:
    """The cache that transformers builds, beside the formula, as ``tables.CACHE_MEASURED`` describes.

    Raises:
        InterpError: the model builds no cache, or of another kind.
    """
    rows = []
    for n in lengths:
        ids = torch.arange(n, device=model.device)[None] % model.vocab_size
        with evaluating(model.hf_model):
            out = model.hf_model(ids, use_cache=True)
        cache = out.get("cache") or out.get("past_key_values")  # renamed in 5.2x
        tensors = [
            tensor
            for layer in getattr(cache, "layers", ())
            for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None))
            if isinstance(tensor, torch.Tensor)
        ]
        if not tensors:
            raise InterpError(f"{model.name}: {type(cache).__name__} holds no keys and values")
        expected = shape.held(n, without_current=True)
        size = tensors[0].element_size()
        rows.append(
            {
                "name": shape.name,
                "tokens": n,
                "formula_bytes": expected * size,
                "cache_bytes": sum(t.numel() * t.element_size() for t in tensors),
                "bytes_per_value": size,
            }
        )
    table = pd.DataFrame(rows)
    table["equal"] = table.formula_bytes == table.cache_bytes
    return CACHE_MEASURED.validate(table)
