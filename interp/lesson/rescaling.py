"""A real model's scores multiplied by a number: its 1/√d_head undone, and no scores at all.

    own        score = scale · query · key       what the model was trained with, mostly scale = 1/√d_head
    none       score = query · key               the scaling undone
    uniform    score = 0                         every key a query may see has the same weight

The queries are multiplied at the door, by 1/scale or by 0, in all layers or in one. Undone in all layers, a
layer's queries are also made from what the layers before it did wrong.

    entropy, largest weight   of each row, mean over the queries that see two keys or more, by head
    loss                      nats a token; change = loss − that with the model's own scaling, by prompt
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention.door import Touch, open_door
from interp.attention.kernels import Engine
from interp.attention.masks import IndexMask
from interp.attention.pattern import AttentionPattern, Pattern
from interp.editing.metrics import METRICS, positions
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.inputs.tasks import Example
from interp.lesson.tables import RESCALED_HEADS, RESCALED_LOSSES
from interp.models.forward import batches, logits_at
from interp.models.model import Model
from interp.results import stats
from interp.sinks.sink_effects import text_task

SCALINGS = ("own", "none", "uniform")


class Rescaled(Touch):
    """Multiplies the queries at the door by a number for each layer; those not named stay."""

    def __init__(self, factors: Mapping[int, float]) -> None:
        self.factors = factors

    def inputs(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, mask: IndexMask
    ) -> tuple[Tensor, Tensor, Tensor, IndexMask]:
        """New queries; all else as it was."""
        factor = self.factors.get(layer, 1.0)
        return query if factor == 1 else query * factor, key, value, mask


class Found(NamedTuple):
    """Of one scaling, by prompt."""

    losses: Float[np.ndarray, " prompt"]
    heads: dict[int, Float[np.ndarray, "prompt head quantity"]]


QUANTITIES = ("entropy", "largest_weight", "uniform_entropy", "chance")


def rescale(
    model: Model,
    prompts: Sequence[Prompt],
    *,
    by_layer: bool = True,
    engine: Engine = "auto",
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Entropy by head and loss, with the model's own scaling, without, and with uniform attention.

    Args:
        by_layer: also undo the scaling in each layer alone.
        progress: called with the number of prompts done, 3 times each and once more for each layer.

    Returns:
        tables as ``tables.RESCALED_HEADS`` and ``tables.RESCALED_LOSSES`` describe; intervals over prompts.

    Raises:
        InterpError: a prompt of one token, or an architecture that bypasses the door.
    """
    examples = text_task(prompts).examples
    scales = scales_of(model, examples, engine)
    factors: dict[str, dict[int, float]] = {
        "own": {},
        "none": {layer: 1 / scale for layer, scale in scales.items()},
        "uniform": dict.fromkeys(scales, 0.0),
    }
    whole = {
        name: _measure(model, examples, factors[name], engine, True, progress) for name in SCALINGS
    }
    changes: list[tuple[int | None, str, np.ndarray]] = [
        (None, name, whole[name].losses) for name in SCALINGS
    ]
    for layer in scales if by_layer else ():
        factor = {layer: factors["none"][layer]}
        losses = _measure(model, examples, factor, engine, False, progress).losses
        changes.append((layer, "none", losses))
    heads = _heads_table(model, whole, scales, confidence=confidence, seed=seed)
    return heads, _losses_table(model, changes, confidence=confidence, seed=seed)


def scales_of(
    model: Model, examples: Sequence[Example], engine: Engine = "auto"
) -> dict[int, float]:
    """The factor that each attention layer's scores have, from a pass over one token."""
    found: dict[int, float] = {}

    def look(layer: int, pattern: Pattern, z: Tensor) -> None:
        assert isinstance(pattern, AttentionPattern)  # nothing edits it
        found[layer] = pattern.scale

    ids = torch.tensor([examples[0].prompt.ids[:1]], device=model.device)
    with open_door(model.hf_model, look, engine=engine):
        logits_at(model, ids, torch.zeros_like(ids))
    if not found or min(found.values()) <= 0:
        raise InterpError(f"{model.name}: no attention layer with a scale above 0 ran: {found}")
    return found


def _measure(
    model: Model,
    examples: Sequence[Example],
    factors: Mapping[int, float],
    engine: Engine,
    looked: bool,
    progress: Callable[[int], None] | None,
) -> Found:
    """Losses, and the heads' quantities if somebody looks, in the order of the examples."""
    by_prompt = {id(example.prompt): example for example in examples}
    losses: dict[int, float] = {}
    parts: dict[int, dict[int, np.ndarray]] = {}
    for batch in batches([example.prompt for example in examples]):

        def look(layer: int, pattern: Pattern, z: Tensor, batch: list[Prompt] = batch) -> None:
            found = _of_layer(pattern).double().cpu().numpy()
            for prompt, values in zip(batch, found, strict=True):
                parts.setdefault(layer, {})[id(prompt)] = values

        chosen = [by_prompt[id(prompt)] for prompt in batch]
        ids = torch.tensor([prompt.ids for prompt in batch], device=model.device)
        where = torch.tensor([positions(example) for example in chosen], device=model.device)
        with open_door(
            model.hf_model, look if looked else None, touch=Rescaled(factors), engine=engine
        ):
            logits = logits_at(model, ids, where)
        measured = METRICS["loss"].measure(logits, logits, chosen).double().tolist()
        losses |= {id(prompt): loss for prompt, loss in zip(batch, measured, strict=True)}
        if progress is not None:
            progress(len(batch))
    order = [id(example.prompt) for example in examples]
    heads = {layer: np.stack([rows[i] for i in order]) for layer, rows in sorted(parts.items())}
    return Found(np.array([losses[i] for i in order]), heads)


def _of_layer(pattern: Pattern) -> Float[Tensor, "batch head quantity"]:
    """Means over the queries that see two keys or more, as ``QUANTITIES`` names them."""
    reachable = pattern.mask.reachable[0]  # without padding all prompts share the mask
    several = reachable > 1
    entropy, largest = [], []
    for _, rows in pattern.tiles():
        entropy.append(-torch.xlogy(rows, rows).sum(-1))
        largest.append(rows.amax(-1))
    found = [torch.cat(part, -1)[..., several].mean(-1) for part in (entropy, largest)]
    seen = reachable[several].double()
    uniform = [seen.log().mean(), (1 / seen).mean()]
    return torch.stack([*found, *(u.to(found[0]).expand_as(found[0]) for u in uniform)], dim=-1)


def _heads_table(
    model: Model,
    whole: Mapping[str, Found],
    scales: Mapping[int, float],
    *,
    confidence: float,
    seed: int,
) -> pd.DataFrame:
    tables = []
    for name, found in whole.items():
        for layer, values in found.heads.items():
            n_prompts, n_heads, _ = values.shape
            table = pd.DataFrame(values.mean(0), columns=list(QUANTITIES))
            flat = values[..., :2].reshape(n_prompts, -1)  # the other two do not vary over prompts
            ends = stats.bootstrap_interval(flat, confidence=confidence, seed=seed)
            for end, edges in zip(("low", "high"), ends, strict=True):
                columns = [f"{quantity}_{end}" for quantity in QUANTITIES[:2]]
                table[columns] = edges.reshape(n_heads, 2)
            table = table.assign(
                model=model.name,
                scaling=name,
                layer=layer,
                scale=scales[layer],
                n_prompts=n_prompts,
            )
            tables.append(table.assign(head=range(n_heads)))
    return RESCALED_HEADS.validate(
        pd.concat(tables, ignore_index=True)[list(RESCALED_HEADS.columns)]
    )


def _losses_table(
    model: Model,
    changes: Sequence[tuple[int | None, str, np.ndarray]],
    *,
    confidence: float,
    seed: int,
) -> pd.DataFrame:
    own = changes[0][2]
    losses = np.stack([losses for _, _, losses in changes], axis=1)
    differences = losses - own[:, None]
    table = pd.DataFrame({"layer": [layer for layer, _, _ in changes]}).astype("Int64")
    table["scaling"] = [name for _, name, _ in changes]
    for name, values in (("loss", losses), ("change", differences)):
        table[name] = values.mean(0)
        ends = stats.bootstrap_interval(values, confidence=confidence, seed=seed)
        table[f"{name}_low"], table[f"{name}_high"] = ends
    p = stats.two_sided_p(differences, seed=seed)
    p[0] = np.nan  # the model's own against itself
    table["p"], table["n_prompts"], table["model"] = p, len(losses), model.name
    return RESCALED_LOSSES.validate(table[list(RESCALED_LOSSES.columns)])
