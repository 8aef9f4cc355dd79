"""Edits as values: what is changed in a forward pass, and the one context manager that does it.

    Replace(site, value)      the activations at a site become ``value`` (0 ablates, a donor's patches)
    Cut(layer, keys, …)       queries can no longer see keys; the softmax is renormalised, or the
                              weights are left as they were and the keys' part is taken out of z:
                              z′[q] = z[q] − Σ_{k ∈ keys} weight[q, k] · value[k]
    Redirect(layer, key, …)   the mass on one key goes to the current token instead:
                              z′[q] = z[q] + weight[q, key] · (value[q] − value[key])

    with edited(model, [Replace.zero(Site("z", layer=3, heads=(2,)))]):
        logits = model.hf_model(ids).logits

Zeroing z of a head is the same as zeroing its columns of the output projection; biases of the
projection stay. Masking a key and taking its weight out answer different questions: a masked sink's
mass goes elsewhere, an unrenormalised one's is lost (softmax self-repair, Edin et al., 2505.17630).
:func:`knock_out` gives the five ways to take a sink away. Zero, mean and resample ablation can differ
(Heimersheim & Nanda, 2404.15255): ``origin`` says what a value is.

An edit is checked against the model before anything runs; leaving the block leaves the model as it was,
also after an exception or Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor

from interp.arguments import whole_number, whole_numbers
from interp.attention.door import ALONE, Look, open_door
from interp.attention.kernels import Engine, attend
from interp.attention.masks import IndexMask
from interp.attention.pattern import AttentionPattern, EditedPattern, Pattern
from interp.editing.sites import (
    HEAD_KINDS,
    STREAM_KINDS,
    Site,
    adders,
    block,
    check_positions,
    check_site,
    final_norm,
    first_tensor,
    hidden_of,
    with_first,
    with_hidden,
)
from interp.errors import InterpError
from interp.models.model import Model


@dataclass(frozen=True)
class Replace:
    """The activations at a site become ``value``.

    Attributes:
        site: where.
        value: a number, or a tensor with the axes of the site's kind (see :mod:`interp.editing.sites`),
            each of full size or 1; the prompt axis has the prompts of the batch, the head and position axes
            the chosen ones.
        origin: what the value is, in words: "zero", "mean of 64 prompts", "from prompt x".
    """

    site: Site
    value: Tensor | float = field(repr=False, compare=False)
    origin: str

    def __post_init__(self) -> None:
        if not isinstance(self.value, Tensor | Real):
            raise InterpError(
                f"{self}: expected a number or a torch tensor as its value, got a "
                f"{type(self.value).__name__}"
            )

    @classmethod
    def zero(cls, site: Site) -> Replace:
        """Zero ablation."""
        return cls(site, 0.0, "zero")

    @property
    def layer(self) -> int:
        """The layer of its site."""
        return self.site.layer

    def __str__(self) -> str:
        return f"{self.site} ← {self.origin}"


@dataclass(frozen=True)
class Cut:
    """Queries can no longer see keys.

    Attributes:
        layer: from 0.
        keys, queries: positions; every chosen query is cut off from every chosen key. ``queries`` None:
            all that would still see another key.
        heads: query heads; None: all.
        renormalise: True masks the keys before the softmax, so that their mass goes to the others; False
            leaves the other weights as they were.
    """

    layer: int
    keys: tuple[int, ...]
    queries: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    renormalise: bool = True

    def __post_init__(self) -> None:
        for name in ("keys", "queries", "heads"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_numbers(name, getattr(self, name)))

    @property
    def sites(self) -> list[Site]:
        """What must be there for it."""
        return [
            Site("pattern", self.layer, self.heads, self.keys),
            Site("pattern", self.layer, self.heads, self.queries),
        ]

    def __str__(self) -> str:
        how = "masked" if self.renormalise else "weight taken out"
        queries = "all that see another" if self.queries is None else self.queries
        return f"keys {self.keys} of {Site('pattern', self.layer, self.heads)} {how}, queries {queries}"


@dataclass(frozen=True)
class Redirect:
    """The mass on one key goes to the current token instead.

    Attributes:
        layer: from 0.
        key: position whose mass is sent away; its own query keeps it.
        heads: query heads; None: all.
    """

    layer: int
    key: int = 0
    heads: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", whole_number("key", self.key))
        if self.heads is not None:
            object.__setattr__(self, "heads", whole_numbers("heads", self.heads))

    @property
    def sites(self) -> list[Site]:
        """What must be there for it."""
        return [Site("pattern", self.layer, self.heads, (self.key,))]

    def __str__(self) -> str:
        return (
            f"mass on key {self.key} of {Site('pattern', self.layer, self.heads)} ← current token"
        )


Edit = Replace | Cut | Redirect
KnockOut = Literal["mask", "zero_weight", "zero_value", "mean_value", "to_current"]


def knock_out(
    how: KnockOut,
    layer: int,
    *,
    keys: tuple[int, ...] = (0,),
    heads: tuple[int, ...] | None = None,
    mean: Tensor | None = None,
) -> list[Edit]:
    """Take an attention sink away, in one of five ways that answer different questions.

    Args:
        how: "mask": hide it and renormalise: what if the mass had to go elsewhere?
            "zero_weight": take its weight out: what if that mass were lost?
            "zero_value", "mean_value": keep the weights, change what is found there, for all queries of a
            key-value head, its own too: does its content matter?
            "to_current": send the mass to the current token.
        keys: the sink's positions.
        heads: query heads, or for the values key-value heads; None: all.
        mean: for "mean_value": (kv_head, d_value), the mean value vectors.
    """
    keys = whole_numbers("keys", keys)
    if not keys:
        raise InterpError("keys: none given; expected the positions of the sink, such as (0,)")
    if how in ("mask", "zero_weight"):
        return [Cut(layer, keys, heads=heads, renormalise=how == "mask")]
    if how == "to_current":
        return [Redirect(layer, key, heads) for key in keys]
    site = Site("v", layer, heads, keys)
    if how == "zero_value":
        return [Replace.zero(site)]
    if how != "mean_value":
        raise InterpError(
            f"how={how!r}: expected mask, zero_weight, zero_value, mean_value or to_current"
        )
    if mean is None:
        raise InterpError("mean_value: give mean=, (kv_head, d_value)")
    if mean.dim() != 2 or (site.heads is not None and max(site.heads) >= len(mean)):
        raise InterpError(
            f"mean_value: mean is of shape {tuple(mean.shape)}; expected (kv_head, d_value), with a row for "
            "each key-value head of a layer"
        )
    chosen = mean if site.heads is None else mean[list(site.heads)]
    return [Replace(site, chosen[None, :, None, :], "mean value")]


@dataclass(frozen=True)
class Placed:
    """An edit on some rows of a batch.

    Attributes:
        edit: what to do.
        rows: which rows of the batch; None: all.
        prompts: for each of these rows, its place on the prompt axis of the edit's value; None: as they
            come.
    """

    edit: Edit
    rows: slice | None = None
    prompts: Tensor | None = None


class Recording:
    """Activations of a forward pass, as they are after the edits: ``recording[site]``.

    Args:
        sites: what to keep; asking for another is an error, and so is one that never came by.
        attached: keep the tensors themselves, as parts of the graph of a pass with gradients.
    """

    def __init__(self, sites: Iterable[Site], *, attached: bool = False) -> None:
        self.sites, self.attached = tuple(sites), attached
        self.wanted = {(site.layer, str(site.kind)) for site in self.sites}
        self._tensors: dict[tuple[int, str], Tensor] = {}

    def keep(self, layer: int, kind: str, tensor: Tensor) -> None:
        """Called at each place of the model."""
        if (layer, kind) not in self.wanted:
            return
        if self.attached and not tensor.requires_grad:
            tensor.requires_grad_()  # nothing before it needs a gradient: the graph begins here
        self._tensors[layer, kind] = tensor if self.attached else tensor.clone()

    def __contains__(self, site: Site) -> bool:
        return (site.layer, str(site.kind)) in self._tensors

    def __getitem__(self, site: Site) -> Tensor:
        """The activations at a site: its heads and positions, in the order that it names them."""
        if (site.layer, site.kind) not in self._tensors:
            raise InterpError(f"{site} was not recorded: ask for it, and run the model")
        tensor = self._tensors[site.layer, site.kind]
        if site.heads is not None:
            tensor = tensor[:, list(site.heads)]
        if site.positions is None:
            return tensor
        axis = 2 if site.kind in HEAD_KINDS else 1
        check_positions(site, tensor.shape[axis])
        return tensor.index_select(axis, torch.tensor(site.positions, device=tensor.device))


class Before:
    """Keys and values of a first part of each prompt, read in an earlier pass and unchanged since.

    Args:
        n_tokens: how many tokens were read.
        recording: of that pass, with k and v of every layer that is going to run.
        repeats: the batch holds the recorded prompts this many times over.
    """

    def __init__(self, n_tokens: int, recording: Recording, repeats: int) -> None:
        self.n_tokens, self.recording, self.repeats = n_tokens, recording, repeats
        self._masks: dict[int, tuple[IndexMask, IndexMask]] = {}

    def joined(self, layer: int, kind: Literal["k", "v"], tensor: Tensor) -> Tensor:
        """What was read before and ``tensor`` behind it, on the key axis."""
        read = self.recording[Site(kind, layer)][:, :, : self.n_tokens]
        read = read.expand(self.repeats, *read.shape)
        return torch.cat([read, tensor.unflatten(0, (self.repeats, -1))], dim=-2).flatten(0, 1)

    def widened(self, mask: IndexMask) -> IndexMask:
        """The mask of the tokens behind, over the keys before them too; made once a pass."""
        if id(mask) not in self._masks:
            wide = replace(
                mask, n_keys=self.n_tokens + mask.n_keys, query_offset=self.n_tokens, padding=None
            )
            self._masks[id(mask)] = mask, wide
        return self._masks[id(mask)][1]


@contextmanager
def edited(
    model: Model,
    edits: Sequence[Edit | Placed] | Edit = (),
    look: Look | None = None,
    *,
    recording: Recording | None = None,
    before: Before | None = None,
    engine: Engine = "auto",
) -> Iterator[None]:
    """Run the model with these edits until the block is left.

    Args:
        edits: applied in the order of the forward pass; at one site in the order given.
        look: called for each attention layer with (layer, pattern, z) as they are after the edits.
        recording: keeps activations as they are after the edits.
        before: what was read before the tokens that the model is given; positions of edits and
            recordings then count from the first of these.

    Raises:
        InterpError: a layer, head or position that is not there, a value that does not fit, a cut that
            leaves a query with nothing to look at, a site the architecture does not have.
    """
    placed = check_edits(model, edits)
    recording = Recording(()) if recording is None else recording
    for site in recording.sites:
        check_site(model, site)
    with ALONE, ExitStack() as stack:
        layers = {one.edit.layer for one in placed} | {layer for layer, _ in recording.wanted}
        for layer in sorted(layers):
            here = [one for one in placed if one.edit.layer == layer]
            _hook_stream(model, layer, here, recording, stack)
        touch = _Touch(placed, recording, before)
        stack.enter_context(open_door(model.hf_model, look, touch=touch, engine=engine))
        yield


def check_edits(model: Model, edits: Sequence[Edit | Placed] | Edit) -> list[Placed]:
    """Refuse what this model does not have, or what can't be done together, as :func:`edited` says."""
    if isinstance(edits, Replace | Cut | Redirect):
        edits = [edits]
    placed = [one if isinstance(one, Placed) else Placed(one) for one in edits]
    for one in placed:
        if not isinstance(one.edit, Replace | Cut | Redirect):
            raise InterpError(
                f"edits: expected Replace, Cut or Redirect, got a {type(one.edit).__name__}"
            )
    for one in placed:
        for site in [one.edit.site] if isinstance(one.edit, Replace) else one.edit.sites:
            check_site(model, site)
    _check_cuts(placed)
    return placed


def _check_cuts(placed: Sequence[Placed]) -> None:
    """Each of these edits starts from the unedited weights: none may change what another has changed.

    A renormalised cut and a replaced pattern change all weights of a query, the others those on their keys.
    """
    together: dict[tuple[int, str], list[Edit]] = {}  # what is done to the same rows of a layer
    for one in placed:
        if not isinstance(one.edit, Replace) or one.edit.site.kind == "pattern":
            together.setdefault((one.edit.layer, repr(one.rows)), []).append(one.edit)
    for a, b in (pair for edits in together.values() for pair in combinations(edits, 2)):
        mine, other = (_changed_weights(edit) for edit in (a, b))
        if isinstance(a, Replace) and isinstance(b, Replace):
            continue  # the later one replaces the earlier
        if all(x is None or y is None or set(x) & set(y) for x, y in zip(mine, other, strict=True)):
            raise InterpError(
                f"{a}; {b}: both change the same attention weights, each from what they were before: "
                "put all keys into one Cut, or leave one of them out"
            )


def _changed_weights(edit: Edit) -> tuple[tuple[int, ...] | None, ...]:
    """(heads, queries, keys) whose weights it changes; None: all."""
    if isinstance(edit, Replace):
        return edit.site.heads, edit.site.positions, None
    if isinstance(edit, Redirect):
        return edit.heads, None, (edit.key,)
    return edit.heads, edit.queries, None if edit.renormalise else edit.keys


class _Touch:
    """Applies the edits that pass through the door."""

    def __init__(
        self, placed: Sequence[Placed], recording: Recording, before: Before | None
    ) -> None:
        self.recording, self.before = recording, before
        self.at: dict[tuple[int, str], list[Placed]] = {}
        for one in placed:
            kind = one.edit.site.kind if isinstance(one.edit, Replace) else "edges"
            self.at.setdefault((one.edit.layer, kind), []).append(one)

    def inputs(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, mask: IndexMask
    ) -> tuple[Tensor, Tensor, Tensor, IndexMask]:
        query, key, value = (
            self._replaced(layer, kind, tensor)
            for kind, tensor in (("q", query), ("k", key), ("v", value))
        )
        if self.before is not None:
            key = self.before.joined(layer, "k", key)
            value = self.before.joined(layer, "v", value)
            mask = self.before.widened(mask)
        return query, key, value, mask

    def output(
        self, layer: int, pattern: AttentionPattern, value: Tensor, z: Tensor, looked: bool
    ) -> tuple[Pattern, Tensor]:
        edges, mixed = (self.at.get((layer, kind), ()) for kind in ("edges", "pattern"))
        recorded = (layer, "pattern") in self.recording.wanted
        after: Pattern = pattern
        if edges or mixed:
            z = z.clone()
            # Nobody pays for written-out weights who does not look at them.
            weights = pattern.dense() if looked or recorded else None
            sink = None if weights is None else pattern.learned_sink()
            for one in edges:
                _write_edges(z, one, pattern, value, weights, sink)
            for one in mixed:
                _write_mixed(z, one, value, weights)
            if weights is not None:
                after = EditedPattern(weights, pattern.mask, sink_mass=sink)
        if recorded:
            self.recording.keep(layer, "pattern", after.dense())
        return after, self._replaced(layer, "z", z)

    def _replaced(self, layer: int, kind: str, tensor: Tensor) -> Tensor:
        tensor = _changed(tensor, self.at.get((layer, kind), ()))
        self.recording.keep(layer, kind, tensor)
        return tensor


def _changed(tensor: Tensor, placed: Sequence[Placed]) -> Tensor:
    """A copy with the values of these edits at their sites; axes (row, [head,] position, d)."""
    if not placed:
        return tensor
    new = tensor.clone()
    for one in placed:
        _write(new[one.rows or slice(None)], one)
    return new


def _write(part: Tensor, one: Placed) -> None:
    """Write the edit's value into these rows."""
    edit = one.edit
    assert isinstance(edit, Replace)
    heads, positions = edit.site.heads, edit.site.positions
    check_positions(edit.site, part.shape[-2])
    if heads is not None and max(heads) >= part.shape[1]:
        raise InterpError(f"{edit.site}: {part.shape[1]} heads come to the door here")
    shape = list(part.shape)
    if positions is not None:
        shape[-2] = len(positions)
    if heads is not None:
        shape[1] = len(heads)
    value = _fitting(edit, one.prompts, shape, part)
    where_p = slice(None) if positions is None else torch.tensor(positions, device=part.device)
    if part.dim() == 3:
        part[:, where_p] = value
    elif heads is None:
        part[:, :, where_p] = value
    elif positions is None:
        part[:, list(heads)] = value
    else:
        part[:, torch.tensor(heads, device=part.device)[:, None], where_p] = value


def _fitting(edit: Replace, prompts: Tensor | None, shape: list[int], like: Tensor) -> Tensor:
    """The edit's value for these rows, in the shape of what it replaces."""
    if not isinstance(edit.value, Tensor):
        return torch.full((), float(edit.value), dtype=like.dtype, device=like.device)
    value = edit.value.to(like.device, like.dtype)
    if value.dim() == len(shape) and value.shape[0] > 1 and prompts is not None:
        value = value[prompts]
    fits = value.dim() in (0, len(shape)) and all(
        have in (1, want) for have, want in zip(value.shape, shape, strict=False)
    )
    if not fits:
        raise InterpError(
            f"{edit}: a value of shape {tuple(edit.value.shape)} does not fit {tuple(shape)} "
            "(prompts, heads, positions, size); an axis may be 1"
        )
    return value


def _heads_at(value: Tensor, z: Tensor, heads: tuple[int, ...] | None) -> tuple[Tensor, Tensor]:
    """(query heads, value of each query head): (head,), (row, head, key, d)."""
    chosen = torch.arange(z.shape[1], device=z.device)
    if heads is not None:
        chosen = chosen[list(heads)]
    return chosen, value[:, chosen // (z.shape[1] // value.shape[1])]


def _write_edges(
    z: Tensor,
    one: Placed,
    pattern: AttentionPattern,
    value: Tensor,
    weights: Tensor | None,
    sink: Tensor | None,
) -> None:
    """A cut or a redirection, for the edit's rows and heads: into z, and weights if they are wanted."""
    edit = one.edit
    assert isinstance(edit, Cut | Redirect)
    for site in edit.sites:
        check_positions(site, pattern.mask.n_queries)
    rows = one.rows or slice(0, z.shape[0])
    heads, values = _heads_at(value, z, edit.heads)
    every = torch.arange(pattern.mask.n_queries, device=z.device)
    if isinstance(edit, Redirect):
        key = torch.tensor([edit.key], device=z.device)
        weight = pattern.keys(key)[rows][:, heads, :, 0]
        moved = values[rows] - values[rows][:, :, edit.key, None]
        z[rows, heads] += (weight[..., None] * moved).to(z.dtype)
        if weights is not None:
            part = weights[rows][:, heads]
            part[..., edit.key] -= weight
            part.diagonal(dim1=-2, dim2=-1).add_(weight)
            weights[rows, heads] = part
        return
    keys = torch.tensor(edit.keys, device=z.device)
    queries = every if edit.queries is None else torch.tensor(edit.queries, device=z.device)
    mask = pattern.mask
    left = mask.reachable[rows] - mask.block(every, keys).sum(-1)[:, 0][_rows_of(mask, rows)]
    alone = (left <= 0) & mask.real_queries[rows]
    if edit.queries is not None and alone[:, queries].any() and edit.renormalise:
        query = int(queries[alone[:, queries].any(0)][0])
        raise InterpError(
            f"{edit}: query {query} would have nothing left to look at; leave it out, or take "
            "renormalise=False"
        )
    # A query that sees nothing but these keys keeps them.
    cut = torch.isin(every, queries) & (
        ~alone if edit.queries is None else torch.ones_like(alone)
    )  # (row, query)
    if not edit.renormalise:
        weight = pattern.keys(keys)[rows][:, heads] * cut[:, None, :, None]
        z[rows, heads] -= (weight @ values[rows][:, :, keys].to(weight.dtype)).to(z.dtype)
        if weights is not None:
            part = weights[rows][:, heads]
            part[..., keys] -= weight
            weights[rows, heads] = part
        return
    seen = mask.mask_function
    first = rows.start or 0

    def without(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        hidden = cut[batch, query] & torch.isin(key, keys)
        return seen(batch + first, head, query, key) & ~hidden

    groups = pattern.n_heads // pattern.key.shape[1]
    padding = None if mask.padding is None else mask.padding[rows]
    again = attend(
        pattern.query[rows][:, heads],
        pattern.key[rows][:, heads // groups],
        values[rows],
        scale=pattern.scale,
        mask=IndexMask(
            without,
            rows.stop - first,
            mask.n_queries,
            mask.n_keys,
            mask.query_offset,
            mask.key_offset,
            padding,
            mask.device,
        ),
        softcap=pattern.softcap,
        sink=None if pattern.sink is None else pattern.sink[heads],
        engine="tiled",
    )
    z[rows, heads] = torch.where(cut[:, None, :, None], again.z, z[rows, heads])
    if weights is not None:
        # weight = exp(score − lse), and only the log-sum-exp has changed.
        grown = torch.exp(pattern.lse[rows][:, heads] - again.lse).where(cut[:, None], 1.0)
        hidden = cut[:, None, :, None] & torch.isin(
            torch.arange(mask.n_keys, device=z.device), keys
        )
        weights[rows, heads] = (weights[rows, heads] * grown[..., None]).masked_fill(hidden, 0.0)
        if sink is not None:
            sink[rows, heads] *= grown


def _rows_of(mask: IndexMask, rows: slice) -> slice:
    """A block's batch axis has size 1 where all rows share the mask."""
    return rows if mask.padding is not None else slice(None)


def _write_mixed(z: Tensor, one: Placed, value: Tensor, weights: Tensor | None) -> None:
    """z from other attention weights and the values of this run."""
    edit = one.edit
    assert isinstance(edit, Replace)
    rows = one.rows or slice(0, z.shape[0])
    heads, values = _heads_at(value, z, edit.site.heads)
    part = values[rows]
    check_positions(edit.site, z.shape[2])
    where = list(edit.site.positions or range(z.shape[2]))
    shape = [part.shape[0], len(heads), len(where), part.shape[2]]
    new = _fitting(edit, one.prompts, shape, part).expand(shape)
    mixed = z[rows][:, heads]
    mixed[:, :, where] = new @ part
    z[rows, heads] = mixed
    if weights is not None:
        written = weights[rows][:, heads]
        written[:, :, where] = new.to(weights.dtype)
        weights[rows, heads] = written


def _hook_stream(
    model: Model, layer: int, placed: list[Placed], recording: Recording, stack: ExitStack
) -> None:
    """Hooks for what is edited or recorded of one layer's residual stream."""
    at: dict[str, list[Placed]] = {}
    for one in placed:
        if isinstance(one.edit, Replace) and one.edit.site.kind in STREAM_KINDS:
            at.setdefault(one.edit.site.kind, []).append(one)
    kinds = at.keys() | {kind for where, kind in recording.wanted if where == layer}
    kinds &= set(STREAM_KINDS)
    if not kinds:
        return
    module = block(model, layer)
    before: dict[str, Tensor] = {}

    def changed(kind: str, tensor: Tensor) -> Tensor:
        tensor = _changed(tensor, at.get(kind, ()))
        recording.keep(layer, kind, tensor)
        return tensor

    def enter(_: Any, args: Any, kwargs: Any) -> Any:
        before["hidden"] = changed("resid_pre", hidden_of(args, kwargs))
        return with_hidden(args, kwargs, before["hidden"])

    def leave(_: Any, __: Any, output: Any) -> Any:
        return with_first(output, changed("resid_post", first_tensor(output)))

    def normed(_: Any, __: Any, output: Any) -> Any:
        return changed("final", first_tensor(output))

    stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
    if "final" in kinds:
        stack.callback(final_norm(model).register_forward_hook(normed).remove)
    if "resid_post" in kinds:
        stack.callback(module.register_forward_hook(leave).remove)
    if not kinds & {"attn_out", "resid_mid", "mlp_out"}:
        return
    found = adders(model, layer)

    def add_attention(_: Any, __: Any, output: Any) -> Any:
        added = found.factor * first_tensor(output).reshape(before["hidden"].shape)
        new = changed("attn_out", added)
        if "resid_mid" in kinds:
            middle = before["hidden"] + new
            # By the difference, so that writing what is there already changes nothing at all.
            other = changed("resid_mid", middle)
            new = _by_way_of(other - before["hidden"], new + (other - middle))
        return with_first(output, _unscaled(first_tensor(output), added, new))

    def add_mlp(_: Any, __: Any, output: Any) -> Any:
        added = found.factor * first_tensor(output).reshape(before["hidden"].shape)
        new = changed("mlp_out", added)
        return with_first(output, _unscaled(first_tensor(output), added, new))

    def _unscaled(output: Tensor, added: Tensor, new: Tensor) -> Tensor:
        """The module's own output again; untouched where nothing was changed."""
        new, added = new.reshape(output.shape), added.reshape(output.shape)
        own = new / found.factor
        return _by_way_of(own, torch.where(new == added, output, own))

    stack.callback(found.attention.register_forward_hook(add_attention).remove)
    stack.callback(found.mlp.register_forward_hook(add_mlp).remove)


def _by_way_of(path: Tensor, value: Tensor) -> Tensor:
    """``value`` to the bit; its gradient is that of ``path``, which differs from it by rounding only.

    Else it would pass by what was recorded, and the gradient there be 0.
    """
    return value.detach() + (path - path.detach()) if path.requires_grad else value
