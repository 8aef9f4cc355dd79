"""Passes over many edited copies of a few examples, begun where the first edit is.

A *cell* is a set of edits applied together. A *group* holds examples of one length, whose clean pass
has been kept; cells that begin at the same layer and position run on it as one batch,

    rows = cells × examples, from that layer and that position on

because everything in layers before the edited one, and in all layers everything at positions before
the edited one, is as it was in the clean pass: the residual stream into the layer comes from there,
and so do the keys and values of earlier tokens. Of the last layer only the positions that the metric
reads are run, on the keys and values of all, and only these are unembedded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention.door import ALONE
from interp.attention.kernels import Engine
from interp.editing.edits import Before, Edit, Placed, Recording, Replace, check_edits, edited
from interp.editing.metrics import positions
from interp.editing.sites import Site, block, output_kinds
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.inputs.tasks import Example
from interp.models.forward import logits_at, takes_positions
from interp.models.model import Model

# Bytes of logits in one forward pass, and of what is kept of a clean pass.
LOGIT_BYTES = 256_000_000
KEPT_BYTES = 2_000_000_000

Cell = Sequence[Edit]
Begin = tuple[int, int]
"""(layer, position) from which on a cell differs from the clean pass."""


@dataclass(frozen=True)
class Group:
    """Examples of one length, and what is kept of the pass that cells are changes of.

    Attributes:
        members: places of the examples in the whole set.
        examples: the examples.
        ids: (example, position) what is run.
        where: (example, scored) positions that the metric reads.
        kept: residual stream into the layers at which cells begin; keys and values if some begin
            at a later position.
        before: logits of that pass.
        reference: logits of the clean prompts, the same if these are what is run.
    """

    members: tuple[int, ...]
    examples: tuple[Example, ...]
    ids: Tensor
    where: Tensor
    kept: Recording
    before: Float[Tensor, "example scored d_vocab"]
    reference: Float[Tensor, "example scored d_vocab"]


def begin(model: Model, cell: Cell, examples: Sequence[Example]) -> Begin:
    """From where on a cell can change anything: (first layer, first position)."""
    layer = min(edit.layer for edit in cell)
    first = min(positions(example)[0] for example in examples)
    if not takes_positions(model):
        return layer, 0
    for edit in cell:
        if not isinstance(edit, Replace) or edit.site.kind == "pattern" or not edit.site.positions:
            return layer, 0
        first = min(first, *edit.site.positions)
    return layer, first


def split(
    model: Model, examples: Sequence[Example], begins: Sequence[Begin], batch_tokens: int
) -> Iterator[tuple[int, ...]]:
    """Places of examples of one length and as many scored positions, few enough for memory."""
    by_shape: dict[tuple[int, int], list[int]] = {}
    for i, example in enumerate(examples):
        by_shape.setdefault((len(example.prompt.ids), len(positions(example))), []).append(i)
    for (length, scored), members in by_shape.items():
        rows = rows_in_a_pass(model, length, scored, batch_tokens)
        size = int(max(1, min(rows, KEPT_BYTES // max(1, kept_bytes(model, length, begins)))))
        for start in range(0, len(members), size):
            yield tuple(members[start : start + size])


def kept_bytes(model: Model, length: int, begins: Sequence[Begin]) -> int:
    """What is kept of the pass of one example."""
    width = len({layer for layer, _ in begins}) * model.d_model
    if any(first for _, first in begins):
        width += model.n_layers * model.n_kv_heads * 2 * model.d_head
    return length * width * 4


def rows_in_a_pass(model: Model, length: int, scored: int, batch_tokens: int) -> int:
    """Rows of one forward pass: by tokens, and by the logits that it gives."""
    logits = scored * model.vocab_size * 4
    return int(max(1, min(batch_tokens // length, LOGIT_BYTES // logits)))


def kept_pass(
    model: Model,
    examples: Sequence[Example],
    prompts: Sequence[Prompt],
    members: tuple[int, ...],
    begins: Sequence[Begin],
    engine: Engine,
) -> Group:
    """Run ``prompts`` (the clean ones, or what is edited in their place), and keep what cells need."""
    ids = torch.tensor([prompts[i].ids for i in members], device=model.device)
    ours = tuple(examples[i] for i in members)
    where = torch.tensor([positions(example) for example in ours], device=model.device)
    sites = {Site("resid_pre", layer) for layer, _ in begins}
    if any(first for _, first in begins):
        sites |= {Site(kind, layer) for kind in ("k", "v") for layer in range(model.n_layers)}
    kept = Recording(sites)
    with edited(model, recording=kept, engine=engine):
        before = logits_at(model, ids, where)
    clean = torch.tensor([example.prompt.ids for example in ours], device=model.device)
    reference = before
    if not torch.equal(clean, ids):
        with edited(model, engine=engine):
            reference = logits_at(model, clean, where)
    return Group(members, ours, ids, where, kept, before, reference)


def run_cells(
    model: Model,
    group: Group,
    cells: Sequence[Cell],
    at: Begin,
    engine: Engine,
    recording: Recording | None = None,
) -> Float[Tensor, "cell example scored d_vocab"]:
    """Logits of cells that begin at one layer and position (or after), on one group.

    Args:
        recording: keeps activations of the rows (cell by cell, the group's examples in each), from the
            begun position on.
    """
    layer, first = at
    n, last = len(group.members), model.n_layers - 1
    # A layer without attention (a hybrid's) hands its state on in a way of its own: begin at 0.
    later = range(layer, model.n_layers)
    if first and not all(Site("k", above) in group.kept for above in later):
        first = 0
    members = torch.tensor(group.members, device=model.device)
    stream = group.kept[Site("resid_pre", layer)][:, first:].repeat(len(cells), 1, 1)
    placed = [
        Placed(_counted_from(first, edit), slice(c * n, (c + 1) * n), members)
        for c, cell in enumerate(cells)
        for edit in cell
    ]
    before = Before(first, group.kept, len(cells)) if first else None
    scored = last_layer_from(model, group.examples, cells, (layer, first))
    read = recording
    if scored > first and recording is None:
        read = _UpTo(last)
    try:
        logits = _run_on(model, group, layer, first, stream, placed, before, read, engine)
    except _Enough:
        assert read is not None
        whole = Recording(Site(kind, last) for kind in ("k", "v"))
        for kind in ("k", "v"):
            tensor = read[Site(kind, last)]
            tensor = tensor if before is None else before.joined(last, kind, tensor)
            whole.keep(last, kind, tensor)
        stream = read[Site("resid_pre", last)][:, scored - first :]
        before = Before(scored, whole, 1)
        logits = _run_on(model, group, last, scored, stream, (), before, None, engine)
    return logits.unflatten(0, (len(cells), n))


def last_layer_from(
    model: Model, examples: Sequence[Example], cells: Sequence[Cell], at: Begin
) -> int:
    """First position that the last layer is run on: the first that the metric reads, where no cell
    changes anything in that layer."""
    layer, first = at
    inner = max((edit.layer for cell in cells for edit in cell), default=layer)
    if inner >= model.n_layers - 1 or not takes_positions(model):
        return first
    return max(first, min(positions(example)[0] for example in examples))


def _run_on(
    model: Model,
    group: Group,
    layer: int,
    first: int,
    stream: Tensor,
    placed: Sequence[Placed],
    before: Before | None,
    recording: Recording | None,
    engine: Engine,
) -> Float[Tensor, "row scored d_vocab"]:
    """Logits of rows whose residual stream into ``layer``, from position ``first`` on, is ``stream``."""
    copies = len(stream) // len(group.members)
    ids, where = (t.repeat(copies, 1) for t in (group.ids[:, first:], group.where - first))
    # First the stream, then the cells' own edits on it.
    start = Placed(Replace(Site("resid_pre", layer), stream, "clean run"))
    with (
        ALONE,
        started_at(model, layer),
        edited(model, [start, *placed], recording=recording, before=before, engine=engine),
    ):
        return logits_at(model, ids, where, first=first)


class _Enough(Exception):
    """All that is needed of a pass is there."""


class _UpTo(Recording):
    """Ends a pass with the values of a layer: keeps them, its keys, and the residual stream into it."""

    def __init__(self, layer: int) -> None:
        super().__init__(Site(kind, layer) for kind in ("resid_pre", "k", "v"))

    def keep(self, layer: int, kind: str, tensor: Tensor) -> None:
        super().keep(layer, kind, tensor)
        if all(site in self for site in self.sites):
            raise _Enough


def _counted_from(first: int, edit: Edit) -> Edit:
    """The same edit, its positions counted from ``first``."""
    if not first:
        return edit
    assert isinstance(edit, Replace) and edit.site.positions is not None
    site = edit.site
    behind = tuple(position - first for position in site.positions or ())
    return Replace(Site(site.kind, site.layer, site.heads, behind), edit.value, edit.origin)


@contextmanager
def started_at(model: Model, layer: int) -> Iterator[None]:
    """Skip the blocks before ``layer``: they hand on what they are given."""
    kinds = output_kinds(model)
    skipped = [block(model, before) for before in range(layer)]
    own = [vars(module).get("forward") for module in skipped]  # a module may have been wrapped
    try:
        for module, length in zip(skipped, kinds, strict=False):
            module.forward = _hand_on(length)
        yield
    finally:
        for module, forward in zip(skipped, own, strict=True):
            vars(module).pop("forward", None)
            if forward is not None:
                module.forward = forward


@lru_cache(maxsize=64)
def _hand_on(length: int) -> Callable[..., object]:
    def forward(hidden_states: Tensor, *_: object, **__: object) -> object:
        return hidden_states if not length else (hidden_states, *[None] * (length - 1))

    return forward


def check_cells(model: Model, cells: Sequence[Cell]) -> None:
    """Refuse a cell without edits, and edits that the model does not have, before anything runs."""
    if not all(cells):
        raise InterpError("a cell without edits: expected at least one in each")
    for cell in cells:
        check_edits(model, cell)
