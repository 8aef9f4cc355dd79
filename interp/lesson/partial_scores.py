"""Which of two candidates belongs into a gap? Partial scores, by what a model thinks of what follows.

    partial score         log P(what follows the gap | the text with a candidate in the gap), nats, summed
                          (Trinh & Le, 1806.02847): "… because the box" → " was too small."
    partial alone         the control, without the text before: "The box" → " was too small.". What candidate
                          and what follows have to do with each other anyhow (ropes are thin)
    partial less alone    the difference: what the text before adds
    preference            score of the right candidate − of the wrong one; above 0: right

What follows is the same tokens for both, so that neither its length nor how likely it is by itself counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.inputs.pronoun_sets import Choice
from interp.inputs.sentences import text_prompt
from interp.lesson.losses import LOGITS, losses_of
from interp.lesson.tables import PREFERENCES_PER_PROMPT
from interp.models.forward import batches
from interp.models.model import Model
from interp.models.tokens import Bos


class Filled(NamedTuple):
    """A text with a candidate in its gap.

    Attributes:
        prompt: the whole text.
        first: position of the first token of what follows the gap.
    """

    prompt: Prompt
    first: int


def filled(
    model: Model, choice: Choice, bos: Bos = "tokenizer", *, alone: bool = False
) -> tuple[Filled, Filled] | str:
    """(with the right candidate, with the wrong one), or why this model can't be asked."""
    found = []
    for kind, candidate in (("right", choice.right), ("wrong", choice.wrong)):
        text, name = choice.begun(candidate, alone=alone), f"{choice.name}-{kind}"
        begun = text_prompt(model, text, name, bos)
        whole = text_prompt(model, f"{text}{choice.after}", name, bos)
        n = len(begun.ids)
        if begun.ids != whole.ids[:n] or n == len(whole.ids):
            return "tokens that run across the gap's end"
        assert model.tokenizer is not None  # or text_prompt had refused
        if set(whole.ids[whole.has_bos :]) & set(model.tokenizer.all_special_ids):
            return "words that the tokenizer does not know"
        if model.n_ctx is not None and len(whole.ids) > model.n_ctx:
            return f"texts of more than {model.n_ctx} tokens, the model's context"
        found.append(Filled(whole, n))
    right, wrong = found
    if right.prompt.ids[right.first :] != wrong.prompt.ids[wrong.first :]:
        return "tokens that run across the gap's end"
    return right, wrong


def readable(
    model: Model, choices: Sequence[Choice], bos: Bos = "tokenizer"
) -> tuple[list[Choice], Counter[str]]:
    """(the choices that the model can be asked, how many others there are for which reason)."""
    found, skipped = [], Counter[str]()
    for choice in choices:
        both = [filled(model, choice, bos, alone=alone) for alone in (False, True)]
        reason = next((one for one in both if isinstance(one, str)), None)
        if reason is None:
            found.append(choice)
        else:
            skipped[reason] += 1
    return found, skipped


def partial_scores(
    model: Model,
    choices: Sequence[Choice],
    bos: Bos = "tokenizer",
    *,
    alone: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Float[np.ndarray, "choice candidate"]:
    """Partial scores of the right and the wrong candidate, nats.

    Args:
        alone: the control, without the text before the gap.
        progress: called with the number of candidates scored.

    Raises:
        InterpError: a choice that :func:`readable` had left out.
    """
    texts: list[Filled] = []
    for choice in choices:
        both = filled(model, choice, bos, alone=alone)
        if isinstance(both, str):
            raise InterpError(f"{choice.name}, {choice.begun(choice.right)!r}: {both}")
        texts += both
    scores = np.full(len(texts), np.nan)
    place = {one.prompt.name: i for i, one in enumerate(texts)}
    longest = max((len(one.prompt.ids) for one in texts), default=1)
    size = max(1, LOGITS // (longest * model.vocab_size))
    for batch in batches([one.prompt for one in texts], size):
        losses = losses_of(model, torch.tensor([p.ids for p in batch], device=model.device))
        for prompt, loss in zip(batch, losses, strict=True):
            at = place[prompt.name]
            scores[at] = -loss[texts[at].first :].sum()
        if progress is not None:
            progress(len(batch))
    return scores.reshape(len(choices), 2)


def partial_preferences(
    model: Model,
    choices: Sequence[Choice],
    bos: Bos = "tokenizer",
    *,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Float[np.ndarray, " choice"]]:
    """Preferences by reading, in the order of the choices; ``progress`` as for :func:`partial_scores`."""
    told, alone = (
        -np.diff(partial_scores(model, choices, bos, alone=only, progress=progress))[:, 0]
        for only in (False, True)
    )
    return {"partial": told, "partial alone": alone, "partial less alone": told - alone}


def preference_rows(
    model: Model,
    task: str,
    choices: Sequence[Choice],
    readings: dict[str, Float[np.ndarray, " choice"]],
) -> pd.DataFrame:
    """Preferences as a table, as ``tables.PREFERENCES_PER_PROMPT`` describes: its frames are the groups."""
    frames = [
        pd.DataFrame(
            {
                "model": model.name,
                "task": task,
                "reading": reading,
                "prompt": [choice.name for choice in choices],
                "template": [choice.group for choice in choices],
                "preference": values,
            }
        )
        for reading, values in readings.items()
    ]
    return PREFERENCES_PER_PROMPT.validate(pd.concat(frames, ignore_index=True))
