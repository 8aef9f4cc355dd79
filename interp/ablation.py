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

from collections.abc import Sequence
from typing import Literal, Unpack

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.edits import Replace
from interp.effects import NamedCell, Options, effects_of, recorded
from interp.errors import InterpError
from interp.kernels import Engine
from interp.model import Model
from interp.prompts import Prompt
from interp.sites import Site
from interp.tasks import Example, Task

How = Literal["zero", "mean", "resample"]


def ablate_heads(
    model: Model,
    task: Task,
    how: How = "zero",
    metric: str | None = None,
    **options: Unpack[Options],
) -> tuple[pd.DataFrame, float]:
    """The effect of ablating each query head, on every example.

    Args:
        metric: a name of ``metrics.METRICS``; None: that of ``metrics.usual_metric``.

    Returns:
        a table as ``tables.EFFECTS_PER_PROMPT`` describes, and the largest difference that the sweep
        had from plain forward passes.

    Raises:
        InterpError: an unknown metric or one the task has nothing for, a resample without a donor, or
            whatever :func:`interp.sweep.sweep` refuses.
    """
    if how not in ("zero", "mean", "resample"):
        raise InterpError(f"how={how!r}: expected zero, mean or resample")

    def cells(examples: Sequence[Example]) -> list[NamedCell]:
        new, origin = new_outputs(model, examples, how, options.get("engine", "auto"))
        return [
            (
                {"layer": layer, "head": head},
                [Replace(Site("z", layer, (head,)), z[:, head : head + 1], origin)],
            )
            for layer, z in enumerate(new)
            for head in range(model.n_heads)
        ]

    return effects_of(model, task, cells, edit=how, metric=metric, **options)


def new_outputs(
    model: Model, examples: Sequence[Example], how: How, engine: Engine = "auto"
) -> tuple[list[Float[Tensor, "example head pos d_value"]], str]:
    """What z of each layer becomes (an axis may be 1 where all are alike), and where it is from."""
    if how == "zero":
        return [torch.zeros(1, model.n_heads, 1, 1, device=model.device)] * model.n_layers, "zero"
    donors, origin = _donors(examples, how)
    sites = [Site("z", layer) for layer in range(model.n_layers)]
    values = recorded(model, donors, sites, engine)
    if how == "mean":
        values = {site: z.mean(0, keepdim=True) for site, z in values.items()}
    return [values[site] for site in sites], origin


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
