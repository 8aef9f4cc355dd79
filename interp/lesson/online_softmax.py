"""Attention without ever holding a whole row of weights: the online softmax, tile by tile, to be read.

    for each tile of keys:
        score  = scale · query · key                           of this tile
        top′   = max(top, max score)                           the largest score so far
        shrink = exp(top − top′)                               what was added up before was too large by this
        total  = total · shrink + Σ exp(score − top′)
        z      = z · shrink + Σ exp(score − top′) · value
    at the end:  z / total,  log-sum-exp = top + log total

The same sums as the whole softmax, in another order, with tile × tile numbers at a time in place of n × n.
With the causal mask, tiles wholly in the future are not computed, which saves almost half of the work.
Sources: Milakov & Gimelshein (1805.02867); Dao et al. (2205.14135). What the library itself uses, with
windows, padding and grouped queries, is :func:`interp.attention.kernels.attend_tiled`.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InterpError


def online_attention(
    query: Float[Tensor, "*head query d_head"],
    key: Float[Tensor, "*head key d_head"],
    value: Float[Tensor, "*head key d_value"],
    *,
    causal: bool = True,
    tile: int = 128,
) -> tuple[Float[Tensor, "*head query d_value"], Float[Tensor, "*head query"]]:
    """(output, log-sum-exp of each row), with scale 1/√d_head.

    Args:
        causal: a query sees the keys up to its own position; queries are then as many as keys.
        tile: rows and columns of a tile.

    Raises:
        InterpError: a tile below 1, no keys, or the causal mask with another number of queries than keys.
    """
    n_queries, n_keys = query.shape[-2], key.shape[-2]
    if tile < 1 or not n_keys:
        raise InterpError(f"tile={tile}, {n_keys} keys: expected 1 or more of each")
    if causal and n_queries != n_keys:
        raise InterpError(
            f"{n_queries} queries and {n_keys} keys: the causal mask needs as many of both"
        )
    outputs, sums = [], []
    for first in range(0, n_queries, tile):
        rows = query[..., first : first + tile, :] / math.sqrt(query.shape[-1])
        top = rows.new_full(rows.shape[:-1], -torch.inf)
        total = torch.zeros_like(top)
        z = rows.new_zeros(*rows.shape[:-1], value.shape[-1])
        seen = first + rows.shape[-2] if causal else n_keys  # later tiles are all future
        for start in range(0, seen, tile):
            keys = slice(start, min(start + tile, n_keys))
            score = rows @ key[..., keys, :].mT
            if causal and keys.stop > first + 1:  # the diagonal passes through this tile
                future = torch.ones_like(score, dtype=torch.bool).triu(first - start + 1)
                score = score.masked_fill(future, -torch.inf)
            new_top = torch.maximum(top, score.amax(-1))
            shrink = torch.exp(top - new_top)
            weight = torch.exp(score - new_top[..., None])
            total = total * shrink + weight.sum(-1)
            z = z * shrink[..., None] + weight @ value[..., keys, :]
            top = new_top
        outputs.append(z / total[..., None])
        sums.append(top + total.log())
    return torch.cat(outputs, -2), torch.cat(sums, -1)
