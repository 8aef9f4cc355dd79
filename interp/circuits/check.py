"""Keep a set of heads and take every other away: is it enough for a task, and is it needed?

    only S       z of all heads outside S is ablated          enough?  (sufficiency)
    without S    z of the heads in S is ablated, the others stay: "only" their complement      needed?
    no heads     z of all heads is ablated                    what is left to MLPs and embeddings
    all heads    nothing is: the model as it is

A head that is ablated gives its mean over the task's corrupted prompts by position, the z of its example's
own corrupted prompt (resample), or 0; everything after is recomputed. Units are heads, at all positions of
the prompt: MLPs, embeddings and norms are always kept, and a head that is kept serves all readers. That is
coarser than the edges of MIB (2504.13151) and of Wang et al. (2211.00593, heads at one position each).

How faithful a circuit seems depends on the ablation, the positions, the metric and whether it is kept or
taken away (Miller et al., 2407.08734): say which with every number. ``edit`` names the ablation.

Beside each set go random sets with as many heads in every layer (:mod:`interp.circuits.head_sets`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Unpack

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from interp.circuits.faithfulness import Faithfulness
from interp.circuits.head_sets import Head, HeadSet, relabelled, relabellings
from interp.editing.edits import Edit, Replace
from interp.editing.sites import Site, check_site
from interp.errors import InterpError
from interp.inputs.tasks import Example, Task, check_asked
from interp.interventions.ablation import How, new_outputs
from interp.interventions.effects import (
    Measured,
    NamedCell,
    Options,
    as_table,
    measure_cells,
    metric_for,
)
from interp.models.model import Model
from interp.results.tables import HEAD_RANKING, HEAD_SETS_PER_PROMPT
from interp.words import counted

MeanWithin = Literal["length", "template"]
NO_HEADS = "no heads"


def check_circuit(
    model: Model,
    task: Task,
    sets: Sequence[HeadSet],
    how: How = "mean",
    metric: str | None = None,
    *,
    mean_within: MeanWithin = "length",
    n_random: int = 20,
    **options: Unpack[Options],
) -> Faithfulness:
    """The metric with only the heads of each set, and without them, beside random sets.

    Args:
        how: what z of the others becomes: "mean", "resample" or "zero".
        metric: a name of ``metrics.METRICS``; None: that of ``metrics.usual_metric``.
        mean_within: which corrupted prompts a mean is taken over: all of the example's length, or those of
            its template too, so that what is the same at a position stays (Wang et al.).
        n_random: random sets for each set, by ``seed``.

    Returns:
        a row a set and prompt, as ``tables.HEAD_SETS_PER_PROMPT`` describes, and its summary.

    Raises:
        InterpError: no sets, two of one name, a head that is not there, a mean over no or one prompt, or
            whatever :func:`interp.editing.sweep.sweep` refuses.
    """
    check_asked(model, task)
    check_sets(model, sets)
    for name, value, known in (
        ("how", how, ("mean", "resample", "zero")),
        ("mean_within", mean_within, ("length", "template")),
    ):
        if value not in known:
            raise InterpError(f"{name}={value!r}: expected {', '.join(known)}")
    every = frozenset((i, j) for i in range(model.n_layers) for j in range(model.n_heads))
    rows = list(_rows(model, sets, every, n_random, options.get("seed", 0)))
    # What two rows keep alike is run once. Keeping all heads is no edit at all: its effect is 0.
    number = {kept: i for i, kept in enumerate(dict.fromkeys(k for _, k in rows if k != every))}

    def cells(examples: Sequence[Example]) -> list[NamedCell]:
        if how == "mean" and len(examples) < 2:
            raise InterpError(
                f"mean: {examples[0].prompt.name} is the only prompt of its {mean_within}, and a mean takes "
                "two or more: take more prompts, or resample"
            )
        new, origin = new_outputs(model, examples, how, options.get("engine", "auto"))
        return [({}, only(kept, new, origin)) for kept in number]

    apart = partial(goes_with, how=how, mean_within=mean_within)
    measured, difference = measure_cells(model, task, cells, metric=metric, apart=apart, **options)
    names, places = [name for name, _ in rows], [number.get(kept, -1) for _, kept in rows]
    full = [replace(part, names=names, values=_of_rows(part, places)) for part in measured]
    edit = "mean by template" if how == "mean" and mean_within == "template" else how
    chosen = metric_for(task, metric).name
    table = as_table(model, task, full, edit, chosen, HEAD_SETS_PER_PROMPT)
    return Faithfulness(table, difference)


def goes_with(example: Example, how: How, mean_within: MeanWithin) -> tuple[int, str]:
    """Examples with the same share what is put in: their length, and perhaps their template."""
    by_template = how == "mean" and mean_within == "template"
    template = example.template or example.prompt.name
    return len(example.prompt.ids), template if by_template else ""


def only(kept: Collection[Head], new: Sequence[Tensor], origin: str) -> list[Edit]:
    """Every head but these gives something new.

    Args:
        new: for each layer, (example, head, position, d_value): what z becomes; an axis may be 1.
        origin: what that is, in words.

    Neighbouring heads share an edit, so that its value is a view: a cell costs no memory of its own.
    """
    edits: list[Edit] = []
    for layer, z in enumerate(new):
        away = [head for head in range(z.shape[1]) if (layer, head) not in kept]
        while away:
            n = next((n for n in range(1, len(away)) if away[n] != away[0] + n), len(away))
            site = Site("z", layer, tuple(away[:n]))
            edits.append(Replace(site, z[:, away[0] : away[0] + n], origin))
            away = away[n:]
    return edits


def check_sets(model: Model, sets: Sequence[HeadSet]) -> None:
    """Refuse no sets, two of one name, and a head that is not there."""
    if not sets:
        raise InterpError("sets: none given; expected at least one set of heads")
    wrong = [type(one).__name__ for one in sets if not isinstance(one, HeadSet)]
    if wrong:
        raise InterpError(f"sets: expected a HeadSet each, got a {wrong[0]}")
    for one in sets:
        if one.name == NO_HEADS or [other.name for other in sets].count(one.name) > 1:
            raise InterpError(
                f"set {one.name!r} is there twice; expected a name of its own for each"
            )
        for layer, head in one.heads:
            try:
                check_site(model, Site("z", layer, (head,)))
            except InterpError as error:
                raise InterpError(f"set {one.name!r}, head {layer}.{head}: {error}") from None


def _rows(
    model: Model, sets: Sequence[HeadSet], every: frozenset[Head], n_random: int, seed: int
) -> Iterator[tuple[dict[str, Any], frozenset[Head]]]:
    """What each row is called, and the heads that it keeps."""
    orders = relabellings(model.n_layers, model.n_heads, n_random, seed)
    named = {"set": NO_HEADS, "family": "named", "draw": -1, "kept": "set"}
    yield named | {"size": 0, "share": 0.0}, frozenset()
    for one in sets:
        size = {"size": len(one.heads), "share": len(one.heads) / len(every)}
        images = [one.heads, *(relabelled(one.heads, order) for order in orders)]
        for draw, heads in enumerate(images, start=-1):
            for kept in ("set", "others"):
                name = {"set": one.name, "family": one.family, "draw": draw, "kept": kept}
                left = frozenset(heads)
                yield name | size, left if kept == "set" else every - left


def _of_rows(part: Measured, places: Sequence[int]) -> dict[str, np.ndarray]:
    """The values of cells as those of rows; −1: the row of nothing done."""
    effect: Float[np.ndarray, "cell example"] = part.values["effect"]
    nothing = np.zeros((1, effect.shape[1]))
    return {
        "effect": np.concatenate([effect, nothing])[list(places)],
        "baseline": part.values["baseline"],
    }


# --- which heads first ---------------------------------------------------------------------------


def rank_heads(model: Model, table: pd.DataFrame) -> pd.DataFrame:
    """Heads by |effect| or by mass, largest first, undefined ones last.

    Args:
        table: as ``tables.EFFECTS`` or ``tables.SUMMARY`` describe, with one row a query head.

    Returns:
        a table as ``tables.HEAD_RANKING`` describes.

    Raises:
        InterpError: neither column, several rows of one head, other units than query heads, or not the
            heads of this model.
    """
    column = next((name for name in ("effect", "mass") if name in table), "")
    if not column or not {"layer", "head"} <= set(table.columns):
        raise InterpError(
            "a ranking needs the columns layer, head, and effect or mass; this table has "
            f"{', '.join(table.columns)}"
        )
    if "unit" in table and not (table["unit"] == "head").all():
        raise InterpError(
            f"a ranking needs query heads, and this table is of {table['unit'].iloc[0]}"
        )
    if table.duplicated(["layer", "head"]).any():
        differ = [name for name in ("role", "place", "receiver") if name in table]
        values = [f"{name} ({', '.join(map(str, table[name].unique()))})" for name in differ]
        raise InterpError(
            f"a ranking needs one row a head, and here are several, by {' and '.join(values)}: "
            "keep one of them"
        )
    there = set(zip(table.layer.tolist(), table["head"].tolist(), strict=True))
    wanted = {(i, j) for i in range(model.n_layers) for j in range(model.n_heads)}
    if there != wanted:
        layer, head = min(there ^ wanted)
        raise InterpError(
            f"the ranking is of {len(there)} heads, {model.name} has {len(wanted)} ({model.n_layers} × "
            f"{model.n_heads}); {layer}.{head} is in one only"
        )
    found = table[["model", "layer", "head"]].assign(score=table[column].astype(float))
    found = found.assign(by=column, size=found.score.abs())
    found = found.sort_values(
        ["size", "layer", "head"], ascending=[False, True, True], na_position="last"
    )
    found = found.assign(rank=range(1, len(found) + 1)).reset_index(drop=True)
    return HEAD_RANKING.validate(found[list(HEAD_RANKING.columns)])


def heads_of(ranking: pd.DataFrame) -> list[Head]:
    """The heads of a ranking, best first."""
    return list(zip(ranking.layer.tolist(), ranking["head"].tolist(), strict=True))


def halves(task: Task, seed: int = 0) -> tuple[Task, Task]:
    """A task's templates shared out at random: to choose heads on, and to test them on.

    Raises:
        InterpError: fewer than two templates.
    """
    templates = list(dict.fromkeys(e.template or e.prompt.name for e in task.examples))
    if len(templates) < 2:
        raise InterpError(
            f"task {task.name}: one template ({counted(len(task.examples), 'prompt')}); to choose heads on "
            "some prompts and test them on others takes two or more: take more prompts, or ranking=FILE"
        )
    order = np.random.default_rng([seed, 6]).permutation(len(templates))
    chosen = {templates[i] for i in order[: len(templates) // 2]}
    first, second = (
        tuple(e for e in task.examples if ((e.template or e.prompt.name) in chosen) == within)
        for within in (True, False)
    )
    return replace(task, examples=first), replace(task, examples=second)
