"""How much each way of evicting costs, and whether a head's sink score tells what its eviction costs.

    loss      mean over the second half of each text's tokens, nats; perplexity = e^loss
    effect    loss − the loss of a cache that keeps everything, on the same text
    by head   the same where one query head alone no longer sees what left (policy "oldest")

Three ways of placing what is left: positions kept (one masked pass), reindexed by place in the cache (a real
cache, stepped), recomputed (no cache). Masked pass and stepped cache are the same thing where positions are
kept; :func:`cache_against_mask` says by how much they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp.attention.kernels import Engine
from interp.editing.edits import Replace
from interp.editing.metrics import METRICS
from interp.editing.sites import Site
from interp.editing.sweep import sweep
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.inputs.tasks import Example
from interp.lesson.cache_steps import Positions, recomputed_losses, stepped_losses
from interp.lesson.eviction import Policy, evicted_outputs, masked_losses
from interp.lesson.tables import (
    EVICTED_HEADS,
    EVICTED_HEADS_PER_PROMPT,
    EVICTION,
    EVICTION_PER_PROMPT,
    EVICTION_POSITIONS,
    SINKS_AND_EVICTIONS,
)
from interp.models.model import Model
from interp.results import stats
from interp.runs.parts import Parts
from interp.scoring.scores import score_heads

Progress = Callable[[int], None] | None
KEYS = ["model", "policy", "n_pinned", "positions", "budget"]

# The largest difference in nats that rounding may make between a stepped cache and a masked pass.
AGREES = {torch.float32: 1e-3}
NARROW = 0.5


class Losses(NamedTuple):
    """The loss of every token of every text under one policy.

    Attributes:
        name: what its rows are called, by :data:`KEYS` less model.
        values: nats; NaN where a token was not scored.
    """

    name: dict[str, Any]
    values: Float[np.ndarray, "prompt pos"]


def evict(
    model: Model,
    prompts: Sequence[Prompt],
    policies: Sequence[Policy],
    budget: int,
    positions: Sequence[Positions] = ("kept", "reindexed"),
    *,
    recompute: bool = True,
    engine: Engine = "auto",
    progress: Progress = None,
) -> list[Losses]:
    """Losses of a cache that keeps all, of every policy with every kind of positions, and recomputed.

    Args:
        policies: from :func:`interp.lesson.eviction.policies`.
        recompute: also read the last ``budget`` tokens anew for every prediction of the second half.
        progress: called with numbers of texts done, one policy after another.
    """

    def named(policy: str, n_pinned: int, kind: str, values: np.ndarray) -> Losses:
        name = {"policy": policy, "n_pinned": n_pinned, "positions": kind, "budget": budget}
        return Losses(name, values)

    stepped = []  # first: it is here that a model may be refused
    if "reindexed" in positions:
        stepped = [
            *stepped_losses(model, prompts, policies, budget, "reindexed", progress=progress)
        ]
    found = [named("all", 0, "kept", masked_losses(model, prompts, None, budget, engine=engine))]
    for policy in policies if "kept" in positions else ():
        values = masked_losses(model, prompts, policy, budget, engine=engine, progress=progress)
        found.append(named(policy.name, policy.n_pinned, "kept", values))
    for policy, values in zip(policies if stepped else (), stepped, strict=True):
        found.append(named(policy.name, policy.n_pinned, "reindexed", values))
    if recompute:
        values = recomputed_losses(model, prompts, budget, first_scored(prompts))
        found.append(named("oldest", 0, "recomputed", values))
    return found


def first_scored(prompts: Sequence[Prompt]) -> int:
    """Where the second half begins."""
    return len(prompts[0].ids) // 2


def cache_against_mask(
    model: Model, prompts: Sequence[Prompt], policy: Policy, budget: int, *, engine: Engine = "auto"
) -> float:
    """The largest difference, nats, between both ways of evicting; positions kept.

    Raises:
        InterpError: it is more than rounding can do.
    """
    masked = masked_losses(model, prompts, policy, budget, engine=engine)
    (stepped,) = stepped_losses(model, prompts, [policy], budget, "kept")
    difference = float(np.nanmax(np.abs(masked - stepped)))
    allowed = AGREES.get(model.dtype, NARROW)
    if difference > allowed:
        raise InterpError(
            f"{model.name}: a stepped cache and the masked pass differ by {difference:.2g} nats, expected at "
            f"most {allowed:g}: evicting is not understood for {model.architecture}"
        )
    return difference


def per_prompt(model: Model, prompts: Sequence[Prompt], losses: Sequence[Losses]) -> pd.DataFrame:
    """A row a policy and text, as ``tables.EVICTION_PER_PROMPT`` describes."""
    first = first_scored(prompts)
    whole = losses[0].values[:, first:].mean(1)
    frames = [
        pd.DataFrame(
            {
                "model": model.name,
                **one.name,
                "prompt": [prompt.name for prompt in prompts],
                "loss": one.values[:, first:].mean(1),
                "baseline": whole,
                "n_scored": one.values.shape[1] - first,
            }
        )
        for one in losses
    ]
    return EVICTION_PER_PROMPT.validate(pd.concat(frames, ignore_index=True))


def summarise_evictions(
    rows: pd.DataFrame,
    *,
    confidence: float = 0.95,
    correction: stats.Correction = "bh",
    seed: int = 0,
) -> pd.DataFrame:
    """Means over texts with intervals and tests, in the order in which they were measured.

    Args:
        correction: how q holds false discoveries over all ways of evicting.
    """
    order = pd.MultiIndex.from_frame(rows[KEYS].drop_duplicates())
    loss, baseline = (
        rows.set_index([*KEYS, "prompt"])[name].unstack("prompt").reindex(order)
        for name in ("loss", "baseline")
    )
    effect = loss - baseline
    table = order.to_frame(index=False)
    for name, low, high, values in (
        ("loss", "loss_low", "loss_high", loss),
        ("effect", "ci_low", "ci_high", effect),
    ):
        table[name] = values.mean(axis=1).to_numpy()
        table[low], table[high] = stats.bootstrap_interval(
            values.to_numpy().T, confidence=confidence, seed=seed
        )
    for end in ("", "_low", "_high"):
        table[f"perplexity{end}"] = np.exp(table[f"loss{end}"])
    p = stats.two_sided_p(effect.to_numpy().T, seed=seed)
    # A cache that keeps all is what the others are held against.
    table["p"] = np.where(table.policy == "all", np.nan, p)
    table["q"] = stats.false_discovery_q(table["p"].to_numpy(), correction)
    table["n_scored"] = rows.groupby(KEYS, sort=False).n_scored.sum().reindex(order).to_numpy()
    table["n_prompts"] = loss.notna().sum(axis=1).to_numpy()
    return EVICTION.validate(table[list(EVICTION.columns)])


def by_position(
    model: Model, losses: Sequence[Losses], *, confidence: float = 0.95, seed: int = 0
) -> pd.DataFrame:
    """The loss at each position, mean over texts, as ``tables.EVICTION_POSITIONS`` describes."""
    frames = []
    for one in losses:
        at = np.flatnonzero(~np.isnan(one.values).any(0))
        values = one.values[:, at]
        low, high = stats.bootstrap_interval(values, confidence=confidence, seed=seed)
        frame = pd.DataFrame({"model": model.name, **one.name, "position": at})
        frames.append(frame.assign(loss=values.mean(0), ci_low=low, ci_high=high))
    whole = pd.concat(frames, ignore_index=True).assign(n_prompts=len(losses[0].values))
    return EVICTION_POSITIONS.validate(whole[list(EVICTION_POSITIONS.columns)])


# --- head by head --------------------------------------------------------------------------------


def evict_by_head(
    model: Model,
    prompts: Sequence[Prompt],
    oldest: Policy,
    budget: int,
    *,
    engine: Engine = "auto",
    seed: int = 0,
    parts: Parts | None = None,
    progress: Progress = None,
) -> tuple[pd.DataFrame, float]:
    """What each query head's eviction costs, beside its mass on the first token.

    A sweep over the heads, each with what it would write if it alone no longer saw what left in place of
    its z; effects that rounding alone can make are 0.

    Args:
        parts: where finished batches are kept and found again; they must be of these very texts.
        progress: called with numbers of heads × texts done.

    Returns:
        (a row a head and text, as ``tables.EVICTED_HEADS_PER_PROMPT`` describes; the largest difference
        between the sweep and a plain pass, on a sample).
    """
    n, first = len(prompts[0].ids), first_scored(prompts)
    changed = tuple(range(budget + 1, n))  # up to there all is still in the cache
    cells = {
        (layer, head): [
            Replace(
                Site("z", layer, (head,), changed), z[:, head : head + 1, budget + 1 :], "evicting"
            )
        ]
        for layer, z in evicted_outputs(model, prompts, oldest, budget, engine=engine).items()
        for head in range(model.n_heads)
    }
    examples = [
        Example(prompt, scored=tuple(range(first, n)), template=prompt.name) for prompt in prompts
    ]
    found = sweep(
        model,
        examples,
        list(cells.values()),
        [METRICS["loss"]],
        engine=engine,
        seed=seed,
        parts=parts,
        progress=progress,
    )
    scores = score_heads(model, prompts, ["sink_first"], engine=engine, seed=seed).per_prompt
    mass = scores.set_index(["layer", "head", "prompt"]).mass
    names = [prompt.name for prompt in prompts]
    table = pd.DataFrame(
        [(*head, name) for head in cells for name in names], columns=["layer", "head", "prompt"]
    )
    table["sink_mass"] = mass.reindex(pd.MultiIndex.from_frame(table)).to_numpy()
    table["effect"] = found.effects[0].ravel()
    table["baseline"] = np.tile(found.before[0], len(cells))
    table.insert(0, "model", model.name)
    return EVICTED_HEADS_PER_PROMPT.validate(table), found.largest_difference


def summarise_heads(
    rows: pd.DataFrame,
    *,
    confidence: float = 0.95,
    correction: stats.Correction = "bh",
    seed: int = 0,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(a row a head, the costliest first; the rank correlation of sink mass and effect).

    Args:
        correction: how q holds false discoveries over all heads.
    """
    keys = ["model", "layer", "head"]
    wide = {
        name: rows.set_index([*keys, "prompt"])[name].unstack("prompt")
        for name in ("sink_mass", "effect", "baseline")
    }
    values = {name: frame.to_numpy().T for name, frame in wide.items()}  # (prompt, head)
    table = wide["effect"].index.to_frame(index=False)
    for name, low, high in (
        ("sink_mass", "mass_low", "mass_high"),
        ("effect", "ci_low", "ci_high"),
    ):
        table[name] = values[name].mean(0)
        table[low], table[high] = stats.bootstrap_interval(
            values[name], confidence=confidence, seed=seed
        )
    table["baseline"] = values["baseline"].mean(0)
    table["p"] = stats.two_sided_p(values["effect"], seed=seed)
    table["q"] = stats.false_discovery_q(table["p"].to_numpy(), correction)
    table["n_prompts"] = len(values["effect"])
    table = table.sort_values("effect", ascending=False, kind="stable", ignore_index=True)
    found = stats.spearman_interval(
        values["sink_mass"], values["effect"], confidence=confidence, seed=seed
    )
    agreement = pd.DataFrame([dict(zip(("spearman", "ci_low", "ci_high"), found, strict=True))])
    agreement = agreement.assign(
        model=rows.model.iloc[0], n_heads=len(table), n_prompts=len(values["effect"])
    )
    return (
        EVICTED_HEADS.validate(table[list(EVICTED_HEADS.columns)]),
        SINKS_AND_EVICTIONS.validate(agreement[list(SINKS_AND_EVICTIONS.columns)]),
    )
