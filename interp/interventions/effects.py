"""From named cells to a table of effects: what the experiments that intervene share.

A :class:`Cell` here has a name (layer, head, place, …) beside its edits. :func:`effects_of` cuts a
task into sets of examples that can share cells (one length, the same positions of named places),
makes the cells of each, sweeps them, and returns one table with a row for each cell and prompt.

    effect = metric after the edit − metric before, of the prompt that is run
        clean prompts are run, if something is taken away or put in from elsewhere (noising, ablation)
        corrupted prompts are run, if something is restored (denoising)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np
import pandas as pd
import pandera.pandas as pa
import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention.kernels import Engine
from interp.editing.edits import Edit, Recording, edited
from interp.editing.metrics import METRICS, Metric, usual_metric
from interp.editing.passes import kept_pass, split
from interp.editing.sites import Site
from interp.editing.sweep import Plan, sweep
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.inputs.tasks import Example, Task, check_asked, check_examples
from interp.models.forward import BATCH_TOKENS, batches, logits_at
from interp.models.model import Model
from interp.results.findings import Effects
from interp.results.tables import EFFECTS_PER_PROMPT
from interp.runs.parts import Parts

NamedCell = tuple[dict[str, Any], Sequence[Edit]]
"""What a cell is called, by columns of the table, and its edits."""


class Options(TypedDict, total=False):
    """How sweeps are run: see :func:`interp.editing.sweep.sweep`."""

    batch_tokens: int
    engine: Engine
    seed: int
    parts: Parts | None
    on_plan: Callable[[Plan], None] | None
    progress: Callable[[int], None] | None


def effects_of(
    model: Model,
    task: Task,
    cells: Callable[[Sequence[Example]], Sequence[NamedCell]],
    *,
    edit: str,
    metric: str | None = None,
    apart: Callable[[Example], Hashable] = lambda example: len(example.prompt.ids),
    denoise: bool = False,
    normalise: bool = False,
    **options: Unpack[Options],
) -> Effects:
    """Measure named cells on every example of a task.

    Args:
        cells: makes the cells for examples that go together; the prompt axis of their values is in
            these examples' order.
        edit: what is done, for the table.
        metric: a name of ``metrics.METRICS``; None: that of ``metrics.usual_metric``.
        apart: examples go together if this is equal.
        denoise: run the corrupted prompts and not the clean ones.
        normalise: keep the values of the clean and of the corrupted prompt beside each effect.

    Returns:
        a table as ``tables.EFFECTS_PER_PROMPT`` describes, in the order of cells and then of examples;
        and the largest difference that the sweeps found to plain forward passes.

    Raises:
        InterpError: an unknown metric, one the task has nothing for, or what the sweep refuses.
    """
    measured, largest = measure_cells(
        model,
        task,
        cells,
        metric=metric,
        apart=apart,
        denoise=denoise,
        normalise=normalise,
        **options,
    )
    table = as_table(model, task, measured, edit, metric_for(task, metric).name)
    return Effects(table, largest)


def measure_cells(
    model: Model,
    task: Task,
    cells: Callable[[Sequence[Example]], Sequence[NamedCell]],
    *,
    metric: str | None = None,
    apart: Callable[[Example], Hashable] = lambda example: len(example.prompt.ids),
    denoise: bool = False,
    normalise: bool = False,
    **options: Unpack[Options],
) -> tuple[list[Measured], float]:
    """What :func:`effects_of` does, before it is put into a table: for tables of another kind."""
    check_asked(model, task)
    chosen = metric_for(task, metric)
    check_examples(model, task.examples)
    together: dict[Hashable, list[int]] = {}
    for i, example in enumerate(task.examples):
        together.setdefault(apart(example), []).append(i)
    if denoise or normalise:
        check_corrupted(task)
    parts = options.get("parts")
    measured, largest = [], 0.0
    for number, members in enumerate(together.values()):
        examples = [task.examples[i] for i in members]
        named = cells(examples)
        corrupted = [example.corrupted for example in examples]
        if parts is not None:
            options["parts"] = parts.under(str(number))
        found = sweep(
            model,
            examples,
            [edits for _, edits in named],
            [chosen],
            base=corrupted if denoise else None,  # type: ignore[arg-type]  # checked above
            **options,
        )
        largest = max(largest, found.largest_difference)
        values = {"effect": found.effects[0], "baseline": found.before[0]}
        if normalise:
            of_corrupted = found.before[0] if denoise else _values(model, examples, chosen, options)
            values |= ends(found.clean[0], of_corrupted, float(found.rounding[0]))
        measured.append(Measured(members, [name for name, _ in named], values))
    return measured, largest


def ends(
    clean: Float[np.ndarray, " example"], corrupted: Float[np.ndarray, " example"], rounding: float
) -> dict[str, Float[np.ndarray, " example"]]:
    """Columns; what differs by rounding only is the same, so that nothing is divided by it."""
    same = np.abs(clean - corrupted) <= rounding
    return {"clean": clean, "corrupted": np.where(same, clean, corrupted)}


@dataclass(frozen=True)
class Measured:
    """Values of some examples' cells, to be put into a table.

    Attributes:
        members: places of the examples in the task.
        names: what each cell is called, by columns.
        values: column → (cell, example), or (example,) where it is the same for all cells.
    """

    members: Sequence[int]
    names: Sequence[dict[str, Any]]
    values: Mapping[str, np.ndarray]


def as_table(
    model: Model,
    task: Task,
    measured: Sequence[Measured],
    edit: str,
    metric: str,
    schema: pa.DataFrameSchema = EFFECTS_PER_PROMPT,
) -> pd.DataFrame:
    """A table as ``schema`` describes, in the order of cells and then of examples."""
    frames = []
    for part in measured:
        n = len(part.members)
        frame = pd.DataFrame(list(part.names)).assign(cell=range(len(part.names)))
        frame = frame.loc[frame.index.repeat(n)].reset_index(drop=True)
        frame["example"] = [*part.members] * len(part.names)
        for column, values in part.values.items():
            frame[column] = np.broadcast_to(values, (len(part.names), n)).ravel()
        frames.append(frame)
    table = pd.concat(frames).sort_values(["cell", "example"], ignore_index=True)
    prompts = [example.prompt.name for example in task.examples]
    templates = [example.template or example.prompt.name for example in task.examples]
    table = table.assign(
        model=model.name,
        task=task.name,
        edit=edit,
        metric=metric,
        prompt=[prompts[i] for i in table["example"]],
        template=[templates[i] for i in table["example"]],
    )
    columns = [name for name in schema.columns if name in table]
    return schema.validate(table[columns])


def _values(
    model: Model, examples: Sequence[Example], metric: Metric, options: Options
) -> Float[np.ndarray, " example"]:
    """The metric of the corrupted prompts, unedited."""
    found = np.full(len(examples), np.nan)
    prompts = [example.corrupted for example in examples if example.corrupted is not None]
    engine = options.get("engine", "auto")
    for members in split(model, examples, [], options.get("batch_tokens", BATCH_TOKENS)):
        group = kept_pass(model, examples, prompts, members, [], engine)
        measured = metric.measure(group.before, group.reference, group.examples)
        found[list(members)] = measured.double().cpu().numpy()
    return found


def metric_for(task: Task, metric: str | None) -> Metric:
    """The metric by name, or the task's usual one; refuses an unknown name and an unfit one."""
    chosen = METRICS.get(metric or usual_metric(task.examples[0]))
    if chosen is None:
        raise InterpError(f"metric={metric!r}: expected one of {', '.join(METRICS)}")
    chosen.check(task.examples)
    return chosen


def check_corrupted(task: Task) -> None:
    """Refuse a task that has an example without a corrupted prompt."""
    for example in task.examples:
        if example.corrupted is None:
            raise InterpError(
                f"task {task.name}: example {example.prompt.name} has no corrupted prompt to patch "
                "with; expected one of the same length for each"
            )


def recorded(
    model: Model, prompts: Sequence[Prompt], sites: Sequence[Site], engine: Engine = "auto"
) -> dict[Site, Tensor]:
    """Activations of plain passes, on the prompt axis in the order of the prompts (of one length)."""
    kept: dict[Site, list[Tensor]] = {site: [] for site in sites}
    for batch in batches(prompts):
        recording = Recording(sites)
        ids = torch.tensor([prompt.ids for prompt in batch], device=model.device)
        with edited(model, recording=recording, engine=engine):
            logits_at(model, ids, torch.full((len(ids), 1), ids.shape[1] - 1, device=ids.device))
        for site, tensors in kept.items():
            tensors.append(recording[site])
    return {site: torch.cat(tensors) for site, tensors in kept.items()}
