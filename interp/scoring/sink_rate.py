"""The attention-sink rate of Gu et al. (2410.10781, §2.2): a share of heads, not a mass.

    α[l, h]  = 1/T Σ_{t=1..T} weight[t, 1]               mean attention to the first token, t = 1 too
    Sink_1^ε = mean over prompts, layers and heads of 1[α[l, h] > ε],   ε = 0.3, T = 64

The indicator is taken for each prompt, then averaged. α is at least 1/T, and 0.074 at T = 64 for
uniform attention; the rate falls with T, so T is fixed: of longer prompts the first T tokens are run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention.kernels import Engine
from interp.attention.pattern import Pattern
from interp.errors import InterpError
from interp.inputs.prompts import Prompt, as_prompts
from interp.models.forward import batches, capture
from interp.results import stats

if TYPE_CHECKING:
    from interp.models.model import Model


def sink_rate(
    model: Model,
    prompts: Sequence[Prompt] | Prompt,
    *,
    epsilon: float = 0.3,
    tokens: int = 64,
    engine: Engine = "auto",
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """The rate of each layer and of the whole model ("all"), with its interval over prompts or templates.

    Args:
        prompts: each at least ``tokens`` long.
        epsilon: a head is a sink on a prompt when α is strictly above it.
        tokens: T.
        progress: called with the number of prompts done after each batch.

    Returns:
        Columns: layer, sink_rate, ci_low, ci_high, epsilon, tokens, n_heads, n_prompts.

    Raises:
        InterpError: a prompt is shorter than T, or whatever :func:`interp.models.forward.capture` refuses.
    """
    prompts = as_prompts(prompts)
    short = [prompt.name for prompt in prompts if len(prompt.ids) < tokens]
    if short:
        raise InterpError(
            f"sink_rate needs prompts of {tokens} tokens or more; too short: {', '.join(short[:5])}"
        )
    found: dict[int, list[Tensor]] = {}

    def look(layer: int, pattern: Pattern, z: Tensor) -> None:
        found.setdefault(layer, []).append(alphas(pattern).cpu())

    # All are of one length now, so that the batches keep their order.
    for batch in batches([replace(prompt, ids=prompt.ids[:tokens]) for prompt in prompts]):
        capture(model, batch, look, engine=engine)
        if progress is not None:
            progress(len(batch))
    return rate_table(
        {layer: torch.cat(of_batches).numpy() for layer, of_batches in sorted(found.items())},
        [prompt.group for prompt in prompts],
        epsilon=epsilon,
        tokens=tokens,
        confidence=confidence,
        seed=seed,
    )


def alphas(pattern: Pattern) -> Float[Tensor, "batch head"]:
    """α of one layer: mean attention to the first token, of all queries."""
    first = torch.zeros(1, dtype=torch.long, device=pattern.mask.device)
    return pattern.keys(first)[..., 0].double().mean(-1)


def rate_table(
    found: Mapping[int, Float[np.ndarray, "prompt head"]],
    groups: Sequence[str],
    *,
    epsilon: float,
    tokens: int,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """From α to the rates; ``groups`` says which prompts count as one observation."""
    sinks = {str(layer): (alpha > epsilon).astype(float) for layer, alpha in found.items()}
    sinks["all"] = np.concatenate(list(sinks.values()), axis=1)
    by_prompt = np.stack([heads.mean(1) for heads in sinks.values()], axis=1)
    observed = stats.over_templates(by_prompt, groups)
    low, high = stats.bootstrap_interval(observed, confidence=confidence, seed=seed)
    return pd.DataFrame(
        {
            "layer": list(sinks),
            "sink_rate": observed.mean(0),
            "ci_low": low,
            "ci_high": high,
            "epsilon": epsilon,
            "tokens": tokens,
            "n_heads": [heads.shape[1] for heads in sinks.values()],
            "n_prompts": len(by_prompt),
        }
    )
