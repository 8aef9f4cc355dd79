"""What each head is worth to a task: its z replaced, everything after it recomputed (total effect).

    effect(head) = metric with the head's z ablated − metric without

    zero       z becomes 0: "what if the head said nothing?" A head's mean output is part of what later
               layers expect, so this also breaks what is merely constant (Wang et al., 2211.00593, §2)
    mean       z becomes its mean over the donors: at each position over prompts of one length; or over all
               donor positions that hold the same token (where no donor shows it, over all, and counted); or
               over all positions
    resample   z becomes that of one donor prompt of the same length, which the table names: the example's
               corrupted prompt, or the clean prompt of the next example where the task has none

Donors are the corrupted prompts of the task, or its clean ones if it has none. Ablations of different
kinds can disagree (Heimersheim & Nanda, 2404.15255); ``edit`` names what was put in.

``hold_patterns`` keeps the attention patterns of all later layers as they are in the clean run, so that the
effect goes through values only (pattern-preserving ablation, Olsson et al., 2209.11895): a head that only
tells later ones *where* to look has none. Patterns are written out for that, layers × heads × length²
numbers a prompt; more than :data:`PATTERN_BYTES` are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Unpack

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention.kernels import Engine
from interp.editing.edits import Edit, Replace
from interp.editing.sites import Site
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.inputs.tasks import Example, Task, check_asked
from interp.interventions.effects import NamedCell, Options, effects_of, recorded
from interp.models.forward import batches
from interp.models.model import Model
from interp.results.findings import Effects
from interp.results.tables import EFFECTS_PER_PROMPT

How = Literal["zero", "mean", "resample"]
MeanOver = Literal["position", "token", "all"]
Ablate = Callable[[Sequence[tuple[int, int]]], list[Edit]]
"""From heads, (layer, head) each, to the edits that ablate them together."""

# Of written-out patterns that hold_patterns may take.
PATTERN_BYTES = 2_000_000_000


def ablate_heads(
    model: Model,
    task: Task,
    how: How = "zero",
    metric: str | None = None,
    *,
    mean_over: MeanOver = "position",
    hold_patterns: bool = False,
    **options: Unpack[Options],
) -> Effects:
    """The effect of ablating each query head, on every example.

    Args:
        metric: a name of ``metrics.METRICS``; None: that of ``metrics.usual_metric``.
        mean_over: what a mean is taken over.
        hold_patterns: keep the attention patterns of later layers as in the clean run.

    Returns:
        a row a head and prompt, as ``tables.EFFECTS_PER_PROMPT`` describes, and its summary.

    Raises:
        InterpError: an unknown metric or one the task has nothing for, a resample without a donor, patterns
            too large to hold, or whatever :func:`interp.editing.sweep.sweep` refuses.
    """
    making = Ablating(model, task, how, mean_over, hold_patterns, options.get("engine", "auto"))

    def cells(examples: Sequence[Example]) -> list[NamedCell]:
        ablate = making(examples)
        return [
            ({"layer": layer, "head": head}, ablate([(layer, head)]))
            for layer in range(model.n_layers)
            for head in range(model.n_heads)
        ]

    table, difference = effects_of(model, task, cells, edit=making.name, metric=metric, **options)
    return Effects(making.with_donors(table), difference)


class Ablating:
    """How heads of a task are ablated: for examples of one length, a function from heads to edits.

    Args:
        task: where donors come from; of all lengths, for a mean over tokens or all positions.
        how, mean_over, hold_patterns: see the module.
    """

    def __init__(
        self,
        model: Model,
        task: Task,
        how: How,
        mean_over: MeanOver = "position",
        hold_patterns: bool = False,
        engine: Engine = "auto",
    ) -> None:
        check_asked(model, task)
        if how not in ("zero", "mean", "resample"):
            raise InterpError(f"how={how!r}: expected zero, mean or resample")
        if mean_over not in ("position", "token", "all"):
            raise InterpError(f"mean_over={mean_over!r}: expected position, token or all")
        if mean_over != "position" and how != "mean":
            raise InterpError(f"mean_over={mean_over} is for how='mean', and how is {how!r}")
        if hold_patterns:
            _check_patterns(model, task)
        self.model, self.task, self.engine = model, task, engine
        self.how, self.mean_over, self.hold_patterns = how, mean_over, hold_patterns
        self._donor: dict[str, str] = {}

    @property
    def name(self) -> str:
        """What is done, for the table."""
        over = {"position": "", "token": " by token", "all": " over all positions"}[self.mean_over]
        return f"{self.how}{over}{', patterns held' * self.hold_patterns}"

    def __call__(self, examples: Sequence[Example]) -> Ablate:
        """Run what is needed for these examples, in whose order the values' prompt axis is."""
        held: list[Edit] = []
        if self.hold_patterns:
            sites = [Site("pattern", layer) for layer in range(1, self.model.n_layers)]
            clean = recorded(self.model, [e.prompt for e in examples], sites, self.engine)
            held = [Replace(site, clean[site], "clean pattern") for site in sites]
        if self.mean_over == "position":
            new, origin = new_outputs(self.model, examples, self.how, self.engine)
        else:
            new, origin = self._pooled_means(examples)
        if self.how == "resample":
            donors, _ = _donors(examples, self.how)
            self._donor |= {
                e.prompt.name: donor.name for e, donor in zip(examples, donors, strict=True)
            }

        def ablate(heads: Sequence[tuple[int, int]]) -> list[Edit]:
            first = min(layer for layer, _ in heads)
            changed = [
                Replace(Site("z", layer, (head,)), new[layer][:, head : head + 1], origin)
                for layer, head in heads
            ]
            return [*changed, *held[first:]]  # held begins with layer 1

        return ablate

    def with_donors(self, table: pd.DataFrame) -> pd.DataFrame:
        """The same table with the donor of each prompt, or the number of its tokens that no donor shows."""
        if self.how == "resample":
            table = table.assign(donor=table["prompt"].map(self._donor))
        if self.mean_over == "token":
            donors, _ = _donors(self.task.examples, self.how)
            shown = {token for donor in donors for token in donor.ids}
            unseen = {
                e.prompt.name: sum(token not in shown for token in e.prompt.ids)
                for e in self.task.examples
            }
            table = table.assign(n_unseen=table["prompt"].map(unseen))
        order = [name for name in EFFECTS_PER_PROMPT.columns if name in table]
        return table[[*order, *(name for name in table if name not in order)]]

    def _pooled_means(
        self, examples: Sequence[Example]
    ) -> tuple[list[Float[Tensor, "example head pos d_value"]], str]:
        """Means over donor positions of the whole task: of the same token, or all."""
        donors, origin = _donors(self.task.examples, self.how)
        known = {token: i for i, token in enumerate({t for donor in donors for t in donor.ids})}
        sites = [Site("z", layer) for layer in range(self.model.n_layers)]
        sums: dict[Site, Tensor] = {}
        for batch in batches(donors):
            rows = [known[token] for donor in batch for token in donor.ids]
            index = torch.tensor(rows, device=self.model.device)
            for site, z in recorded(self.model, batch, sites, self.engine).items():
                # In float32: a sum of many in half precision stops growing.
                flat = z.transpose(1, 2).flatten(0, 1).float()  # (prompt × position, head, d_value)
                if site not in sums:
                    sums[site] = flat.new_zeros(len(known), *flat.shape[1:])
                sums[site].index_add_(0, index, flat)
        counts = torch.zeros(len(known), device=self.model.device)
        tokens = torch.tensor([known[t] for donor in donors for t in donor.ids])
        counts += torch.bincount(tokens, minlength=len(known)).to(counts)
        overall = [sums[site].sum(0) / counts.sum() for site in sites]
        if self.mean_over == "all":
            return [mean[None, :, None] for mean in overall], f"{origin}, over all positions"
        # The last row stands for tokens that no donor shows.
        ids = torch.tensor([[known.get(t, len(known)) for t in e.prompt.ids] for e in examples])
        means = [
            torch.cat([sums[site] / counts[:, None, None], mean[None]])
            for site, mean in zip(sites, overall, strict=True)
        ]
        return [mean[ids.to(mean.device)].transpose(1, 2) for mean in means], f"{origin}, by token"


def _check_patterns(model: Model, task: Task) -> None:
    """Refuse to hold patterns that would not fit, naming the bytes."""
    by_length: dict[int, int] = {}
    for example in task.examples:
        by_length[len(example.prompt.ids)] = by_length.get(len(example.prompt.ids), 0) + 1
    layers = model.n_layers - 1
    length, n = max(by_length.items(), key=lambda item: item[1] * item[0] ** 2)
    needed = n * layers * model.n_heads * length**2 * 4
    if needed > PATTERN_BYTES:
        raise InterpError(
            f"hold_patterns: the patterns of {n} prompts of {length} tokens, {layers} layers × "
            f"{model.n_heads} heads, take {needed / 1e9:.1f} GB, over {PATTERN_BYTES / 1e9:.1f} GB: "
            "use fewer or shorter prompts"
        )


def new_outputs(
    model: Model, examples: Sequence[Example], how: How, engine: Engine = "auto"
) -> tuple[list[Float[Tensor, "example head pos d_value"]], str]:
    """What z of each layer becomes (an axis may be 1 where all are alike), and where it is from.

    A mean is over prompts, position by position.
    """
    if how == "zero":
        return [torch.zeros(1, model.n_heads, 1, 1, device=model.device)] * model.n_layers, "zero"
    donors, origin = _donors(examples, how)
    _check_donors(examples, donors, how)
    sites = [Site("z", layer) for layer in range(model.n_layers)]
    values = recorded(model, donors, sites, engine)
    if how == "mean":
        values = {site: z.mean(0, keepdim=True) for site, z in values.items()}
    return [values[site] for site in sites], origin


def _check_donors(examples: Sequence[Example], donors: Sequence[Prompt], how: How) -> None:
    """Refuse donors that are the prompt itself: that would change nothing, and look like no effect."""
    for example, own in zip(examples, donors, strict=True):
        givers = [own] if how == "resample" else donors
        if all(donor.ids == example.prompt.ids for donor in givers):
            raise InterpError(
                f"{how}: example {example.prompt.name} would be given its own activations: "
                f"{own.name} has the same tokens; use prompts that differ, or zero"
            )


def _donors(examples: Sequence[Example], how: How) -> tuple[list[Prompt], str]:
    corrupted = [example.corrupted for example in examples if example.corrupted is not None]
    if len(corrupted) == len(examples):
        return corrupted, f"{how} of corrupted prompts"
    prompts = [example.prompt for example in examples]
    if len(prompts) < 2:  # its own activations would change nothing, and look like no effect
        raise InterpError(
            f"{how}: example {prompts[0].name} has no corrupted prompt, and no other of its "
            f"{len(prompts[0].ids)} tokens to take activations from; use more prompts, or zero"
        )
    return [*prompts[1:], prompts[0]], f"{how} of clean prompts"
