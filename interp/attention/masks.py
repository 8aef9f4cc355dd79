"""Which keys a query may see, as a function of indices: never an n × n tensor.

transformers hands a mask function over as ``mask_function(batch, head, query, key) -> bool`` and a
padding mask of shape (batch, key). :class:`IndexMask` keeps both and answers three questions: a tile
of the mask, single (query, key) pairs, and how many keys each query can reach. One scan in tiles,
done once per forward pass and kept, also says which tiles are empty (a sliding window leaves most of
them so) and whether the whole is plain causal, so that a fused operator may serve.

No mask in transformers depends on the head; the head index passed is always 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

QUERY_TILE = 256
KEY_TILE = 1024

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A query sees itself and what came before."""
    return key <= query


def sliding(window: int) -> MaskFunction:
    """A query sees itself and the ``window - 1`` tokens before it."""

    def inside(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key > query - window)

    return inside


@dataclass(frozen=True)
class Tile:
    """A block of the mask: rows ``queries``, columns ``keys``; ``full`` if nothing in it is masked."""

    queries: slice
    keys: slice
    full: bool


@dataclass(frozen=True, eq=False)
class Looking:
    """A tile of keys, the queries that see any of them, and what each sees."""

    keys: slice
    queries: Int[Tensor, " row"]
    seen: Bool[Tensor, "one_or_batch 1 row key"]


@dataclass(frozen=True, eq=False)
class IndexMask:
    """The mask of one attention layer for one batch.

    Attributes:
        mask_function: True where the query may see the key, by absolute position.
        batch, n_queries, n_keys: sizes of the attention call.
        query_offset, key_offset: position of the first query and key (not 0 with a cache).
        padding: (batch, key) True on real tokens, or None when all are real.
        device: where the answers live.
    """

    mask_function: MaskFunction
    batch: int
    n_queries: int
    n_keys: int
    query_offset: int = 0
    key_offset: int = 0
    padding: Bool[Tensor, "batch key"] | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def allowed(
        self, batch: Int[Tensor, ...], query: Int[Tensor, ...], key: Int[Tensor, ...]
    ) -> Bool[Tensor, ...]:
        """Whether a query may see a key: index tensors that broadcast against each other.

        Padding queries see nothing. An axis that makes no difference may come back with size 1.
        """
        head = torch.zeros((), dtype=torch.long, device=self.device)
        seen = self.mask_function(batch, head, query + self.query_offset, key + self.key_offset)
        if self.padding is not None:
            seen = (
                seen & self.padding[batch, key + self.key_offset] & self.real_queries[batch, query]
            )
        return seen

    def block(
        self, queries: Int[Tensor, " query"], keys: Int[Tensor, " key"]
    ) -> Bool[Tensor, "one_or_batch 1 query key"]:
        """The mask on chosen queries × keys; the batch axis is 1 when all prompts share it."""
        batch = torch.arange(self.batch, device=self.device)[:, None, None, None]
        seen = self.allowed(batch, queries[None, None, :, None], keys[None, None, None, :])
        return seen.expand(seen.shape[0], 1, len(queries), len(keys))

    def tile(self, queries: slice, keys: slice) -> Bool[Tensor, "one_or_batch 1 query key"]:
        """:meth:`block` on contiguous queries and keys."""
        return self.block(
            *(torch.arange(s.start, s.stop, device=self.device) for s in (queries, keys))
        )

    def behind(
        self, nearest: int, farthest: int
    ) -> Bool[Tensor, "one_or_batch 1 distance later_query"]:
        """Whether query i may see keys i − ``farthest`` … i − ``nearest``, in this order, for
        i = ``nearest`` … n − 1; False before the first key. Kept: all layers ask the same."""
        if (nearest, farthest) not in self._behind:
            query = torch.arange(nearest, self.n_queries, device=self.device)[None, None, None]
            gap = torch.arange(farthest, nearest - 1, -1, device=self.device)[:, None]
            batch = torch.arange(self.batch, device=self.device)[:, None, None, None]
            key = query - gap
            self._behind[nearest, farthest] = self.allowed(batch, query, key.clamp(min=0)) & (
                key >= 0
            )
        return self._behind[nearest, farthest]

    def seen_by(self, queries: Int[Tensor, " row"]) -> list[Looking]:
        """The tiles of keys that any of chosen queries see, and which do. The last answer is kept:
        layer after layer asks for the same queries."""
        asked = tuple(queries.tolist())
        if asked not in self._seen_by:
            self._seen_by.clear()
            tiles = []
            for left in range(0, self.n_keys, KEY_TILE):
                keys = slice(left, min(left + KEY_TILE, self.n_keys))
                seen = self.block(queries, torch.arange(left, keys.stop, device=self.device))
                looking = seen.any(-1).any(0)[0]
                if looking.any():
                    tiles.append(Looking(keys, queries[looking], seen[:, :, looking]))
            self._seen_by[asked] = tiles
        return self._seen_by[asked]

    @cached_property
    def _behind(self) -> dict[tuple[int, int], Bool[Tensor, "one_or_batch 1 distance later_query"]]:
        return {}

    @cached_property
    def _seen_by(self) -> dict[tuple[int, ...], list[Looking]]:
        return {}

    @cached_property
    def real_queries(self) -> Bool[Tensor, "batch query"]:
        """True where the query is a token of the prompt and not padding."""
        if self.padding is None:
            return torch.ones(self.batch, self.n_queries, dtype=torch.bool, device=self.device)
        return self.padding[:, self.query_offset : self.query_offset + self.n_queries]

    @property
    def reachable(self) -> Int[Tensor, "batch query"]:
        """Number of keys each query may see; 0 for padding."""
        return self._scan.reachable

    @property
    def is_causal(self) -> bool:
        """Whether every real query sees exactly itself and all before it (padding on the right counts
        as causal: no real query can see it)."""
        return self._scan.is_causal

    def tiles(self) -> Iterator[list[Tile]]:
        """The tiles that hold anything visible: one list per block of ``QUERY_TILE`` queries."""
        yield from self._scan.tiles

    @cached_property
    def _scan(self) -> _Scan:
        return _scan(self)


@dataclass(frozen=True)
class _Scan:
    reachable: Int[Tensor, "batch query"]
    tiles: list[list[Tile]]
    is_causal: bool


def _scan(mask: IndexMask) -> _Scan:
    """Read the mask once, tile by tile."""
    reachable = torch.zeros(mask.batch, mask.n_queries, dtype=torch.long, device=mask.device)
    rows: list[list[Tile]] = []
    is_causal = mask.n_queries == mask.n_keys and mask.query_offset == mask.key_offset
    plain = IndexMask(causal, 1, mask.n_queries, mask.n_keys, device=mask.device)
    for start in range(0, mask.n_queries, QUERY_TILE):
        queries = slice(start, min(start + QUERY_TILE, mask.n_queries))
        real = mask.real_queries[:, None, queries, None]
        row = []
        for left in range(0, mask.n_keys, KEY_TILE):
            keys = slice(left, min(left + KEY_TILE, mask.n_keys))
            seen = mask.tile(queries, keys)
            reachable[:, queries] += seen.sum(-1)[:, 0]
            if is_causal:
                is_causal = bool(((seen == plain.tile(queries, keys)) | ~real).all())
            if seen.any():
                row.append(Tile(queries, keys, bool(seen.all())))
        rows.append(row)
    return _Scan(reachable, rows, is_causal)
