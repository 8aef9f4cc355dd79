"""Many edits on many examples, exactly, at the price of what lies behind each edit.

A *cell* is a set of edits applied together; the sweep measures every cell on every example. A clean pass
is kept, and cells are run on it in batches, from the layer and position at which they begin
(:mod:`interp.editing.passes`). The numbers are those of one plain forward pass per cell:
:attr:`Sweep.largest_difference` is what a sample of cells, run that plain way, differed by, and a
sweep whose sample differs by more than ``tolerance`` is refused. Changes that rounding alone makes are
measured too, and an effect no larger than that is 0: else it could pass for a significant one.

Before it begins, the sweep says what it will do and, from its first clean pass, how long that should
take. Finished batches can be kept in a folder (:class:`~interp.runs.parts.Parts`): the same sweep, stopped
and started again, takes them from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.arguments import whole_number
from interp.attention.kernels import Engine
from interp.editing.edits import Cut, Placed, Redirect, Replace, edited
from interp.editing.metrics import Metric, last_places, positions
from interp.editing.passes import (
    Begin,
    Cell,
    Group,
    begin,
    check_cells,
    kept_bytes,
    kept_pass,
    last_layer_from,
    rows_in_a_pass,
    run_cells,
    split,
)
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.inputs.tasks import Example, check_examples
from interp.models.forward import BATCH_TOKENS, logits_at
from interp.models.model import Model, check_loaded
from interp.runs.parts import Parts

AUDITED = 3
# Tokens below which a pass costs about the same however few they are.
SMALL_PASS = 512


@dataclass(frozen=True)
class Plan:
    """What a sweep is about to do.

    Attributes:
        n_cells, n_examples: sizes.
        n_forwards: forward passes, most of them of some layers and positions only.
        work: tokens × layers that will be run.
        plain_work: tokens × layers of one plain pass per cell and example.
        kept_bytes: kept of the clean pass at its largest.
        seconds: estimate, from the time that the first clean pass took; NaN before that.
    """

    n_cells: int
    n_examples: int
    n_forwards: int
    work: int
    plain_work: int
    kept_bytes: int
    seconds: float = float("nan")

    def __str__(self) -> str:
        share = self.work / max(1, self.plain_work)
        return (
            f"{self.n_cells} cells × {self.n_examples} examples in {self.n_forwards} forward passes, "
            f"{share:.0%} of the work of one pass per cell, {self.kept_bytes / 1e6:.0f} MB kept of the "
            f"clean pass, about {self.seconds:.0f} s"
        )


@dataclass(frozen=True)
class Sweep:
    """The measured values.

    Attributes:
        clean: (metric, example) of the clean prompts, without any edit.
        before: (metric, example) of the prompts that were edited: the clean ones, or ``base``.
        values: (metric, cell, example) after the edits.
        rounding: (metric,) effects no larger than this are rounding, and given as 0.
        largest_difference: between the sweep and one plain forward pass per cell, over a sample.
        plan: what was done.
    """

    clean: Float[np.ndarray, "metric example"]
    before: Float[np.ndarray, "metric example"]
    values: Float[np.ndarray, "metric cell example"]
    rounding: Float[np.ndarray, " metric"]
    largest_difference: float
    plan: Plan

    @property
    def effects(self) -> Float[np.ndarray, "metric cell example"]:
        """Value after the edit − value before."""
        return self.values - self.before[:, None]


def sweep(
    model: Model,
    examples: Sequence[Example],
    cells: Sequence[Cell],
    metrics: Sequence[Metric],
    *,
    base: Sequence[Prompt] | None = None,
    batch_tokens: int = BATCH_TOKENS,
    engine: Engine = "auto",
    tolerance: float = 1e-4,
    seed: int = 0,
    parts: Parts | None = None,
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
        parts: where finished batches are kept and found again; they must be of this very sweep.
        on_plan: called with the plan before the cells are run.
        progress: called with the number of (cell, example) pairs done.

    Raises:
        InterpError: no cells or examples, an example without what a metric needs, an edit that the model
            does not have, NaN in the output, or a sweep that is not what plain passes give.
    """
    check_loaded(model)
    examples = _listed("examples", examples, Example)
    metrics = _listed("metrics", metrics, Metric)
    cells = [_listed("a cell", cell, Replace | Cut | Redirect) for cell in cells]
    whole_number("seed", seed, least=0)
    prompts = _checked(model, examples, cells, metrics, base)
    begins = [begin(model, cell, examples) for cell in cells]
    groups = list(split(model, examples, begins, batch_tokens))
    plan = _plan(model, groups, cells, begins, examples, batch_tokens)
    clean, before = (np.full((len(metrics), len(examples)), np.nan) for _ in range(2))
    values = np.full((len(metrics), len(cells), len(examples)), np.nan)
    largest_rounding, places = np.zeros(len(metrics)), 0.0
    rng = np.random.default_rng([seed, 2])
    audited = [
        (int(rng.integers(len(cells))), int(rng.integers(len(examples)))) for _ in range(AUDITED)
    ]
    references: dict[int, Tensor] = {}  # of the audited examples: all would be too many
    with edited(model, engine=engine):  # what a first pass sets up is no measure of the others
        logits_at(
            model,
            torch.tensor([prompts[0].ids], device=model.device),
            torch.tensor([[0]], device=model.device),
        )
    for members in groups:
        started = time.perf_counter()
        group = kept_pass(model, examples, prompts, members, begins, engine)
        if not np.isfinite(plan.seconds):
            each = (time.perf_counter() - started) / (group.ids.numel() * model.n_layers)
            plan = replace(plan, seconds=each * plan.work)
            if on_plan is not None:
                on_plan(plan)
        reference = group.reference
        places = max(places, last_places(reference, model.dtype))
        references |= {i: reference[members.index(i)] for _, i in audited if i in members}
        for m, metric in enumerate(metrics):
            for into, logits in ((clean, reference), (before, group.before)):
                measured = metric.measure(logits, reference, group.examples)
                into[m, members] = measured.double().cpu().numpy()
        rounding = _rounding(model, group, before[:, list(members)], metrics, begins, engine)
        largest_rounding = np.maximum(largest_rounding, rounding)
        for at, chunk in _batches(model, begins, group.examples, batch_tokens):
            name = f"{members[0]}-{at[0]}-{at[1]}-{chunk[0]}"
            found = (
                None
                if parts is None
                else parts.load(name, (len(metrics), len(chunk), len(members)))
            )
            if found is None:
                found = _measure(model, group, [cells[c] for c in chunk], at, metrics, engine)
                if parts is not None:
                    parts.save(name, found)
            for m in range(len(metrics)):
                unedited = before[m, list(members)]
                same = np.abs(found[m] - unedited) <= rounding[m]
                values[m][np.ix_(chunk, members)] = np.where(same, unedited, found[m])
            if progress is not None:
                progress(len(chunk) * len(members))
    difference = _audit(
        model, examples, prompts, cells, metrics, values, audited, references, engine
    )
    scale = max(1.0, float(np.abs(clean).max()))
    allowed = tolerance * scale * (1 if model.dtype in (torch.float32, torch.float64) else 100)
    allowed = max(allowed, places)
    if difference > allowed:
        raise InterpError(
            f"the sweep differs from plain forward passes by {difference:.2g} on {model.architecture}, over "
            f"{allowed:.2g}: its layers do more than read the residual stream; please report it"
        )
    return Sweep(clean, before, values, largest_rounding, difference, plan)


def _checked(
    model: Model,
    examples: Sequence[Example],
    cells: Sequence[Cell],
    metrics: Sequence[Metric],
    base: Sequence[Prompt] | None,
) -> list[Prompt]:
    """The prompts to run; all refusals before any work."""
    if not cells or not examples or not metrics:
        raise InterpError(
            f"nothing to sweep: {len(cells)} cells, {len(examples)} examples, {len(metrics)} metrics"
        )
    _check_values(cells, len(examples))
    for metric in metrics:
        metric.check(examples)
    check_examples(model, examples)
    prompts = [example.prompt for example in examples] if base is None else list(base)
    if len(prompts) != len(examples):
        raise InterpError(
            f"base: {len(prompts)} prompts for {len(examples)} examples; expected one for each"
        )
    for prompt, example in zip(prompts, examples, strict=True):
        if len(prompt.ids) != len(example.prompt.ids):
            raise InterpError(
                f"example {example.prompt.name}: the prompt that is run has {len(prompt.ids)} tokens, "
                f"the clean one {len(example.prompt.ids)}"
            )
    check_cells(model, cells)
    return prompts


def _listed(name: str, given: Any, kind: Any) -> list[Any]:
    """Any series of these as a list; refuses a single one, and all else."""
    if isinstance(given, kind) or not isinstance(given, Iterable):
        raise InterpError(f"{name}: expected a list, got a {type(given).__name__}")
    found = list(given)
    wrong = [one for one in found if not isinstance(one, kind)]
    if wrong:
        each = " or ".join(one.__name__ for one in get_args(kind) or (kind,))
        raise InterpError(f"{name}: expected {each} each, got a {type(wrong[0]).__name__}")
    return found


def _check_values(cells: Sequence[Cell], n_examples: int) -> None:
    """Refuse a value that is of other prompts: a batch takes from it what stands at its examples' places."""
    for edit in (edit for cell in cells for edit in cell if isinstance(edit, Replace)):
        n = edit.value.shape[0] if isinstance(edit.value, Tensor) and edit.value.dim() else 1
        if n not in (1, n_examples):
            raise InterpError(
                f"{edit}: its value is of {n} prompts, and there are {n_examples} examples; expected one for "
                "each, in their order, or 1 for all"
            )


def _batches(
    model: Model,
    begins: Sequence[Begin],
    examples: Sequence[Example],
    batch_tokens: int,
) -> Iterator[tuple[Begin, list[int]]]:
    """Cells for one pass each: of one layer, from the last position on, as many as fit.

    Cells that begin at different positions share a pass, from the earliest on, while it is small.
    """
    n, length, scored = len(examples), len(examples[0].prompt.ids), len(positions(examples[0]))
    by_layer: dict[int, list[tuple[int, int]]] = {}
    for cell, (layer, first) in enumerate(begins):
        by_layer.setdefault(layer, []).append((-first, cell))
    for layer, cells in sorted(by_layer.items()):
        waiting: list[int] = []
        begun = 0
        for backwards, cell in sorted(cells):
            first = -backwards
            tokens = len(waiting) * n * (length - begun)
            rows = rows_in_a_pass(model, length - first, scored, batch_tokens)
            full = (len(waiting) + 1) * n > rows
            if waiting and (full or (first != begun and tokens >= SMALL_PASS)):
                yield (layer, begun), waiting
                waiting = []
            waiting, begun = [*waiting, cell], first
        yield (layer, begun), waiting


def _measure(
    model: Model,
    group: Group,
    cells: Sequence[Cell],
    at: Begin,
    metrics: Sequence[Metric],
    engine: Engine,
) -> Float[np.ndarray, "metric cell example"]:
    logits = run_cells(model, group, cells, at, engine)
    found = [
        torch.stack([metric.measure(cell, group.reference, group.examples) for cell in logits])
        for metric in metrics
    ]
    return torch.stack(found).double().cpu().numpy()


def _rounding(
    model: Model,
    group: Group,
    before: Float[np.ndarray, "metric example"],
    metrics: Sequence[Metric],
    begins: Sequence[Begin],
    engine: Engine,
) -> Float[np.ndarray, " metric"]:
    """What rounding alone changes of each metric: passes of different shapes add up in another order.

    Measured on two cells without an edit, and never less than a few units in the last place of the logits.
    """
    control = _measure(model, group, [(), ()], min(begins), metrics, engine)
    measured = np.abs(control - before[:, None]).max((1, 2))
    return np.maximum(4 * measured, last_places(group.before, model.dtype))


def _plan(
    model: Model,
    groups: list[tuple[int, ...]],
    cells: Sequence[Cell],
    begins: Sequence[Begin],
    examples: Sequence[Example],
    batch_tokens: int,
) -> Plan:
    forwards, kept, work, plain = 0, 0, 0, 0
    for members in groups:
        ours = [examples[i] for i in members]
        n, length = len(ours), len(ours[0].prompt.ids)
        forwards, work = forwards + 1, work + n * model.n_layers * length
        passes: list[tuple[Begin, list[Cell]]] = [(min(begins), [(), ()])]  # what rounding does
        for at, chunk in _batches(model, begins, ours, batch_tokens):
            passes.append((at, [cells[c] for c in chunk]))
        for (layer, first), here in passes:
            forwards += 1
            skipped = last_layer_from(model, ours, here, (layer, first)) - first
            work += len(here) * n * ((model.n_layers - layer) * (length - first) - skipped)
        plain += len(begins) * n * model.n_layers * length
        kept = max(kept, n * kept_bytes(model, length, begins))
    return Plan(len(begins), len(examples), forwards, work, plain, kept)


def _audit(
    model: Model,
    examples: Sequence[Example],
    prompts: Sequence[Prompt],
    cells: Sequence[Cell],
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
