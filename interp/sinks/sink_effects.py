"""What becomes of the model when its attention sink is taken away.

    knocked out   the first k positions, in all layers and heads at once or in one layer, in one of five ways
    effect        metric after − before: loss (nats a token; larger: worse), KL to the clean run (never < 0)
    control       the same with k other positions, drawn at random from the first half; mean over draws

The ways are those of :func:`interp.editing.edits.knock_out`, and answer different questions. A sink is
wherever it pays to look at nothing: masked, with the weights renormalised, it moves to the next key, and
little is lost (where it goes: :mod:`interp.sinks.sink_mass`). What it was for shows only where its mass is
lost, or finds something to read (Xiao et al., 2309.17453; Gu et al., 2410.10781; Edin et al., 2505.17630).

``mean_value`` puts in the mean value vector of a key-value head over all prompts and positions. Queries that
see nothing but the keys taken away keep them. All query heads, or key-value heads, of a layer are taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Unpack, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from interp.arguments import whole_number
from interp.attention.kernels import Engine
from interp.editing.edits import Edit, KnockOut, Recording, edited, knock_out
from interp.editing.metrics import METRICS
from interp.editing.sites import Site, check_site
from interp.editing.sweep import sweep
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.inputs.tasks import Example, Task, check_asked
from interp.interventions.effects import Measured, Options, as_table
from interp.models.forward import batches, logits_at
from interp.models.model import Model
from interp.results import stats
from interp.results.findings import Findings
from interp.results.summaries import by_observation
from interp.results.tables import SINK_EFFECTS, SINK_EFFECTS_PER_PROMPT
from interp.sinks import sink_figure
from interp.sinks.prompt_length import least_for_effects

HOWS: tuple[KnockOut, ...] = get_args(KnockOut)
FIRST_KEYS = (1, 2, 4)
MEASURED = ("loss", "kl")
KEYS = ["model", "layer", "knock_out", "n_keys", "metric"]


@dataclass(frozen=True)
class SinkKnockOut:
    """How, how many of the first keys, and in which layer.

    Attributes:
        how: as :func:`interp.editing.edits.knock_out` has it.
        n_keys: 1 or more.
        layer: from 0; None: all layers.
    """

    how: KnockOut
    n_keys: int
    layer: int | None = None

    @property
    def name(self) -> dict[str, Any]:
        """What its row is called."""
        return {"layer": self.layer, "knock_out": self.how, "n_keys": self.n_keys}

    def edits(self, keys: Sequence[int], means: Mapping[int, Tensor | None]) -> list[Edit]:
        """The same done to any keys; ``means``: see :func:`means_for`."""
        layers = list(means) if self.layer is None else [self.layer]
        return [
            edit
            for layer in layers
            for edit in knock_out(self.how, layer, keys=tuple(keys), mean=means[layer])
        ]


class SinkEffects(Findings):
    """Effects of knock-outs, summed up as ``tables.SINK_EFFECTS`` in their order."""

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Means over prompts beside their controls; see :func:`summarise_sinks`."""
        return summarise_sinks(self.per_prompt)

    def figure(self, masses: pd.DataFrame, how: KnockOut | None = None) -> Figure:
        """The loss after each knock-out, and where the attention rests then.

        Args:
            masses: from :func:`interp.sinks.sink_mass.sink_masses`, of the same prompts.
            how: the knock-out whose masses are drawn; by default "mask" if it is there, else the first.
        """
        return sink_figure.sinks(self.summary, masses, how)


def knock_outs(
    hows: Sequence[KnockOut], first_keys: Sequence[int], layers: Sequence[int | None] = (None,)
) -> list[SinkKnockOut]:
    """Every way with every number of first keys.

    Raises:
        InterpError: an unknown way, a number below 1, one of them twice, or none.
    """
    wrong = [how for how in hows if how not in HOWS]
    if wrong or not hows or len(set(hows)) < len(hows):
        raise InterpError(f"knock_outs={list(hows)}: expected some of {', '.join(HOWS)}, each once")
    if not first_keys or min(first_keys) < 1 or len(set(first_keys)) < len(first_keys):
        raise InterpError(
            f"first_keys={list(first_keys)}: expected numbers of 1 or more, each once"
        )
    return [SinkKnockOut(how, n, layer) for layer in layers for how in hows for n in first_keys]


def text_task(prompts: Sequence[Prompt]) -> Task:
    """Prompts whose every token but the first is to be predicted.

    Raises:
        InterpError: a prompt of one token.
    """
    for prompt in prompts:
        if len(prompt.ids) < 2:
            raise InterpError(f"prompt {prompt.name} is one token: there is nothing to predict")
    examples = (
        Example(prompt, scored=tuple(range(1, len(prompt.ids))), template=prompt.group)
        for prompt in prompts
    )
    return Task("text", tuple(examples))


def knock_out_sinks(
    model: Model,
    task: Task,
    hows: Sequence[KnockOut] = HOWS,
    first_keys: Sequence[int] = FIRST_KEYS,
    *,
    by_layer: bool = False,
    n_random: int = 2,
    **options: Unpack[Options],
) -> SinkEffects:
    """The effect of every knock-out on loss and KL, on every prompt, beside its control.

    Args:
        task: from :func:`text_task`.
        hows: names of knock-outs.
        first_keys: how many of the first keys are taken away, each number in turn.
        by_layer: also in each layer alone.
        n_random: draws of the control; 0: none.

    Returns:
        a row a knock-out, metric and prompt, as ``tables.SINK_EFFECTS_PER_PROMPT`` describes, and its
        summary.

    Raises:
        InterpError: an unknown knock-out, numbers of keys that the prompts have no room for, or what
            :func:`interp.editing.sweep.sweep` refuses.
    """
    check_asked(model, task)
    knock_outs(hows, first_keys)  # refused before anything runs
    prompts = [example.prompt for example in task.examples]
    control = control_keys(prompts, first_keys, n_random, options.get("seed", 0))
    means = means_for(model, prompts, hows, options.get("engine", "auto"))
    rows = knock_outs(hows, first_keys, [None, *means] if by_layer else [None])
    cells = [
        row.edits(keys, means) for row in rows for keys in (range(row.n_keys), *control[row.n_keys])
    ]
    found = sweep(model, task.examples, cells, [METRICS[name] for name in MEASURED], **options)
    effects = found.effects.reshape(len(MEASURED), len(rows), 1 + n_random, -1)
    names = [row.name for row in rows]
    tables = []
    for metric, effect, before in zip(MEASURED, effects, found.before, strict=True):
        values = {"effect": effect[:, 0], "baseline": before}
        values["control"] = (
            effect[:, 1:].mean(1) if n_random else np.full_like(effect[:, 0], np.nan)
        )
        measured = [Measured(range(len(prompts)), names, values)]
        tables.append(as_table(model, task, measured, "", metric, SINK_EFFECTS_PER_PROMPT))
    return SinkEffects(pd.concat(tables, ignore_index=True), found.largest_difference)


def control_keys(
    prompts: Sequence[Prompt], first_keys: Sequence[int], n_random: int, seed: int = 0
) -> dict[int, list[tuple[int, ...]]]:
    """For each number of keys, as many positions drawn at random, ``n_random`` times.

    From the first half of the shortest prompt, less the first keys: what comes late is seen by few.

    Raises:
        InterpError: no room for them.
    """
    whole_number("n_random", n_random, least=0)
    shortest = min(prompts, key=lambda prompt: len(prompt.ids))
    start, stop, least = (
        max(first_keys),
        len(shortest.ids) // 2,
        least_for_effects(first_keys, n_random),
    )
    if len(shortest.ids) < least:
        others = f"hold the first {start} keys against {start} others of its first half"
        queries = f"leave a query behind the first {start} keys that predicts one"
        raise InterpError(
            f"prompt {shortest.name} has {len(shortest.ids)} tokens: too few to "
            f"{others if n_random else queries}; expected at least {least}"
        )
    rng = np.random.default_rng([seed, 6])
    return {
        n: [
            tuple(sorted((start + rng.choice(stop - start, n, replace=False)).tolist()))
            for _ in range(n_random)
        ]
        for n in first_keys
    }


def means_for(
    model: Model, prompts: Sequence[Prompt], hows: Sequence[KnockOut], engine: Engine = "auto"
) -> dict[int, Tensor | None]:
    """The mean values by attention layer (a hybrid has other layers too); None if no knock-out needs them."""
    if "mean_value" in hows:
        return dict(mean_values(model, prompts, engine))
    return dict.fromkeys(mean_values(model, [replace(prompts[0], ids=prompts[0].ids[:1])], engine))


def mean_values(
    model: Model, prompts: Sequence[Prompt], engine: Engine = "auto"
) -> dict[int, Float[Tensor, "kv_head d_value"]]:
    """The mean value vector of each key-value head over prompts and positions, by attention layer."""
    sites = [Site("v", layer) for layer in range(model.n_layers)]
    check_site(model, sites[0])
    totals: dict[int, Tensor] = {}
    for batch in batches(prompts):
        recording = Recording(sites)
        ids = torch.tensor([prompt.ids for prompt in batch], device=model.device)
        with edited(model, recording=recording, engine=engine):
            logits_at(model, ids, torch.zeros_like(ids[:, :1]))
        for site in sites:
            if site in recording:  # a hybrid has layers without attention
                total = recording[site].float().sum((0, 2))
                totals[site.layer] = totals.get(site.layer, torch.zeros_like(total)) + total
    n = sum(len(prompt.ids) for prompt in prompts)
    return {layer: total / n for layer, total in totals.items()}


def summarise_sinks(
    per_prompt: pd.DataFrame,
    *,
    confidence: float = 0.95,
    correction: stats.Correction = "bh",
    seed: int = 0,
) -> pd.DataFrame:
    """Means over templates with intervals and tests, in the order in which they were measured.

    KL can't be below 0, so that a test against 0 says nothing: its p is undefined, ``p_control`` is not.
    """
    rows = per_prompt.assign(layer=per_prompt.layer.fillna(-1).astype(int))
    order = pd.MultiIndex.from_frame(rows[KEYS].drop_duplicates())
    names = ["effect", "control", "baseline"]
    observed = by_observation(rows, KEYS, names)
    effect, control, baseline = (
        observed[name].unstack("observation").reindex(order) for name in names
    )
    table = order.to_frame(index=False)
    table["layer"] = table.layer.astype("Int64").mask(table.layer < 0)
    for name, values in (("effect", effect), ("control", control)):
        ends = "ci" if name == "effect" else name
        table[name] = values.mean(axis=1).to_numpy()
        table[f"{ends}_low"], table[f"{ends}_high"] = stats.bootstrap_interval(
            values.to_numpy().T, confidence=confidence, seed=seed
        )
    table["baseline"] = baseline.mean(axis=1).to_numpy()
    p, p_control = (
        stats.two_sided_p(values.to_numpy().T, seed=seed) for values in (effect, effect - control)
    )
    table["p"], table["p_control"] = np.where(table.metric == "kl", np.nan, p), p_control
    table["q"], table["q_control"] = (
        stats.false_discovery_q(table[name].to_numpy(), correction) for name in ("p", "p_control")
    )
    table["n_templates"] = effect.notna().sum(axis=1).to_numpy()
    table["n_prompts"] = rows.groupby(KEYS)["prompt"].count().reindex(order).to_numpy()
    return SINK_EFFECTS.validate(table[list(SINK_EFFECTS.columns)])
