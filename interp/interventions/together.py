"""A set of heads ablated together, beside as many other heads of the same layers.

    effect(set) = metric with z of all its heads ablated − metric without

Heads can stand in for one another: none of several induction heads may matter alone, and all of them
together much. Whether a set matters more than any heads of its layers would is what random sets say: as many
heads from each layer, none of them of the named set, each set once.

    p = (1 + random sets whose |effect| is as large) / (1 + random sets)

is never 0 (Phipson & Smyth, 1603.05766), and can't be below 1 / (1 + random sets). Where there are no more
sets than were asked for, all of them are taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import combinations, product
from math import comb, prod
from typing import Unpack

import numpy as np
import pandas as pd

from interp.arguments import whole_number
from interp.circuits.head_sets import Head, HeadSet
from interp.editing.sites import Site, check_site
from interp.errors import InterpError
from interp.inputs.tasks import Example, Task
from interp.interventions.ablation import Ablating, How, MeanOver
from interp.interventions.effects import NamedCell, Options, as_table, measure_cells, metric_for
from interp.models.model import Model
from interp.results import stats
from interp.results.findings import Findings
from interp.results.tables import ABLATED_SETS, ABLATED_SETS_PER_PROMPT


class SetEffects(Findings):
    """Effects of the named set and of random ones, summed up as ``tables.ABLATED_SETS``."""

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Mean effects over templates, and the p of the named set; see :func:`summarise_sets`."""
        return summarise_sets(self.per_prompt)


def ablate_together(
    model: Model,
    task: Task,
    heads: Sequence[Head],
    how: How = "zero",
    metric: str | None = None,
    *,
    mean_over: MeanOver = "position",
    hold_patterns: bool = False,
    n_random: int = 40,
    **options: Unpack[Options],
) -> SetEffects:
    """The effect of ablating a named set of heads, and random sets, on every example.

    Args:
        heads: (layer, head) each.
        how, metric, mean_over, hold_patterns: as in :func:`interp.interventions.ablation.ablate_heads`;
            patterns are held in the layers after the first of the set.
        n_random: random sets, by ``seed``; 0: none.

    Returns:
        a row a set and prompt, as ``tables.ABLATED_SETS_PER_PROMPT`` describes, and its summary.

    Raises:
        InterpError: no heads, one that is not there or is named twice, layers without other heads to compare
            with, or what ``ablate_heads`` refuses.
    """
    sets = sets_of(model, heads, n_random, options.get("seed", 0))
    making = Ablating(model, task, how, mean_over, hold_patterns, options.get("engine", "auto"))

    def cells(examples: Sequence[Example]) -> list[NamedCell]:
        ablate = making(examples)
        return [
            ({"heads": as_words(one), "kind": kind, "n_heads": len(one)}, ablate(one))
            for kind, one in sets
        ]

    measured, difference = measure_cells(model, task, cells, metric=metric, **options)
    chosen = metric_for(task, metric).name
    table = as_table(model, task, measured, making.name, chosen, ABLATED_SETS_PER_PROMPT)
    return SetEffects(table, difference)


def sets_of(
    model: Model, heads: Sequence[Head], n_random: int, seed: int = 0
) -> list[tuple[str, tuple[Head, ...]]]:
    """("named", the heads) and ("random", others) so many times; refuses what can't be compared."""
    named = tuple(sorted(HeadSet("together", tuple(heads)).heads))
    for layer, head in named:
        try:
            check_site(model, Site("z", layer, (head,)))
        except InterpError as error:
            raise InterpError(f"together: {layer}.{head}: {error}") from None
    others = other_sets(named, model.n_heads, n_random, seed)
    return [("named", named), *(("random", one) for one in others)]


def as_words(heads: Sequence[Head]) -> str:
    """ "17.3 18.6 18.7", which :func:`interp.circuits.head_sets.heads_in` reads."""
    return " ".join(f"{layer}.{head}" for layer, head in heads)


def other_sets(
    heads: Sequence[Head], n_heads: int, count: int, seed: int = 0
) -> list[tuple[Head, ...]]:
    """Sets of as many other heads in each layer, drawn at random, each once; all, if there are no more.

    Args:
        n_heads: heads in a layer.

    Raises:
        InterpError: a layer has fewer other heads than are named of it.
    """
    if whole_number("n_random", count, least=0) == 0:
        return []
    wanted = Counter(layer for layer, _ in sorted(heads))
    left = {layer: [h for h in range(n_heads) if (layer, h) not in heads] for layer in wanted}
    for layer, n in wanted.items():
        if len(left[layer]) < n:
            raise InterpError(
                f"layer {layer}: {n} of {n_heads} heads are named, which leaves {len(left[layer])} to "
                f"compare them with; expected at least {n}: name fewer, or take n_random=0"
            )
    if prod(comb(len(left[layer]), n) for layer, n in wanted.items()) <= count:
        choices = [
            [[(layer, head) for head in some] for some in combinations(left[layer], n)]
            for layer, n in wanted.items()
        ]
        return [tuple(head for part in parts for head in part) for parts in product(*choices)]
    rng = np.random.default_rng([seed, 7])
    found: dict[tuple[Head, ...], None] = {}
    while len(found) < count:
        drawn = {layer: rng.choice(left[layer], n, replace=False) for layer, n in wanted.items()}
        found[tuple((layer, int(h)) for layer, some in drawn.items() for h in np.sort(some))] = None
    return list(found)


def summarise_sets(
    per_prompt: pd.DataFrame, *, confidence: float = 0.95, seed: int = 0
) -> pd.DataFrame:
    """The effect of each set with its interval over templates; the named one first, with its p.

    Returns:
        a table as ``tables.ABLATED_SETS`` describes.
    """
    order = per_prompt.drop_duplicates("heads").set_index("heads")
    means = per_prompt.groupby(["heads", "template"])[["effect", "baseline"]].mean()
    effect = means.effect.unstack("template").loc[order.index]
    table = order[["model", "task", "edit", "metric", "kind", "n_heads"]].assign(
        effect=effect.mean(axis=1), baseline=means.baseline.groupby("heads").mean()
    )
    table["ci_low"], table["ci_high"] = stats.bootstrap_interval(
        effect.to_numpy().T, confidence=confidence, seed=seed
    )
    random = (table.kind == "random").to_numpy()
    sizes = table.effect.abs().to_numpy()
    n_as_large, n_random = int((sizes[random] >= sizes[0]).sum()), int(random.sum())
    table["p"] = np.where(random | (n_random == 0), np.nan, (1 + n_as_large) / (1 + n_random))
    table["n_as_large"] = pd.array([n_as_large, *[pd.NA] * n_random], dtype="Int64")
    table["n_random"] = n_random
    table["n_templates"] = effect.notna().sum(axis=1)
    table["n_prompts"] = per_prompt.groupby("heads")["prompt"].count()
    table = table.reset_index()
    return ABLATED_SETS.validate(table[list(ABLATED_SETS.columns)])
