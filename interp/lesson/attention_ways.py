"""The four ways of attention that :mod:`interp.lesson.cost` compares, and the measurement of one of them.

What a fresh process needs and nothing else: it imports no table, so that it starts quickly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from interp.attention.kernels import attend
from interp.attention.masks import IndexMask, causal
from interp.attention.pattern import AttentionPattern
from interp.lesson.online_softmax import online_attention
from interp.runs.environment import peak_memory


def eager(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """(output, weights), both written out."""
    n = query.shape[-2]
    future = torch.ones(n, n, dtype=torch.bool, device=query.device).triu(1)
    score = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(future, -torch.inf)
    weights = score.softmax(-1)
    return weights @ value, weights


def fused(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """(output,) of torch's operator."""
    return (torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True),)


def ours(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """(output, mass on key 0, mass on the token before), from the log-sum-exp."""
    scale, mask = query.shape[-1] ** -0.5, _causal_mask(len(query), query.shape[-2])
    z, lse, path = attend(query, key, value, scale=scale, mask=mask)
    pattern = AttentionPattern(query, key, lse, scale, mask, path=path)
    return z, pattern.keys(torch.zeros(1, dtype=torch.long)), pattern.offset(1)


@lru_cache(maxsize=1)
def _causal_mask(batch: int, n: int) -> IndexMask:
    """Read once and shared by the calls, as the layers of a model share theirs."""
    return IndexMask(causal, batch, n, n)


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]] = {
    "eager": eager,
    "fused": fused,
    "ours": ours,
    "online": online_attention,
}
_COUNTED = ("eager", "online")  # inside an operator torch counts by a formula, not what is computed


class Measured(NamedTuple):
    """What one process found."""

    seconds: list[float]
    memory: float
    output: np.ndarray


@torch.no_grad()
def measure(
    way: str, n: int, n_heads: int, d_head: int, repeats: int, threads: int | None, seed: int
) -> Measured:
    """Measure one way at one length, in this process."""
    if threads is not None:
        torch.set_num_threads(threads)
    attention = WAYS[way]
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(1, n_heads, n, d_head, generator=generator) for _ in range(3)]
    attention(
        *(part[:, :, :2] for part in inputs)
    )  # what is set up once, such as the kernels' own check
    before = peak_memory()
    output = attention(*inputs)[0]
    after = peak_memory()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        attention(*inputs)
        seconds.append(time.perf_counter() - start)
    memory = float("nan") if before is None or after is None else float(after - before)
    return Measured(seconds, memory, output.numpy())


def count_flops(way: str, n: int, n_heads: int, d_head: int) -> float:
    """FLOPs as torch counts them, from shapes alone (tensors without data); NaN where it can't see them."""
    if way not in _COUNTED:
        return float("nan")
    inputs = [torch.empty(1, n_heads, n, d_head, device="meta") for _ in range(3)]
    with FlopCounterMode(display=False) as counter:
        WAYS[way](*inputs)
    return float(counter.get_total_flops())
