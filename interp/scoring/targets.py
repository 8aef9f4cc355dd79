"""The targets of roles on one batch of prompts, under one mask: what to ask of a pattern, and what it says.

    sums of a layer's weights  →  measures of many layers

:class:`BatchTargets` answers for roles that name their targets beforehand, :class:`AnyTargets` for the
sink that is searched. Both turn one layer's pattern into a few sums, which is all that is done while
the model runs; the measures, whose formulas ``scores.py`` gives, follow from the sums of all layers.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention.masks import QUERY_TILE, IndexMask
from interp.attention.pattern import Pattern
from interp.attention.questions import Questions
from interp.inputs.prompts import Prompt
from interp.scoring.roles import AnySink, Role

LARGEST_SHIFT = 8
# A head that is off the sink by less than this share of its attention says nothing about the rest.
LEAST_OFF_SINK = 1e-3

MEASURES = ("mass", "mass_off_sink", "learned_sink", "chance", "null", "n_queries", "position")


def targets_of(
    prompts: Sequence[Prompt], roles: Sequence[Role | AnySink], mask: IndexMask, seed: int
) -> list[BatchTargets | AnyTargets]:
    """What answers for these roles; each says at which ``places`` of ``roles`` its own stand."""
    fixed = [place for place, role in enumerate(roles) if isinstance(role, Role)]
    named = [role for role in roles if isinstance(role, Role)]
    return [
        BatchTargets(prompts, named, fixed, mask, seed),
        *(
            AnyTargets(prompts, role, place, mask, seed)
            for place, role in enumerate(roles)
            if isinstance(role, AnySink)
        ),
    ]


class BatchTargets:
    """The targets of fixed roles on one batch under one mask, ready to be asked of any layer.

    A *pair* is one (query, key) target; a *row* is one scored query of one role and prompt; a
    *group* is one role on one prompt. Index tensors lead from pairs to rows and rows to groups.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        roles: Sequence[Role],
        places: Sequence[int],
        mask: IndexMask,
        seed: int,
    ) -> None:
        self.places = np.array(places, dtype=np.int64)
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
        near = group + n_groups * ~off_first[row]
        others = group[kept] + 2 * n_groups, self.row_group[self.off] + 3 * n_groups
        place, order = torch.cat([near, *others]).sort()
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

    def sums(self, pattern: Pattern) -> Float[Tensor, "sum head group"]:
        """One layer's sums of weights: mass of rows off the first position, mass of the others, moved
        targets, the first position, the learned sink of rows off the first position, and of all."""
        weights = self.questions.ask(pattern).double()
        found = _sums(weights, self.ends).unflatten(1, (4, -1)).transpose(0, 1)
        sink = pattern.learned_sink()
        if sink is None:
            learned = torch.stack(
                [torch.zeros_like(found[0]), torch.full_like(found[0], torch.nan)]
            )
        else:
            rows = sink[self.row_batch, :, self.row_query].mT.double()
            parts = _sums(rows[:, self.off], self.off_ends), _sums(rows, self.row_ends)
            learned = torch.stack(parts)
        return torch.cat([found, learned])

    def measures(
        self, sums: Float[Tensor, "layer sum head group"]
    ) -> Float[np.ndarray, "layer measure role prompt head"]:
        """The measures, from the sums of many layers."""
        off_mass, rest, null, first, learned_off, learned = sums.unbind(1)
        off = self.off_count - first - learned_off
        enough = off >= LEAST_OFF_SINK * self.off_count.clamp(min=1)
        measures = {
            "mass": (off_mass + rest) / self.count,
            # 1 at most, but for rounding.
            "mass_off_sink": torch.where(enough, (off_mass / off).clamp(max=1), torch.nan),
            "learned_sink": learned / self.count,
            "chance": self.chance.expand_as(off),
            "null": null / self.null_count,
            "n_queries": self.count.expand_as(off),
            "position": torch.full_like(off, torch.nan),
        }
        stacked = torch.stack([measures[name] for name in MEASURES], dim=1)
        by_role = stacked.unflatten(-1, (self.n_roles, self.n_prompts))
        return by_role.permute(0, 1, 3, 4, 2).cpu().numpy()


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
    on the odd ones after it.

    What a position brings with it (the wrong one beside it, the queries that are measured, their
    chance) does not depend on the head: it is worked out for all of them beforehand.
    """

    def __init__(
        self, prompts: Sequence[Prompt], role: AnySink, place: int, mask: IndexMask, seed: int
    ) -> None:
        n, device = mask.n_queries, mask.device
        self.places = np.array([place])
        self.mask = mask
        if n < 3:
            return
        even = torch.arange(2, n, 2, device=device)
        if len(even) > role.rows:
            even = even[torch.linspace(0, len(even) - 1, role.rows, device=device).round().long()]
        self.even = even
        key = torch.arange(n, device=device)
        seen = mask.block(even, key).sum(2)  # (batch or 1, 1, key)
        self.too_few = seen < role.viewers * seen.amax(-1, keepdim=True).clamp(min=1)
        self.seen = seen.clamp(min=1)
        draws = [
            _generator(seed, role.name, prompt.name).integers(1, LARGEST_SHIFT + 1)
            for prompt in prompts
        ]
        shift = torch.tensor(draws, device=device)[:, None]
        last = mask.real_queries.sum(-1, keepdim=True) - 1
        # Later if the prompt goes on that far, else earlier, else there is no wrong position to look at.
        self.wrong = torch.where(key + shift < last, key + shift, key - shift)  # (batch, key)
        self.odd = key[1::2]
        self.choice = mask.reachable[:, 1::2] > 1  # (batch, odd query)
        self.count, self.wrong_count, self.chance = (
            torch.zeros(mask.batch, n, dtype=torch.float64, device=device) for _ in range(3)
        )
        share = 1 / mask.reachable.clamp(min=1).double()
        batch = torch.arange(mask.batch, device=device)[:, None, None]
        for part in torch.arange(len(self.odd), device=device).split(QUERY_TILE):
            odd = self.odd[part][:, None]
            later = (odd > key) & self.choice[:, part, None]  # (batch, odd query, position)
            right = later & mask.allowed(batch, odd, key)
            wrong = later & mask.allowed(batch, odd, self.wrong.clamp(min=0)[:, None])
            self.count += right.sum(1)
            self.chance += (right * share[:, odd]).sum(1)
            self.wrong_count += wrong.sum(1)
        self.wrong_count[self.wrong < 0] = 0
        self.wrong = self.wrong.clamp(min=0)

    def sums(self, pattern: Pattern) -> Float[Tensor, "sum batch head"]:
        """One layer's positions, and their sums of weights: of the position, of the wrong one, and of
        the learned sink."""
        if self.mask.n_queries < 3:
            return torch.zeros(4, self.mask.batch, pattern.n_heads, device=self.mask.device)
        mean = pattern.received(self.even) / self.seen
        position = mean.masked_fill(self.too_few, -1.0).argmax(-1)
        keys = torch.stack([position, self.wrong.gather(1, position)], dim=-1)
        # What a query does not see has weight 0: to leave out the earlier ones is enough.
        later = (self.odd > position[..., None]) & self.choice[:, None]
        weights = pattern.head_keys(keys, slice(1, None, 2)).mT.double()
        mass, wrong_mass = (weights * later[:, :, None]).sum(-1).unbind(-1)
        learned = torch.full_like(mass, torch.nan)
        if (sink := pattern.learned_sink()) is not None:
            batch = torch.arange(self.mask.batch, device=self.mask.device)[:, None, None]
            seen = later & self.mask.allowed(batch, self.odd, position[..., None])
            learned = (sink[..., 1::2].double() * seen).sum(-1)
        return torch.stack([position.double(), mass, wrong_mass, learned])

    def measures(
        self, sums: Float[Tensor, "layer sum batch head"]
    ) -> Float[np.ndarray, "layer measure role prompt head"]:
        """The measures, from the sums of many layers."""
        if self.mask.n_queries < 3:
            nothing = np.full((len(sums), len(MEASURES), 1, *sums.shape[2:]), np.nan)
            nothing[:, MEASURES.index("n_queries")] = 0
            return nothing
        found, mass, wrong_mass, learned = sums.unbind(1)
        position = found.long()
        batch = torch.arange(self.mask.batch, device=sums.device)[:, None]
        count, wrong_count, chance = (
            of_each[batch, position] for of_each in (self.count, self.wrong_count, self.chance)
        )
        measures = {
            "mass": mass / count,
            "mass_off_sink": torch.full_like(count, torch.nan),
            "learned_sink": learned / count,
            "chance": chance / count,
            "null": torch.where(wrong_count > 0, wrong_mass / wrong_count, torch.nan),
            "n_queries": count,
            "position": torch.where(count > 0, found, torch.nan),
        }
        return torch.stack([measures[name] for name in MEASURES], 1)[:, :, None].cpu().numpy()


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
