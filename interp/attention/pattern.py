"""A pattern you can question without writing it down.

    weight[q, k] = exp(score[q, k] − lse[q]),   score = softcap(scale · query[q] · key[k])

:class:`AttentionPattern` keeps query, key and the log-sum-exp of every row and works out exactly the
weights it is asked for: chosen pairs, an offset, columns, rows; column totals and entropies a tile at
a time. Only :meth:`Pattern.dense` writes all n × n, for pictures and tests.
:class:`DensePattern` answers the same questions from weights that are already written (models that
bypass the door, and patterns made by hand).

Axes: weights are (batch, head, query, key), always in this order. What a query cannot see has weight
exactly 0; a padding query has weight 0 everywhere, and ``mask.reachable`` says so. With a learned
sink the weights of a row sum to less than 1; :meth:`Pattern.learned_sink` is the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention.kernels import softcapped
from interp.attention.masks import KEY_TILE, QUERY_TILE, IndexMask
from interp.errors import InterpError
from interp.words import counted

# Gathered pairs are (pair, head, d_head) floats: a bound on how many are held at once.
PAIR_CHUNK = 16_384
# Queries that share one matrix product when a band of distances is asked for.
BAND_BLOCK = 8


class Pattern(ABC):
    """The attention pattern of one layer, for a batch of prompts.

    ``path`` says where its numbers come from: "fused", "tiled", "transformer_lens" or "given".
    """

    mask: IndexMask
    path: str

    @property
    @abstractmethod
    def n_heads(self) -> int:
        """Number of query heads."""

    @abstractmethod
    def pairs(
        self, batch: Int[Tensor, " pair"], query: Int[Tensor, " pair"], key: Int[Tensor, " pair"]
    ) -> Float[Tensor, "head pair"]:
        """The weight of each (batch, query, key) triple, for every head."""

    @abstractmethod
    def rows(self, index: Int[Tensor, " row"]) -> Float[Tensor, "batch head row key"]:
        """Whole rows: the weights of the chosen queries on every key."""

    @abstractmethod
    def keys(self, index: Int[Tensor, " column"]) -> Float[Tensor, "batch head query column"]:
        """Whole columns: the weights of every query on the chosen keys."""

    @abstractmethod
    def head_keys(
        self, index: Int[Tensor, "batch head column"], queries: slice
    ) -> Float[Tensor, "batch head query column"]:
        """Columns of each head's own: the weights of a range of queries on keys chosen for that head."""

    @abstractmethod
    def learned_sink(self) -> Float[Tensor, "batch head query"] | None:
        """Mass on the learned sink (gpt-oss), or None where the model has none."""

    @abstractmethod
    def offset(self, distance: int) -> Float[Tensor, "batch head later_query"]:
        """The weight of query i on key i − distance, for i = distance … n − 1 (self-attention)."""

    def band(self, nearest: int, farthest: int) -> Float[Tensor, "batch head distance later_query"]:
        """The weight of query i on keys i − ``farthest`` … i − ``nearest``, in this order, for
        i = ``nearest`` … n − 1; 0 before the first key."""
        parts = []
        for distance in range(farthest, nearest - 1, -1):
            weights = self.offset(distance)
            parts.append(torch.nn.functional.pad(weights, (distance - nearest, 0)))
        return torch.stack(parts, dim=2)

    def _check_offset(self, distance: int) -> None:
        n = self.mask.n_queries
        if n != self.mask.n_keys:
            raise InterpError(
                f"offsets need as many keys as queries, got {self.mask.n_keys} and {n}"
            )
        if not 0 <= distance < n:
            raise InterpError(f"offset {distance} asked of a pattern over {n} tokens: 0 to {n - 1}")

    def tiles(self) -> Iterator[tuple[slice, Float[Tensor, "batch head rows key"]]]:
        """All weights, ``QUERY_TILE`` rows at a time: (slice of queries, their weights)."""
        n = self.mask.n_queries
        for start in range(0, n, QUERY_TILE):
            queries = slice(start, min(start + QUERY_TILE, n))
            yield queries, self.rows(torch.arange(start, queries.stop, device=self.mask.device))

    def received(
        self, queries: Int[Tensor, " row"] | None = None
    ) -> Float[Tensor, "batch head key"]:
        """Column totals: Σ over ``queries`` (all, if not given) of the weight on each key."""
        if queries is None:
            return torch.stack([rows.sum(2) for _, rows in self.tiles()]).sum(0)
        return torch.stack([self.rows(part).sum(2) for part in queries.split(QUERY_TILE)]).sum(0)

    def entropy(self) -> Float[Tensor, "batch head query"]:
        """−Σ w log w of each row over real keys, in nats; 0 for a row with one key."""
        parts = [-torch.xlogy(rows, rows).sum(-1) for _, rows in self.tiles()]
        return torch.cat(parts, dim=-1)

    def dense(self) -> Float[Tensor, "batch head query key"]:
        """All n × n weights, written out: for pictures and tests."""
        return torch.cat([rows for _, rows in self.tiles()], dim=2)


@dataclass(frozen=True, eq=False)
class AttentionPattern(Pattern):
    """A lazy pattern, from the tensors that passed through the door.

    Attributes:
        query: (batch, head, query, d_head), after position encoding.
        key: (batch, kv_head, key, d_head).
        lse: (batch, head, query) log-sum-exp of each row, the learned sink included; −inf for a row
            that sees nothing.
        scale, softcap: of the scores.
        mask: which keys a query may see.
        sink: (head,) learned sink logits, or None.
        path: the kernel that made ``lse``: "fused" or "tiled".
    """

    query: Float[Tensor, "batch head query d_head"]
    key: Float[Tensor, "batch kv_head key d_head"]
    lse: Float[Tensor, "batch head query"]
    scale: float
    mask: IndexMask
    softcap: float | None = None
    sink: Float[Tensor, " head"] | None = None
    path: str = "tiled"

    def __repr__(self) -> str:
        return (
            f"AttentionPattern({counted(self.mask.batch, 'prompt')}, {self.n_heads} heads on "
            f"{self.key.shape[1]}, {self.mask.n_queries} queries, {self.mask.n_keys} keys, {self.path})"
        )

    @property
    def n_heads(self) -> int:
        return self.query.shape[1]

    @property
    def _groups(self) -> int:
        return self.n_heads // self.key.shape[1]

    def _weights(self, dot: Tensor, lse: Tensor, seen: Tensor) -> Tensor:
        """Weights from q · k, the rows' log-sum-exp, and what the mask lets them see.

        An unseen key may score far above the log-sum-exp, and exp overflow: hence the clamp, which
        leaves the seen as they are (no weight exceeds 1) and lets the rest be multiplied by 0, four
        times faster than to choose them away. In place, since ``dot`` is always fresh.
        """
        exponent = softcapped(dot.mul_(self.scale), self.softcap).sub_(lse).clamp_(max=0)
        weight = exponent.exp_()
        # The gradient of exp needs its result untouched.
        return weight * seen if weight.requires_grad else weight.mul_(seen)

    def pairs(
        self, batch: Int[Tensor, " pair"], query: Int[Tensor, " pair"], key: Int[Tensor, " pair"]
    ) -> Float[Tensor, "head pair"]:
        parts = []
        for b, q, k in zip(*(t.split(PAIR_CHUNK) for t in (batch, query, key)), strict=True):
            rows = rearrange(self.query[b, :, q], "p (kv g) d -> p kv g d", g=self._groups)
            dot = torch.einsum("pkgd,pkd->pkg", *self._wide(rows, self.key[b, :, k]))
            seen = self.mask.allowed(b, q, k)[:, None]
            parts.append(self._weights(dot.flatten(1), self.lse[b, :, q], seen).mT)
        if not parts:
            return self.lse.new_zeros(self.n_heads, 0)
        return torch.cat(parts, dim=1)

    def rows(self, index: Int[Tensor, " row"]) -> Float[Tensor, "batch head row key"]:
        parts = []
        for start in range(0, self.mask.n_keys, KEY_TILE):
            keys = slice(start, min(start + KEY_TILE, self.mask.n_keys))
            seen = self.mask.block(index, torch.arange(start, keys.stop, device=index.device))
            # Nothing is multiplied where the mask hides all of it.
            parts.append(
                self._block(index, keys, seen)
                if seen.any()
                else self.lse.new_zeros(self.mask.batch, self.n_heads, *seen.shape[2:])
            )
        return torch.cat(parts, dim=-1)

    def received(
        self, queries: Int[Tensor, " row"] | None = None
    ) -> Float[Tensor, "batch head key"]:
        if queries is None:
            queries = torch.arange(self.mask.n_queries, device=self.mask.device)
        total = self.lse.new_zeros(self.mask.batch, self.n_heads, self.mask.n_keys)
        for rows in queries.split(QUERY_TILE):
            # Rows that see none of a tile's keys add nothing.
            for tile in self.mask.seen_by(rows):
                total[..., tile.keys] += self._block(tile.queries, tile.keys, tile.seen).sum(2)
        return total

    def offset(self, distance: int) -> Float[Tensor, "batch head later_query"]:
        self._check_offset(distance)
        n = self.mask.n_queries
        query, key = self._wide(self.query[:, :, distance:], self.key[:, :, : n - distance])
        grouped = rearrange(query, "b (kv g) q d -> b kv g q d", g=self._groups)
        dot = (grouped * key[:, :, None]).sum(-1).flatten(1, 2)
        return self._weights(
            dot, self.lse[:, :, distance:], self.mask.behind(distance, distance)[:, :, 0]
        )

    def band(self, nearest: int, farthest: int) -> Float[Tensor, "batch head distance later_query"]:
        # Blocks of queries times the keys any of them needs, of which the diagonals are kept: one
        # matrix product, where each distance by itself would write out (query, d_head) products.
        self._check_offset(farthest)
        later, step, width = self.mask.n_queries - nearest, BAND_BLOCK, farthest - nearest + 1
        # Whole blocks end with the prompt: they begin with queries that are dropped again.
        extra = -later % step
        # Keys that each block needs; before the first, where no one looks, the first stands in.
        first = torch.arange(nearest - extra, self.mask.n_queries, step, device=self.mask.device)
        window = first[:, None] - farthest + torch.arange(step + width - 1, device=first.device)
        windows = self.key.index_select(2, window.clamp(min=0).flatten())
        query, key = self._wide(self.query[:, :, max(nearest - extra, 0) :], windows)
        if extra > nearest:
            query = torch.nn.functional.pad(query, (0, 0, extra - nearest, 0))
        blocks = rearrange(
            query, "b (kv g) (block q) d -> b kv block (q g) d", g=self._groups, q=step
        )
        dot = blocks @ key.unflatten(2, window.shape).mT
        dot = dot.unflatten(3, (step, self._groups))
        # Query q of a block sees its farthest key in column q, its nearest in column q + width − 1.
        *outer, row, head, column = dot.stride()
        shape = (*dot.shape[:5], width)
        dot = dot.as_strided(shape, (*outer, row + column, head, column))
        dot = rearrange(dot, "b kv block q g gap -> b (kv g) gap (block q)")[..., extra:]
        seen = self.mask.behind(nearest, farthest)
        return self._weights(dot, self.lse[:, :, None, nearest:], seen)

    def keys(self, index: Int[Tensor, " column"]) -> Float[Tensor, "batch head query column"]:
        key = self.key[:, :, index].repeat_interleave(self._groups, dim=1)
        return self._columns(key, index[:, None], slice(None))

    def head_keys(
        self, index: Int[Tensor, "batch head column"], queries: slice
    ) -> Float[Tensor, "batch head query column"]:
        batch = torch.arange(self.mask.batch, device=index.device)[:, None, None]
        kv_head = torch.arange(self.n_heads, device=index.device)[:, None] // self._groups
        return self._columns(self.key[batch, kv_head, index], index[..., None], queries)

    def _columns(self, key: Tensor, index: Tensor, queries: slice) -> Tensor:
        """(batch, head, query, column): ``queries`` on keys (batch, head, column, d_head), which are
        those of ``index``.

        Columns are few: written as rows, and keys copied to heads, not queries, which are many.
        """
        query, key = self._wide(self.query[:, :, queries], key)
        batch = torch.arange(self.mask.batch, device=self.mask.device)[:, None, None, None]
        positions = torch.arange(self.mask.n_queries, device=self.mask.device)[queries]
        seen = self.mask.allowed(batch, positions, index)
        return self._weights(key @ query.mT, self.lse[:, :, None, queries], seen).mT

    def _block(self, queries: Tensor, keys: slice, seen: Tensor) -> Tensor:
        """(batch, head, query, key): chosen queries × a tile of keys, of which some are ``seen``."""
        query, key = self._wide(self.query[:, :, queries], self.key[:, :, keys])
        grouped = rearrange(query, "b (kv g) q d -> b kv (g q) d", g=self._groups)
        dot = rearrange(grouped @ key.mT, "b kv (g q) k -> b (kv g) q k", g=self._groups)
        return self._weights(dot, self.lse[:, :, queries, None], seen)

    def learned_sink(self) -> Float[Tensor, "batch head query"] | None:
        if self.sink is None:
            return None
        # lse includes the sink, so its share is a plain exponential, no sigmoid needed.
        share = torch.exp(self.sink.to(self.lse.dtype)[None, :, None] - self.lse)
        return share.masked_fill(~self.mask.reachable.bool()[:, None], 0.0)

    def _wide(self, *tensors: Tensor) -> list[Tensor]:
        """In the dtype of the log-sum-exp: float32 at least, since bfloat16 sums drift."""
        return [t.to(self.lse.dtype) for t in tensors]


@dataclass(frozen=True, eq=False)
class DensePattern(Pattern):
    """The same questions, answered from written weights.

    Attributes:
        weights: (batch, head, query, key); rows of real queries must be probabilities.
        mask: which keys a query may see.

    Raises:
        InterpError: a weight is negative or not a number, a row does not sum to 1, or a real query
            looks where the mask forbids; the message names the head.
    """

    weights: Float[Tensor, "batch head query key"]
    mask: IndexMask
    path: str = "given"

    def __post_init__(self) -> None:
        check_probabilities(self.weights, self.mask)
        real = self.mask.real_queries[:, None, :, None]
        object.__setattr__(self, "weights", self.weights.float().where(real, 0.0))

    @property
    def n_heads(self) -> int:
        return self.weights.shape[1]

    def pairs(
        self, batch: Int[Tensor, " pair"], query: Int[Tensor, " pair"], key: Int[Tensor, " pair"]
    ) -> Float[Tensor, "head pair"]:
        return self.weights[batch, :, query, key].mT

    def rows(self, index: Int[Tensor, " row"]) -> Float[Tensor, "batch head row key"]:
        return self.weights[:, :, index]

    def keys(self, index: Int[Tensor, " column"]) -> Float[Tensor, "batch head query column"]:
        return self.weights[..., index]

    def offset(self, distance: int) -> Float[Tensor, "batch head later_query"]:
        self._check_offset(distance)
        return self.weights.diagonal(-distance, dim1=-2, dim2=-1)

    def head_keys(
        self, index: Int[Tensor, "batch head column"], queries: slice
    ) -> Float[Tensor, "batch head query column"]:
        weights = self.weights[:, :, queries]
        return weights.gather(-1, index[:, :, None].expand(-1, -1, weights.shape[2], -1))

    def learned_sink(self) -> None:
        return None


@dataclass(frozen=True, eq=False)
class EditedPattern(DensePattern):
    """Weights after an edit: exact, but no longer sure to be a probability.

    Attributes:
        sink_mass: (batch, head, query) mass on the learned sink, or None.
    """

    path: str = "edited"
    sink_mass: Float[Tensor, "batch head query"] | None = None

    def __post_init__(self) -> None:
        pass

    def learned_sink(self) -> Float[Tensor, "batch head query"] | None:  # type: ignore[override]
        return self.sink_mass


def check_probabilities(weights: Float[Tensor, "batch head query key"], mask: IndexMask) -> None:
    """Refuse what is not attention: see :class:`DensePattern`."""
    batch, _, n_queries, n_keys = weights.shape
    if (batch, n_queries, n_keys) != (mask.batch, mask.n_queries, mask.n_keys):
        raise InterpError(
            f"pattern of {batch} prompts × {n_queries} queries × {n_keys} keys does not fit "
            f"{mask.batch} prompts × {mask.n_queries} × {mask.n_keys} tokens"
        )
    # Rows of bfloat16 weights, summed in float32, miss 1 by up to 0.002.
    tolerance = 1e-5 if weights.dtype in (torch.float32, torch.float64) else 4e-3
    weights, real = weights.float(), mask.real_queries[:, None, :, None]
    seen = mask.tile(slice(0, n_queries), slice(0, n_keys))
    for wrong, complaint in (
        (weights.isnan() & real, "weights that are not numbers"),
        ((weights < 0) & real, "negative weights: this attention is not a probability"),
        ((weights != 0) & ~seen & real, "weight on keys the query cannot see (the future?)"),
        (
            ((weights.sum(-1, keepdim=True) - 1).abs() > tolerance) & real,
            "rows that do not sum to 1",
        ),
    ):
        if wrong.any():
            b, head, query, _ = (int(i) for i in wrong.nonzero()[0])
            raise InterpError(f"prompt {b}, head {head}, query {query}: {complaint}")
