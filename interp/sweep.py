"""Many edits on many examples, exactly, at the price of the layers behind each edit.

A *cell* is a set of edits applied together; the sweep measures every cell on every example.

    clean pass:  keep the residual stream into each layer at which some cell begins
    per layer:   rows = cells × examples, on the batch axis; the pass starts at that layer from the kept
                 stream, and only the positions that the metric reads are unembedded

Everything before the first edited layer is as in the clean run, so the numbers are those of one
plain forward pass per cell; :attr:`Sweep.largest_difference` is what a sample of cells, run that plain
way, differed by, and a sweep whose sample differs by more than ``tolerance`` is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.edits import Edit, Placed, Recording, Replace, edited
from interp.errors import InterpError
from interp.forward import BATCH_TOKENS, logits_at
from interp.kernels import Engine
from interp.metrics import Metric, positions
from interp.model import Model
from interp.prompts import Prompt
from interp.sites import Site, block, output_kinds
from interp.tasks import Example

# Bytes of logits in one forward pass, and of kept residual stream.
LOGIT_BYTES = 256_000_000
STREAM_BYTES = 2_000_000_000
AUDITED = 3


@dataclass(frozen=True)
class Plan:
    """What a sweep is about to do.

    Attributes:
        n_cells, n_examples: sizes.
        n_forwards: forward passes, most of them of some layers only.
        layers: layers that will be run in all, rows counted; a plain pass per cell would run
            ``plain_layers``.
        stream_bytes: kept residual stream at its largest.
    """

    n_cells: int
    n_examples: int
    n_forwards: int
    layers: int
    plain_layers: int
    stream_bytes: int

    def __str__(self) -> str:
        share = self.layers / max(1, self.plain_layers)
        return (
            f"{self.n_cells} cells × {self.n_examples} examples in {self.n_forwards} forward passes, "
            f"{share:.0%} of the layers of one pass per cell, {self.stream_bytes / 1e6:.0f} MB of "
            "residual stream"
        )


@dataclass(frozen=True)
class Sweep:
    """The measured values.

    Attributes:
        clean: (metric, example) without any edit.
        values: (metric, cell, example).
        largest_difference: between the sweep and one plain forward pass per cell, over a sample.
        plan: what was done.
    """

    clean: Float[np.ndarray, "metric example"]
    values: Float[np.ndarray, "metric cell example"]
    largest_difference: float
    plan: Plan

    @property
    def effects(self) -> Float[np.ndarray, "metric cell example"]:
        """Value after the edit − value before."""
        return self.values - self.clean[:, None]


def sweep(
    model: Model,
    examples: Sequence[Example],
    cells: Sequence[Sequence[Edit]],
    metrics: Sequence[Metric],
    *,
    base: Sequence[Prompt] | None = None,
    batch_tokens: int = BATCH_TOKENS,
    engine: Engine = "auto",
    tolerance: float = 1e-4,
    seed: int = 0,
    on_plan: Callable[[Plan], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Sweep:
    """Measure every cell on every example.

    Args:
        examples: what is measured; the prompt axis of an edit's value is in their order.
        cells: edits applied together; a cell without edits is refused.
        metrics: what to measure.
        base: the prompts that are run and edited, one for each example; the clean ones if not given
            (denoising runs the corrupted).
        batch_tokens: tokens in one forward pass.
        tolerance: of the audit, relative to the largest clean value or 1; times 100 in half precision.
        on_plan: called with the plan before anything is run.
        progress: called with the number of (cell, example) pairs done.

    Raises:
        InterpError: no cells or examples, an example without what a metric needs, an edit that the model
            does not have, NaN in the output, or a sweep that is not what plain passes give.
    """
    prompts = _checked(model, examples, cells, metrics, base)
    begins = np.array([min(edit.layer for edit in cell) for cell in cells])
    groups = list(_groups(model, examples, begins, batch_tokens))
    plan = _plan(model, groups, begins, examples, batch_tokens)
    if on_plan is not None:
        on_plan(plan)

    clean = np.full((len(metrics), len(examples)), np.nan)
    values = np.full((len(metrics), len(cells), len(examples)), np.nan)
    rng = np.random.default_rng([seed, 2])
    audited = [
        (int(rng.integers(len(cells))), int(rng.integers(len(examples)))) for _ in range(AUDITED)
    ]
    references: dict[
        int, Tensor
    ] = {}  # clean logits of the audited examples: all would be too many
    for members in groups:
        ours = [examples[i] for i in members]
        ids = torch.tensor([prompts[i].ids for i in members], device=model.device)
        where = torch.tensor([positions(example) for example in ours], device=model.device)
        streams = Recording(Site("resid_pre", int(layer)) for layer in np.unique(begins))
        with edited(model, recording=streams, engine=engine):
            reference = logits_at(model, ids, where)
        references |= {i: reference[members.index(i)] for _, i in audited if i in members}
        for m, metric in enumerate(metrics):
            clean[m, members] = metric.measure(reference, reference, ours).double().cpu().numpy()
        rows = _rows(model, ids.shape[1], where.shape[1], batch_tokens)
        size = max(1, rows // len(members))
        for layer in np.unique(begins).tolist():
            at_layer = np.flatnonzero(begins == layer)
            for start in range(0, len(at_layer), size):
                chunk = at_layer[start : start + size]
                logits = _run(
                    model, ids, where, [cells[c] for c in chunk], members, layer, streams, engine
                )
                for m, metric in enumerate(metrics):
                    measured = metric.measure(
                        logits.flatten(0, 1),
                        reference.repeat(len(chunk), 1, 1),
                        ours * len(chunk),
                    )
                    block_values = measured.double().cpu().numpy().reshape(len(chunk), len(members))
                    values[m][np.ix_(chunk, np.array(members))] = block_values
                if progress is not None:
                    progress(len(chunk) * len(members))
    difference = _audit(
        model, examples, prompts, cells, metrics, values, audited, references, engine
    )
    scale = max(1.0, float(np.abs(clean).max()))
    allowed = tolerance * scale * (1 if model.dtype in (torch.float32, torch.float64) else 100)
    if difference > allowed:
        raise InterpError(
            f"the sweep differs from plain forward passes by {difference:.2g} on {model.architecture}, over "
            f"{allowed:.2g}: its layers do more than read the residual stream; please report it"
        )
    return Sweep(clean, values, difference, plan)


def _checked(
    model: Model,
    examples: Sequence[Example],
    cells: Sequence[Sequence[Edit]],
    metrics: Sequence[Metric],
    base: Sequence[Prompt] | None,
) -> list[Prompt]:
    """The prompts to run; all refusals before any work."""
    if not cells or not examples or not metrics:
        raise InterpError(
            f"nothing to sweep: {len(cells)} cells, {len(examples)} examples, {len(metrics)} metrics"
        )
    for metric in metrics:
        metric.check(examples)
    if not all(cells):
        raise InterpError("a cell without edits: expected at least one in each")
    prompts = [example.prompt for example in examples] if base is None else list(base)
    for prompt, example in zip(prompts, examples, strict=True):
        if len(prompt.ids) != len(example.prompt.ids):
            raise InterpError(
                f"example {example.prompt.name}: the prompt that is run has {len(prompt.ids)} tokens, "
                f"the clean one {len(example.prompt.ids)}"
            )
    for cell in cells:
        with edited(model, cell):
            pass
    return prompts


def _groups(
    model: Model, examples: Sequence[Example], begins: np.ndarray, batch_tokens: int
) -> Iterator[list[int]]:
    """Examples of one length and as many scored positions, few enough for memory."""
    by_shape: dict[tuple[int, int], list[int]] = {}
    for i, example in enumerate(examples):
        by_shape.setdefault((len(example.prompt.ids), len(positions(example))), []).append(i)
    for (length, scored), members in by_shape.items():
        each = length * model.d_model * 4 * len(np.unique(begins))
        rows = _rows(model, length, scored, batch_tokens)
        size = int(max(1, min(rows, STREAM_BYTES // each)))
        for start in range(0, len(members), size):
            yield members[start : start + size]


def _rows(model: Model, length: int, scored: int, batch_tokens: int) -> int:
    """Rows of one forward pass: by tokens, and by the logits that it gives."""
    logits = scored * model.vocab_size * 4
    return int(max(1, min(batch_tokens // length, LOGIT_BYTES // logits)))


def _plan(
    model: Model,
    groups: list[list[int]],
    begins: np.ndarray,
    examples: Sequence[Example],
    batch_tokens: int,
) -> Plan:
    layers, counts = np.unique(begins, return_counts=True)
    forwards, largest = 0, 0
    for members in groups:
        example = examples[members[0]]
        length, scored = len(example.prompt.ids), len(positions(example))
        size = max(1, _rows(model, length, scored, batch_tokens) // len(members))
        forwards += 1 + sum(-(-int(count) // size) for count in counts)
        largest = max(largest, len(members) * length * model.d_model * 4 * len(layers))
    run = int(((model.n_layers - layers) * counts).sum() + model.n_layers) * len(examples)
    return Plan(
        len(begins),
        len(examples),
        forwards,
        run,
        len(begins) * model.n_layers * len(examples),
        largest,
    )


def _run(
    model: Model,
    ids: Tensor,
    where: Tensor,
    cells: Sequence[Sequence[Edit]],
    members: list[int],
    layer: int,
    streams: Recording,
    engine: Engine,
) -> Float[Tensor, "cell example position d_vocab"]:
    """Some cells that begin at one layer, on one group of examples."""
    n = len(members)
    prompts = torch.tensor(members, device=ids.device)
    stream = streams[Site("resid_pre", layer)].repeat(len(cells), 1, 1)
    placed = [
        Placed(edit, slice(c * n, (c + 1) * n), prompts)
        for c, cell in enumerate(cells)
        for edit in cell
    ]
    # First the stream, then the cell's own edits on it.
    start = Placed(Replace(Site("resid_pre", layer), stream, "clean run"))
    with started_at(model, layer), edited(model, [start, *placed], engine=engine):
        logits = logits_at(model, ids.repeat(len(cells), 1), where.repeat(len(cells), 1))
    return logits.unflatten(0, (len(cells), n))


@contextmanager
def started_at(model: Model, layer: int) -> Iterator[None]:
    """Skip the blocks before ``layer``: they hand on what they are given."""
    kinds = output_kinds(model)
    skipped = [block(model, before) for before in range(layer)]
    try:
        for module, length in zip(skipped, kinds, strict=False):
            module.forward = _hand_on(length)
        yield
    finally:
        for module in skipped:
            module.__dict__.pop("forward", None)


@lru_cache(maxsize=64)
def _hand_on(length: int) -> Callable[..., object]:
    def forward(hidden_states: Tensor, *_: object, **__: object) -> object:
        return hidden_states if not length else (hidden_states, *[None] * (length - 1))

    return forward


def _audit(
    model: Model,
    examples: Sequence[Example],
    prompts: Sequence[Prompt],
    cells: Sequence[Sequence[Edit]],
    metrics: Sequence[Metric],
    values: np.ndarray,
    audited: Sequence[tuple[int, int]],
    references: dict[int, Tensor],
    engine: Engine,
) -> float:
    """The largest difference to one plain forward pass, over a few (cell, example) pairs."""
    largest = 0.0
    for c, i in audited:
        ids = torch.tensor([prompts[i].ids], device=model.device)
        where = torch.tensor([positions(examples[i])], device=model.device)
        placed = [Placed(edit, slice(0, 1), torch.tensor([i])) for edit in cells[c]]
        with edited(model, placed, engine=engine):
            logits = logits_at(model, ids, where)
        for m, metric in enumerate(metrics):
            plain = float(metric.measure(logits, references[i][None], [examples[i]])[0])
            largest = max(largest, abs(plain - float(values[m, c, i])))
    return largest
