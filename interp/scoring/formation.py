"""What a checkpoint has formed: each head's roles and the loss on repeats, at one training step.

On prompts [BOS], r, r of random tokens (Olsson et al., 2209.11895: the induction bump),

    fresh_loss   = mean of −log p(token), nats, over the first r: at best log(number of tokens)
    repeat_loss  = the same over the second r, without its first token, which nothing foretells

and the scores of ``interp.scoring.scores``. :func:`formed` says, for one head role, from which step on some
head has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp.errors import InterpError
from interp.models.forward import batches
from interp.models.model import evaluating
from interp.results import stats
from interp.scoring.roles import find_roles
from interp.scoring.scores import score_heads

if TYPE_CHECKING:
    from interp.inputs.prompts import Prompt
    from interp.models.model import Model

ROLES = ("previous_token", "induction", "sink_fresh", "sink_repeat")


def heads_at(model: Model, prompts: Sequence[Prompt], step: int, **options: object) -> pd.DataFrame:
    """Scores of every head for the four roles, with the step in front (see ``tables.FORMATION``)."""
    table = score_heads(model, prompts, find_roles(list(ROLES)), **options).summary  # type: ignore[arg-type]
    table.insert(1, "step", step)
    return table


def losses_at(
    model: Model, prompts: Sequence[Prompt], step: int, *, confidence: float = 0.95, seed: int = 0
) -> pd.DataFrame:
    """Two rows (see ``tables.LOSSES``): the mean loss on fresh and on repeated tokens, nats."""
    parts, groups = [], []
    for batch in batches(prompts):
        parts.append(_losses(model, batch))
        groups += [prompt.group for prompt in batch]
    observed = stats.over_templates(np.concatenate(parts), groups)
    low, high = stats.bootstrap_interval(observed, confidence=confidence, seed=seed)
    return pd.DataFrame(
        {
            "model": model.name,
            "step": step,
            "tokens": ["fresh", "repeat"],
            "loss": observed.mean(0),
            "ci_low": low,
            "ci_high": high,
            "n_prompts": len(prompts),
        }
    )


def _losses(model: Model, batch: Sequence[Prompt]) -> Float[np.ndarray, "prompt 2"]:
    ids = torch.tensor([prompt.ids for prompt in batch], device=model.device)
    with evaluating(model.hf_model), torch.no_grad():
        logits = model.hf_model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    loss = torch.nn.functional.cross_entropy(logits.mT, ids[:, 1:], reduction="none").cpu()
    found = np.empty((len(batch), 2))
    for row, prompt in enumerate(batch):
        new, again = _first_and_repeated(prompt)
        found[row] = [float(loss[row, [i - 1 for i in part]].mean()) for part in (new, again)]
    return found


def _first_and_repeated(prompt: Prompt) -> tuple[list[int], list[int]]:
    """Positions whose token is new, and positions whose pair (token before, token) stood earlier."""
    seen: set[int] = set()
    pairs: set[tuple[int, int]] = set()
    new, again = [], []
    for place in range(1, len(prompt.ids)):
        before, token = prompt.ids[place - 1 : place + 1]
        seen.add(before)
        if token not in seen:
            new.append(place)
        elif (before, token) in pairs:
            again.append(place)
        pairs.add((before, token))
    if not new or not again:
        raise InterpError(
            f"prompt {prompt.name} has no fresh or no repeated tokens to take a loss on"
        )
    return new, again


def formed(heads: pd.DataFrame, role: str, level: float) -> tuple[int | None, int | None]:
    """(the first step at which the best head's mass for a role is above ``level``, the first from which
    on it stays there to the last step); None where there is none."""
    best = heads[heads.role == role].groupby("step").mass.max().sort_index()
    above, below = best.index[best > level], best.index[~(best > level)]
    later = best.index if not len(below) else best.index[best.index > below.max()]
    first, stays = (int(steps[0]) if len(steps) else None for steps in (above, later))
    return first, stays
