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

from collections.abc import Callable

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from interp.masks import QUERY_TILE
from interp.pattern import AttentionPattern, Pattern

# A column or diagonal is read whole when at least this share of its entries is asked for.
WORTH_READING = 0.25
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
        enough = WORTH_READING * n_prompts
        left = torch.ones(len(unique), dtype=torch.bool, device=unique.device)
        self._columns = [
            (key, members, self.batch[members] * n_tokens + self.query[members])
            for key, members in self._claim(left, self.key, lambda key: enough * (n_tokens - key))
        ]
        distance = self.query - self.key
        self._diagonals = [
            (gap, members, self.batch[members] * (n_tokens - gap) + self.key[members])
            for gap, members in self._claim(left, distance, lambda gap: enough * (n_tokens - gap))
        ]
        self._rest = left.nonzero()[:, 0]

    def _claim(
        self, left: Tensor, group: Tensor, needed: Callable[[Tensor], Tensor]
    ) -> list[tuple[int, Tensor]]:
        """(value of ``group``, indices of its triples) for groups worth reading whole."""
        counts = torch.bincount(group[left], minlength=self.n_tokens)
        values = torch.arange(len(counts), device=counts.device)
        claimed = []
        for value in values[(counts > 0) & (counts >= needed(values))].tolist():
            members = (left & (group == value)).nonzero()[:, 0]
            left[members] = False
            claimed.append((value, members))
        return claimed

    def ask(self, pattern: Pattern) -> Float[Tensor, "head pair"]:
        """The weights, in the order the triples were given."""
        if not isinstance(pattern, AttentionPattern):
            return pattern.pairs(self.batch, self.query, self.key)[:, self._copies]
        found = torch.empty(
            pattern.n_heads, len(self.key), dtype=pattern.lse.dtype, device=self.key.device
        )
        if self._columns:
            keys = torch.tensor([key for key, _, _ in self._columns], device=self.key.device)
            columns = rearrange(pattern.keys(keys), "batch head q column -> column head (batch q)")
            for column, (_, members, place) in zip(columns, self._columns, strict=True):
                found.index_copy_(1, members, column.index_select(1, place))
        for distance, members, place in self._diagonals:
            diagonal = rearrange(pattern.offset(distance), "batch head q -> head (batch q)")
            found.index_copy_(1, members, diagonal.index_select(1, place))
        self._fill_rest(pattern, found)
        return found.index_select(1, self._copies)

    def _fill_rest(self, pattern: Pattern, found: Tensor) -> None:
        rest = self._rest
        if not len(rest):
            return
        if len(rest) * PAIR_COST < self.n_prompts * self.n_tokens**2 / 2:
            found[:, rest] = pattern.pairs(self.batch[rest], self.query[rest], self.key[rest])
            return
        block = self.query[rest] // QUERY_TILE
        for number, (queries, rows) in enumerate(pattern.tiles()):
            members = rest[block == number]
            inside = self.query[members] - queries.start
            found[:, members] = rows[self.batch[members], :, inside, self.key[members]].mT
