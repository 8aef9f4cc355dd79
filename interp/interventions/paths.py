"""Path patching: what one head tells another, every other way between them held.

    A  corrupted prompt:  z of every head
    B  clean prompt:      z of every head
    C  clean prompt, the sender's z from A, all other heads' z from B (norms and MLPs recomputed):
       what the receivers would be given if only the sender changed: q, k or v of heads, or the logits
    D  clean prompt, the receivers' q, k or v from C, all else recomputed

    effect = metric after D (or, for the logits, after C) − metric of the clean prompt

A sender reaches a receiver through the residual stream and the MLPs between, not through other heads.
Source: Wang et al., 2211.00593, appendix B. Receivers are heads of later layers than the sender (there is
no path back: no row). The unit of k and v is a key-value head, which serves several query heads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Unpack, get_args

import torch
from torch import Tensor

from interp.editing.edits import Edit, Recording, Replace
from interp.editing.passes import kept_pass, rows_in_a_pass, run_cells, split
from interp.editing.sites import Site, check_site
from interp.errors import InterpError
from interp.inputs.tasks import Example, Task, check_asked
from interp.interventions.effects import NamedCell, Options, check_corrupted, effects_of, recorded
from interp.models.forward import BATCH_TOKENS
from interp.models.model import Model
from interp.results.findings import Effects

Input = Literal["q", "k", "v"]


@dataclass(frozen=True)
class Receiver:
    """Where a path ends: an input of a head.

    Attributes:
        kind: "q", "k" or "v".
        layer: from 0.
        head: query head for q, key-value head for k and v.
    """

    kind: Input
    layer: int
    head: int

    def __post_init__(self) -> None:
        if self.kind not in get_args(Input):
            raise InterpError(f"receiver: kind={self.kind!r}: expected q, k or v")

    @property
    def site(self) -> Site:
        """As a site."""
        return Site(self.kind, self.layer, (self.head,))

    def __str__(self) -> str:
        return f"{self.kind} of {self.layer}.{self.head}"

    @classmethod
    def parsed(cls, text: str) -> Receiver:
        """From a text such as "k1.3"."""
        found = re.fullmatch(r"([qkv])(?: of )?(\d+)\.(\d+)", str(text).strip())
        if found is None:
            raise InterpError(
                f"receiver {text!r}: expected q, k or v and layer.head, such as k1.3, or logits"
            )
        return cls(found[1], int(found[2]), int(found[3]))  # type: ignore[arg-type]


def trace_paths(
    model: Model,
    task: Task,
    receivers: Sequence[Receiver | str] | Literal["logits"] = "logits",
    metric: str | None = None,
    *,
    together: bool = False,
    **options: Unpack[Options],
) -> Effects:
    """The effect of the path from each earlier head to each receiver.

    Args:
        receivers: inputs of heads, such as "k1.3"; or "logits": the path that no other head has a part in.
        metric: a name of ``metrics.METRICS``; None: that of ``metrics.usual_metric``.
        together: patch all receivers that are later than the sender at once: one row a sender.

    Returns:
        a row a path and prompt, as ``tables.EFFECTS_PER_PROMPT`` describes (``layer`` and ``head`` are the
        sender's), and their summary.

    Raises:
        InterpError: an example without a corrupted prompt, a receiver that is not there or in the first
            layer (no head is before it), or what the sweep refuses.
    """
    check_asked(model, task)
    check_corrupted(task)
    ends = [] if receivers == "logits" else _checked(model, receivers)
    if together and not ends:
        raise InterpError("together is for several receivers, and there is one: logits")

    def cells(examples: Sequence[Example]) -> list[NamedCell]:
        changed = _senders(model, examples, options)
        if not ends:
            return [
                ({"layer": layer, "head": head, "receiver": "logits"}, edits)
                for (layer, head), edits in changed.items()
            ]
        return _to_receivers(model, examples, changed, ends, together, options)

    return effects_of(model, task, cells, edit="path", metric=metric, normalise=True, **options)


def n_paths(model: Model, receivers: Sequence[Receiver], together: bool) -> int:
    """How many paths :func:`trace_paths` traces; without receivers, those to the logits."""
    layers = [receiver.layer for receiver in receivers] or [model.n_layers]
    return model.n_heads * (max(layers) if together else sum(layers))


def _checked(model: Model, receivers: Sequence[Receiver | str]) -> list[Receiver]:
    if isinstance(receivers, Receiver):
        receivers = [receivers]
    found = [one if isinstance(one, Receiver) else Receiver.parsed(one) for one in receivers]
    if not found:
        raise InterpError("receivers: none given; expected such as k1.3, or logits")
    for receiver in found:
        try:
            check_site(model, receiver.site)
        except InterpError as error:
            raise InterpError(f"receivers: {error}") from None
        if receiver.layer == 0:
            raise InterpError(
                f"receiver {receiver}: no head comes before layer 0; nothing to trace"
            )
    if len(set(found)) < len(found):
        raise InterpError(f"receivers: {', '.join(map(str, found))}: one is given twice")
    return found


def _senders(
    model: Model, examples: Sequence[Example], options: Options
) -> dict[tuple[int, int], list[Edit]]:
    """Passes A and B, and of C the edits: by sender."""
    sites = [Site("z", layer) for layer in range(model.n_layers)]
    engine = options.get("engine", "auto")
    clean = recorded(model, [e.prompt for e in examples], sites, engine)
    corrupted = recorded(
        model, [e.corrupted for e in examples if e.corrupted is not None], sites, engine
    )
    return {
        (layer, head): [
            Replace(
                Site("z", layer, (head,)), corrupted[sites[layer]][:, head : head + 1], "corrupted"
            ),
            *(Replace(site, clean[site], "clean") for site in sites[layer + 1 :]),
        ]
        for layer in range(model.n_layers)
        for head in range(model.n_heads)
    }


def _to_receivers(
    model: Model,
    examples: Sequence[Example],
    changed: dict[tuple[int, int], list[Edit]],
    receivers: Sequence[Receiver],
    together: bool,
    options: Options,
) -> list[NamedCell]:
    """Pass C, and of D the cells."""
    found: list[NamedCell] = []
    for (layer, head), given in _given(model, examples, changed, receivers, options).items():
        edits = [Replace(receiver.site, given[receiver], "path") for receiver in given]
        groups = [edits] if together else [[edit] for edit in edits]
        names = [" + ".join(map(str, given))] if together else [str(receiver) for receiver in given]
        found += [
            ({"layer": layer, "head": head, "receiver": name}, group)
            for name, group in zip(names, groups, strict=True)
        ]
    return found


def _given(
    model: Model,
    examples: Sequence[Example],
    changed: dict[tuple[int, int], list[Edit]],
    receivers: Sequence[Receiver],
    options: Options,
) -> dict[tuple[int, int], dict[Receiver, Tensor]]:
    """What each sender alone makes of the receivers' inputs: (example, 1, position, d_head)."""
    engine = options.get("engine", "auto")
    last = max(receiver.layer for receiver in receivers)
    senders = [sender for sender in changed if sender[0] < last]
    begins = [(layer, 0) for layer, _ in senders]
    prompts = [example.prompt for example in examples]
    parts: dict[tuple[int, int], dict[Receiver, list[Tensor]]] = {s: {} for s in senders}
    order: list[int] = []  # examples as they come, which need not be as they are given
    for members in split(model, examples, begins, options.get("batch_tokens", BATCH_TOKENS)):
        group = kept_pass(model, examples, prompts, members, begins, engine)
        order += members
        length, n = group.ids.shape[1], len(members)
        rows = rows_in_a_pass(
            model, length, group.where.shape[1], options.get("batch_tokens", BATCH_TOKENS)
        )
        size = max(1, rows // n)
        for layer in range(last):
            here = [sender for sender in senders if sender[0] == layer]
            later = [receiver for receiver in receivers if receiver.layer > layer]
            for start in range(0, len(here), size):
                chunk = here[start : start + size]
                recording = Recording(receiver.site for receiver in later)
                run_cells(
                    model,
                    group,
                    [changed[sender] for sender in chunk],
                    (layer, 0),
                    engine,
                    recording,
                )
                for receiver in later:
                    by_cell = recording[receiver.site].unflatten(0, (len(chunk), n))
                    for sender, tensor in zip(chunk, by_cell, strict=True):
                        parts[sender].setdefault(receiver, []).append(tensor.clone())
    back = torch.tensor(order).argsort()
    return {
        sender: {receiver: torch.cat(tensors)[back] for receiver, tensors in given.items()}
        for sender, given in parts.items()
    }
