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

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.arguments import check_share, whole_number
from interp.attention.kernels import Engine, check_engine
from interp.attention.masks import IndexMask
from interp.attention.pattern import Pattern
from interp.attention.questions import Questions
from interp.errors import InterpError
from interp.inputs.prompts import Prompt, as_prompts
from interp.models.forward import attention_path, batches, capture
from interp.models.model import Model, check_loaded
from interp.results import tables
from interp.results.stats import Correction, check_correction
from interp.results.summaries import summarise
from interp.scoring.roles import ROLES, AnySink, Role, as_roles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from interp.runs.parts import Parts

Roles = Sequence[Role | AnySink]

LARGEST_SHIFT = 8
# A head that is off the sink by less than this share of its attention says nothing about the rest.
LEAST_OFF_SINK = 1e-3

PATHS = (
    "fused",
    "tiled",
    "transformer_lens",
    "given",
)  # of attention; pattern.py says what each is
MEASURES = ("mass", "mass_off_sink", "learned_sink", "chance", "null", "n_queries", "position")


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
        scorer = BatchScorer(batch, wanted, seed)
        kept = None if parts is None else parts.load(f"{number}", scorer.shape(model))
        if kept is not None:
            frames.append(scorer.restored(kept).frame())
            if progress is not None:
                progress(len(batch))
            continue

        def look(layer: int, pattern: Pattern, z: Tensor, scorer: BatchScorer = scorer) -> None:
            scorer.look(layer, pattern)

        capture(model, batch, look, engine=engine)
        frames.append(scorer.frame())
        if parts is not None:
            parts.save(f"{number}", scorer.kept(model))
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
    return scorer.frame()


def _check_arguments(model: object, confidence: float, seed: int, engine: str) -> None:
    check_loaded(model)
    check_share("confidence", confidence)
    whole_number("seed", seed, least=0)
    check_engine(engine)


class BatchScorer:
    """Scores of one batch of prompts, layer by layer.

    What to ask of a pattern depends on prompts, roles and mask, not on the layer: it is worked out
    once for each mask (a hybrid model has two).
    """

    def __init__(self, prompts: Sequence[Prompt], roles: Roles, seed: int) -> None:
        self.prompts, self.roles, self.seed = prompts, roles, seed
        self._targets: dict[int, tuple[IndexMask, BatchTargets, list[AnyTargets]]] = {}
        self._layers: dict[int, tuple[str, dict[str, np.ndarray]]] = {}

    def look(self, layer: int, pattern: Pattern) -> None:
        """Score every head of one layer."""
        longest = max(len(prompt.ids) for prompt in self.prompts)
        if (pattern.mask.batch, pattern.mask.n_queries) != (len(self.prompts), longest):
            raise InterpError(
                f"layer {layer}: pattern of {pattern.mask.batch} prompts × {pattern.mask.n_queries} "
                f"queries, expected {len(self.prompts)} × {longest}"
            )
        # The mask is kept beside its targets, so that its id cannot be given to another meanwhile.
        key = id(pattern.mask)
        if key not in self._targets:
            fixed = [role for role in self.roles if isinstance(role, Role)]
            searched = [role for role in self.roles if isinstance(role, AnySink)]
            self._targets[key] = (
                pattern.mask,
                BatchTargets(self.prompts, fixed, pattern.mask, self.seed),
                [AnyTargets(self.prompts, role, pattern.mask, self.seed) for role in searched],
            )
        _, fixed_targets, any_targets = self._targets[key]
        fixed_scores = iter(fixed_targets.score(pattern))
        any_scores = (targets.score(pattern) for targets in any_targets)
        scores = [
            next(fixed_scores if isinstance(role, Role) else any_scores) for role in self.roles
        ]
        stacked = {name: np.stack([score[name] for score in scores]) for name in MEASURES}
        self._layers[layer] = (pattern.path, stacked)

    def shape(self, model: Model) -> tuple[int, ...]:
        """Of what is kept of a batch: (layer, measure, role, prompt, head); the last measure is the path."""
        sizes = len(MEASURES) + 1, len(self.roles), len(self.prompts), model.n_heads
        return model.n_layers, *sizes

    def kept(self, model: Model) -> np.ndarray:
        """All scores as one array of that shape; NaN for a layer that has no attention."""
        whole = np.full(self.shape(model), np.nan)
        for layer, (path, scores) in self._layers.items():
            for place, name in enumerate(MEASURES):
                whole[layer, place] = scores[name]
            whole[layer, -1] = PATHS.index(path)
        return whole

    def restored(self, kept: np.ndarray) -> BatchScorer:
        """The scorer as it was when ``kept`` was made of it."""
        for layer, scores in enumerate(kept):
            path = scores[-1].flat[0]
            if not np.isnan(path):
                by_name = dict(zip(MEASURES, scores, strict=False))
                self._layers[layer] = (PATHS[int(path)], by_name)
        return self

    def frame(self) -> pd.DataFrame:
        """A row per layer, head, role and prompt."""
        frames = []
        for layer, (path, scores) in sorted(self._layers.items()):
            role, prompt, head = np.indices(scores["mass"].shape).reshape(3, -1)
            names = np.array([one.name for one in self.roles])
            absent = np.array([one.absent for one in self.roles])
            frame = pd.DataFrame({"layer": layer, "head": head, "role": names[role]})
            frame["prompt"] = np.array([one.name for one in self.prompts])[prompt]
            for name in MEASURES:
                frame[name] = scores[name].ravel()
            frame["n_queries"] = frame.n_queries.astype("int64")
            frame["position"] = frame.position.astype("Int64")
            frame["undefined_reason"] = pd.Series(absent[role]).where(frame.n_queries == 0)
            frame["attention_path"] = path
            frames.append(frame)
        return pd.concat(frames, ignore_index=True)


class BatchTargets:
    """The targets of fixed roles on one batch under one mask, ready to be asked of any layer.

    A *pair* is one (query, key) target; a *row* is one scored query of one role and prompt; a
    *group* is one role on one prompt. Index tensors lead from pairs to rows and rows to groups.
    """

    def __init__(
        self, prompts: Sequence[Prompt], roles: Sequence[Role], mask: IndexMask, seed: int
    ) -> None:
        self.n_roles, self.n_prompts, n = len(roles), len(prompts), mask.n_queries
        parts = [np.empty((0, 4), dtype=np.int64)]
        for r, role in enumerate(roles):
            for b, prompt in enumerate(prompts):
                found = role.pairs(prompt)
                group = np.full((len(found), 1), r * len(prompts) + b)
                parts.append(np.hstack([group, np.full_like(group, b), found]))
        pairs = torch.from_numpy(np.vstack(parts)).to(mask.device)
        group, batch, query, key = pairs.T
        choice = mask.reachable[batch, query] > 1
        pairs = pairs[mask.allowed(batch, query, key) & choice].T.contiguous()
        group, batch, query, key = pairs

        # In order of group, query and key, since roles give their pairs in order.
        rows, row = (group * n + query).unique_consecutive(return_inverse=True)
        self.row_group, self.row_query = rows // n, rows % n
        self.row_batch = self.row_group % len(prompts)
        off_first = ~_any(key == 0, row, len(rows))
        moved, kept = _moved(prompts, roles, pairs, row, self.row_group, mask, seed)
        self.off = off_first.nonzero()[:, 0]
        off_batch, off_query = self.row_batch[self.off], self.row_query[self.off]
        # Which sum each asked weight goes into: mass of rows off the first position, mass of the
        # others, moved targets, and the first position itself.
        n_groups = self.n_roles * self.n_prompts
        places = (group + n_groups * ~off_first[row], group[kept] + 2 * n_groups)
        place, order = torch.cat([*places, self.row_group[self.off] + 3 * n_groups]).sort()
        self.ends = _ends(place, 4 * n_groups)
        self.row_ends = _ends(self.row_group, n_groups)
        self.off_ends = _ends(self.row_group[self.off], n_groups)
        self.questions = Questions(
            torch.cat([batch, batch[kept], off_batch])[order],
            torch.cat([query, query[kept], off_query])[order],
            torch.cat([key, moved[kept], torch.zeros_like(off_query)])[order],
            mask.batch,
            n,
        )

        # What does not depend on the pattern, as (1, group).
        each = torch.ones(1, len(rows), dtype=torch.float64, device=mask.device)
        targets = torch.bincount(row, minlength=len(rows))
        chance = targets / mask.reachable[self.row_batch, self.row_query]
        self.count = _sums(each, self.row_ends)
        self.off_count = _sums(each * off_first, self.row_ends)
        self.null_count = _sums(each * _any(kept, row, len(rows)), self.row_ends)
        # 0 / 0 makes an empty group undefined, here and below.
        self.chance = _sums(chance[None].double(), self.row_ends) / self.count

    def score(self, pattern: Pattern) -> list[dict[str, Float[np.ndarray, "prompt head"]]]:
        """One layer's measures, a dictionary per role."""
        weights = self.questions.ask(pattern).double()
        off_mass, rest, null, first = _sums(weights, self.ends).chunk(4, dim=1)
        off = self.off_count - first
        learned = torch.full_like(off, torch.nan)
        if (sink := pattern.learned_sink()) is not None:
            row_learned = sink[self.row_batch, :, self.row_query].mT.double()
            off -= _sums(row_learned[:, self.off], self.off_ends)
            learned = _sums(row_learned, self.row_ends) / self.count
        enough = off >= LEAST_OFF_SINK * self.off_count.clamp(min=1)
        measures = {
            "mass": (off_mass + rest) / self.count,
            # 1 at most, but for rounding.
            "mass_off_sink": torch.where(enough, (off_mass / off).clamp(max=1), torch.nan),
            "chance": self.chance.expand_as(off),
            "null": null / self.null_count,
            "learned_sink": learned,
            "n_queries": self.count.expand_as(off),
            "position": torch.full_like(off, torch.nan),
        }
        shape = (len(MEASURES), pattern.n_heads, self.n_roles, self.n_prompts)
        stacked = torch.stack([measures[name] for name in MEASURES]).reshape(shape)
        arrays = stacked.permute(2, 0, 3, 1).cpu().numpy()
        return [dict(zip(MEASURES, array, strict=True)) for array in arrays]


def _moved(
    prompts: Sequence[Prompt],
    roles: Sequence[Role],
    pairs: Int[Tensor, "4 pair"],
    row: Int[Tensor, " pair"],
    row_group: Int[Tensor, " row"],
    mask: IndexMask,
    seed: int,
) -> tuple[Int[Tensor, " pair"], Tensor]:
    """Wrong targets: each pair's moved key, and which to keep: all of a query's, or none.

    One shift for each role and prompt, drawn among those that leave the most queries all their
    wrong targets (half of the best or more): a current-token target can only move back, a
    first-position target only forward.
    """
    n, n_groups = mask.n_queries, len(roles) * len(prompts)
    group, batch, query, key = pairs
    code = (group * n + query) * n + key
    shifts = torch.tensor([s for s in range(-LARGEST_SHIFT, LARGEST_SHIFT + 1) if s])
    valid = torch.empty(len(shifts), len(row_group), dtype=torch.bool, device=mask.device)
    for i, shift in enumerate(shifts.tolist()):
        wrong = key + shift
        right = (wrong >= 0) & (wrong <= query) & ~_among(code + shift, code)
        right &= mask.allowed(batch, query, wrong.clamp(min=0, max=n - 1))
        valid[i] = ~_any(~right, row, len(row_group))
    # A query counts once, however many targets it has.
    counts = torch.stack([torch.bincount(row_group[ok], minlength=n_groups) for ok in valid])
    chosen = torch.zeros(n_groups, dtype=torch.long)
    for number in counts.any(0).nonzero()[:, 0].tolist():
        good = (2 * counts[:, number] >= counts[:, number].max()).nonzero()[:, 0].cpu().numpy()
        role, prompt = roles[number // len(prompts)], prompts[number % len(prompts)]
        chosen[number] = int(_generator(seed, role.name, prompt.name).choice(good))
    mine = chosen.to(mask.device)[group]
    return key + shifts.to(mask.device)[mine], valid[mine, row]


class AnyTargets:
    """Each head's most attended position on one batch under one mask: found on even queries, measured
    on the odd ones after it."""

    def __init__(
        self, prompts: Sequence[Prompt], role: AnySink, mask: IndexMask, seed: int
    ) -> None:
        n, device = mask.n_queries, mask.device
        self.mask = mask
        if n < 3:
            return
        even = torch.arange(2, n, 2, device=device)
        if len(even) > role.rows:
            even = even[torch.linspace(0, len(even) - 1, role.rows, device=device).round().long()]
        self.even = even
        self.odd = torch.arange(1, n, 2, device=device)
        self.choice = mask.reachable[:, 1::2] > 1  # (batch, odd query)
        seen = mask.block(even, torch.arange(n, device=device)).sum(2)  # (batch or 1, 1, key)
        self.too_few = seen < role.viewers * seen.amax(-1, keepdim=True).clamp(min=1)
        self.seen = seen.clamp(min=1)
        draws = [
            _generator(seed, role.name, prompt.name).integers(1, LARGEST_SHIFT + 1)
            for prompt in prompts
        ]
        self.shift = torch.tensor(draws, device=device)[:, None]
        self.last = mask.real_queries.sum(-1, keepdim=True) - 1
        self.chance = 1 / mask.reachable[:, None, 1::2].clamp(min=1)

    def score(self, pattern: Pattern) -> dict[str, Float[np.ndarray, "prompt head"]]:
        """One layer's measures."""
        mask = self.mask
        if mask.n_queries < 3:
            nothing = np.full((mask.batch, pattern.n_heads), np.nan)
            return dict.fromkeys(MEASURES, nothing) | {"n_queries": np.zeros_like(nothing)}
        mean = pattern.received(self.even) / self.seen
        position = mean.masked_fill(self.too_few, -1.0).argmax(-1)  # (batch, head)
        # Later if the prompt goes on that far, else earlier, else there is no wrong position to look at.
        later = position + self.shift
        wrong = torch.where(later < self.last, later, position - self.shift)
        keys = torch.stack([position, wrong.clamp(min=0)], dim=-1)
        # (batch, head, position or wrong, odd query): after the position, for the wrong one too.
        batch = torch.arange(mask.batch, device=mask.device)[:, None, None, None]
        chosen = mask.allowed(batch, self.odd, keys[..., None]) & self.choice[:, None, None]
        chosen &= self.odd > position[..., None, None]
        weights = pattern.head_keys(keys, slice(1, None, 2)).mT
        mass, wrong_mass = (weights.double() * chosen).sum(-1).unbind(-1)
        count, wrong_count = chosen.sum(-1).double().unbind(-1)
        chosen = chosen[:, :, 0]
        possible = (wrong >= 0) & (wrong_count > 0)
        learned = pattern.learned_sink()
        measures = {
            "mass": mass / count,
            "mass_off_sink": torch.full_like(count, torch.nan),
            "learned_sink": torch.full_like(count, torch.nan)
            if learned is None
            else (learned[..., 1::2] * chosen).sum(-1) / count,
            "chance": (self.chance * chosen).sum(-1) / count,
            "null": torch.where(possible, wrong_mass / wrong_count, torch.nan),
            "n_queries": count,
            "position": torch.where(count > 0, position.double(), torch.nan),
        }
        return {name: value.cpu().numpy() for name, value in measures.items()}


def _generator(seed: int, role: str, prompt: str) -> np.random.Generator:
    """A generator that depends on what is drawn for, not on the batch it is drawn in."""
    return np.random.default_rng([seed, zlib.crc32(f"{role}/{prompt}".encode())])


def _ends(place: Int[Tensor, " item"], n: int) -> Int[Tensor, " place"]:
    """Where the items of each place end, for places in order."""
    return torch.bincount(place, minlength=n).cumsum(0)


def _sums(
    values: Float[Tensor, "head item"], ends: Int[Tensor, " place"]
) -> Float[Tensor, "head place"]:
    """Sums of runs of items: differences of one running sum, several times faster than adding each
    item to its place."""
    running = values.new_empty(values.shape[0], values.shape[1] + 1)
    running[:, 0] = 0
    torch.cumsum(values, 1, out=running[:, 1:])
    return running[:, torch.nn.functional.pad(ends, (1, 0))].diff(dim=1)


def _among(values: Int[Tensor, " item"], ordered: Int[Tensor, " other"]) -> Tensor:
    """Which values are among others that are in order."""
    place = torch.searchsorted(ordered, values).clamp(max=len(ordered) - 1)
    return ordered[place] == values


def _any(flags: Tensor, place: Tensor, n: int) -> Tensor:
    return (
        torch.zeros(n, dtype=torch.long, device=flags.device).index_add_(0, place, flags.long()) > 0
    )
