"""Run prompts through a model and let someone look at every layer's pattern.

    for each batch of prompts:  one forward pass, no gradients, no cache, logits of the last token
        for each attention layer:  look(layer, pattern, z)

Batches hold prompts of one length, so that nothing is padded and a prompt scores in a batch as it does
alone; prompts of unequal length that are run together all the same are padded on the right, where no
real query of a causal model can see. The model is put in eval mode and given back as it was.

Architectures that bypass transformers' attention interface (Falcon, BLOOM, GPT-Neo) go the slow way:
one prompt at a time through a TransformerBridge, whose ``hook_pattern`` writes the weights out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention import door
from interp.attention.kernels import Engine
from interp.attention.masks import IndexMask, causal, sliding
from interp.attention.pattern import DensePattern, Pattern
from interp.errors import InterpError
from interp.inputs.prompts import Prompt, as_prompts
from interp.models.model import Model, evaluating
from interp.models.tokens import check_ids, check_length, last_positions, pad

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


Look = Callable[[int, Pattern, Tensor], None]

# Tokens in one forward pass, if the caller does not say how many prompts.
BATCH_TOKENS = 4_096


def batches(prompts: Sequence[Prompt], batch_size: int | None = None) -> Iterator[list[Prompt]]:
    """Prompts of one length at a time, ``batch_size`` in each; None fills ``BATCH_TOKENS`` tokens."""
    if batch_size is not None and batch_size < 1:
        raise InterpError(f"batch_size={batch_size}: expected at least 1 prompt")
    by_length: dict[int, list[Prompt]] = {}
    for prompt in prompts:
        by_length.setdefault(len(prompt.ids), []).append(prompt)
    for length, group in by_length.items():
        size = batch_size or max(1, BATCH_TOKENS // length)
        for start in range(0, len(group), size):
            yield group[start : start + size]


def capture(
    model: Model, batch: Sequence[Prompt], look: Look, *, engine: Engine = "auto"
) -> Float[Tensor, "batch d_vocab"]:
    """One forward pass over a batch; returns the logits after each prompt's last token.

    Args:
        look: called for every attention layer with (layer, pattern, z); z is
            (batch, head, query, d_value). Layers without attention (hybrids) are not visited.
        engine: which kernel may serve ("auto", "fused", "tiled").

    Raises:
        InterpError: an id outside the vocabulary, NaN in a head's output or in the logits, a model
            in which no attention layer ran.
    """
    batch = as_prompts(batch)
    for prompt in batch:
        check_ids(prompt.ids, model.vocab_size, f"prompt {prompt.name}")
        check_length(prompt.ids, model.n_ctx, f"prompt {prompt.name}")
    if not door.serves(model.hf_model):
        return _capture_bridged(model, batch, look)
    seen: set[int] = set()

    def visit(layer: int, pattern: Pattern, z: Tensor) -> None:
        seen.add(layer)
        look(layer, pattern, z)

    with door.open_door(model.hf_model, visit, engine=engine):
        logits = last_logits(model, batch)
    if not seen:
        raise InterpError(f"{model.architecture}: no attention layer ran; nothing to look at")
    return logits


def last_logits(model: Model, batch: Sequence[Prompt]) -> Float[Tensor, "batch d_vocab"]:
    """Logits after the last real token of each prompt, padded on the right, in float32."""
    ids, mask, positions = (t.to(model.device) for t in pad([prompt.ids for prompt in batch]))
    return _logits(model, ids, mask, positions, last_positions(mask)[:, None])[:, 0]


def logits_at(
    model: Model,
    ids: Int[Tensor, "batch pos"],
    where: Int[Tensor, "batch chosen"],
    *,
    first: int = 0,
    gradients: bool = False,
) -> Float[Tensor, "batch chosen d_vocab"]:
    """Logits at chosen positions of prompts of one length, in float32; the others are not computed.

    Args:
        where: positions, counted from the first token of ``ids``.
        first: position in its prompt of the first token of ``ids``; see :func:`takes_positions`.
        gradients: build the graph for them.
    """
    positions = (first + torch.arange(ids.shape[1], device=ids.device)).expand_as(ids)
    return _logits(model, ids, torch.ones_like(ids), positions, where, gradients)


def takes_positions(model: Model) -> bool:
    """Whether the model can be told at which positions its tokens stand."""
    return "position_ids" in inspect.signature(model.hf_model.forward).parameters


def _logits(
    model: Model,
    ids: Tensor,
    mask: Tensor,
    positions: Tensor,
    where: Tensor,
    gradients: bool = False,
) -> Tensor:
    accepts = inspect.signature(model.hf_model.forward).parameters
    arguments = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    if "position_ids" in accepts:
        arguments["position_ids"] = positions
    row = torch.arange(len(ids), device=model.device)[:, None]
    if "logits_to_keep" in accepts:
        # Logits of every position would take tokens × vocabulary × 4 bytes: keep those asked for.
        kept, place = where.unique(return_inverse=True)
        arguments["logits_to_keep"] = kept
    else:
        place = where
    with door.ALONE, evaluating(model.hf_model), torch.set_grad_enabled(gradients):
        logits = model.hf_model(**arguments).logits
        # Where all rows keep the same positions, what came is what was asked for: no copy.
        n_kept = logits.shape[1]
        if (
            place.shape[1] != n_kept
            or not (place == torch.arange(n_kept, device=place.device)).all()
        ):
            logits = logits[row, place]
        logits = logits.float()
    # A sum hides no NaN, and takes a tenth of the time; it may overflow, so that each is asked then.
    if not torch.isfinite(logits.sum()) and not torch.isfinite(logits).all():
        raise InterpError(
            f"{model.name}: the logits are NaN or infinite; the weights are damaged, or the dtype is "
            "too narrow: try dtype=float32"
        )
    return logits


def _capture_bridged(
    model: Model, batch: Sequence[Prompt], look: Look
) -> Float[Tensor, "batch d_vocab"]:
    """Patterns from TransformerLens, written out. z is not given: an empty tensor."""
    if len(batch) != 1:
        raise InterpError(
            f"{model.architecture} bypasses transformers' attention interface, so its patterns come "
            f"from TransformerLens one prompt at a time: batch_size=1, got {len(batch)} prompts"
        )
    n = len(batch[0].ids)

    def keep(weights: Tensor, hook: Any) -> None:
        layer = hook.layer()
        window = _local_window(model, layer)
        seen = causal if window is None else sliding(window)
        mask = IndexMask(seen, 1, n, n, device=weights.device)
        look(layer, DensePattern(weights, mask, "transformer_lens"), weights.new_empty(0))

    bridge = _bridge(model)
    ids = torch.tensor([batch[0].ids], device=model.device)
    hooks: list[tuple[Any, Any]] = [
        (f"blocks.{layer}.attn.hook_pattern", keep) for layer in range(model.n_layers)
    ]
    with torch.no_grad():
        logits = bridge.run_with_hooks(ids, fwd_hooks=hooks)
    return logits[:, -1].float()


@lru_cache(maxsize=1)
def _bridge(model: Model) -> TransformerBridge:
    """The bridge of the model in use: booting one takes seconds, and there is a pass for each prompt."""
    return model.bridge()


def _local_window(model: Model, layer: int) -> int | None:
    """GPT-Neo alternates full and local layers; the others that bypass the interface have none."""
    kinds = getattr(model.config, "attention_layers", None)
    return model.config.window_size if kinds and kinds[layer] == "local" else None


def attention_path(model: Model) -> str:
    """ "door" (exact, lazy) or "transformer_lens" (written out, one prompt at a time)."""
    return "door" if door.serves(model.hf_model) else "transformer_lens"
