"""A real key-value cache, stepped token by token, out of which tokens are thrown.

The cache is transformers' own (``DynamicCache``) and so is the attention; nothing passes through our door,
which makes it a second witness for the mask of :mod:`interp.lesson.eviction`. Each step reads one token,
predicts the next, and then evicts, so that a token attends to ``budget`` others at most and to itself (as in
the evaluation of Xiao et al., 2309.17453).

    kept         a key stays rotated by the position at which its token was read
    reindexed    positions count places in the cache: before each step all keys are rotated to their place,
                 and the query stands behind the last (StreamingLLM). No distance is ever above the budget.
    recomputed   no cache: the last ``budget`` tokens and the current one are read anew for every prediction

A rotary embedding turns by angles that add up, so a key read at position p gets to place p′ by one more
turn, p′ − p. Whether that is so for a model at hand is tried on single tokens, in every layer, before
anything else: learned positions (GPT-2) are in the keys for good, and are refused.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import Cache, DynamicCache

from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.lesson.eviction import Policy
from interp.lesson.losses import token_losses, with_first
from interp.models.forward import BATCH_TOKENS, logits_at, takes_positions
from interp.models.model import Model, evaluating

Positions = Literal["kept", "reindexed"]
Turn = Callable[[Tensor, Tensor], Tensor]
"""(keys (batch, kv_head, key, d_head), by how many positions each (batch, key)) → keys."""

# How far keys may be from where they should be, relative to the largest: rounding and no more.
ROUNDING = 1e-3
# Of keys and values that are stepped side by side.
CACHE_BYTES = 500_000_000


def stepped_losses(
    model: Model,
    prompts: Sequence[Prompt],
    policies: Sequence[Policy],
    budget: int,
    positions: Positions = "kept",
    *,
    progress: Callable[[int], None] | None = None,
) -> Float[np.ndarray, "policy prompt pos"]:
    """The loss of every token, nats; NaN for the first, which nothing predicts.

    What fits into the cache is read in one pass; from there on it goes token by token, all texts and as many
    policies at once as :data:`CACHE_BYTES` hold.

    Args:
        progress: called with the number of policies × texts done.

    Raises:
        InterpError: a model whose cache evicts by itself (sliding windows) or has no keys, or that
            can't be told positions; for ``reindexed``, one whose positions are not rotary.
    """
    if not takes_positions(model):
        raise InterpError(
            f"{model.architecture} can't be told at which positions its tokens stand, so a cache that lost "
            "some can't go on; use the masked pass alone (positions=[kept] n_checked=0)"
        )
    turn = turning(model) if positions == "reindexed" else None
    ids = torch.tensor([prompt.ids for prompt in prompts], device=model.device)
    vector = 2 * model.n_kv_heads * model.d_head * model.dtype.itemsize
    size = max(1, CACHE_BYTES // (model.n_layers * len(ids) * budget * vector))
    found = []
    for start in range(0, len(policies), size):
        group = policies[start : start + size]
        pinned = torch.cat([policy.is_pinned(ids.shape[1]) for policy in group])
        losses = _stepped(model, ids.repeat(len(group), 1), pinned, budget, turn)
        found.append(losses.reshape(len(group), *ids.shape))
        if progress is not None:
            progress(len(group) * len(ids))
    return np.concatenate(found)


def _stepped(
    model: Model,
    ids: Int[Tensor, "row pos"],
    pinned: Bool[Tensor, "row pos"],
    budget: int,
    turn: Turn | None,
) -> Float[np.ndarray, "row pos"]:
    """Losses of texts whose cache is stepped side by side."""
    rows, n = ids.shape
    cache: Any = DynamicCache(config=model.config)  # its layers are of several kinds
    held = torch.arange(budget, device=ids.device).expand(rows, budget)  # which tokens
    logits = _step(model, cache, ids[:, :budget], held)
    _check_cache(model, cache, budget)
    losses = [token_losses(logits, ids[:, 1 : budget + 1])]
    places, read_at = held, held  # the position that a key is to have, and the one it was read at
    keys = [layer.keys for layer in cache.layers]  # as they were read
    for t in range(budget, n - 1):
        at = torch.full_like(held[:, :1], t if turn is None else budget)
        if turn is not None:
            for layer, own in zip(cache.layers, keys, strict=True):
                layer.keys = turn(own, places - read_at)
        logits = _step(model, cache, ids[:, t : t + 1], at)
        losses.append(token_losses(logits, ids[:, t + 1 : t + 2]))
        held = torch.cat([held, torch.full_like(at, t)], dim=1)
        read_at = torch.cat([read_at, at], dim=1)
        # The oldest that is not pinned; the current token, if all others are.
        oldest = (~pinned.gather(1, held)).long().argmax(1)
        stay = _all_but(oldest, budget + 1)
        held, read_at = held.gather(1, stay), read_at.gather(1, stay)
        for i, layer in enumerate(cache.layers):
            keys[i] = _chosen(torch.cat([keys[i], layer.keys[:, :, -1:]], dim=2), stay)
            layer.keys, layer.values = keys[i], _chosen(layer.values, stay)
    return with_first(np.concatenate(losses, axis=1))


def recomputed_losses(
    model: Model,
    prompts: Sequence[Prompt],
    budget: int,
    first: int,
    *,
    progress: Callable[[int], None] | None = None,
) -> Float[np.ndarray, "prompt pos"]:
    """The loss of every token from ``first`` on, nats, each predicted from the ``budget`` + 1 before it."""
    ids = torch.tensor([prompt.ids for prompt in prompts], device=model.device)
    batch, n = ids.shape
    found = np.full((batch, n), np.nan)
    short = [t for t in range(first, n) if t <= budget]  # predicted from all there is
    if short:
        where = torch.tensor(short, device=ids.device) - 1
        logits = logits_at(model, ids[:, : short[-1]], where.expand(batch, -1))
        found[:, short] = token_losses(logits, ids[:, short])
    places = [(row, t) for t in range(max(first, budget + 1), n) for row in range(batch)]
    size = max(1, BATCH_TOKENS // (budget + 1))
    for start in range(0, len(places), size):
        part = places[start : start + size]
        windows = torch.stack([ids[row, t - budget - 1 : t] for row, t in part])
        logits = logits_at(model, windows, torch.full_like(windows[:, :1], budget))[:, 0]
        rows, at = (list(axis) for axis in zip(*part, strict=True))
        found[rows, at] = token_losses(logits, ids[rows, at])
        if progress is not None:
            progress(len(part))
    return found


def turning(model: Model) -> Turn:
    """How this model's keys are turned by a number of positions, tried before it is given back.

    Raises:
        InterpError: the model has no rotary embedding, or its keys do not turn as it says.
    """
    base: Any = model.hf_model.base_model
    rotary = getattr(base, "rotary_emb", None)
    apply = getattr(sys.modules[type(base).__module__], "apply_rotary_pos_emb", None)
    refusal = InterpError(
        f"{model.name}: its keys can't be moved to other positions ({model.architecture} has no plain rotary "
        "embedding); take positions=[kept]"
    )
    if rotary is None or apply is None or not takes_positions(model):
        raise refusal

    def turn(keys: Tensor, by: Tensor) -> Tensor:
        with torch.no_grad():
            cos, sin = rotary(keys, position_ids=by.expand(len(keys), -1))
            return apply(keys, keys, cos, sin)[1]

    # One token alone looks at itself wherever it stands, so only its keys know its position.
    token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    caches: list[Any] = [DynamicCache(config=model.config) for _ in range(2)]
    here, there = caches
    _step(model, here, token, token)
    _step(model, there, token, token + 7)
    for layer, moved in zip(here.layers, there.layers, strict=True):
        try:
            found = turn(layer.keys, token + 7)
        except (TypeError, ValueError, RuntimeError) as error:
            raise refusal from error
        if (found - moved.keys).abs().max() > ROUNDING * moved.keys.abs().max():
            raise refusal
    return turn


def _step(
    model: Model, cache: Cache, ids: Int[Tensor, "batch new"], positions: Int[Tensor, "batch new"]
) -> Float[Tensor, "batch new d_vocab"]:
    """Logits after these tokens, which are put into the cache."""
    accepts = inspect.signature(model.hf_model.forward).parameters
    name = "cache" if "cache" in accepts else "past_key_values"  # renamed in transformers 5.2x
    with evaluating(model.hf_model), torch.no_grad():
        out = model.hf_model(input_ids=ids, position_ids=positions, use_cache=True, **{name: cache})
    return out.logits.float()


def _check_cache(model: Model, cache: Any, budget: int) -> None:
    """Refuse a cache that is not just keys and values of every token."""
    for number, layer in enumerate(cache.layers):
        keys = getattr(layer, "keys", None)
        if keys is None or getattr(layer, "is_sliding", False) or keys.shape[2] != budget:
            raise InterpError(
                f"{model.name}, layer {number}: its cache ({type(layer).__name__}) does not hold the keys of "
                "all tokens, so there is nothing of ours to evict; use the masked pass alone "
                "(positions=[kept] n_checked=0)"
            )


def _all_but(place: Int[Tensor, " batch"], n: int) -> Int[Tensor, "batch n_less_1"]:
    """All places but one of each row, in order."""
    before = torch.arange(n - 1, device=place.device)
    return before + (before >= place[:, None]).long()


def _chosen(
    tensor: Float[Tensor, "batch kv_head key d"], places: Int[Tensor, "batch place"]
) -> Float[Tensor, "batch kv_head place d"]:
    index = places[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3])
    return tensor.gather(2, index)
