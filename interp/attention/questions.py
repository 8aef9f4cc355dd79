"""Many single weights of a pattern, asked for in one go and cheaply.

A role's targets are (batch, query, key) triples, the same for every layer, so how to fetch them is
worked out once. Gathering single pairs costs about ten times as much a weight as reading along a
diagonal or a column, so triples are sorted into

- *columns*: keys that many queries ask for (sinks): one small matrix product,
- *diagonals*: distances that many queries ask for (previous token, repeats of one period),
- the rest: gathered one by one, or, where that asks for more than a share of all weights, picked from
  tiles computed whole and thrown away.

All three give the same weights as :meth:`Pattern.pairs`; a test holds them to it.
"""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention.masks import QUERY_TILE
from interp.attention.pattern import AttentionPattern, Pattern

# A column or diagonal is read whole when at least this share of its entries is asked for.
WORTH_READING = 0.25
# Diagonals within so many tokens of each other are read as one band.
BAND = 24
# What one more column or diagonal costs beside its weights, in weights.
READ_COST = 256
# One gathered pair costs about as much as this many weights of a whole tile.
PAIR_COST = 64


class Questions:
    """Triples to ask of every layer's pattern.

    Args:
        batch, query, key: index tensors of one length; repeated triples are fetched once.
        n_prompts, n_tokens: sizes of the batch.
    """

    def __init__(
        self,
        batch: Int[Tensor, " pair"],
        query: Int[Tensor, " pair"],
        key: Int[Tensor, " pair"],
        n_prompts: int,
        n_tokens: int,
    ) -> None:
        code = (batch * n_tokens + query) * n_tokens + key
        unique, self._copies = code.unique(return_inverse=True)
        self.batch = unique // (n_tokens * n_tokens)
        self.query = unique // n_tokens % n_tokens
        self.key = unique % n_tokens
        self.n_prompts, self.n_tokens = n_prompts, n_tokens
        left = torch.ones(len(unique), dtype=torch.bool, device=unique.device)
        gap = torch.arange(n_tokens, device=unique.device)
        columns = self._claim(left, self.key, torch.full_like(gap, n_prompts * n_tokens))
        diagonals = self._claim(left, self.query - self.key, n_prompts * (n_tokens - gap))
        self._rest = left.nonzero()[:, 0]
        # Everything read lies in one row a head: columns, then diagonals, then the rest; ``place``
        # says where in it each triple is.
        self._keys = torch.tensor([key for key, _ in columns], device=unique.device).long()
        self._bands = _bands([gap for gap, _ in diagonals])
        place = torch.empty_like(unique)
        for i, (_, members) in enumerate(columns):
            row = self.batch[members] * len(columns) + i
            place[members] = row * n_tokens + self.query[members]
        start, of_gap = len(columns) * n_prompts * n_tokens, dict(diagonals)
        for nearest, farthest in self._bands:
            width, later = farthest - nearest + 1, n_tokens - nearest
            for distance in range(nearest, farthest + 1):
                if distance in of_gap:
                    members = of_gap[distance]
                    row = self.batch[members] * width + farthest - distance
                    place[members] = start + row * later + self.query[members] - nearest
            start += n_prompts * width * later
        place[self._rest] = start + torch.arange(len(self._rest), device=unique.device)
        self._place = place[self._copies]

    def _claim(self, left: Tensor, group: Tensor, size: Tensor) -> list[tuple[int, Tensor]]:
        """(value of ``group``, indices of its triples) for groups worth reading whole.

        ``size[value]`` is the number of weights read then; those claimed are no longer ``left``.
        """
        asked = torch.bincount(group[left], minlength=self.n_tokens)
        claimed = []
        for value in (asked >= WORTH_READING * (size + READ_COST)).nonzero()[:, 0].tolist():
            members = (left & (group == value)).nonzero()[:, 0]
            left[members] = False
            claimed.append((value, members))
        return claimed

    def ask(self, pattern: Pattern) -> Float[Tensor, "head pair"]:
        """The weights, in the order the triples were given."""
        if not isinstance(pattern, AttentionPattern):
            return pattern.pairs(self.batch, self.query, self.key)[:, self._copies]
        read = [rearrange(pattern.keys(self._keys), "batch head q column -> head (batch column q)")]
        for band in self._bands:
            read.append(rearrange(pattern.band(*band), "batch head gap q -> head (batch gap q)"))
        if len(self._rest):
            read.append(self._ask_rest(pattern))
        return torch.cat(read, dim=1).index_select(1, self._place)

    def _ask_rest(self, pattern: AttentionPattern) -> Float[Tensor, "head rest"]:
        rest = self._rest
        if len(rest) * PAIR_COST < self.n_prompts * self.n_tokens**2 / 2:
            return pattern.pairs(self.batch[rest], self.query[rest], self.key[rest])
        found = pattern.lse.new_empty(pattern.n_heads, len(rest))
        batch, query, key = self.batch[rest], self.query[rest], self.key[rest]
        block = query // QUERY_TILE
        for number, (queries, rows) in enumerate(pattern.tiles()):
            members = (block == number).nonzero()[:, 0]
            inside = query[members] - queries.start
            found[:, members] = rows[batch[members], :, inside, key[members]].mT
        return found


def _bands(gaps: list[int]) -> list[tuple[int, int]]:
    """(nearest, farthest) of runs of distances that lie within ``BAND`` of each other."""
    bands: list[tuple[int, int]] = []
    for gap in sorted(gaps):
        if bands and gap - bands[-1][0] < BAND:
            bands[-1] = (bands[-1][0], gap)
        else:
            bands.append((gap, gap))
    return bands
