"""Read one row of a pattern: where one query of one head looks, key by key.

    weight[q, k] for all keys k in reach of q, largest first

Only the row asked for is computed, so the length of the prompt does not matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor

from interp.attention.kernels import Engine
from interp.attention.pattern import Pattern
from interp.errors import InterpError
from interp.inputs.prompts import Prompt, as_prompts
from interp.models.forward import capture
from interp.models.tokens import token_strings
from interp.results.tables import ROW

if TYPE_CHECKING:
    from interp.models.model import Model


def find_query(model: Model, prompt: Prompt, query: int = -1, token: str | None = None) -> int:
    """The position of a query, by number (negative: from the end) or by its token's text.

    Raises:
        InterpError: no such position, or the text is not exactly one token of the prompt; the
            message lists the tokens.
    """
    n = len(prompt.ids)
    if token is None:
        if not -n <= query < n:
            raise InterpError(f"query={query}: the prompt has {n} tokens, 0 to {n - 1}")
        return query % n
    strings = token_strings(model.tokenizer, prompt.ids)
    places = [i for i, string in enumerate(strings) if string == token]
    if not places and token.strip():
        places = [i for i, string in enumerate(strings) if string.strip() == token.strip()]
    if len(places) == 1:
        return places[0]
    found = f"at positions {places}: give query=POSITION" if places else "nowhere"
    raise InterpError(f"query_token={token!r} occurs {found} among the tokens {strings}")


def read_row(
    model: Model,
    prompt: Prompt,
    layer: int,
    head: int,
    query: int = -1,
    *,
    engine: Engine = "auto",
) -> pd.DataFrame:
    """Weights of one query on every key it can see, largest first (see ``tables.ROW``).

    Raises:
        InterpError: a layer, head or query that is not there.
    """
    prompt = as_prompts(prompt)[0]
    query = find_query(model, prompt, query)
    rows: dict[int, Tensor] = {}

    def look(number: int, pattern: Pattern, z: Tensor) -> None:
        if number != layer:
            rows.setdefault(number, torch.empty(0))
            return
        if not 0 <= head < pattern.n_heads:
            raise InterpError(
                f"head={head}: layer {layer} of {model.name} has heads 0 to {pattern.n_heads - 1}"
            )
        index = torch.tensor([query], device=pattern.mask.device)
        rows[number] = pattern.rows(index)[0, head, 0].cpu()
        every = torch.arange(pattern.mask.n_keys, device=pattern.mask.device)
        reach.append(pattern.mask.block(index, every)[0, 0, 0].cpu())

    reach: list[Tensor] = []
    _check_layer(model, layer)
    capture(model, [prompt], look, engine=engine)
    if not reach:
        raise InterpError(
            f"layer={layer} of {model.name} has no attention; layers that have: {sorted(rows)}"
        )
    keys = reach[0].nonzero()[:, 0]
    strings = token_strings(model.tokenizer, prompt.ids) if model.tokenizer else None
    table = pd.DataFrame(
        {
            "model": model.name,
            "layer": layer,
            "head": head,
            "query": query,
            "query_token": strings[query] if strings else str(prompt.ids[query]),
            "key": keys.numpy(),
            "key_token": [strings[k] if strings else str(prompt.ids[k]) for k in keys.tolist()],
            "weight": rows[layer][keys].double().numpy(),
        }
    )
    order = table.sort_values(["weight", "key"], ascending=[False, True], ignore_index=True)
    return ROW.validate(order)


def _check_layer(model: Model, layer: int) -> None:
    if not 0 <= layer < model.n_layers:
        raise InterpError(f"layer={layer}: {model.name} has layers 0 to {model.n_layers - 1}")
