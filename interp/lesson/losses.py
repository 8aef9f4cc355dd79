"""The loss of every token of a text, nats: of a model as it is, or under whatever is open around the call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.inputs.prompts import Prompt
from interp.models.forward import logits_at
from interp.models.model import Model

# Logits held at a time.
LOGITS = 100_000_000


def losses_of(model: Model, ids: Int[Tensor, "batch pos"]) -> Float[np.ndarray, "batch pos"]:
    """−log p(token) of every token; NaN for the first, which nothing predicts."""
    n = ids.shape[1]
    logits = logits_at(model, ids, torch.arange(n - 1, device=ids.device).expand(len(ids), -1))
    return with_first(token_losses(logits, ids[:, 1:]))


def token_losses(
    logits: Float[Tensor, "*place d_vocab"], tokens: Int[Tensor, "*place"]
) -> Float[np.ndarray, "*place"]:
    """−log p(token)."""
    log_p = logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    return (-log_p).double().cpu().numpy()


def with_first(losses: Float[np.ndarray, "batch later"]) -> Float[np.ndarray, "batch pos"]:
    """With a NaN for the token that nothing predicts."""
    return np.hstack([np.full((len(losses), 1), np.nan), losses])


def id_batches(
    model: Model, prompts: Sequence[Prompt], held: int = 1
) -> Iterator[tuple[slice, Int[Tensor, "batch pos"]]]:
    """Which of the prompts, all of one length, and their ids: as many at a time as :data:`LOGITS` allows.

    Args:
        held: passes whose logits are there at the same time.
    """
    size = max(1, LOGITS // (held * len(prompts[0].ids) * model.vocab_size))
    for start in range(0, len(prompts), size):
        members = slice(start, start + size)
        yield members, torch.tensor([p.ids for p in prompts[members]], device=model.device)
