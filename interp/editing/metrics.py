"""What an edit does to the output: one number per example, with its sign.

    logit_difference        logit(answer) − logit(wrong), last position     larger: more right
    log_probability         log p(answer), last position, nats              larger: more right
    probability_difference  Σ p(answers) − Σ p(wrongs), last position       larger: more right, −1 to 1
    loss                    mean over scored positions of −log p(token)     larger: more wrong, nats
    kl                      mean over positions of KL(clean ‖ edited)       0: nothing changed, nats
    flips                   share of positions whose top token changed      0: nothing changed

Positions are the last one for examples with an answer, those that predict the scored tokens else. The
logit difference is linear in the logits and is the one to trust for small effects (Zhang & Nanda,
2309.16042); probabilities and flips over- and understate (Heimersheim & Nanda, 2404.15255). The probability
difference is for tasks in which several tokens are right (Hanna, Liu & Variengien, 2305.00586).

    effect = value after the edit − value before
    normalised effect = (patched − corrupted) / (clean − corrupted), undefined where clean = corrupted
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InterpError
from interp.inputs.tasks import Example


def positions(example: Example) -> list[int]:
    """The positions whose logits count for an example."""
    if example.scored:
        return [position - 1 for position in example.scored]
    return [len(example.prompt.ids) - 1]


@dataclass(frozen=True)
class Metric:
    """A number per example, from the logits at its positions.

    Attributes:
        name: as in tables.
        sign: what a larger value means.
        measure: (logits, clean logits, examples) → values; logits (example, position, d_vocab).
        needs: what an example must have: "answer", "wrong", "answers", "scored" or "".
    """

    name: str
    sign: str
    measure: Callable[[Tensor, Tensor, Sequence[Example]], Tensor]
    needs: str = ""

    def check(self, examples: Sequence[Example]) -> None:
        """Refuse examples without what this metric needs."""
        for example in examples:
            if self.needs and getattr(example, self.needs) in (None, ()):
                raise InterpError(
                    f"metric {self.name} needs examples with {self.needs!r}; {example.prompt.name} has none"
                )
            if self.needs in ("answer", "wrong", "answers") and example.scored:
                raise InterpError(
                    f"metric {self.name} reads the last position, and of {example.prompt.name} those that "
                    "predict its scored tokens are read; give the answer to an example without scored ones"
                )


def _ids(examples: Sequence[Example], name: str, like: Tensor) -> Tensor:
    return torch.tensor([getattr(example, name) for example in examples], device=like.device)


def _logit_difference(logits: Tensor, clean: Tensor, examples: Sequence[Example]) -> Tensor:
    row = torch.arange(len(examples), device=logits.device)
    answer, wrong = (_ids(examples, name, logits) for name in ("answer", "wrong"))
    return logits[row, -1, answer] - logits[row, -1, wrong]


def _log_probability(logits: Tensor, clean: Tensor, examples: Sequence[Example]) -> Tensor:
    answer = _ids(examples, "answer", logits)[:, None]
    return logits[:, -1].log_softmax(-1).gather(-1, answer)[:, 0]


def _probability_difference(logits: Tensor, clean: Tensor, examples: Sequence[Example]) -> Tensor:
    probabilities = logits[:, -1].softmax(-1)
    sums = [
        row[list(example.answers)].sum() - row[list(example.wrongs)].sum()
        for row, example in zip(probabilities, examples, strict=True)
    ]
    return torch.stack(sums)


def _loss(logits: Tensor, clean: Tensor, examples: Sequence[Example]) -> Tensor:
    tokens = [[example.prompt.ids[position] for position in example.scored] for example in examples]
    target = torch.tensor(tokens, device=logits.device)[..., None]
    return -logits.log_softmax(-1).gather(-1, target)[..., 0].mean(-1)


def _kl(logits: Tensor, clean: Tensor, examples: Sequence[Example]) -> Tensor:
    before, after = clean.log_softmax(-1), logits.log_softmax(-1)
    return (before.exp() * (before - after)).sum(-1).mean(-1)


def _flips(logits: Tensor, clean: Tensor, examples: Sequence[Example]) -> Tensor:
    return (logits.argmax(-1) != clean.argmax(-1)).to(logits.dtype).mean(-1)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("logit_difference", "larger: more right", _logit_difference, "wrong"),
        Metric("log_probability", "larger: more right, nats", _log_probability, "answer"),
        Metric(
            "probability_difference",
            "larger: more right, share",
            _probability_difference,
            "answers",
        ),
        Metric("loss", "larger: more wrong, nats", _loss, "scored"),
        Metric("kl", "0: nothing changed, nats", _kl),
        Metric("flips", "0: nothing changed, share", _flips),
    )
}


def last_places(logits: Tensor, dtype: torch.dtype) -> float:
    """Eight units in the last place of the largest logit: no metric is known better than that."""
    return 8 * torch.finfo(dtype).eps * max(1.0, float(logits.abs().max()))


def usual_metric(example: Example) -> str:
    """The metric of a task that is asked for none: by what its examples have."""
    if example.scored:
        return "loss"
    return "probability_difference" if example.answers else "logit_difference"


def normalised(
    patched: Float[np.ndarray, "*more example"],
    clean: Float[np.ndarray, " example"],
    corrupted: Float[np.ndarray, " example"],
) -> Float[np.ndarray, "*more example"]:
    """(patched − corrupted) / (clean − corrupted); NaN, undefined, where clean and corrupted agree."""
    gap = clean - corrupted
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.abs(gap) < 1e-9, np.nan, (patched - corrupted) / gap)
