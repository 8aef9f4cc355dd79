"""Do named pairs of heads compose more than other heads of the same layers would in their place?

    statistic = mean composition of the named pairs
    p         = share of relabellings of the heads whose statistic is at least as large       (one-sided)

A relabelling exchanges the heads of each layer, whatever their layer's compositions are like; with grouped
queries it keeps groups together, as heads that share W_K and W_V are not independent. All different ones
are gone through if they are at most ``MOST_RELABELLINGS``: then p is exact, and no smaller than one over
their number. Else ``DRAWS`` are drawn, and p = (1 + as large) / (1 + drawn) (Phipson & Smyth, 1603.05766).

Heads of those layers that were not named but do the same work make p large: the question is whether the
names tell heads apart, not whether the composition is large (its baseline and percentiles say that). Name
heads by something else than their weights, such as where they look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from interp.results import tables

KINDS = ("q", "k", "v")
PAIR = ["sender_layer", "sender_head", "receiver_layer", "receiver_head"]
MOST_RELABELLINGS = 100_000
DRAWS = 9_999
Head = tuple[int, int]


def named_against_others(
    table: pd.DataFrame, *, group_size: int = 1, confidence: float = 0.95, seed: int = 0
) -> pd.DataFrame:
    """One test for each kind of composition.

    Args:
        table: as ``tables.COMPOSITION`` describes, of all pairs.
        group_size: query heads on one key-value head.
        confidence: share of relabellings between ``null_low`` and ``null_high``.

    Returns:
        a row a kind, as ``tables.NAMED_PAIRS`` describes; undefined without named pairs.
    """
    named = table[table.named].drop_duplicates(PAIR)
    pairs = [((a, b), (c, d)) for a, b, c, d in named[PAIR].to_numpy().tolist()]
    layers = {(first[0], second[0]) for first, second in pairs}
    n_heads = int(table.sender_head.max()) + 1
    images, exact = _relabellings(pairs, n_heads, group_size, seed) if pairs else ({}, True)
    rows = []
    for kind in KINDS:
        of_kind = table[table.kind == kind]
        between = pd.MultiIndex.from_frame(of_kind[["sender_layer", "receiver_layer"]])
        others = of_kind[between.isin(list(layers)) & ~of_kind.named].composition
        observed = of_kind[of_kind.named].composition
        null = _mean_of_images(of_kind, pairs, images) if pairs else np.empty(0)
        null = null[~np.isnan(null)]
        tail = (1 - confidence) / 2
        low, high = np.quantile(null, [tail, 1 - tail]) if len(null) else (np.nan, np.nan)
        rows.append(
            {
                "model": table.model.iloc[0],
                "kind": kind,
                "composition": observed.mean(),
                "others": others.mean(),
                "null_low": low,
                "null_high": high,
                "baseline": table.baseline.iloc[0],
                "p": _p(null, observed.mean(), exact),
                "n_pairs": int(observed.count()),
                "n_others": int(others.count()),
                "n_relabellings": len(null),
                "exact": exact,
            }
        )
    return tables.NAMED_PAIRS.validate(pd.DataFrame(rows))


def _p(null: Float[np.ndarray, " relabelling"], observed: float, exact: bool) -> float:
    """Share of relabellings as large; where they are drawn, the named pairs count as one of them."""
    if not len(null) or np.isnan(observed):
        return np.nan
    # Equal means may differ by rounding: the order of a sum is not the same for all.
    as_large = int((null >= observed - 1e-12).sum())
    return as_large / len(null) if exact else (1 + as_large) / (1 + len(null))


def _mean_of_images(
    of_kind: pd.DataFrame, pairs: Sequence[tuple[Head, Head]], images: dict[Head, np.ndarray]
) -> Float[np.ndarray, " relabelling"]:
    """Mean composition, under each relabelling, of the pairs that the named ones become."""
    ends = of_kind[PAIR].to_numpy().T
    grid = np.full(ends.max(axis=1) + 1, np.nan)
    grid[tuple(ends)] = of_kind.composition
    values = np.array([grid[a[0], images[a], b[0], images[b]] for a, b in pairs])
    defined = (~np.isnan(values)).sum(axis=0)
    return np.nansum(values, axis=0) / np.where(defined, defined, np.nan)


def _relabellings(
    pairs: Sequence[tuple[Head, Head]], n_heads: int, group_size: int, seed: int
) -> tuple[dict[Head, Int[np.ndarray, " relabelling"]], bool]:
    """Which head each head of the pairs becomes, under every relabelling; and whether these are all."""
    senders, receivers = (sorted({pair[end] for pair in pairs}) for end in range(2))
    by_layer: dict[int, list[Head]] = {}
    for one in sorted({*senders, *receivers}):
        by_layer.setdefault(one[0], []).append(one)
    few = all(math.perm(n_heads, len(one)) <= MOST_RELABELLINGS for one in by_layer.values())
    if few:
        options = []
        for chosen in by_layer.values():
            ends = [
                [i for i, one in enumerate(chosen) if one in end] for end in (senders, receivers)
            ]
            options.append(_images([head for _, head in chosen], ends, n_heads, group_size))
        few = math.prod(map(len, options)) <= MOST_RELABELLINGS
    if few:
        place = np.indices([len(option) for option in options]).reshape(len(options), -1)
        drawn = [option[at] for option, at in zip(options, place, strict=True)]
    else:
        rng = np.random.default_rng(seed)
        drawn = [
            _random_images([head for _, head in chosen], n_heads, group_size, rng)
            for chosen in by_layer.values()
        ]
    images = {
        one: drawn[i][:, j]
        for i, chosen in enumerate(by_layer.values())
        for j, one in enumerate(chosen)
    }
    return images, few


def _images(
    heads: list[int], ends: list[list[int]], n_heads: int, group_size: int
) -> Int[np.ndarray, "relabelling head"]:
    """All that heads of one layer can become; those that give the same senders and receivers once."""
    images = np.array(list(permutations(range(n_heads), len(heads))))
    group, moved = np.array(heads) // group_size, images // group_size
    together = group[:, None] == group
    kept = images[((moved[:, :, None] == moved[:, None]) == together).all((1, 2))]
    sets = np.concatenate([np.sort(kept[:, end], axis=1) for end in ends], axis=1)
    return kept[np.unique(sets, axis=0, return_index=True)[1]]


def _random_images(
    heads: list[int], n_heads: int, group_size: int, rng: np.random.Generator
) -> Int[np.ndarray, "relabelling head"]:
    """What heads of one layer become when groups change places and so do the heads in each."""
    shape = (DRAWS, n_heads // group_size, group_size)
    group = rng.permuted(np.broadcast_to(np.arange(shape[1]), shape[:2]), axis=1)
    within = rng.permuted(np.broadcast_to(np.arange(group_size), shape), axis=2)
    moved = (group[:, :, None] * group_size + within).reshape(DRAWS, n_heads)
    return moved[:, heads]
