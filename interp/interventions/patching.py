"""Activation patching: the activations of one prompt put into the run of another.

    denoise   clean → corrupted run: what is enough to bring the answer back?
    noise     corrupted → clean run: what is needed to keep it?

    effect = metric after the patch − metric before
    normalised = (after − corrupted) / (clean − corrupted)     0: as the corrupted prompt, 1: as the clean

Both directions, because they find different parts: of two heads each of which would do (an OR gate)
denoising finds both and noising neither; of two that are needed together (an AND gate) the other way
round (Heimersheim & Nanda, 2404.15255). The corrupted prompt differs in tokens, not by noise (Zhang & Nanda,
2309.16042). Positions are those of *named places* (IO, S2, END: averaged over templates, in which they
stand at different positions), or all of them, where all prompts have one length.

Units: q, z and pattern of a query head; k and v of a key-value head, which with grouped queries serves
several query heads; a layer for what the residual stream holds. Nothing else is held: what every later
layer makes of the patch is part of its effect.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Literal, Unpack

from interp.editing.edits import Replace
from interp.editing.metrics import positions as read_positions
from interp.editing.sites import HEAD_KINDS, Kind, Site, check_site
from interp.errors import InterpError
from interp.inputs.tasks import Example, Task, check_asked
from interp.interventions.effects import NamedCell, Options, check_corrupted, effects_of, recorded
from interp.models.model import Model
from interp.results.findings import Effects

Direction = Literal["denoise", "noise"]
Positions = Literal["together", "places", "all"]
ROW = ("layer", "head", "place")
"""Columns that tell the rows of one site apart; not every table has them all."""


def patch(
    model: Model,
    task: Task,
    site: Kind = "z",
    positions: Positions = "together",
    direction: Direction = "denoise",
    metric: str | None = None,
    *,
    only: Collection[tuple[int | str, ...]] | None = None,
    **options: Unpack[Options],
) -> Effects:
    """The effect of patching each head (or layer), at all positions together or one at a time.

    Args:
        site: kind of activation: see :mod:`interp.editing.sites`.
        positions: "together": a patch takes all positions of the prompt; "places": one of the task's
            named places; "all": one position.
        direction: what is put where: see the module.
        metric: a name of ``metrics.METRICS``; None: that of ``metrics.usual_metric``.
        only: rows to patch, by those of layer, head and place that the rows have, or the first of these:
            (3,) is all of layer 3; every row if not given.

    Returns:
        a row a cell and prompt, as ``tables.EFFECTS_PER_PROMPT`` describes, and their summary.

    Raises:
        InterpError: an example without a corrupted prompt, a site the architecture does not have, no
            named places, prompts whose positions do not line up, or what the sweep refuses.
    """
    check_patch(model, task, site, positions, direction)
    if only is not None:
        only = [tuple(one) if isinstance(one, list) else one for one in only]
        rows = [_parts_of(name) for _, name in sites_of(model, site, task.examples[0], positions)]
        for one in only:
            if not any(one in parts for parts in rows):
                raise InterpError(
                    f"only: {one}: there is no such row; expected such as {rows[0][-1]}"
                )

    def cells(examples: Sequence[Example]) -> list[NamedCell]:
        sites = [Site(site, layer) for layer in range(model.n_layers)]
        denoise = direction == "denoise"
        donors = [e.prompt if denoise else e.corrupted for e in examples]
        values = recorded(model, donors, sites, options.get("engine", "auto"))  # type: ignore[arg-type]
        origin = "clean prompt" if denoise else "corrupted prompt"
        found: list[NamedCell] = []
        for one, name in sites_of(model, site, examples[0], positions):
            if only is not None and not any(part in only for part in _parts_of(name)):
                continue
            value = values[Site(site, one.layer)]
            if one.heads is not None:
                value = value[:, list(one.heads)]
            if one.positions is not None:
                value = value[..., list(one.positions), :]
            found.append((name, [Replace(one, value, origin)]))
        return found

    return effects_of(
        model,
        task,
        cells,
        edit=direction,
        metric=metric,
        apart=partial(goes_with, positions=positions),
        denoise=direction == "denoise",
        normalise=True,
        **options,
    )


def check_patch(
    model: Model, task: Task, site: Kind, positions: Positions, direction: Direction
) -> None:
    """Refuse what can't be patched, before anything runs."""
    check_asked(model, task)
    for name, value, known in (
        ("direction", direction, ("denoise", "noise")),
        ("positions", positions, ("together", "places", "all")),
    ):
        if value not in known:
            raise InterpError(f"{name}={value!r}: expected {', '.join(known)}")
    check_corrupted(task)
    for layer in range(model.n_layers):
        check_site(model, Site(site, layer))
    if positions == "all":
        lengths = {len(example.prompt.ids) for example in task.examples}
        if len(lengths) > 1:
            raise InterpError(
                f"positions=all: task {task.name} has prompts of {min(lengths)} to {max(lengths)} "
                "tokens, whose positions do not line up; take positions=places, or one template"
            )
    if positions == "places":
        named = {tuple(sorted(dict(example.places))) for example in task.examples}
        if len(named) > 1 or named == {()}:
            raise InterpError(
                f"positions=places: the examples of task {task.name} name "
                f"{'different places' if len(named) > 1 else 'no places'}; take positions=all"
            )


def _parts_of(name: dict[str, Any]) -> list[tuple[int | str, ...]]:
    """(layer,), (layer, head), (layer, head, place), or what of these a row has."""
    whole = tuple(name[key] for key in ROW if key in name)
    return [whole[:end] for end in range(1, len(whole) + 1)]


def goes_with(example: Example, positions: Positions) -> tuple[object, ...]:
    """Examples with the same can share cells and passes."""
    places = example.places if positions == "places" else ()
    return len(example.prompt.ids), len(read_positions(example)), places


def sites_of(
    model: Model, kind: Kind, example: Example, positions: Positions
) -> list[tuple[Site, dict[str, Any]]]:
    """Every site that is patched, and what its row is called: layer by layer, head by head."""
    places: list[tuple[str | None, int | None]] = [(None, None)]
    if positions == "places":
        places = [*example.places]
    elif positions == "all":
        places = [(str(position), position) for position in range(len(example.prompt.ids))]
    heads: list[int | None] = [None]
    if kind in HEAD_KINDS:
        heads = [*range(model.n_kv_heads if kind in "kv" else model.n_heads)]
    found = []
    for layer in range(model.n_layers):
        for head in heads:
            for place, position in places:
                site = Site(
                    kind,
                    layer,
                    None if head is None else (head,),
                    None if position is None else (position,),
                )
                name: dict[str, Any] = {"site": kind, "unit": site.unit or "layer", "layer": layer}
                if head is not None:
                    name["head"] = head
                if position is not None:
                    name |= {"place": place, "position": position}
                found.append((site, name))
    return found
