"""What a single map is worth: how many heads look striking for patterns that mean nothing.

    hypothesis   "the token at q looks at the token at k": one such pair a prompt. Of a *real* role
                 (induction, …) the pair is one of its own; a *made-up* one has a random query, and a key at a
                 distance drawn from those of the role, which the role does not name. Nothing relates it to
                 another prompt's.
    weight       the head's attention weight from q to k
    null         its weight from q to another key, at another distance from the same draw
    rise         loss of the token after q with the head's z at 0 − without; control: the same at another
                 query, drawn likewise (for a real role: one without a target)

A made-up pair and its null are drawn in the same way, so that each difference is as likely to have the other
sign, and p (one-sided sign flips over prompts) holds what it says. What makes heads look striking all the
same, from bold to careful:

    one map                  weight ≥ ``striking`` in the first prompt: a threshold, one picture
    above uniform            p < level, against weights spread evenly over all keys: not matched for distance
    above matched            p < level, against the null
    above matched, BH, BY    with false discoveries over all heads and hypotheses of a kind held
    and an ablation          above matched, and rise above control: p < level; then BH over those ablated

Heads × hypotheses are the tests; with so many, level × tests look striking by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention.kernels import Engine
from interp.attention.pattern import Pattern
from interp.editing.edits import Replace, edited
from interp.editing.sites import Site
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.lesson.losses import losses_of
from interp.lesson.tables import HYPOTHESES, HYPOTHESES_PER_PROMPT, HYPOTHESIS_TESTS
from interp.models.forward import batches, capture
from interp.models.model import Model
from interp.results import stats
from interp.scoring.roles import Role
from interp.words import counted

KINDS = ("made-up", "real")
TEST_KEYS = ["model", "kind", "hypothesis", "layer", "head"]
CRITERIA = {
    "one map": "one_map",
    "above uniform": "p_uniform",
    "above matched": "p",
    "above matched, BH": "q_bh",
    "above matched, BY": "q_by",
    "above matched, and an ablation": "p_ablation",
    "above matched, and an ablation, BH": "q_ablation",
}
"""Criterion → the column of ``tables.HYPOTHESIS_TESTS`` that decides."""


@dataclass(frozen=True)
class Draws:
    """Pairs to look at, by hypothesis and prompt.

    Attributes:
        query, key: the pair.
        null: another key of the same query.
        control: another query, for the ablation.
    """

    query: Int[np.ndarray, "hypothesis prompt"]
    key: Int[np.ndarray, "hypothesis prompt"]
    null: Int[np.ndarray, "hypothesis prompt"]
    control: Int[np.ndarray, "hypothesis prompt"]


def draw_hypotheses(
    prompts: Sequence[Prompt], role: Role, n: int, *, seed: int = 0
) -> dict[str, Draws]:
    """``n`` made-up hypotheses and as many draws of the real one, by kind.

    Raises:
        InterpError: a prompt in which the role has no target, too few prompts or hypotheses, or distances
            that leave no choice (one token back is always one token back).
    """
    if len(prompts) < 2 or n < 1:
        raise InterpError(
            f"{counted(len(prompts), 'prompt')}, {n} hypotheses: expected at least 2 prompts and 1"
        )
    named = [role.pairs(prompt) for prompt in prompts]
    for prompt, pairs in zip(prompts, named, strict=True):
        if not len(pairs):
            raise InterpError(
                f"role {role.name}, prompt {prompt.name}: {role.absent}; take other prompts"
            )
    pool = np.concatenate([query - key for query, key in (pairs.T for pairs in named)])
    places = {}
    for prompt, pairs in zip(prompts, named, strict=True):
        choices = _choices(len(prompt.ids), pairs, np.unique(pool))
        where = f"role {role.name}, prompt {prompt.name}"
        if len(choices) < 2 or len(np.unique(pairs[:, 0])) > len(prompt.ids) - 2:
            raise InterpError(
                f"{where}: its targets leave no room for made-up ones at the same distances; take a role "
                "whose distances differ, or longer prompts"
            )
        places[prompt.name] = choices
    found = {}
    for number, kind in enumerate(KINDS):
        drawn = np.empty((4, n, len(prompts)), dtype=np.int64)
        for h in range(n):
            for i, (prompt, pairs) in enumerate(zip(prompts, named, strict=True)):
                rng = np.random.default_rng([seed, 9, number, h, i])
                drawn[:, h, i] = _draw(rng, kind, pairs, places[prompt.name], pool)
        found[kind] = Draws(*drawn)
    return found


def _choices(
    n: int, pairs: Int[np.ndarray, "pair 2"], distances: Int[np.ndarray, " distance"]
) -> dict[int, Int[np.ndarray, " _"]]:
    """For each query with two keys or more to choose from: their distances, the role's own left out."""
    own: dict[int, set[int]] = {}
    for query, key in pairs.tolist():
        own.setdefault(query, set()).add(query - key)
    found = {}
    for query in range(1, n - 1):  # the last predicts no token of the prompt
        free = distances[(distances <= query) & ~np.isin(distances, [*own.get(query, ())])]
        if len(free) > 1:
            found[query] = free
    return found


def _draw(
    rng: np.random.Generator,
    kind: str,
    pairs: Int[np.ndarray, "pair 2"],
    choices: dict[int, Int[np.ndarray, " _"]],
    pool: Int[np.ndarray, " all_pairs"],
) -> tuple[int, int, int, int]:
    """(query, key, null key, control query)."""
    queries = np.array([*choices])
    if kind == "real":
        fit = pairs[np.isin(pairs[:, 0], queries)]
        query, key = (fit if len(fit) else pairs)[rng.integers(len(fit) or len(pairs))].tolist()
        others = queries[~np.isin(queries, pairs[:, 0])]
        if query not in choices or not len(others):
            raise InterpError(
                "the role's queries see no other key at its distances, or all queries are its own: take "
                "longer or other prompts"
            )
        (null,) = _distances(rng, choices[query], pool, 1)
        return query, key, query - null, int(rng.choice(others))
    query, control = rng.choice(queries, 2, replace=False).tolist()
    first, second = _distances(rng, choices[query], pool, 2)
    return query, query - first, query - second, control


def _distances(
    rng: np.random.Generator,
    free: Int[np.ndarray, " distance"],
    pool: Int[np.ndarray, " all_pairs"],
    n: int,
) -> list[int]:
    """Different distances, each as likely as the role has it; the order is random too."""
    counts = np.array([(pool == distance).sum() for distance in free], dtype=float)
    drawn = rng.choice(free, n, replace=False, p=counts / counts.sum())
    return [int(one) for one in rng.permutation(drawn)]


# --- measuring -----------------------------------------------------------------------------------


def look_at(
    model: Model,
    prompts: Sequence[Prompt],
    draws: Draws,
    *,
    engine: Engine = "auto",
) -> dict[str, Float[np.ndarray, "hypothesis layer head prompt"]]:
    """ "weight" and "null" of every head, and "uniform": 1 / keys in reach of the query."""
    shape = (len(draws.query), model.n_layers, model.n_heads, len(prompts))
    found = {name: np.full(shape, np.nan) for name in ("weight", "null", "uniform")}
    place = {prompt.name: i for i, prompt in enumerate(prompts)}
    for batch in batches(prompts):
        at = np.array([place[prompt.name] for prompt in batch])
        rows = torch.arange(len(batch)).repeat(len(draws.query))
        query, key, null = (
            torch.from_numpy(part[:, at].ravel()) for part in (draws.query, draws.key, draws.null)
        )

        def look(
            layer: int,
            pattern: Pattern,
            z: Tensor,
            at: Int[np.ndarray, " batch"] = at,
            asked: tuple[Tensor, ...] = (rows, query, key, null),
        ) -> None:
            b, q, k, other = (part.to(pattern.mask.device) for part in asked)
            for name, keys in (("weight", k), ("null", other)):
                weights = pattern.pairs(b, q, keys).double().cpu().numpy()
                found[name][:, layer, :, at] = _by_hypothesis(weights, len(at))
            reach = (1 / pattern.mask.reachable[b, q].double()).cpu().numpy()
            found["uniform"][:, layer, :, at] = _by_hypothesis(reach[None], len(at))

        capture(model, batch, look, engine=engine)
    return found


def _by_hypothesis(
    values: Float[np.ndarray, "head pair"], n: int
) -> Float[np.ndarray, "prompt hypothesis head"]:
    return values.reshape(len(values), -1, n).transpose(2, 1, 0)


def rises(
    model: Model,
    prompts: Sequence[Prompt],
    *,
    engine: Engine = "auto",
    progress: Callable[[int], None] | None = None,
) -> dict[str, Float[np.ndarray, "layer head pos"]]:
    """By prompt: how much the loss of the token *after* each position rises with each head's z at 0.

    NaN at the last position, which predicts no token of the prompt.
    """
    found: dict[str, np.ndarray] = {}
    for batch in batches(prompts):
        ids = torch.tensor([prompt.ids for prompt in batch], device=model.device)
        with edited(model, engine=engine):
            clean = losses_of(model, ids)
        rise = np.full((len(batch), model.n_layers, model.n_heads, ids.shape[1]), np.nan)
        for layer in range(model.n_layers):
            for head in range(model.n_heads):
                with edited(model, Replace.zero(Site("z", layer, (head,))), engine=engine):
                    rise[:, layer, head, :-1] = (losses_of(model, ids) - clean)[:, 1:]
                if progress is not None:
                    progress(len(batch))
        found |= {prompt.name: one for prompt, one in zip(batch, rise, strict=True)}
    return found


def measure(
    model: Model,
    prompts: Sequence[Prompt],
    drawn: dict[str, Draws],
    *,
    engine: Engine = "auto",
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """A row a hypothesis, head and prompt, as ``tables.HYPOTHESES_PER_PROMPT`` describes."""
    by_prompt = rises(model, prompts, engine=engine, progress=progress)
    frames = []
    for kind, draws in drawn.items():
        seen = look_at(model, prompts, draws, engine=engine)
        shape = seen["weight"].shape
        rise, control = (np.empty(shape) for _ in range(2))
        for i, prompt in enumerate(prompts):
            of_prompt = by_prompt[prompt.name]
            rise[..., i] = of_prompt[..., draws.query[:, i]].transpose(2, 0, 1)
            control[..., i] = of_prompt[..., draws.control[:, i]].transpose(2, 0, 1)
        hypothesis, layer, head, at = np.indices(shape).reshape(4, -1)
        frame = pd.DataFrame({"kind": kind, "hypothesis": hypothesis, "layer": layer, "head": head})
        frame["prompt"] = np.array([prompt.name for prompt in prompts])[at]
        for name in ("query", "key", "null", "control"):
            column = {"null": "null_key", "control": "control_query"}.get(name, name)
            frame[column] = getattr(draws, name)[hypothesis, at]
        for name, values in (seen | {"rise": rise, "rise_control": control}).items():
            frame[name] = values.ravel()
        frames.append(frame)
    whole = pd.concat(frames, ignore_index=True).assign(model=model.name)
    whole = whole.dropna(subset="weight")  # hybrids have layers without attention
    return HYPOTHESES_PER_PROMPT.validate(whole[list(HYPOTHESES_PER_PROMPT.columns)])


# --- testing -------------------------------------------------------------------------------------


def compare_heads(rows: pd.DataFrame, *, level: float = 0.05, seed: int = 0) -> pd.DataFrame:
    """Every head against every hypothesis, as ``tables.HYPOTHESIS_TESTS`` describes.

    Only heads above matched at ``level`` are ablated, as somebody would who has seen the map.
    """
    prompts = rows["prompt"].unique()
    parts = []
    for _, of_kind in rows.groupby("kind", sort=False):
        wide = of_kind.set_index([*TEST_KEYS, "prompt"])
        columns = ["weight", "null", "uniform", "rise", "rise_control"]
        values = {name: wide[name].unstack("prompt")[prompts] for name in columns}
        table = values["weight"].index.to_frame(index=False)
        for name, value in values.items():
            table[name] = value.mean(axis=1).to_numpy()
        table["one_map"] = values["weight"][prompts[0]].to_numpy()

        def p_above(one: str, other: str, values: dict[str, pd.DataFrame] = values) -> np.ndarray:
            return stats.sign_flip_p((values[one] - values[other]).to_numpy().T, seed=seed)

        table["p_uniform"] = p_above("weight", "uniform")
        table["p"] = p_above("weight", "null")
        for method in ("bh", "by"):
            table[f"q_{method}"] = stats.false_discovery_q(table.p.to_numpy(), method)
        ablated = (table.p < level).to_numpy()
        table["p_ablation"] = np.where(ablated, p_above("rise", "rise_control"), np.nan)
        table["q_ablation"] = stats.false_discovery_q(table.p_ablation.to_numpy())
        parts.append(table.assign(n_prompts=len(prompts)))
    whole = pd.concat(parts, ignore_index=True)
    return HYPOTHESIS_TESTS.validate(whole[list(HYPOTHESIS_TESTS.columns)])


def count_striking(
    tests: pd.DataFrame,
    *,
    level: float = 0.05,
    striking: float = 0.4,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """How many look striking by each criterion, with intervals over hypotheses; see the module."""
    found = []
    for kind, rows in tests.groupby("kind", sort=False):
        for criterion, column in CRITERIA.items():
            value = rows[column]
            yes = value >= striking if column == "one_map" else value < level
            by_hypothesis = yes.groupby(rows.hypothesis).agg(["mean", "max", "size"])
            each = by_hypothesis[["mean", "max"]].to_numpy(float)
            low, high = stats.bootstrap_interval(each, confidence=confidence, seed=seed)
            by_chance = column == "p" and kind == KINDS[0]
            found.append(
                {
                    "kind": kind,
                    "criterion": criterion,
                    "n_striking": int(yes.sum()),
                    "expected": level * len(rows) if by_chance else np.nan,
                    "share": each[:, 0].mean(),
                    "ci_low": low[0],
                    "ci_high": high[0],
                    "any_head": each[:, 1].mean(),
                    "any_low": low[1],
                    "any_high": high[1],
                    "n_tests": int(value.notna().sum()),
                    "n_hypotheses": len(each),
                    "n_heads": int(by_hypothesis["size"].max()),
                    "n_prompts": int(rows.n_prompts.iloc[0]),
                }
            )
    table = pd.DataFrame(found).assign(model=tests.model.iloc[0])
    return HYPOTHESES.validate(table[list(HYPOTHESES.columns)])
