"""Doubt the model before measuring it: checks that must pass, or the run stops and writes no table.

On one short prompt:

- *pattern*: the door's weights equal the library's own eager attention, layer by layer;
- *logits*: the door's logits equal the library's;
- *rows*: weights of each row, with the learned sink, sum to 1;
- *padding*: the prompt alone gives the logits it gives left-padded in a batch;
- *device*: elsewhere than on the CPU, the logits equal those of a float32 copy on the CPU.

A model that bypasses the door is checked for one thing: that TransformerLens' bridge, whose patterns
stand in, gives the model's own logits.

Each check returns its number and its tolerance; both go into the manifest.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from interp.attention import door
from interp.attention.pattern import Pattern
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.models.forward import attention_path, capture, last_logits
from interp.models.model import evaluating
from interp.models.tokens import ordinary_ids, pad

if TYPE_CHECKING:
    from interp.models.model import Model

# Largest difference that rounding explains, for patterns (absolute) and logits (relative to their
# spread).
TOLERANCE = {torch.float64: 2e-5, torch.float32: 2e-5}
COARSE = 0.1
SHORT = 12


@dataclass(frozen=True)
class Check:
    """One check: what was compared, the largest difference found, and the largest allowed."""

    name: str
    difference: float
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether the difference is allowed; NaN is not."""
        return self.difference <= self.allowed


def check_model(model: Model) -> list[dict[str, Any]]:
    """Run all checks; the list goes into the manifest.

    Raises:
        InterpError: a check failed; the message names the check, the difference and the layer.
    """
    ids = _short_prompt(model)
    allowed = TOLERANCE.get(model.dtype, COARSE)
    if attention_path(model) != "door":
        return _passed(model, [_check_bridge(model, ids, 10 * allowed)])
    ours, logits = _through_the_door(model, ids)
    theirs, eager_logits = _eager(model, ids)
    spread = float(eager_logits.std()) or 1.0
    checks = [
        _check_patterns(model, ours, theirs, allowed),
        Check("logits", float((logits - eager_logits).abs().max()) / spread, 10 * allowed),
        Check("rows sum to 1", max(map(_row_error, ours.values())), allowed),
        Check("left padding", _padding_error(model, ids, logits) / spread, 10 * allowed),
    ]
    if model.device.type != "cpu":
        checks.append(
            Check("same logits on the CPU", _cpu_error(model, ids, logits) / spread, 50 * allowed)
        )
    return _passed(model, checks)


def _passed(model: Model, checks: list[Check]) -> list[dict[str, Any]]:
    for check in checks:
        if not check.passed:
            raise InterpError(
                f"{model.name} ({model.architecture}) fails the check {check.name!r}: largest difference "
                f"{check.difference:.2g}, allowed {check.allowed:.2g}; its numbers cannot be trusted "
                "here (try dtype=float32; if that is in use, this architecture is not supported)"
            )
    return [asdict(check) | {"passed": check.passed} for check in checks]


def _check_bridge(model: Model, ids: list[int], allowed: float) -> Check:
    """TransformerLens' logits against the model's own: its patterns are all there is to look at."""
    prompt = [Prompt(tuple(ids), "check")]
    bridged = capture(model, prompt, lambda *_: None)
    own = last_logits(model, prompt)
    difference = float((bridged - own).abs().max()) / (float(own.std()) or 1.0)
    return Check("TransformerBridge gives the model's own logits", difference, allowed)


def _short_prompt(model: Model) -> list[int]:
    """A few distinct tokens spread over the vocabulary, the same for every run."""
    if model.tokenizer is None:
        pool = list(range(model.vocab_size))
    else:
        pool = list(ordinary_ids(model.tokenizer, model.vocab_size))
    n = min(SHORT, len(pool), model.n_ctx or SHORT)
    return [int(pool[i * len(pool) // n]) for i in range(n)]


def _through_the_door(model: Model, ids: list[int]) -> tuple[dict[int, Pattern], Tensor]:
    seen: dict[int, Pattern] = {}
    logits = capture(
        model, [Prompt(tuple(ids), "check")], lambda layer, p, z: seen.update({layer: p})
    )
    return seen, logits[0].cpu()


def _eager(model: Model, ids: list[int]) -> tuple[tuple[Tensor, ...], Tensor]:
    """Patterns and last logits from the library's eager attention."""
    eager = door.implementation(model.hf_model, "eager")
    with eager, evaluating(model.hf_model), torch.no_grad():
        out = model.hf_model(
            input_ids=torch.tensor([ids], device=model.device),
            output_attentions=True,
            use_cache=False,
        )
    return out.attentions, out.logits[0, -1].float().cpu()


def _check_patterns(
    model: Model, ours: dict[int, Pattern], theirs: tuple[Tensor, ...], allowed: float
) -> Check:
    written = [weights for weights in theirs if weights is not None]
    if len(written) != len(ours):
        raise InterpError(
            f"{model.architecture}: {len(ours)} layers came to the door, the library returned "
            f"{len(written)} patterns; this architecture is not supported"
        )
    worst, where = 0.0, 0
    for (layer, pattern), weights in zip(sorted(ours.items()), written, strict=True):
        difference = float((pattern.dense() - weights.float()).abs().max())
        if not difference <= worst:
            worst, where = difference, layer
    return Check(f"pattern equals eager attention (worst in layer {where})", worst, allowed)


def _row_error(pattern: Pattern) -> float:
    total = pattern.dense().sum(-1)
    learned = pattern.learned_sink()
    return float((total + (0 if learned is None else learned) - 1).abs().max())


def _cpu_error(model: Model, ids: list[int], logits: Tensor) -> float:
    """Logits against those of a float32 copy on the CPU: some devices are wrong without a word."""
    twin = copy.deepcopy(model.hf_model).float().cpu()
    with evaluating(twin), torch.no_grad():
        out = twin(input_ids=torch.tensor([ids]), use_cache=False)
    return float((out.logits[0, -1] - logits).abs().max())


def _padding_error(model: Model, ids: list[int], alone: Tensor) -> float:
    """Logits of the prompt, left-padded beside a longer one, against the prompt alone."""
    longer = [*ids[::-1], *ids][: model.n_ctx or 2 * len(ids)]
    batch = pad([ids, longer], side="left")
    rows, mask, positions = (t.to(model.device) for t in batch)
    accepts = inspect.signature(model.hf_model.forward).parameters
    extra = {"position_ids": positions} if "position_ids" in accepts else {}
    with door.open_door(model.hf_model), evaluating(model.hf_model), torch.no_grad():
        out = model.hf_model(input_ids=rows, attention_mask=mask, use_cache=False, **extra)
    return float((out.logits[0, -1].float().cpu() - alone).abs().max())
