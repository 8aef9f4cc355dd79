"""Attention mass on a role's targets: where a head looks, against chance and a null.

For one prompt, head and role, over the queries q that have a target (and a choice: at least two keys
in reach),

    mass          = mean_q Σ_{k ∈ targets(q)} weight[q, k]                                  in [0, 1]
    chance        = mean_q |targets(q)| / (keys in reach of q)            uniform over what it may see
    null          = the same mass on position-matched wrong targets: every target moved by one and
                    the same number of tokens, drawn for each prompt and role from ±1 … ±8; a query
                    whose moved key is out of reach or itself a target is left out
    mass_off_sink = Σ_q mass(q) / Σ_q (1 − weight[q, 0] − learned sink(q)): what share of the attention
                    that is *not* parked on the first position goes to the targets, over queries that
                    do not have position 0 as a target
    learned_sink  = mean_q of the mass on the learned sink (gpt-oss), undefined where there is none

A target that a window puts out of reach is no target. A prompt without any query to score is
*undefined* with a reason, and is not counted as 0. A score says where a head looked, not what it
used (Jain & Wallace, 1902.10186).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.arguments import check_share, whole_number
from interp.attention.kernels import Engine, check_engine
from interp.attention.masks import IndexMask
from interp.attention.pattern import Pattern
from interp.errors import InterpError
from interp.inputs.prompts import Prompt, as_prompts
from interp.models.forward import attention_path, batches, capture
from interp.models.model import Model, check_loaded
from interp.results import tables
from interp.results.stats import Correction, check_correction
from interp.results.summaries import summarise
from interp.scoring.roles import ROLES, AnySink, Role, as_roles
from interp.scoring.targets import MEASURES, AnyTargets, BatchTargets, targets_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from interp.runs.parts import Parts

Roles = Sequence[Role | AnySink]

PATHS = (
    "fused",
    "tiled",
    "transformer_lens",
    "given",
)  # of attention; pattern.py says what each is


@dataclass(frozen=True)
class HeadScores:
    """Scores of every head.

    Attributes:
        summary: a row per layer, head and role, best first within a role (see ``tables.SUMMARY``).
        per_prompt: a row per layer, head, role and prompt (see ``tables.PER_PROMPT``).
    """

    summary: pd.DataFrame
    per_prompt: pd.DataFrame

    def top(self, n: int = 10, role: str | None = None) -> pd.DataFrame:
        """The ``n`` heads with most mass on each role's targets (or on one role's)."""
        rows = self.summary if role is None else self.summary[self.summary.role == role]
        if role is not None and rows.empty:
            raise InterpError(f"role {role!r} was not scored: {sorted(self.summary.role.unique())}")
        shown = rows.groupby("role", sort=False).head(n).reset_index(drop=True)
        first = ["role", "layer", "head", "mass", "ci_low", "ci_high", "chance", "null", "q"]
        others = shown.drop(columns=first).dropna(axis=1, how="all")
        return pd.concat([shown[first], others], axis=1)

    def __repr__(self) -> str:
        counts = f"{self.summary.role.nunique()} roles, {self.per_prompt.prompt.nunique()} prompts"
        return f"HeadScores({self.summary.model.iloc[0]}: {len(self.summary)} rows, {counts})"

    def figure(self) -> Figure:
        """The layer × head map of each role."""
        from interp.results.figures import layer_by_head

        return layer_by_head(self.summary)

    def _repr_html_(self) -> str:
        return tables.as_html(self.top())


def score_heads(
    model: Model,
    prompts: Sequence[Prompt] | Prompt,
    roles: object = None,
    *,
    batch_size: int | None = None,
    engine: Engine = "auto",
    confidence: float = 0.95,
    correction: Correction = "bh",
    seed: int = 0,
    parts: Parts | None = None,
    progress: Callable[[int], None] | None = None,
) -> HeadScores:
    """Score every head for every role in one forward pass over the prompts.

    Args:
        roles: what to look for: roles, their names, or functions of a prompt; all built-in roles if
            not given.
        batch_size: prompts in one forward pass; None fills about 4,096 tokens.
        confidence: of the bootstrap interval over prompts (over templates where prompts name one).
        correction: how q holds false discoveries: "bh" or "by".
        seed: of the null's shifts, the bootstrap and the sign flips.
        parts: where finished batches are kept and found again; they must be of these very scores.
        progress: called with the number of prompts done after each batch.

    Raises:
        InterpError: no prompts or roles, or whatever :func:`interp.models.forward.capture` refuses.
    """
    prompts = as_prompts(prompts)
    wanted = as_roles(ROLES if roles is None else roles)
    _check_arguments(model, confidence, seed, engine)
    check_correction(correction)
    if attention_path(model) != "door" and batch_size is None:
        batch_size = 1
    frames = []
    for number, batch in enumerate(batches(prompts, batch_size)):
        shape = model.n_layers, len(MEASURES) + 1, len(wanted), len(batch), model.n_heads
        kept = None if parts is None else parts.load(f"{number}", shape)
        if kept is None:
            scores = score_batch(model, batch, wanted, engine=engine, seed=seed)
            if parts is not None:
                parts.save(f"{number}", scores.kept(shape))
        else:
            scores = BatchScores.restored(batch, wanted, kept)
        frames.append(scores.frame())
        if progress is not None:
            progress(len(batch))
    per_prompt = pd.concat(frames, ignore_index=True)
    per_prompt.insert(0, "model", model.name)
    if any(prompt.template is not None for prompt in prompts):
        templates = {prompt.name: prompt.group for prompt in prompts}
        per_prompt.insert(5, "template", per_prompt["prompt"].map(templates))
    # One order whatever the batches: layer, head, then roles and prompts as they were given.
    place = {prompt.name: i for i, prompt in enumerate(prompts)}
    rank = {role.name: i for i, role in enumerate(wanted)}
    order = [per_prompt["layer"], per_prompt["head"]]
    order += [per_prompt["role"].map(rank), per_prompt["prompt"].map(place)]
    per_prompt = per_prompt.iloc[np.lexsort(order[::-1])].reset_index(drop=True)
    summary = summarise(per_prompt, confidence=confidence, correction=correction, seed=seed)
    return HeadScores(summary, per_prompt)


def score_pattern(
    pattern: Pattern, prompts: Sequence[Prompt], roles: Roles, seed: int = 0
) -> pd.DataFrame:
    """Per-prompt scores of one layer's pattern (layer 0 in the table): for patterns made by hand."""
    scorer = BatchScorer(prompts, roles, seed)
    scorer.look(0, pattern)
    return scorer.scores().frame()


def score_batch(
    model: Model, batch: Sequence[Prompt], roles: Roles, *, engine: Engine = "auto", seed: int = 0
) -> BatchScores:
    """Score every head on one batch, in one forward pass: what :func:`score_heads` repeats."""
    scorer = BatchScorer(batch, roles, seed)
    capture(model, batch, lambda layer, pattern, z: scorer.look(layer, pattern), engine=engine)
    return scorer.scores()


def _check_arguments(model: object, confidence: float, seed: int, engine: str) -> None:
    check_loaded(model)
    check_share("confidence", confidence)
    whole_number("seed", seed, least=0)
    check_engine(engine)


class BatchScorer:
    """Looks at one batch of prompts, layer by layer.

    What to ask of a pattern depends on prompts, roles and mask, not on the layer: it is worked out
    once for each mask (a hybrid model has two). Of a layer only sums of weights are kept, and what
    follows from them is worked out at the end for all layers at once.
    """

    def __init__(self, prompts: Sequence[Prompt], roles: Roles, seed: int) -> None:
        self.prompts, self.roles, self.seed = prompts, roles, seed
        self._asked: dict[int, Asked] = {}

    def look(self, layer: int, pattern: Pattern) -> None:
        """Ask every head of one layer."""
        longest = max(len(prompt.ids) for prompt in self.prompts)
        if (pattern.mask.batch, pattern.mask.n_queries) != (len(self.prompts), longest):
            raise InterpError(
                f"layer {layer}: pattern of {pattern.mask.batch} prompts × {pattern.mask.n_queries} "
                f"queries, expected {len(self.prompts)} × {longest}"
            )
        key = id(pattern.mask)
        if key not in self._asked:
            targets = targets_of(self.prompts, self.roles, pattern.mask, self.seed)
            self._asked[key] = Asked(pattern.mask, targets)
        asked = self._asked[key]
        asked.sums.append([targets.sums(pattern) for targets in asked.targets])
        asked.layers.append((layer, pattern.path))

    def scores(self) -> BatchScores:
        """The measures of every layer looked at."""
        found: dict[int, tuple[str, np.ndarray]] = {}
        for asked in self._asked.values():
            stacked = [torch.stack(sums) for sums in zip(*asked.sums, strict=True)]
            measures = [
                targets.measures(sums) for targets, sums in zip(asked.targets, stacked, strict=True)
            ]
            places = np.concatenate([targets.places for targets in asked.targets])
            whole = np.concatenate(measures, axis=2)[:, :, places.argsort()]
            for (layer, path), values in zip(asked.layers, whole, strict=True):
                found[layer] = path, values
        return BatchScores(self.prompts, self.roles, found)


@dataclass
class Asked:
    """What is asked under one mask, and what the layers answered.

    Attributes:
        mask: kept, so that its id, by which this is found, cannot be given to another meanwhile.
        targets: of the roles, each answered by :meth:`sums` of its own.
        layers: (layer, attention path), in the order in which they were looked at.
        sums: of each of them, what each of ``targets`` found.
    """

    mask: IndexMask
    targets: list[BatchTargets | AnyTargets]
    layers: list[tuple[int, str]] = field(default_factory=list)
    sums: list[list[Tensor]] = field(default_factory=list)


@dataclass(frozen=True)
class BatchScores:
    """Scores of one batch of prompts.

    Attributes:
        layers: layer → (attention path, (measure, role, prompt, head) in the order of ``MEASURES``).
    """

    prompts: Sequence[Prompt]
    roles: Roles
    layers: dict[int, tuple[str, Float[np.ndarray, "measure role prompt head"]]]

    def kept(self, shape: tuple[int, ...]) -> Float[np.ndarray, "layer measure role prompt head"]:
        """All scores as one array, the path as its last measure; NaN for a layer without attention."""
        whole = np.full(shape, np.nan)
        for layer, (path, measures) in self.layers.items():
            whole[layer, :-1] = measures
            whole[layer, -1] = PATHS.index(path)
        return whole

    @classmethod
    def restored(
        cls,
        prompts: Sequence[Prompt],
        roles: Roles,
        kept: Float[np.ndarray, "layer measure role prompt head"],
    ) -> BatchScores:
        """The scores that :meth:`kept` was made of."""
        paths = kept[:, -1, 0, 0, 0]
        there = np.flatnonzero(~np.isnan(paths)).tolist()
        layers = {layer: (PATHS[int(paths[layer])], kept[layer, :-1]) for layer in there}
        return cls(prompts, roles, layers)

    def frame(self) -> pd.DataFrame:
        """A row per layer, head, role and prompt."""
        frames = []
        for layer, (path, measures) in sorted(self.layers.items()):
            role, prompt, head = np.indices(measures.shape[1:]).reshape(3, -1)
            names = np.array([one.name for one in self.roles])
            absent = np.array([one.absent for one in self.roles])
            frame = pd.DataFrame({"layer": layer, "head": head, "role": names[role]})
            frame["prompt"] = np.array([one.name for one in self.prompts])[prompt]
            for name, values in zip(MEASURES, measures, strict=True):
                frame[name] = values.ravel()
            frame["n_queries"] = frame.n_queries.astype("int64")
            frame["position"] = frame.position.astype("Int64")
            frame["undefined_reason"] = pd.Series(absent[role]).where(frame.n_queries == 0)
            frame["attention_path"] = path
            frames.append(frame)
        return pd.concat(frames, ignore_index=True)
