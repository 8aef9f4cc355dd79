"""Exact attention that also returns the log-sum-exp of every row, without writing the weights.

    score[q, k] = scale · query[q] · key[k]          (softcap: c · tanh(score / c))
    lse[q]      = log Σ_k exp(score[q, k])           (learned sink s: logaddexp(lse, s))
    z[q]        = Σ_k exp(score[q, k] − lse[q]) · value[k]

Two ways that must agree, chosen by :func:`attend`:

- *fused*: torch's flash operator (Dao, 2307.08691 keeps the same log-sum-exp per row), for plain
  causal masks. It must first agree with the tiled way on a small random case on this device and
  dtype; where it does not, it is not used.
- *tiled*: an online softmax (Milakov & Gimelshein, 1805.02867) in plain torch, for windows, soft
  caps, padding on the left, and any device; tiles that the mask leaves empty are skipped.

A learned sink (gpt-oss; facts: A = exp(score − logaddexp(lse, s))) rescales either result. A value
size other than the key size (latent attention) is padded with zeros for the fused operator.
Axes: query, z (batch, head, query, d_head); key, value (batch, kv_head, key, d_head); query head h
uses key-value head h // (n_heads / n_kv_heads), the order that transformers uses.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention.masks import IndexMask, causal
from interp.errors import InterpError

Engine = Literal["auto", "fused", "tiled"]


def check_engine(engine: str) -> None:
    """Refuse an engine that there is not."""
    if engine not in get_args(Engine):
        raise InterpError(f"engine={engine!r}: expected one of {', '.join(get_args(Engine))}")


class Attended(NamedTuple):
    """What :func:`attend` returns: z, the log-sum-exp (float32 or wider), and the path taken."""

    z: Float[Tensor, "batch head query d_value"]
    lse: Float[Tensor, "batch head query"]
    path: Literal["fused", "tiled"]


def attend(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_value"],
    *,
    scale: float,
    mask: IndexMask,
    softcap: float | None = None,
    sink: Float[Tensor, " head"] | None = None,
    engine: Engine = "auto",
) -> Attended:
    """Attention output and log-sum-exp of every row.

    A row that may see no key (padding) has z = 0 and lse = −inf.

    Raises:
        InterpError: ``engine="fused"`` was asked for where the fused operator does not serve.
    """
    obstacle = (
        _obstacle(query, value, mask, softcap, sink) if engine != "tiled" else "not asked for"
    )
    if obstacle and engine == "fused":
        raise InterpError(f"engine=fused cannot serve this attention: {obstacle}; use engine=auto")
    if obstacle:
        z, lse = attend_tiled(query, key, value, scale, mask, softcap)
    else:
        z, lse = _attend_fused(query, key, value, scale)
    if sink is not None:
        with_sink = torch.logaddexp(lse, sink.to(lse.dtype)[None, :, None])
        z = z * torch.exp(lse - with_sink)[..., None].to(z.dtype)
        lse = with_sink
    return Attended(z, lse, "tiled" if obstacle else "fused")


def softcapped(score: Tensor, softcap: float | None) -> Tensor:
    """c · tanh(score / c), or the score itself (Gemma 2)."""
    return score if softcap is None else softcap * torch.tanh(score / softcap)


def attend_tiled(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_value"],
    scale: float,
    mask: IndexMask,
    softcap: float | None = None,
) -> tuple[Float[Tensor, "batch head query d_value"], Float[Tensor, "batch head query"]]:
    """Online softmax, tile by tile: memory O(tile), any device, any head sizes.

    For each tile the running row maximum m, sum of exponentials and weighted sum of values are
    rescaled by exp(m_old − m_new). Query heads of one key-value head are folded into rows.
    """
    batch, n_heads, n_queries, _ = query.shape
    n_kv, d_value = key.shape[1], value.shape[-1]
    dtype = torch.promote_types(query.dtype, torch.float32)
    grouped = query.reshape(batch, n_kv, n_heads // n_kv, n_queries, -1)
    z = value.new_zeros(batch, n_kv, n_heads // n_kv, n_queries, d_value)
    lse = torch.empty(grouped.shape[:-1], dtype=dtype, device=query.device)
    for row in mask.tiles():
        if not row:
            continue
        rows = row[0].queries
        q = grouped[..., rows, :].to(dtype) * scale
        top = torch.full(q.shape[:-1], -torch.inf, dtype=dtype, device=q.device)
        total = torch.zeros_like(top)
        weighted = torch.zeros(*q.shape[:-1], d_value, dtype=dtype, device=q.device)
        for tile in row:
            k, v = (t[:, :, tile.keys].to(dtype) for t in (key, value))
            score = softcapped(q.flatten(2, 3) @ k.mT, softcap).unflatten(2, q.shape[2:4])
            if not tile.full:
                hidden = ~mask.tile(tile.queries, tile.keys)[:, :, None]
                score = score.masked_fill(hidden, -torch.inf)
            new_top = torch.maximum(top, score.amax(-1))
            # A row that has seen nothing yet keeps the maximum −inf; 0 stands in for the difference.
            finite = new_top.masked_fill(new_top.isneginf(), 0.0)
            weight = torch.exp(score - finite[..., None])
            shrink = torch.exp(top - finite)
            total = total * shrink + weight.sum(-1)
            mixed = (weight.flatten(2, 3) @ v).unflatten(2, q.shape[2:4])
            weighted = weighted * shrink[..., None] + mixed
            top = new_top
        seen = total > 0
        z[..., rows, :] = (weighted / total.masked_fill(~seen, 1.0)[..., None]).to(z.dtype)
        lse[..., rows] = top + torch.log(total)
    empty = ~mask.reachable.bool()[:, None, None]
    lse = lse.masked_fill(empty, -torch.inf)
    return (
        z.masked_fill(empty[..., None], 0.0).reshape(batch, n_heads, n_queries, d_value),
        lse.reshape(batch, n_heads, n_queries),
    )


def _obstacle(
    query: Tensor, value: Tensor, mask: IndexMask, softcap: float | None, sink: Tensor | None
) -> str | None:
    """Why the fused operator does not serve here, or None."""
    if sink is not None and torch.is_grad_enabled() and query.requires_grad:
        return (
            "a learned sink needs the gradient of the log-sum-exp, which the operator does not give"
        )
    device, dtype = query.device.type, query.dtype
    if softcap is not None:
        return "scores have a soft cap"
    if value.shape[-1] > query.shape[-1]:
        return f"values ({value.shape[-1]}) are wider than keys ({query.shape[-1]})"
    if not mask.is_causal:
        return "the mask is not plain causal (window, padding on the left, or a cache)"
    if device not in _FUSED:
        return f"no fused operator that returns the log-sum-exp on {device}"
    if not _fused_agrees(device, dtype, query.shape[-1]):
        return f"the fused operator disagrees with the tiled path on {device}, {dtype}"
    return None


def _attend_fused(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    d_value = value.shape[-1]
    if d_value != query.shape[-1]:
        value = torch.nn.functional.pad(value, (0, query.shape[-1] - d_value))
    z, lse = _FUSED[query.device.type](query, key, value, scale)
    return z[..., :d_value], lse


def _fused_cpu(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, True, scale=scale
    )


def _fused_cuda(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    groups = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
    if query.dtype == torch.float32:
        out = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True, 0.0, True, scale=scale
        )
        # The operator rounds the length of its log-sum-exp up to a multiple of 32.
        return out[0], out[1][..., : query.shape[2]]
    out = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, 0.0, True, False, scale=scale
    )
    return out[0], out[1]


_FUSED = {"cpu": _fused_cpu, "cuda": _fused_cuda}
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


@lru_cache(maxsize=64)
def _fused_agrees(device: str, dtype: torch.dtype, d_head: int) -> bool:
    """Hold the fused operator against the tiled path on a small grouped-query case."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, heads, 70, d_head, generator=generator).to(device, dtype)
        for heads in (4, 2, 2)
    )
    mask = IndexMask(causal, 2, 70, 70, device=torch.device(device))
    try:
        fused = _attend_fused(query, key, value, 0.3)
    except (RuntimeError, NotImplementedError):  # not built for this device, dtype or head size
        return False
    tiled = attend_tiled(query, key, value, 0.3, mask)
    tolerance = _TOLERANCE.get(dtype, 3e-2)
    return all(
        torch.allclose(a.float(), b.float(), atol=tolerance, rtol=tolerance)
        for a, b in zip(fused, tiled, strict=True)
    )
