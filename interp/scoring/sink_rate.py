"""The attention-sink rate of Gu et al. (2410.10781, §2.2): a share of heads, not a mass.

    α[l, h]  = 1/T Σ_{t=1..T} weight[t, 1]               mean attention to the first token, t = 1 too
    Sink_1^ε = mean over prompts, layers and heads of 1[α[l, h] > ε],   ε = 0.3, T = 64

The indicator is taken for each prompt, then averaged. α is at least 1/T, and 0.074 at T = 64 for
uniform attention; the rate falls with T, so T is fixed. In a causal model the first T rows of a
longer prompt are those of its first T tokens, so longer prompts serve as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from interp.attention.pattern import Pattern
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.models.forward import batches
from interp.results import stats


class SinkRate:
    """Collects α in the same pass as the scores: give :meth:`look` to ``score_heads(also=...)``.

    Args:
        prompts: the prompts, in the order they are run; each at least ``tokens`` long.
        epsilon: a head is a sink on a prompt when α is strictly above it.
        tokens: T.

    Raises:
        InterpError: a prompt is shorter than T.
    """

    def __init__(self, prompts: Sequence[Prompt], epsilon: float = 0.3, tokens: int = 64) -> None:
        short = [prompt.name for prompt in prompts if len(prompt.ids) < tokens]
        if short:
            raise InterpError(
                f"sink_rate needs prompts of {tokens} tokens or more; too short: {', '.join(short[:5])}"
            )
        self.epsilon, self.tokens = epsilon, tokens
        self._groups = [
            prompt.group for batch in batches(prompts) for prompt in batch
        ]  # as they are run
        self._alphas: dict[int, list[Tensor]] = {}

    def look(self, layer: int, pattern: Pattern, z: Tensor) -> None:
        """Collect α of one layer: (batch, head)."""
        first = pattern.keys(torch.zeros(1, dtype=torch.long, device=pattern.mask.device))[..., 0]
        alpha = first[:, :, : self.tokens].double().mean(-1)
        self._alphas.setdefault(layer, []).append(alpha.cpu())

    def table(self, *, confidence: float = 0.95, seed: int = 0) -> pd.DataFrame:
        """The rate of each layer and of the whole model ("all"), with its interval over prompts or templates.

        Columns: layer, sink_rate, ci_low, ci_high, epsilon, tokens, n_heads, n_prompts.
        """
        sinks = {
            str(layer): (torch.cat(parts) > self.epsilon).double().numpy()
            for layer, parts in sorted(self._alphas.items())
        }
        sinks["all"] = np.concatenate(list(sinks.values()), axis=1)
        by_prompt = np.stack([heads.mean(1) for heads in sinks.values()], axis=1)
        observed = stats.over_templates(by_prompt, self._groups)
        low, high = stats.bootstrap_interval(observed, confidence=confidence, seed=seed)
        return pd.DataFrame(
            {
                "layer": list(sinks),
                "sink_rate": observed.mean(0),
                "ci_low": low,
                "ci_high": high,
                "epsilon": self.epsilon,
                "tokens": self.tokens,
                "n_heads": [heads.shape[1] for heads in sinks.values()],
                "n_prompts": len(by_prompt),
            }
        )
