"""Where things are in a model: a site is a kind of activation at a layer, some heads, some positions.

    kind        axes                                  what
    q           (prompt, head, position, d_head)      query, after position encoding
    k, v        (prompt, kv_head, position, d)        key after position encoding, value
    pattern     (prompt, head, query, key)            attention weights, written out
    z           (prompt, head, position, d_value)     head output before the output projection
    resid_pre   (prompt, position, d_model)           residual stream into the block
    attn_out    (prompt, position, d_model)           what attention adds to the residual stream
    resid_mid   (prompt, position, d_model)           resid_pre + attn_out
    mlp_out     (prompt, position, d_model)           what the MLP adds to the residual stream
    resid_post  (prompt, position, d_model)           residual stream out of the block
    final       (prompt, position, d_model)           last layer's, after the final norm: unembedded

Heads of ``q``, ``z`` and ``pattern`` are query heads; those of ``k`` and ``v`` are key-value heads, and
with grouped queries one of them serves several query heads. The first five pass through the door
(:mod:`interp.attention.door`). Which module of a block adds to the residual stream differs between
families (Gemma 2 and OLMo 2 put a norm behind attention, Granite a factor), so it is not looked up
but measured: :func:`adders` finds the two children of the block whose outputs, added to its input,
give its output. Where there are none, or where attention and MLP read the same stream and
``resid_mid`` does not exist, the site is refused by name.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from interp.arguments import whole_number, whole_numbers
from interp.attention import door
from interp.errors import InterpError
from interp.models.model import Model, evaluating

HeadKind = Literal["q", "k", "v", "pattern", "z"]
StreamKind = Literal["resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post", "final"]
Kind = HeadKind | StreamKind
HEAD_KINDS: tuple[str, ...] = get_args(HeadKind)
STREAM_KINDS: tuple[str, ...] = get_args(StreamKind)
# What adding up may miss, as a share of what is added.
ADDS_UP = 1e-3


@dataclass(frozen=True)
class Site:
    """A place in the model.

    Attributes:
        kind: see the module.
        layer: from 0.
        heads: query heads, or key-value heads for k and v; None: all.
        positions: of the tokens (for "pattern": of the queries); None: all.
    """

    kind: Kind
    layer: int
    heads: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in HEAD_KINDS + STREAM_KINDS:
            raise InterpError(
                f"kind={self.kind!r}: expected one of {', '.join(HEAD_KINDS + STREAM_KINDS)}"
            )
        if self.heads is not None and self.kind in STREAM_KINDS:
            raise InterpError(f"{self.kind} has no heads; leave heads out, got {self.heads}")
        object.__setattr__(self, "layer", whole_number("layer", self.layer))
        for name in ("heads", "positions"):
            if getattr(self, name) is None:
                continue
            chosen = whole_numbers(name, getattr(self, name))
            if not chosen or len(set(chosen)) < len(chosen):
                raise InterpError(f"{name}={chosen}: expected one or more different numbers")
            object.__setattr__(self, name, chosen)

    @property
    def unit(self) -> str:
        """What ``heads`` counts: "head" or "kv_head"; "" for the residual stream."""
        return "" if self.kind in STREAM_KINDS else "kv_head" if self.kind in "kv" else "head"

    def __str__(self) -> str:
        text = f"{self.kind} of layer {self.layer}"
        if self.heads is not None:
            text += f", {self.unit} {', '.join(map(str, self.heads))}"
        if self.positions is not None:
            text += f", position {', '.join(map(str, self.positions))}"
        return text


def check_site(model: Model, site: Site) -> None:
    """Refuse a layer or head that is not there, and what the architecture has no such thing of.

    Raises:
        InterpError: naming the site and what the model has.
    """
    if not door.serves(model.hf_model):
        raise InterpError(
            f"{model.architecture} bypasses transformers' attention interface: {site} can't be reached"
        )
    if not 0 <= site.layer < model.n_layers:
        raise InterpError(
            f"{site}: {model.name} has layers 0 to {model.n_layers - 1}, no layer {site.layer}"
        )
    if site.kind == "final":
        if site.layer != model.n_layers - 1:
            raise InterpError(f"{site}: the final norm is behind layer {model.n_layers - 1} only")
        final_norm(model)
    n_heads = model.n_kv_heads if site.unit == "kv_head" else model.n_heads
    wrong = [head for head in site.heads or () if not 0 <= head < n_heads]
    if wrong:
        kind = "key-value heads" if site.unit == "kv_head" else "query heads"
        raise InterpError(
            f"{site}: {model.name} has {kind} 0 to {n_heads - 1} in a layer, no head {wrong[0]}"
        )
    if site.kind in ("attn_out", "resid_mid", "mlp_out"):
        found = adders(model, site.layer)
        if site.kind == "resid_mid" and not found.sequential:
            raise InterpError(
                f"{site}: in {model.architecture} attention and MLP read the same stream, so there is no "
                "residual stream between them; take attn_out, mlp_out or resid_post"
            )


def check_positions(site: Site, n_tokens: int) -> None:
    """Refuse positions beyond the prompt."""
    wrong = [position for position in site.positions or () if not 0 <= position < n_tokens]
    if wrong:
        raise InterpError(f"{site}: the prompt has positions 0 to {n_tokens - 1}, no {wrong[0]}")


def block(model: Model, layer: int) -> nn.Module:
    """The block of one layer."""
    return model.component(f"blocks.{layer}")


def final_norm(model: Model) -> nn.Module:
    """The norm between the residual stream and the unembedding; refuses a model without one."""
    return model.component("ln_final")


@dataclass(frozen=True)
class Adders:
    """The two modules whose outputs a block adds to its input.

    Attributes:
        attention, mlp: the modules; the last that touches the number before it is added.
        factor: what their outputs are multiplied by (Granite).
        sequential: whether the MLP reads what attention has already been added to.
    """

    attention: nn.Module
    mlp: nn.Module
    factor: float
    sequential: bool


@lru_cache(maxsize=256)
def adders(model: Model, layer: int) -> Adders:
    """Find the adders of a block by running five tokens through the model and adding up.

    Raises:
        InterpError: no two children of the block add up to what it does.
    """
    with door.ALONE:  # hooks are set
        into, out = _parts(model, layer)
    children = dict(block(model, layer).named_children())
    start, end = into[""], out[""]
    factor = float(getattr(model.config, "residual_multiplier", None) or 1.0)
    # OPT's MLP works on (prompt × position, d_model): any shape of as many numbers will do.
    into = {name: t.reshape(end.shape) for name, t in into.items() if t.numel() == end.numel()}
    out = {name: t.reshape(end.shape) for name, t in out.items() if t.numel() == end.numel()}
    # All pairs nearly add up where the stream is large beside what is added: the best pair is the one.
    pairs = {
        (first, second): _miss(start, factor * out[first], factor * out[second], end)
        for first, second in combinations(filter(None, out), 2)
    }
    best = min(pairs, key=lambda pair: pairs[pair], default=None)
    if best is not None and pairs[best] <= ADDS_UP:
        attention_out, mlp_out = (factor * out[name] for name in best)
        misses = [
            _miss(start, attention_out, mlp_out, into[name] + mlp_out)
            for name in children
            if name in into
        ]
        sequential = min(misses, default=1.0) <= ADDS_UP
        return Adders(children[best[0]], children[best[1]], factor, sequential)
    raise InterpError(
        f"layer {layer} of {model.architecture}: no two of its parts ({', '.join(children)}) add up to what "
        "the block adds to the residual stream; attn_out, resid_mid and mlp_out are not defined here"
    )


def _parts(model: Model, layer: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What goes into a block and its children and what comes out, by name, in the order they are done.

    In float32, if need be on a copy of the block: in narrow numbers a large stream swallows what is added.
    """
    module = block(model, layer)
    call: list[tuple[Any, Any]] = []
    handle = module.register_forward_pre_hook(
        lambda _, args, kwargs: call.append((args, kwargs)), with_kwargs=True
    )
    _run_a_little(model, [handle])
    args, kwargs = call[0]
    if model.dtype not in (torch.float32, torch.float64):
        # Sharing the configs: in them the door is set.
        configs = {id(config): config for config in door.configs_of(model.hf_model)}
        module = copy.deepcopy(module, configs).float()
        args, kwargs = _widened(args), _widened(kwargs)
    into: dict[str, Tensor] = {}
    out: dict[str, Tensor] = {}

    def before(name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        into[name] = hidden_of(args, kwargs)

    def after(name: str, _: nn.Module, __: Any, output: Any) -> None:
        out[name] = first_tensor(output)

    handles = []
    for name, child in [("", module), *module.named_children()]:
        handles += [
            child.register_forward_pre_hook(partial(before, name), with_kwargs=True),
            child.register_forward_hook(partial(after, name)),
        ]
    try:
        with door.open_door(model.hf_model), evaluating(module), torch.no_grad():
            module(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return into, out


def _widened(value: Any) -> Any:
    """The same arguments with their floating tensors in float32."""
    if isinstance(value, Tensor):
        return value.float() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _widened(item) for key, item in value.items()}
    return type(value)(map(_widened, value)) if isinstance(value, tuple | list) else value


@lru_cache(maxsize=64)
def output_kinds(model: Model) -> tuple[int, ...]:
    """How each block gives its output: 0 for a plain tensor, else the length of the tuple."""
    kinds = [0] * model.n_layers
    with door.ALONE:
        handles = []
        for layer in range(model.n_layers):

            def hook(_: Any, __: Any, output: Any, layer: int = layer) -> None:
                kinds[layer] = len(output) if isinstance(output, tuple) else 0

            handles.append(block(model, layer).register_forward_hook(hook))
        _run_a_little(model, handles)
    return tuple(kinds)


def _run_a_little(model: Model, handles: list[Any]) -> None:
    """Five tokens through the model, for the hooks behind ``handles``, which are taken away."""
    try:
        ids = torch.arange(5, device=model.device)[None] % model.vocab_size
        with (
            door.open_door(model.hf_model),
            evaluating(model.hf_model),
            torch.no_grad(),
        ):
            model.hf_model(input_ids=ids, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()


def _miss(start: Tensor, first: Tensor, second: Tensor, end: Tensor) -> float:
    """How far start + first + second is from end, as a share of the smaller of the two that are added.

    That of a middling position: at a massive activation (2402.17762) even float32 loses what is added.
    """
    error = (start + first + second - end).norm(dim=-1)
    size = torch.minimum(first.norm(dim=-1), second.norm(dim=-1))
    return float((error / size.clamp(min=1e-12)).median())


def hidden_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The hidden states a module is called with, wherever they stand."""
    found = args[0] if args else kwargs.get("hidden_states", next(iter(kwargs.values()), None))
    if not isinstance(found, Tensor):
        raise InterpError(f"a block was called without hidden states, but with {type(found)}")
    return found


def with_hidden(
    args: tuple[Any, ...], kwargs: dict[str, Any], hidden: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with other hidden states."""
    if args:
        return (hidden, *args[1:]), kwargs
    name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
    return args, kwargs | {name: hidden}


def first_tensor(output: Any) -> Tensor:
    """A module's output, which some give as a tuple with other things behind."""
    found = output[0] if isinstance(output, tuple) else output
    if not isinstance(found, Tensor):
        raise InterpError(f"a module returned {type(found).__name__} where a tensor was expected")
    return found


def with_first(output: Any, tensor: Tensor) -> Any:
    """The same output with another tensor."""
    return (tensor, *output[1:]) if isinstance(output, tuple) else tensor
