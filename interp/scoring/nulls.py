"""Nulls for detection: how much mass there is where a role has nothing to find.

    matched       (a column of every table of scores) the same heads and prompts, wrong targets at matched
                  positions: see interp/scoring/scores.py
    random_init   the same prompts, the same architecture and config with weights as before any training:
                  what a head is given by where it may look
    shuffled      the same heads, each prompt's tokens in another order (its BOS stays first), the mass where
                  the targets were in the order it had: what stays there follows positions and not tokens

Heads of an untrained model have nothing to do with those of the same number in the trained one. So each head
is held against all heads of the null:

    share_as_large = share of the null's heads, of any layer, whose mass is at least this head's     in [0, 1]

0 says that none is, of ``n_heads``; it is no p-value: there is one draw of weights.

The targets of the shuffled prompt itself would be no null: an induction head finds those too. Where targets
do not depend on the order of the tokens (the first position, the token before) there is no such null:
undefined. So for ``sink_any``, which finds its position anew.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from interp.attention.kernels import Engine
from interp.errors import InterpError
from interp.inputs.prompts import Prompt, as_prompts
from interp.models.model import Model, check_loaded
from interp.results.score_tables import NULLS
from interp.scoring.roles import AnySink, Role, as_roles
from interp.scoring.scores import HeadScores, score_heads

NAMES = ("random_init", "shuffled")
SAME = "the role's targets are the same in any order of the tokens"
ANEW = "the position is found anew in any order of the tokens"


def score_nulls(
    model: Model,
    prompts: Sequence[Prompt] | Prompt,
    roles: object,
    scores: HeadScores,
    nulls: Sequence[str] = NAMES,
    *,
    batch_size: int | None = None,
    engine: Engine = "auto",
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """Every head's mass beside that of the nulls; each takes a pass over the prompts.

    Args:
        model, prompts, roles: what was scored.
        scores: what came of it.
        seed: of the new weights, the new order, and the bootstrap.
        progress: called with the number of prompts done after each batch.

    Returns:
        a table as ``tables.NULLS`` describes: by null, then in the order of ``scores.summary``.

    Raises:
        InterpError: an unknown null or one given twice, or what :func:`interp.scoring.scores.score_heads`
            refuses.
    """
    check_loaded(model)
    prompts, wanted = as_prompts(prompts), as_roles(roles)
    if not nulls or len(set(nulls)) < len(nulls) or not set(nulls) <= set(NAMES):
        raise InterpError(f"nulls={list(nulls)}: expected some of {', '.join(NAMES)}, each once")
    tables = []
    for null in nulls:
        asked, place, looked = model, prompts, wanted
        if null == "random_init":
            asked = untrained(model, seed)
        else:
            place = shuffled(prompts, seed)
            looked = [_where_it_was(role, prompts, place) for role in wanted]
        found = score_heads(
            asked,
            place,
            looked,
            batch_size=batch_size,
            engine=engine,
            confidence=confidence,
            seed=seed,
            progress=progress,
        )
        tables.append(_beside(scores.summary, found.summary).assign(null=null))
    whole = pd.concat(tables, ignore_index=True)
    return NULLS.validate(whole[list(NULLS.columns)])


def untrained(model: Model, seed: int = 0) -> Model:
    """A model of the same architecture, config, dtype and device, its weights as transformers draws them.

    Torch's global generators are left as they were.
    """
    config = copy.deepcopy(model.hf_model.config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hf_model = type(model.hf_model)(config)
    hf_model.eval().to(model.device, model.dtype)
    return replace(
        model, hf_model=hf_model, name=f"{model.name}, untrained", source="object", revision=None
    )


def shuffled(prompts: Sequence[Prompt], seed: int = 0) -> list[Prompt]:
    """The same tokens in another order; BOS stays at position 0."""
    found = []
    for index, prompt in enumerate(prompts):
        first = prompt.ids[: int(prompt.has_bos)]
        rest = np.random.default_rng([seed, 10, index]).permutation(prompt.ids[len(first) :])
        found.append(replace(prompt, ids=(*first, *rest.tolist()), text=None))
    return found


def _where_it_was(
    role: Role | AnySink, prompts: Sequence[Prompt], shuffled: Sequence[Prompt]
) -> Role:
    """The role with the targets of the prompts as they were; without any where order makes none."""
    if isinstance(role, AnySink):
        return Role(role.name, lambda prompt: (), ANEW)
    pairs = {prompt.name: role.pairs(prompt) for prompt in prompts}
    depends = any(
        not np.array_equal(pairs[prompt.name], role.pairs(other))
        for prompt, other in zip(prompts, shuffled, strict=True)
    )
    if not depends and any(len(found) for found in pairs.values()):
        return Role(role.name, lambda prompt: (), SAME)
    return Role(role.name, lambda prompt: pairs[prompt.name], role.absent)


def _beside(summary: pd.DataFrame, under_null: pd.DataFrame) -> pd.DataFrame:
    """The summary's heads, each beside the same head under the null and all of them."""
    columns = {"mass": "null_mass", "ci_low": "null_low", "ci_high": "null_high"}
    keys = ["role", "layer", "head"]
    rest = under_null[[*keys, *columns, "n_prompts", "undefined_reason"]].rename(columns=columns)
    table = summary[["model", *keys, "mass"]].merge(rest, on=keys, how="left")
    parts = []
    for _, rows in table.groupby("role", sort=False):
        null = np.sort(rows.null_mass.dropna().to_numpy())
        as_large = len(null) - np.searchsorted(null, rows.mass.to_numpy(), side="left")
        share = as_large / len(null) if len(null) else np.nan
        parts.append(
            rows.assign(
                null_largest=null[-1] if len(null) else np.nan,
                share_as_large=np.where(rows.mass.isna(), np.nan, share),
                n_heads=len(null),
            )
        )
    return pd.concat(parts, ignore_index=True)
