"""What each head is worth to a task: its z replaced, everything after it recomputed (total effect).

    effect(head) = metric with the head's z ablated − metric without

    zero       z becomes 0: "what if the head said nothing?" A head's mean output is part of what later
               layers expect, so this also breaks what is merely constant (Wang et al., 2211.00593, §2)
    mean       z becomes its mean over the donors, by position
    resample   z becomes that of one donor prompt of the same length: the example's corrupted prompt, or
               the clean prompt of the next example where the task has none

Donors are the corrupted prompts of the task, or its clean ones if it has none. Ablations of different
kinds can disagree (Heimersheim & Nanda, 2404.15255); ``edit`` names what was put in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from interp.edits import Edit, Recording, Replace, edited
from interp.errors import InterpError
from interp.forward import BATCH_TOKENS, batches, logits_at
from interp.kernels import Engine
from interp.metrics import METRICS
from interp.model import Model
from interp.prompts import Prompt
from interp.sites import Site
from interp.sweep import Plan, sweep
from interp.tasks import Example, Task

How = Literal["zero", "mean", "resample"]


def ablate_heads(
    model: Model,
    task: Task,
    how: How = "zero",
    metric: str | None = None,
    *,
    batch_tokens: int = BATCH_TOKENS,
    engine: Engine = "auto",
    seed: int = 0,
    on_plan: Callable[[Plan], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[pd.DataFrame, float]:
    """The effect of ablating each query head, on every example.

    Args:
        metric: a name of ``metrics.METRICS``; None: the loss for a task with scored positions, else the
            logit difference.

    Returns:
        a table as ``tables.EFFECTS_PER_PROMPT`` describes, and the largest difference that the sweep
        had from plain forward passes.

    Raises:
        InterpError: an unknown metric or one the task has nothing for, a resample without a donor, or
            whatever :func:`interp.sweep.sweep` refuses.
    """
    if how not in ("zero", "mean", "resample"):
        raise InterpError(f"how={how!r}: expected zero, mean or resample")
    chosen = METRICS.get(metric or ("loss" if task.examples[0].scored else "logit_difference"))
    if chosen is None:
        raise InterpError(f"metric={metric!r}: expected one of {', '.join(METRICS)}")
    by_length: dict[int, list[Example]] = {}
    for example in task.examples:
        by_length.setdefault(len(example.prompt.ids), []).append(example)
    frames, largest = [], 0.0
    for examples in by_length.values():
        cells = _cells(model, examples, how, engine)
        found = sweep(
            model,
            examples,
            cells,
            [chosen],
            batch_tokens=batch_tokens,
            engine=engine,
            seed=seed,
            on_plan=on_plan,
            progress=progress,
        )
        largest = max(largest, found.largest_difference)
        cell, place = np.indices(found.values[0].shape).reshape(2, -1)
        frame = pd.DataFrame(
            {
                "model": model.name,
                "layer": cell // model.n_heads,
                "head": cell % model.n_heads,
                "task": task.name,
                "edit": how,
                "metric": chosen.name,
                "prompt": [examples[i].prompt.name for i in place],
                "template": [examples[i].template or examples[i].prompt.name for i in place],
                "effect": found.effects[0].ravel(),
                "baseline": found.clean[0][place],
            }
        )
        frames.append(frame)
    table = pd.concat(frames, ignore_index=True)
    order = {example.prompt.name: i for i, example in enumerate(task.examples)}
    table["order"] = table["prompt"].map(order)
    table = table.sort_values(["layer", "head", "order"], ignore_index=True)
    return table.drop(columns="order"), largest


def _cells(model: Model, examples: Sequence[Example], how: How, engine: Engine) -> list[list[Edit]]:
    """One cell a head, layer by layer."""
    values: dict[int, Tensor] = {}
    origin: str = how
    if how != "zero":
        donors, origin = _donors(examples, how)
        values = _recorded(model, donors, engine)
        if how == "mean":
            values = {layer: z.mean(0, keepdim=True) for layer, z in values.items()}
    cells: list[list[Edit]] = []
    for layer in range(model.n_layers):
        for head in range(model.n_heads):
            site = Site("z", layer, (head,))
            value = values[layer][:, head : head + 1] if values else 0.0
            cells.append([Replace(site, value, origin)])
    return cells


def _donors(examples: Sequence[Example], how: How) -> tuple[list[Prompt], str]:
    corrupted = [example.corrupted for example in examples if example.corrupted is not None]
    if len(corrupted) == len(examples):
        return corrupted, f"{how} of corrupted prompts"
    prompts = [example.prompt for example in examples]
    if len(prompts) < 2:  # its own activations would change nothing, and look like no effect
        raise InterpError(
            f"{how}: example {prompts[0].name} has no corrupted prompt, and no other of its "
            f"{len(prompts[0].ids)} tokens to take activations from; use more prompts, or zero"
        )
    return [*prompts[1:], prompts[0]], f"{how} of clean prompts"


def _recorded(model: Model, donors: Sequence[Prompt], engine: Engine) -> dict[int, Tensor]:
    """z of every layer, (donor, head, position, d_value)."""
    parts: dict[int, list[Tensor]] = {layer: [] for layer in range(model.n_layers)}
    for batch in batches(donors):
        recording = Recording(Site("z", layer) for layer in parts)
        ids = torch.tensor([prompt.ids for prompt in batch], device=model.device)
        with edited(model, recording=recording, engine=engine):
            logits_at(model, ids, torch.full((len(ids), 1), ids.shape[1] - 1, device=ids.device))
        for layer, part in parts.items():
            part.append(recording[Site("z", layer)])
    return {layer: torch.cat(part) for layer, part in parts.items()}
