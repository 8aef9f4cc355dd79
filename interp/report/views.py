"""Where each token of a prompt looks, and what it fetches there: what the viewer of a report shows.

    weight[q, k]                                     exact, through the door, row by row
    fetched[q, k] = ‖weight[q, k] · value[k] · W_O‖ = weight[q, k] · length[k] / scale[q]

`length[k]` is that of what a head would write with all its attention on key k; `scale[q]` is what the norm
behind attention divides the query's token by (Gemma 2, OLMo 2; elsewhere 1). What is fetched is a length in
the residual stream, no share: a sink may draw all the weight and bring nothing (Kobayashi et al.,
2004.10102).

Of a prompt up to `longest` tokens all weights are kept; of a longer one those of the `k` largest weights and
of the `k` largest lengths fetched by each query, and the others are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.attention.kernels import Engine
from interp.attention.pattern import Pattern
from interp.circuits.head_sets import Head
from interp.editing.edits import Recording, edited
from interp.editing.sites import Site
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.interventions.outputs import Writing
from interp.models.forward import attention_path, capture, last_logits
from interp.models.model import Model

BYPASSED = "this architecture bypasses the door: its values are not seen"


@dataclass(frozen=True, eq=False)
class View:
    """One head on one prompt.

    Attributes:
        layer, head: which, from 0.
        starts: (query + 1,) where the entries of each query begin; at last, where they end.
        keys: (entry,) positions looked at, rising within a query.
        weights: (entry,) attention weights.
        lengths: (key,) of what the head writes for a key of weight 1; NaN where undefined.
        scales: (query,) what divides it: fetched = weight · length / scale.
        learned_sink: (query,) weight on the model's own sink; 0 where there is none.
        others: (query,) weight on the keys that were left out.
        others_fetched: (query,) what is fetched there, lengths added up.
        undefined_reason: why lengths are undefined, where they are.
    """

    layer: int
    head: int
    starts: Int[np.ndarray, " start"]
    keys: Int[np.ndarray, " entry"]
    weights: Float[np.ndarray, " entry"]
    lengths: Float[np.ndarray, " key"]
    scales: Float[np.ndarray, " query"]
    learned_sink: Float[np.ndarray, " query"]
    others: Float[np.ndarray, " query"]
    others_fetched: Float[np.ndarray, " query"]
    undefined_reason: str | None

    def row(
        self, query: int
    ) -> tuple[Int[np.ndarray, " entry"], Float[np.ndarray, " entry"], Float[np.ndarray, " entry"]]:
        """(keys, weights, lengths fetched) of one query."""
        entries = slice(self.starts[query], self.starts[query + 1])
        keys, weights = self.keys[entries], self.weights[entries]
        return keys, weights, weights * self.lengths[keys] / self.scales[query]


def check_heads(heads: Sequence[Head], n_layers: int, n_heads: int, name: str) -> None:
    """Refuse a head that is not there, before anything is loaded."""
    for layer, head in heads:
        if not (0 <= layer < n_layers and 0 <= head < n_heads):
            raise InterpError(
                f"head {layer}.{head}: {name} has layers 0 to {n_layers - 1} with heads 0 to {n_heads - 1}"
            )


def view_heads(
    model: Model,
    prompt: Prompt,
    heads: Sequence[Head],
    *,
    longest: int = 512,
    k: int = 32,
    engine: Engine = "auto",
) -> list[View]:
    """Every query of some heads on one prompt, from one forward pass.

    Args:
        heads: (layer, head), from 0.
        longest: tokens of a prompt of which all weights are kept.
        k: of longer ones, how many of the largest of each query.

    Raises:
        InterpError: a head that is not there, or one in a layer without attention.
    """
    check_heads(heads, model.n_layers, model.n_heads, model.name)
    layers = sorted({layer for layer, _ in heads})
    patterns: dict[int, Pattern] = {}

    def look(layer: int, pattern: Pattern, _: Tensor) -> None:
        if layer in layers:
            patterns[layer] = pattern

    recording = None
    if attention_path(model) == "door":
        recording = Recording([Site(kind, n) for n in layers for kind in ("z", "attn_out", "v")])  # type: ignore[arg-type]
        with edited(model, [], look, recording=recording, engine=engine):
            last_logits(model, [prompt])
    else:
        capture(model, [prompt], look)
    for layer in layers:
        if layer not in patterns:
            raise InterpError(f"layer {layer} of {model.name} has no attention to be shown")
    kept = None if len(prompt.ids) <= longest else k
    found: dict[Head, View] = {}
    for layer in layers:
        of_layer = [head for number, head in heads if number == layer]
        values = _lengths(model, layer, recording, len(prompt.ids))
        for view in _views(patterns[layer], layer, of_layer, kept, *values):
            found[layer, view.head] = view
    return [found[head] for head in heads]


def _lengths(
    model: Model, layer: int, recording: Recording | None, n_tokens: int
) -> tuple[Float[Tensor, "head key"], Float[Tensor, " query"], str | None]:
    """(lengths at weight 1, scales, why they are undefined)."""
    reason = BYPASSED
    if recording is not None:
        try:
            writing = Writing(model, layer, recording)
        except InterpError as error:
            reason = str(error)
        else:
            v = recording[Site("v", layer)]
            values = v.repeat_interleave(writing.n_heads // v.shape[1], dim=1)
            every = torch.arange(n_tokens, device=v.device)[None]
            scales = torch.as_tensor(writing.scale_of(every), device=v.device).expand(1, n_tokens)
            return writing.norms(values)[0], scales[0], None
    nothing = torch.full((model.n_heads, n_tokens), torch.nan, device=model.device)
    return nothing, torch.ones(n_tokens, device=model.device), reason


def _views(
    pattern: Pattern,
    layer: int,
    heads: Sequence[int],
    k: int | None,
    lengths: Float[Tensor, "head key"],
    scales: Float[Tensor, " query"],
    reason: str | None,
) -> list[View]:
    """Some heads of one layer, read a block of queries at a time."""
    chosen = torch.tensor(heads, device=lengths.device)
    lengths = lengths[chosen]
    parts: dict[int, list[tuple[np.ndarray, ...]]] = {head: [] for head in heads}
    every = torch.arange(pattern.mask.n_keys, device=lengths.device)
    for queries, rows in pattern.tiles():
        weights = rows[0, chosen]
        fetched = weights * lengths[:, None] / scales[queries, None]
        seen = pattern.mask.block(every[queries], every)[0, 0]
        for i, head in enumerate(heads):
            keep = seen if k is None else seen & _largest(weights[i], fetched[i], k)
            left = weights[i].masked_fill(keep, 0), fetched[i].masked_fill(keep, 0)
            sums = (part.double().sum(-1) for part in left)
            found = keep.sum(-1), keep.nonzero()[:, 1], weights[i][keep], *sums
            parts[head].append(tuple(tensor.cpu().numpy() for tensor in found))
    sink = pattern.learned_sink()
    views = []
    for i, head in enumerate(heads):
        joined = [np.concatenate(part) for part in zip(*parts[head], strict=True)]
        n_kept, positions, kept, others, others_fetched = joined
        views.append(
            View(
                layer,
                head,
                starts=np.concatenate([[0], n_kept.cumsum()]),
                keys=positions,
                weights=kept.astype(np.float32),
                lengths=lengths[i].float().cpu().numpy(),
                scales=scales.float().cpu().numpy(),
                learned_sink=np.zeros(len(n_kept))
                if sink is None
                else sink[0, head].double().cpu().numpy(),
                others=others,
                others_fetched=others_fetched,
                undefined_reason=reason,
            )
        )
    return views


def _largest(
    weights: Float[Tensor, "query key"], fetched: Float[Tensor, "query key"], k: int
) -> Bool[Tensor, "query key"]:
    """Where either is among the k largest of its query."""
    keep = torch.zeros_like(weights, dtype=torch.bool)
    for values in (weights, fetched.nan_to_num()):
        keep.scatter_(1, values.topk(min(k, values.shape[1])).indices, True)
    return keep
