"""The door: one attention function and one mask function, registered with transformers.

Every head's query, key and value (after position encoding), scale, mask, soft cap and learned sink
pass through here, and the output is each head's z before the output projection. ``with
open_door(hf_model, look):`` makes every attention layer of a forward pass call
``look(layer, pattern, z)`` with an :class:`~interp.attention.pattern.AttentionPattern`; whoever
``touch``-es may change query, key and value before and z after. Leaving the block leaves the model as it
was, also after an exception.

The mask function receives the mask as a function of indices and hands an
:class:`~interp.attention.masks.IndexMask` on, so that no n × n mask is ever written.
Source: transformers' ``AttentionInterface`` and ``AttentionMaskInterface`` (5.x).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedConfig,
    PreTrainedModel,
)

from interp.attention.kernels import Engine, attend, check_engine
from interp.attention.masks import IndexMask, MaskFunction
from interp.attention.pattern import AttentionPattern, Pattern
from interp.errors import InterpError

IMPLEMENTATION = "interp"

Look = Callable[[int, Pattern, Tensor], None]


@runtime_checkable
class Touch(Protocol):
    """Somebody who changes what passes through the door; new tensors, never in place.

    A subclass that changes one side only inherits the other, which lets pass what comes.
    """

    def inputs(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, mask: IndexMask
    ) -> tuple[Tensor, Tensor, Tensor, IndexMask]:
        """Query (batch, head, query, d_head), key and value (batch, kv_head, key, d), mask to go on with."""
        return query, key, value, mask

    def output(
        self, layer: int, pattern: AttentionPattern, value: Tensor, z: Tensor, looked: bool
    ) -> tuple[Pattern, Tensor]:
        """z (batch, head, query, d_value) to go on with, and the pattern that made it, if one looks."""
        return pattern, z


@dataclass
class Visit:
    """What happens at the door during one ``with open_door(...)``: who looks, and which path served.

    Attributes:
        look: called for every attention layer with (layer, pattern, z), z of shape
            (batch, head, query, d_value).
        touch: may change query, key and value before the attention and z after it.
        engine: which kernel may serve.
        hf_model: whose door it is.
        paths: kernel that served each layer in the last forward pass: layer → "fused" or "tiled".
    """

    look: Look | None
    touch: Touch | None = None
    engine: Engine = "auto"
    hf_model: PreTrainedModel | None = None
    paths: dict[int, str] = field(default_factory=dict)


ALONE = threading.RLock()
"""Held while a model (or a config) is changed and run: threads that share one wait for each other."""
_VISIT: ContextVar[Visit | None] = ContextVar("interp_visit", default=None)


def serves(hf_model: PreTrainedModel) -> bool:
    """Whether this architecture takes its attention from transformers' interface."""
    return bool(hf_model._can_set_attn_implementation())


def check_serves(hf_model: PreTrainedModel) -> None:
    """Refuse an architecture that bypasses it."""
    if not serves(hf_model):
        raise InterpError(
            f"{type(hf_model).__name__} does not take its attention from transformers' interface"
        )


@contextmanager
def open_door(
    hf_model: PreTrainedModel,
    look: Look | None = None,
    *,
    touch: Touch | None = None,
    engine: Engine = "auto",
) -> Iterator[Visit]:
    """Route the model's attention through the door until the block is left.

    Raises:
        InterpError: the architecture bypasses transformers' attention interface, or the door is open to
            somebody who changes or records what passes: only the inner one would get it.
    """
    check_engine(engine)
    outer = _VISIT.get()
    if outer is not None and outer.touch is not None and outer.hf_model is hf_model:
        raise InterpError(
            "this model is being edited or recorded already, and what the outer block does would be passed "
            "over: put all edits into one `edited(...)`, and look at patterns with its `look`"
        )
    check_serves(hf_model)
    visit = Visit(look, touch, engine, hf_model)
    token = _VISIT.set(visit)
    try:
        with implementation(hf_model, IMPLEMENTATION):
            yield visit
    finally:
        _VISIT.reset(token)


@contextmanager
def implementation(hf_model: PreTrainedModel, name: str) -> Iterator[None]:
    """Set the attention implementation of the model and all its parts; put each back afterwards."""
    # Threads that share a model (or a config) would put back each other's implementation.
    with ALONE:
        configs = configs_of(hf_model)
        before = [config._attn_implementation_internal for config in configs]
        try:
            for config in configs:
                config._attn_implementation_internal = name
            yield
        finally:
            for config, own in zip(configs, before, strict=True):
                config._attn_implementation_internal = own


def configs_of(hf_model: PreTrainedModel) -> list[PreTrainedConfig]:
    """Every config that a module of this model reads its attention implementation from."""
    found = {}
    for module in hf_model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, PreTrainedConfig):
            found[id(config)] = config
    return list(found.values())


def attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: IndexMask | Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in place of its own attention; returns z as (batch, query, head, d)."""
    layer = getattr(module, "layer_idx", None)
    where = f"layer {layer} ({type(module).__name__})"
    visit = _VISIT.get()
    if visit is None:
        raise InterpError(
            f"{where} came to the door, but no one opened it: use `with open_door(...)`"
        )
    if layer is None:
        raise InterpError(f"{type(module).__name__} does not say which layer it is (no layer_idx)")
    if dropout:
        raise InterpError(f"{where} is in training mode (dropout {dropout}): switch to eval first")
    if not isinstance(attention_mask, IndexMask):
        raise InterpError(
            f"{where} came with {type(attention_mask).__name__} as its mask, expected a mask function "
            "of indices: pass padding as a 2-D attention_mask; this attention is not supported"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    if visit.touch is not None:
        query, key, value, attention_mask = visit.touch.inputs(
            layer, query, key, value, attention_mask
        )
    z, lse, path = attend(
        query,
        key,
        value,
        scale=scale,
        mask=attention_mask,
        softcap=softcap,
        sink=s_aux,
        engine=visit.engine,
    )
    visit.paths[layer] = path
    sink = None if s_aux is None else s_aux.detach()
    lazy = AttentionPattern(query, key, lse, scale, attention_mask, softcap, sink, path)
    pattern: Pattern = lazy
    if visit.touch is not None:
        pattern, z = visit.touch.output(layer, lazy, value, z, visit.look is not None)
    _refuse_nan(z, attention_mask, where)
    if visit.look is not None:
        visit.look(layer, pattern, z)
    return z.transpose(1, 2).contiguous(), None


def mask_function(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction | None = None,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **_: Any,
) -> IndexMask:
    """What transformers calls in place of writing a mask; arrives at :func:`attention_function`."""
    if mask_function is None or use_vmap:
        raise InterpError("this model brings a mask that is not a plain function of indices")
    padding = attention_mask.bool() if attention_mask is not None else None
    if padding is not None and bool(padding.all()):
        padding = None
    return IndexMask(
        mask_function,
        batch_size,
        int(q_length),
        int(kv_length),
        int(q_offset),
        int(kv_offset),
        padding,
        torch.device(device),
    )


def _refuse_nan(z: Tensor, mask: IndexMask, where: str) -> None:
    if torch.isfinite(z.sum(dtype=torch.float32)):  # one pass; a sum hides no NaN
        return
    real = mask.real_queries[:, None, :, None]
    wrong = (~torch.isfinite(z) & real).nonzero()
    if len(wrong):
        prompt, head, position, _ = (int(i) for i in wrong[0])
        raise InterpError(
            f"{where}, head {head}: the attention output is NaN or infinite (prompt {prompt}, position "
            f"{position}); the weights are damaged, or the dtype is too narrow: try dtype=float32"
        )


AttentionInterface.register(IMPLEMENTATION, attention_function)
AttentionMaskInterface.register(IMPLEMENTATION, mask_function)
