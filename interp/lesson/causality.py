"""The causal mask on a real model: the past does not depend on the future, and one pass predicts everywhere.

Two claims, each with what would show that it is false:

    cut at t   every token after position t is replaced by a random other one. Logits at 0 … t stay the same
               to the bit; those after t change. With the mask taken off at the door all change.
    prefixes   one pass over n tokens gives the n next-token predictions of n passes, over the first 1, … n
               tokens alone, up to rounding (sums in another order). It reads n tokens, not n(n + 1)/2.

    difference   largest |logit − logit| over the vocabulary (and the prompts, and the positions)
    kl           KL(prediction before ‖ prediction after), nats: 0 if nothing changed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention.door import Touch, open_door
from interp.attention.kernels import Engine
from interp.attention.masks import IndexMask
from interp.editing.metrics import last_places
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.lesson.losses import id_batches, token_losses
from interp.lesson.tables import CAUSAL_CUTS, CAUSAL_POSITIONS, CAUSAL_PREFIXES
from interp.models.forward import logits_at
from interp.models.model import Model
from interp.models.tokens import ordinary_ids
from interp.results import stats

MASKS = ("own", "none")


class Unmasked(Touch):
    """Takes the mask off at the door: every query sees every key, also those after it."""

    def inputs(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, mask: IndexMask
    ) -> tuple[Tensor, Tensor, Tensor, IndexMask]:
        """A mask that hides nothing."""
        return query, key, value, replace(mask, mask_function=_everything)


def _everything(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (query >= 0) & (key >= 0) & (batch >= 0)


def change_the_future(
    model: Model,
    prompts: Sequence[Prompt],
    n_cuts: int = 4,
    *,
    engine: Engine = "auto",
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What changes at each position when every token after some position is replaced.

    Args:
        n_cuts: how many such positions, evenly spread, each in turn.
        progress: called with the number of prompts done, 2 × (1 + n_cuts) times each.

    Returns:
        tables as ``tables.CAUSAL_CUTS`` (by cut and side, intervals over prompts) and
        ``tables.CAUSAL_POSITIONS`` (by position) describe; both also with the mask taken off.

    Raises:
        InterpError: prompts of several lengths, or too short for so many cuts.
    """
    n = _only_length(prompts)
    if not 1 <= n_cuts <= n - 1:
        raise InterpError(
            f"n_cuts={n_cuts}: expected 1 to {n - 1} for prompts of {n} tokens, a token on each side"
        )
    cuts = [round((i + 1) * n / (n_cuts + 1)) - 1 for i in range(n_cuts)]
    others = _other_tokens(model, prompts, seed)
    summaries, by_position = [], []
    for name in MASKS:
        difference, kl = _changes(model, prompts, others, cuts, name, engine, progress)
        for i, cut in enumerate(cuts):
            key: dict[str, Any] = {"model": model.name, "mask": name, "last_kept": cut}
            low, high = stats.bootstrap_interval(kl[i], confidence=confidence, seed=seed)
            rows = {"position": range(n), "difference": difference[i], "kl": kl[i].mean(0)}
            table = pd.DataFrame({**rows, "ci_low": low, "ci_high": high})
            by_position.append(table.assign(**key, n_prompts=len(prompts)))
            for side, places in (("kept", slice(0, cut + 1)), ("changed", slice(cut + 1, n))):
                means = kl[i, :, places].mean(1, keepdims=True)
                (low,), (high,) = stats.bootstrap_interval(means, confidence=confidence, seed=seed)
                largest = difference[i, places].max()
                row = {"side": side, "difference": largest, "kl": means.mean()}
                n_positions = (places.stop - places.start) * len(prompts)
                ends = {"ci_low": low, "ci_high": high, "n_positions": n_positions}
                summaries.append(key | row | ends | {"n_prompts": len(prompts)})
    whole = pd.concat(by_position, ignore_index=True)
    return (
        CAUSAL_CUTS.validate(pd.DataFrame(summaries)),
        CAUSAL_POSITIONS.validate(whole[list(CAUSAL_POSITIONS.columns)]),
    )


def _changes(
    model: Model,
    prompts: Sequence[Prompt],
    others: Int[Tensor, "prompt pos"],
    cuts: Sequence[int],
    mask: str,
    engine: Engine,
    progress: Callable[[int], None] | None,
) -> tuple[Float[np.ndarray, "cut pos"], Float[np.ndarray, "cut prompt pos"]]:
    """(largest difference of logits over the prompts, KL), with the tokens after each cut those of others."""
    n = others.shape[1]
    difference = np.zeros((len(cuts), n))
    kl = np.zeros((len(cuts), len(prompts), n))
    for members, ids in id_batches(model, prompts, held=2):
        before = _all_logits(model, ids, mask, engine)
        for i, cut in enumerate(cuts):
            changed = torch.cat([ids[:, : cut + 1], others[members, cut + 1 :]], dim=1)
            after = _all_logits(model, changed, mask, engine)
            largest = (after - before).abs().amax((0, 2)).double().cpu().numpy()
            difference[i] = np.maximum(difference[i], largest)
            kl[i, members] = _kl(before, after)
        if progress is not None:
            progress(len(ids) * (1 + len(cuts)))
    return difference, kl


def one_pass_or_many(
    model: Model,
    prompts: Sequence[Prompt],
    *,
    engine: Engine = "auto",
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """Each position's prediction from one pass over a prompt, against one over the prefix that ends there.

    Args:
        progress: called with the number of positions done.

    Returns:
        a row a prompt and position, as ``tables.CAUSAL_PREFIXES`` describes; the last token's successor is
        unknown, and so is its loss.

    Raises:
        InterpError: prompts of several lengths, or of one token.
    """
    n = _only_length(prompts)
    tables = []
    for members, ids in id_batches(model, prompts):
        whole = _all_logits(model, ids, "own", engine)
        rounding = last_places(whole, model.dtype)
        for position in range(n):
            prefix = ids[:, : position + 1]
            last = torch.full_like(prefix[:, :1], position)
            with open_door(model.hf_model, engine=engine):
                alone = logits_at(model, prefix, last)[:, 0]
            together = whole[:, position]
            losses = [np.full(len(ids), np.nan)] * 2
            if position + 1 < n:
                losses = [token_losses(part, ids[:, position + 1]) for part in (together, alone)]
            rows = {
                "prompt": [prompt.name for prompt in prompts[members]],
                "difference": (together - alone).abs().amax(-1).double().cpu().numpy(),
                "same_top": (together.argmax(-1) == alone.argmax(-1)).cpu().numpy(),
                "loss": losses[0],
                "loss_alone": losses[1],
            }
            tables.append(pd.DataFrame(rows).assign(position=position, rounding=rounding))
            if progress is not None:
                progress(len(ids))
    table = pd.concat(tables, ignore_index=True).assign(model=model.name)
    table = table.sort_values(["prompt", "position"], kind="stable", ignore_index=True)
    return CAUSAL_PREFIXES.validate(table[list(CAUSAL_PREFIXES.columns)])


def _only_length(prompts: Sequence[Prompt]) -> int:
    lengths = sorted({len(prompt.ids) for prompt in prompts})
    if len(lengths) != 1 or lengths[0] < 2:
        raise InterpError(
            f"prompts of {lengths[0]} to {lengths[-1]} tokens: expected all of one length, 2 or more, so "
            "that positions can be compared; take prompts=text"
        )
    return lengths[0]


def _all_logits(
    model: Model, ids: Int[Tensor, "batch pos"], mask: str, engine: Engine
) -> Float[Tensor, "batch pos d_vocab"]:
    every = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    with open_door(model.hf_model, touch=Unmasked() if mask == "none" else None, engine=engine):
        return logits_at(model, ids, every)


def _other_tokens(model: Model, prompts: Sequence[Prompt], seed: int) -> Int[Tensor, "prompt pos"]:
    """For each token of each prompt a random ordinary one (without a tokenizer: any) that is another."""
    pool = np.arange(model.vocab_size)
    if model.tokenizer is not None:
        pool = np.array(ordinary_ids(model.tokenizer, model.vocab_size))
    if len(pool) < 2:
        raise InterpError(f"{model.name} has {len(pool)} ordinary tokens; expected 2 or more")
    ids = np.array([prompt.ids for prompt in prompts])
    drawn = np.random.default_rng([seed, 9]).integers(len(pool), size=ids.shape)
    same = pool[drawn] == ids
    return torch.tensor(pool[(drawn + same) % len(pool)], device=model.device)


def _kl(before: Tensor, after: Tensor) -> Float[np.ndarray, "batch pos"]:
    """KL of each prediction, position by position so that little is held at once."""
    found = []
    for old, new in zip(before.unbind(1), after.unbind(1), strict=True):
        a, b = old.log_softmax(-1), new.log_softmax(-1)
        found.append((a.exp() * (a - b)).sum(-1).clamp(min=0))  # rounding can go below
    return torch.stack(found, 1).double().cpu().numpy()
