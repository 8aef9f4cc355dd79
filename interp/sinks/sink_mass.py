"""Where attention rests before and after its sink is taken away.

    mass   mean attention weight on each of the first keys, on the query's own position ("current"), on all
           others, on the model's learned sink where it has one, and "nowhere": a weight that was taken out
           and given to nobody. These sum to 1.

Means are over the queries that see all of the first keys, those told apart and those taken away, and are
none of them, then over heads, layers and prompts; a layer whose window is so narrow that no query does is
left out. With its key masked and the weights renormalised, a sink is where the mass is next: the first key
that is left, if the model only wanted a place to look at nothing (Xiao et al., 2309.17453, §3; Gu et al.,
2410.10781).

An edited layer's pattern is written out to be looked at: heads × length² numbers a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention.kernels import Engine
from interp.attention.pattern import EditedPattern, Pattern
from interp.editing.edits import Edit, KnockOut, edited
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.models.forward import batches, logits_at
from interp.models.model import Model
from interp.results import stats
from interp.results.tables import SINK_MASSES
from interp.sinks.prompt_length import SHOWN, least_for_masses
from interp.sinks.sink_effects import FIRST_KEYS, HOWS, knock_outs, means_for

LEARNED = "learned sink"
PLACES = [*map(str, range(SHOWN)), "current", "others", LEARNED, "nowhere"]


def sink_masses(
    model: Model,
    prompts: Sequence[Prompt],
    hows: Sequence[KnockOut] = HOWS,
    first_keys: Sequence[int] = FIRST_KEYS,
    *,
    engine: Engine = "auto",
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """Where attention rests: clean (``knock_out`` "none"), and with the first keys of all layers knocked out.

    Args:
        hows: names of knock-outs, as in :func:`interp.editing.edits.knock_out`.
        first_keys: how many of the first keys are taken away, each number in turn.
        progress: called with the number of prompts done, (1 + hows × first_keys) times each.

    Returns:
        a table as ``tables.SINK_MASSES`` describes.

    Raises:
        InterpError: an unknown knock-out, a prompt too short to tell the first keys apart, or a model whose
            windows are narrower than that.
    """
    rows = knock_outs(hows, first_keys)
    check_lengths(prompts, first_keys)
    first = least_for_masses(first_keys) - 1
    means = means_for(model, prompts, hows, engine)
    cells: list[tuple[str, int, list[Edit]]] = [("none", 0, [])]
    cells += [(row.how, row.n_keys, row.edits(range(row.n_keys), means)) for row in rows]
    tables = []
    for how, n_keys, edits in cells:
        parts, groups = [], []
        for batch in batches(prompts):
            parts.append(_masses(model, batch, edits, first, engine))
            groups += [prompt.group for prompt in batch]
            if progress is not None:
                progress(len(batch))
        masses = stats.over_templates(np.concatenate(parts), groups)
        low, high = stats.bootstrap_interval(masses, confidence=confidence, seed=seed)
        table = pd.DataFrame(
            {"key": PLACES, "mass": masses.mean(0), "ci_low": low, "ci_high": high}
        )
        tables.append(table.assign(knock_out=how, n_keys=n_keys))
    whole = pd.concat(tables, ignore_index=True).assign(model=model.name, n_prompts=len(prompts))
    if (whole.mass[whole.key == LEARNED] == 0).all():  # the model has none
        whole = whole[whole.key != LEARNED].reset_index(drop=True)
    return SINK_MASSES.validate(whole[list(SINK_MASSES.columns)])


def check_lengths(prompts: Sequence[Prompt], first_keys: Sequence[int]) -> None:
    """Refuse a prompt that is too short to tell the first keys apart."""
    least = least_for_masses(first_keys)
    for prompt in prompts:
        if len(prompt.ids) < least:
            raise InterpError(
                f"prompt {prompt.name} has {len(prompt.ids)} tokens; expected {least} or more, so that "
                "a query sees the first keys and is none of them"
            )


def check_windows(
    model: Model, prompts: Sequence[Prompt], first_keys: Sequence[int], engine: Engine = "auto"
) -> None:
    """Refuse a model in none of whose layers a query sees all of the first keys: one pass of one prompt."""
    _masses(model, prompts[:1], [], least_for_masses(first_keys) - 1, engine)


def _masses(
    model: Model, batch: Sequence[Prompt], edits: Sequence[Edit], first: int, engine: Engine
) -> Float[np.ndarray, "prompt place"]:
    """Mean masses of prompts of one length, over queries that see the first keys, heads and layers."""
    layers: list[Tensor] = []

    def look(layer: int, pattern: Pattern, z: Tensor) -> None:
        found = _of_layer(pattern, first)
        if found is not None:
            layers.append(found)

    ids = torch.tensor([prompt.ids for prompt in batch], device=model.device)
    with edited(model, edits, look, engine=engine):
        logits_at(model, ids, torch.zeros_like(ids[:, :1]))
    if not layers:
        raise InterpError(
            f"{model.name}: in no layer a query sees all of the first {first} keys: its windows are narrower"
        )
    return torch.stack(layers).mean(0).double().cpu().numpy()


def _of_layer(pattern: Pattern, n_first: int) -> Float[Tensor, "prompt place"] | None:
    """Masses in one layer; None where no query sees all of the first keys."""
    every = torch.arange(pattern.mask.n_queries, device=pattern.mask.device)
    # Without padding all prompts share the mask.
    sees = pattern.mask.block(every, every[:n_first]).all(-1)[0, 0] & (every >= n_first)
    if not sees.any():
        return None

    def mean(weights: Float[Tensor, "batch head query"]) -> Float[Tensor, " batch"]:
        return weights[:, :, sees].mean((1, 2))

    keys = [mean(column) for column in pattern.keys(every[:SHOWN]).unbind(-1)]
    current = mean(pattern.offset(0))
    sink = pattern.learned_sink()
    learned = torch.zeros_like(current) if sink is None else mean(sink)
    on_keys = 1 - learned
    if isinstance(pattern, EditedPattern):
        on_keys = mean(pattern.weights.sum(-1))
    others = on_keys - current - torch.stack(keys).sum(0)
    return torch.stack([*keys, current, others, learned, 1 - learned - on_keys], dim=-1)
