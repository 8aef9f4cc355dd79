"""Total and direct effect of a head, and what the rest of the model makes up for.

    total    z of the head is replaced, everything after it recomputed
    direct   only what the head writes changes in the final residual stream: all other heads and MLPs held,
             and the scale of the final norm too (linear in what is written)
    norm     the same with the final norm recomputed, less direct: what the norm's scale makes up for
    later    total − direct − norm: what goes through later heads and MLPs, carried on or made up for

    total = direct + norm + later

For a metric of which more is better (logit difference) a head that helps by itself has direct < 0; where
norm + later > 0 the rest of the model makes up for part of it (self-repair). Of an early head most of the
effect is later: others carry it on. Later parts can also answer to the ablation itself, to what they were
never given in training: compare zero, mean and resample (McGrath et al., 2307.15771; Rushing & Nanda,
2402.15390).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Unpack

import pandas as pd
import torch
from matplotlib.figure import Figure

from interp.editing.edits import Replace
from interp.editing.metrics import positions
from interp.editing.passes import split
from interp.editing.sites import Site, StreamKind
from interp.inputs.tasks import Example, Task
from interp.interventions.ablation import How, ablate_heads, new_outputs
from interp.interventions.effects import NamedCell, Options, effects_of
from interp.interventions.influence_figure import direct_and_total
from interp.interventions.outputs import Ending, Writing, observed, sites_for_outputs
from interp.models.forward import BATCH_TOKENS
from interp.models.model import Model
from interp.results.findings import Effects

PARTS = ("total", "direct", "norm", "later")


class SplitEffects(Effects):
    """Total effects and their parts."""

    def figure(self) -> Figure:
        """Each head a dot: direct effect across, total effect up."""
        return direct_and_total(self.summary)


def decompose(
    model: Model,
    task: Task,
    how: How = "resample",
    metric: str | None = None,
    **options: Unpack[Options],
) -> SplitEffects:
    """Total effect of ablating each head, and its parts, on every example.

    Args:
        how: what z becomes: see :mod:`interp.interventions.ablation`.
        metric: a name of ``metrics.METRICS``; None: that of ``metrics.usual_metric``.

    Returns:
        a row a head, part and prompt, as ``tables.EFFECTS_PER_PROMPT`` describes, with ``edit`` "zero total",
        "zero direct", "zero norm" and "zero later" (or mean, resample), and their summary.

    Raises:
        InterpError: a model whose heads' outputs or final norm can't be told apart (see
            :mod:`interp.interventions.outputs`), or whatever ``ablate_heads`` refuses.
    """
    parts = options.get("parts")
    found, largest = {}, 0.0
    for name in ("total", "direct", "recomputed"):
        if parts is not None:
            options["parts"] = parts.under(name)
        if name == "total":
            table, difference = ablate_heads(model, task, how, metric, **options)
        else:
            table, difference = _written_only(model, task, how, metric, name, options)
        found[name], largest = table, max(largest, difference)
    total, direct, recomputed = (found[name].effect for name in ("total", "direct", "recomputed"))
    effects = (total, direct, recomputed - direct, total - recomputed)
    tables = [
        found["total"].assign(edit=f"{how} {part}", effect=effect)
        for part, effect in zip(PARTS, effects, strict=True)
    ]
    return SplitEffects(pd.concat(tables, ignore_index=True), largest)


def _written_only(
    model: Model, task: Task, how: How, metric: str | None, name: str, options: Options
) -> Effects:
    """The effect of what each head writes on the final stream alone; scale held ("direct") or not."""

    def cells(examples: Sequence[Example]) -> list[NamedCell]:
        changes = written_changes(model, examples, how, options)
        where = tuple(positions(examples[0]))
        last = model.n_layers - 1
        kind: StreamKind = "final" if name == "direct" else "resid_post"
        return [
            (
                {"layer": layer, "head": head},
                [Replace(Site(kind, last, None, where), value, f"{how} of a head, held")],
            )
            for (layer, head), value in changes[name].items()
        ]

    def apart(example: Example) -> Hashable:
        return len(example.prompt.ids), tuple(positions(example))

    return effects_of(model, task, cells, edit=name, metric=metric, apart=apart, **options)


Changes = dict[str, dict[tuple[int, int], torch.Tensor]]


def written_changes(
    model: Model, examples: Sequence[Example], how: How, options: Options
) -> Changes:
    """The final stream with each head's output ablated, at the read positions: (example, pos, d_model).

    "direct" behind the final norm, its scale held; "recomputed" before it.
    """
    engine = options.get("engine", "auto")
    new, _ = new_outputs(model, examples, how, engine)
    found: dict[str, dict[tuple[int, int], list[torch.Tensor]]] = {"direct": {}, "recomputed": {}}
    for members in split(model, examples, [], options.get("batch_tokens", BATCH_TOKENS)):
        ours = [examples[i] for i in members]
        ids = torch.tensor([example.prompt.ids for example in ours], device=model.device)
        where = torch.tensor([positions(example) for example in ours], device=model.device)
        recording = observed(model, ids, where, sites_for_outputs(model), engine)
        ending = Ending.of(model, recording, where)
        for layer in range(model.n_layers):
            writing = Writing(model, layer, recording)
            old = recording[Site("z", layer)]
            z = new[layer].expand(len(examples) if len(new[layer]) > 1 else 1, *old.shape[1:])
            z = z[list(members)] if len(z) > 1 else z.expand_as(old)
            index = where[:, None, :, None].expand(-1, old.shape[1], -1, old.shape[-1])
            change = writing((z - old).gather(2, index), where)
            for head in range(model.n_heads):
                direct = ending.final + ending.frozen(change[:, head]).to(ending.final.dtype)
                plain = ending.stream + change[:, head].to(ending.stream.dtype)
                found["direct"].setdefault((layer, head), []).append(direct)
                found["recomputed"].setdefault((layer, head), []).append(plain)
    return {
        name: {key: torch.cat(tensors) for key, tensors in by_head.items()}
        for name, by_head in found.items()
    }
