"""Attribution patching: every patch of :mod:`interp.patching` estimated at once, from gradients.

    estimate = Σ (activation that would be put in − activation there) · ∂metric / ∂activation

summed over d_head (or d_model) and the patched positions: the first-order effect of the patch, with
the sign of ``patch``. Two forward passes and a backward give it for every head and position (Nanda,
2023; Syed et al., 2310.10348; Kramár et al., 2403.00745). It is an estimate, and can be far off where the
model is not nearly linear between the two prompts (large changes of the residual stream, a saturated
softmax): :func:`audit` holds it against exact patches.

Options:

- ``steps``: integrated gradients. The gradient is the mean over ``steps`` points of the way between the two
  prompts' inputs to layer 0, at (k + ½) / steps; Hanna et al. (2403.17806) take k / steps.
- ``correct_qk``: for q and k, the change that the patch makes to the attention weights is computed exactly
  through the softmax, and only what comes after is linear (the QK correction of AtP*, 2403.00745). For k
  this takes the written-out weights of a layer: prompts of hundreds of tokens, not of thousands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
import pandas as pd
import torch
from einops import einsum, reduce
from jaxtyping import Float
from torch import Tensor

from interp import stats
from interp.edits import Recording, Replace, edited
from interp.effects import Measured, Options, as_table, metric_for
from interp.errors import InterpError
from interp.forward import BATCH_TOKENS, logits_at
from interp.kernels import Engine, attend, softcapped
from interp.metrics import Metric
from interp.metrics import positions as read_positions
from interp.model import Model
from interp.passes import rows_in_a_pass
from interp.patching import Direction, Positions, check_patch, goes_with, patch, sites_of
from interp.pattern import AttentionPattern, Pattern
from interp.sites import Kind, Site
from interp.tasks import Example, Task


def attribute(
    model: Model,
    task: Task,
    site: Kind = "z",
    positions: Positions = "together",
    direction: Direction = "denoise",
    metric: str | None = None,
    *,
    steps: int | None = None,
    correct_qk: bool = False,
    batch_tokens: int = BATCH_TOKENS,
    engine: Engine = "auto",
) -> pd.DataFrame:
    """Estimate what :func:`~interp.patching.patch` measures, with the same arguments and rows.

    Args:
        steps: points of integrated gradients; None: the plain gradient at the prompt that is run.
        correct_qk: for sites q and k: compute the change of the weights exactly.

    Returns:
        a table as ``tables.EFFECTS_PER_PROMPT`` describes, ``effect`` being the estimate.

    Raises:
        InterpError: what ``patch`` refuses; site "pattern"; ``correct_qk`` for another site than q or k; a
            metric without a gradient (flips, or kl where it is at its minimum).
    """
    check_patch(model, task, site, positions, direction)
    chosen = metric_for(task, metric)
    if site == "pattern":
        raise InterpError("site=pattern: gradients of weights are not taken; expected q, k, v or z")
    if correct_qk and site not in ("q", "k"):
        raise InterpError(
            f"correct_qk: site={site}: expected q or k, whose weights a patch changes"
        )
    if steps is not None and steps < 1:
        raise InterpError(f"steps={steps}: expected at least 1")
    if chosen.name == "kl" and direction == "noise" and steps is None:
        raise InterpError(
            "metric=kl: its gradient at the clean prompt is 0; give steps, or another metric"
        )
    together: dict[object, list[int]] = {}
    for i, example in enumerate(task.examples):
        together.setdefault(goes_with(example, positions), []).append(i)
    measured = []
    for whole in together.values():
        one = task.examples[whole[0]]
        length, scored = len(one.prompt.ids), len(read_positions(one))
        size = rows_in_a_pass(model, length, scored, batch_tokens)
        for start in range(0, len(whole), size):
            members = whole[start : start + size]
            examples = [task.examples[i] for i in members]
            pair = _Pair(model, examples, site, direction, engine, looked_at=correct_qk)
            gradient = pair.gradient(chosen, steps)
            named = sites_of(model, site, examples[0], positions)
            values = {"effect": np.stack([_effect(one, pair, gradient) for one, _ in named])}
            values |= pair.values(chosen)
            measured.append(Measured(members, [name for _, name in named], values))
    kind = "attribution" if steps is None else f"attribution, {steps} steps"
    kind += ", QK corrected" if correct_qk else ""
    return as_table(model, task, measured, f"{direction}: {kind}", chosen.name)


Estimates = dict[int, Float[Tensor, "example *head pos"]]
"""Layer → estimate of a patch at each head and position alone."""


class _Pair:
    """The run that is patched and the run that is taken from, of some examples of one length."""

    def __init__(
        self,
        model: Model,
        examples: Sequence[Example],
        site: Kind,
        direction: Direction,
        engine: Engine,
        *,
        looked_at: bool,
    ) -> None:
        self.model, self.examples, self.engine = model, examples, engine
        self.site, self.corrects = site, looked_at
        clean = [example.prompt.ids for example in examples]
        corrupted = [e.corrupted.ids for e in examples if e.corrupted is not None]
        base, donor = (corrupted, clean) if direction == "denoise" else (clean, corrupted)
        self.denoises = direction == "denoise"
        self.ids = torch.tensor(base, device=model.device)
        self.where = torch.tensor([read_positions(e) for e in examples], device=model.device)
        self.sites = [Site(site, layer) for layer in range(model.n_layers)]
        self.donor = Recording([*self.sites, Site("resid_pre", 0)])
        with edited(model, recording=self.donor, engine=engine):
            self.donor_logits = logits_at(
                model, torch.tensor(donor, device=model.device), self.where
            )
        self.base_logits = self.donor_logits  # until the run that is patched has been made
        self.base = self.donor
        self.patterns: dict[int, AttentionPattern] = {}

    def gradient(self, metric: Metric, steps: int | None) -> Estimates:
        """The run that is patched, and from its gradient the estimates of each site alone."""
        self.base, gradients = self._pass(metric, None)
        if steps is not None:
            gradients = {}
            for k in range(steps):
                _, found = self._pass(metric, (k + 0.5) / steps)
                for key, tensor in found.items():
                    gradients[key] = gradients.get(key, 0) + tensor / steps
        return {layer: self._estimate(layer, gradients) for layer in range(self.model.n_layers)}

    def _pass(self, metric: Metric, share: float | None) -> tuple[Recording, dict[Site, Tensor]]:
        """A pass with gradients, its input that share of the way to the donor's; None: its own."""
        wanted = [*self.sites]
        if self.corrects:
            wanted += [Site(kind, site.layer) for site in self.sites for kind in ("v", "z")]
        recording = Recording({*wanted, Site("resid_pre", 0)}, attached=True)
        edits = []
        if share is not None:
            inputs = Site("resid_pre", 0)
            start = self.base[inputs].detach()
            edits = [Replace(inputs, start + share * (self.donor[inputs] - start), "on the way")]
        own = share is None

        def look(layer: int, pattern: Pattern, _: Tensor) -> None:
            if own and isinstance(pattern, AttentionPattern):
                self.patterns[layer] = replace(
                    pattern,
                    query=pattern.query.detach(),
                    key=pattern.key.detach(),
                    lse=pattern.lse.detach(),
                )

        with edited(
            self.model,
            edits,
            look if self.corrects else None,
            recording=recording,
            engine=self.engine,
        ):
            logits = logits_at(self.model, self.ids, self.where, gradients=True)
        if own:
            self.base_logits = logits.detach()
        value = metric.measure(logits, self.clean_logits, self.examples)
        if not value.requires_grad:
            raise InterpError(
                f"metric={metric.name} has no gradient; take the logit difference or the loss"
            )
        tensors = [recording[site] for site in wanted]
        found = torch.autograd.grad(value.sum(), tensors)
        return recording, dict(zip(wanted, found, strict=True))

    @property
    def clean_logits(self) -> Tensor:
        """Logits of the clean prompts."""
        return self.donor_logits if self.denoises else self.base_logits

    def values(self, metric: Metric) -> dict[str, Float[np.ndarray, " example"]]:
        """Baseline, clean and corrupted value of each example."""
        clean, corrupted = (
            metric.measure(logits, self.clean_logits, self.examples).double().cpu().numpy()
            for logits in (
                (self.donor_logits, self.base_logits)
                if self.denoises
                else (self.base_logits, self.donor_logits)
            )
        )
        baseline = corrupted if self.denoises else clean
        return {"baseline": baseline, "clean": clean, "corrupted": corrupted}

    def _estimate(self, layer: int, gradients: dict[Site, Tensor]) -> Tensor:
        here = Site(self.site, layer)
        new, old = self.donor[here], self.base[here].detach()
        if not self.corrects:
            return ((new - old) * gradients[here]).sum(-1)
        v, z = (self.base[Site(kind, layer)].detach() for kind in ("v", "z"))
        pull = gradients[Site("z", layer)]
        pattern = self.patterns[layer]
        if self.site == "q":
            changed = attend(
                new,
                pattern.key,
                v,
                scale=pattern.scale,
                mask=pattern.mask,
                softcap=pattern.softcap,
                sink=pattern.sink,
                engine=self.engine,
            ).z
            return ((changed - z) * pull).sum(-1)
        return _changed_keys(pattern, new, v, z, pull)


def _changed_keys(
    pattern: AttentionPattern, key: Tensor, value: Tensor, z: Tensor, pull: Tensor
) -> Float[Tensor, "example kv_head key"]:
    """The exact change of z, times its gradient, if one key alone were another.

    With w the weight on the key, δ the change of its score and N = 1 + w (exp δ − 1), its weight becomes
    w exp(δ) / N and every other is divided by N:  Δz = (1/N − 1) z + w (exp δ − 1) / N · value.
    """
    groups = pattern.n_heads // key.shape[1]
    weight = pattern.dense()
    many = [tensor.repeat_interleave(groups, dim=1) for tensor in (key, pattern.key, value)]
    new, old = (
        softcapped(
            pattern.scale * einsum(pattern.query, k, "b h q d, b h k d -> b h q k"), pattern.softcap
        )
        for k in many[:2]
    )
    # Far out of reach nothing is looked at, and exp must not overflow.
    grown = torch.expm1((new - old).masked_fill(weight == 0, 0.0).clamp(max=80.0))
    total = 1 + weight * grown
    through_z = (1 / total - 1) * (z * pull).sum(-1)[..., None]
    through_value = weight * grown / total * einsum(pull, many[2], "b h q d, b h k d -> b h q k")
    each = (through_z + through_value).sum(-2)  # (example, head, key)
    return reduce(each, "b (kv group) k -> b kv k", "sum", group=groups)


def _effect(site: Site, pair: _Pair, gradient: Estimates) -> Float[np.ndarray, " example"]:
    """The estimate of one patch: its head, its positions."""
    found = gradient[site.layer]
    if site.heads is not None:
        found = found[:, site.heads[0]]
    if site.positions is not None:
        found = found[:, list(site.positions)]
    return found.sum(-1).double().cpu().numpy()


@dataclass(frozen=True)
class Audit:
    """Estimates beside exact effects, means over prompts.

    Attributes:
        table: a row for each audited head: layer, head, estimate, exact; ``in_top`` and ``in_random``
            say why it was chosen.
        rank_agreement: Spearman correlation of |estimate| and |exact| over the random heads, which stand
            for all; NaN below three.
        sign_agreement: share of the random heads whose estimate has the sign of the exact effect.
        worst_miss: the audited head of the largest |estimate − exact|: (layer, head, that difference).
    """

    table: pd.DataFrame
    rank_agreement: float
    sign_agreement: float
    worst_miss: tuple[int, int, float]

    def __str__(self) -> str:
        layer, head, miss = self.worst_miss
        n = int(self.table["in_random"].sum())
        return (
            f"{len(self.table)} heads patched exactly: rank agreement {self.rank_agreement:.2f} and sign "
            f"agreement {self.sign_agreement:.0%} over {n} random heads; "
            f"worst miss {miss:.3g} (head {layer}.{head})"
        )


def audit(
    model: Model,
    task: Task,
    estimates: pd.DataFrame,
    *,
    n_top: int = 10,
    n_random: int = 20,
    **options: Unpack[Options],
) -> Audit:
    """Exact effects of the heads with the largest estimates and of others drawn at random.

    Args:
        estimates: of :func:`attribute` with positions together, at a site with heads.

    Raises:
        InterpError: estimates by position, or of a site without heads.
    """
    if "place" in estimates or "head" not in estimates:
        raise InterpError("audit: expected estimates of heads, positions together")
    mean = estimates.groupby(["layer", "head"]).effect.mean()
    top = mean.abs().sort_values(ascending=False, kind="stable").index[:n_top]
    drawn = np.random.default_rng([options.get("seed", 0), 3]).permutation(len(mean))[:n_random]
    random = mean.index[np.sort(drawn)]
    chosen = top.union(random)
    one = estimates.iloc[0]
    direction: Direction = "denoise" if one.edit.startswith("denoise") else "noise"
    exact, _ = patch(
        model, task, one.site, "together", direction, one.metric, only=chosen, **options
    )
    table = pd.DataFrame(
        {"estimate": mean[chosen], "exact": exact.groupby(["layer", "head"]).effect.mean()[chosen]}
    ).assign(in_top=chosen.isin(top), in_random=chosen.isin(random))
    table = table.reset_index()
    sample = table[table["in_random"]]
    miss = (table.estimate - table.exact).abs().to_numpy()
    worst = table.iloc[int(miss.argmax())]
    return Audit(
        table,
        stats.spearman(sample.estimate.abs().to_numpy(), sample.exact.abs().to_numpy()),
        float((np.sign(sample.estimate) == np.sign(sample.exact)).mean()),
        (int(worst.layer), int(worst["head"]), float(miss.max())),
    )
