"""Many heads for the price of one: h heads of width d/h cost what one head of width d costs.

    projections (query, key, value, output)   4 · 2·n·d²        whatever h is
    scores and weighted sum                   2 · h·2·n²·d/h = 4·n²·d

for n tokens and width d; a multiplication and an addition are two FLOPs, and the half that the causal mask
hides is computed here and thrown away. What does grow with h are the h·n² exponentials of the softmax, which
are no matrix products and are not among the FLOPs. Source: Vaswani et al. (1706.03762), section 3.2.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from interp.errors import InterpError
from interp.lesson.tables import MULTI_HEAD_FLOPS


def multi_head(
    residual: Float[Tensor, "pos d_model"],
    projections: Sequence[Float[Tensor, "d_model d_model"]],
    n_heads: int,
) -> Float[Tensor, "pos d_model"]:
    """Causal attention of ``n_heads`` heads, with weights written out.

    Args:
        residual: what is read.
        projections: W_Q, W_K, W_V, W_O; the first three side by side for all heads.
        n_heads: heads, each of width d_model / n_heads.

    Raises:
        InterpError: the width does not divide into so many heads.
    """
    n, d_model = residual.shape
    if n_heads < 1 or d_model % n_heads:
        raise InterpError(f"a width of {d_model} does not divide into {n_heads} heads")
    *reading, w_output = projections
    query, key, value = (
        rearrange(residual @ w, "pos (head d_head) -> head pos d_head", head=n_heads)
        for w in reading
    )
    scores = query @ key.mT / math.sqrt(d_model // n_heads)
    future = torch.ones(n, n, dtype=torch.bool, device=residual.device).triu(1)
    z = scores.masked_fill(future, -torch.inf).softmax(-1) @ value
    return rearrange(z, "head pos d_head -> pos (head d_head)") @ w_output


def count_flops(length: int, d_model: int, n_heads: Sequence[int]) -> pd.DataFrame:
    """FLOPs of one layer's attention for each number of heads, as ``tables.MULTI_HEAD_FLOPS`` describes.

    Counted by torch as the operators run, on tensors without data.

    Raises:
        InterpError: the width does not divide into so many heads.
    """
    residual = torch.empty(length, d_model, device="meta")
    projections = [torch.empty(d_model, d_model, device="meta") for _ in range(4)]
    rows = []
    for n in n_heads:
        with FlopCounterMode(display=False) as counter:
            multi_head(residual, projections, n)
        by_operator = counter.get_flop_counts()["Global"]
        projected, attended = (by_operator[op] for op in (torch.ops.aten.mm, torch.ops.aten.bmm))
        rows.append(
            {
                "n_heads": n,
                "d_head": d_model // n,
                "projection_flops": projected,
                "attention_flops": attended,
                "flops": counter.get_total_flops(),
                "exponentials": n * length**2,
            }
        )
    return MULTI_HEAD_FLOPS.validate(pd.DataFrame(rows))
