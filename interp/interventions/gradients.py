"""Attribution patching: every patch of patching.py estimated at once, from gradients.

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
  through the softmax, and only what comes after is linear (the QK correction of AtP*, 2403.00745). For k at
  one position at a time this writes out n × n scores: prompts of hundreds of tokens, not of thousands.
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

from interp.arguments import whole_number
from interp.attention.kernels import Engine, attend, softcapped
from interp.attention.pattern import AttentionPattern, Pattern
from interp.editing.edits import Recording, Replace, edited
from interp.editing.metrics import Metric, last_places
from interp.editing.metrics import positions as read_positions
from interp.editing.passes import rows_in_a_pass
from interp.editing.sites import Kind, Site
from interp.errors import InterpError
from interp.inputs.tasks import Example, Task, check_examples
from interp.interventions.effects import Measured, Options, as_table, ends, metric_for
from interp.interventions.patching import (
    ROW,
    Direction,
    Positions,
    check_patch,
    goes_with,
    patch,
    sites_of,
)
from interp.models.forward import BATCH_TOKENS, logits_at
from interp.models.model import Model
from interp.results import stats
from interp.results.tables import AUDIT

# Most tokens in a pass with gradients: every step of it is kept, 1.5 MB a token for 135 million weights.
GRAPH_TOKENS = 1_024


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
    """Estimate what :func:`~interp.interventions.patching.patch` measures, with the same arguments and rows.

    Args:
        steps: points of integrated gradients; None: the plain gradient at the prompt that is run.
        correct_qk: for sites q and k: compute the change of the weights exactly.
        batch_tokens: tokens in one pass, of which there are never more than ``GRAPH_TOKENS``.

    Returns:
        a table as ``tables.EFFECTS_PER_PROMPT`` describes, ``effect`` being the estimate.

    Raises:
        InterpError: what ``patch`` refuses; site "pattern"; ``correct_qk`` for another site than q or k; a
            metric without a gradient (flips, or kl where it is at its minimum).
    """
    check_patch(model, task, site, positions, direction)
    chosen = metric_for(task, metric)
    check_examples(model, task.examples)
    check_estimate(site, direction, chosen, steps, correct_qk)
    together: dict[object, list[int]] = {}
    for i, example in enumerate(task.examples):
        together.setdefault(goes_with(example, positions), []).append(i)
    measured = []
    for whole in together.values():
        one = task.examples[whole[0]]
        length, scored = len(one.prompt.ids), len(read_positions(one))
        size = rows_in_a_pass(model, length, scored, min(batch_tokens, GRAPH_TOKENS))
        for start in range(0, len(whole), size):
            members = whole[start : start + size]
            examples = [task.examples[i] for i in members]
            with torch.inference_mode(False), torch.enable_grad():  # whatever the caller has set
                pair = _Pair(model, examples, site, positions, direction, engine, correct_qk)
                gradient = pair.gradient(chosen, steps)
            named = sites_of(model, site, examples[0], positions)
            values = {"effect": np.stack([_effect(one, pair, gradient) for one, _ in named])}
            values |= pair.values(chosen)
            measured.append(Measured(members, [name for _, name in named], values))
    kind = "attribution" if steps is None else f"attribution, {steps} steps"
    kind += ", QK corrected" if correct_qk else ""
    return as_table(model, task, measured, f"{direction}: {kind}", chosen.name)


def check_estimate(
    site: Kind,
    direction: Direction,
    metric: Metric,
    steps: int | None = None,
    correct_qk: bool = False,
) -> None:
    """Refuse what has no gradient, or none that says anything."""
    if site == "pattern":
        raise InterpError("site=pattern: gradients of weights are not taken; expected q, k, v or z")
    if correct_qk and site not in ("q", "k"):
        raise InterpError(
            f"correct_qk: site={site}: expected q or k, whose weights a patch changes"
        )
    if steps is not None:
        whole_number("steps", steps, least=1)
    if metric.name == "flips":
        raise InterpError("metric=flips has no gradient; take the logit difference or the loss")
    if metric.name == "kl" and direction == "noise" and steps is None:
        raise InterpError(
            "metric=kl: its gradient at the clean prompt is 0; give steps, or another metric"
        )


Estimates = dict[int, Float[Tensor, "example *head pos"]]
"""Layer → estimate of a patch at each head and position alone."""


class _Pair:
    """The run that is patched and the run that is taken from, of some examples of one length."""

    def __init__(
        self,
        model: Model,
        examples: Sequence[Example],
        site: Kind,
        positions: Positions,
        direction: Direction,
        engine: Engine,
        corrects: bool,
    ) -> None:
        self.model, self.examples, self.engine = model, examples, engine
        self.site, self.positions, self.corrects = site, positions, corrects
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
        rounding = last_places(self.base_logits, self.model.dtype)
        return {"baseline": baseline, **ends(clean, corrupted, rounding)}

    def _estimate(self, layer: int, gradients: dict[Site, Tensor]) -> Tensor:
        here = Site(self.site, layer)
        new, old = self.donor[here], self.base[here].detach()
        if not self.corrects:
            return ((new - old) * gradients[here]).sum(-1)
        v, z = (self.base[Site(kind, layer)].detach() for kind in ("v", "z"))
        pull = gradients[Site("z", layer)]
        pattern = self.patterns[layer]
        if self.site == "k" and self.positions != "together":
            return _changed_keys(pattern, new, v, z, pull)
        # All positions at once: of keys they are patched so, and a query's weights are its own alone.
        query, key = (new, pattern.key) if self.site == "q" else (pattern.query, new)
        changed = attend(
            query,
            key,
            v,
            scale=pattern.scale,
            mask=pattern.mask,
            softcap=pattern.softcap,
            sink=pattern.sink,
            engine=self.engine,
        ).z
        each = ((changed - z) * pull).sum(-1)
        return each if self.site == "q" else _by_kv_head(each, key)


def _changed_keys(
    pattern: AttentionPattern, key: Tensor, value: Tensor, z: Tensor, pull: Tensor
) -> Float[Tensor, "example kv_head key"]:
    """The exact change of z, times its gradient, if one key alone were another.

    With a = σ(score − rest) the weight on the key, rest the log-sum-exp over the others and o what these
    fetch, z = o + a (value − o): only a changes. Of the key with most weight, which may be all, o and
    rest are computed from the others; of any other key, by taking it away from z and lse.
    """
    groups, n = pattern.n_heads // key.shape[1], pattern.mask.n_queries
    seen = pattern.mask.tile(slice(0, n), slice(0, n))
    new, old, fetched = (
        tensor.repeat_interleave(groups, dim=1) for tensor in (key, pattern.key, value)
    )
    after, score = (
        softcapped(
            pattern.scale * einsum(pattern.query, keys, "b h q d, b h k d -> b h q k"),
            pattern.softcap,
        ).masked_fill(~seen, -torch.inf)
        for keys in (new, old)
    )
    is_top = torch.zeros_like(score, dtype=torch.bool).scatter(-1, score.argmax(-1, True), True)
    others = score.masked_fill(is_top, -torch.inf)
    rest = others.logsumexp(-1, keepdim=True)
    if pattern.sink is not None:
        rest = torch.logaddexp(rest, pattern.sink.to(rest.dtype)[:, None, None])
    mixed = (others - rest.clamp(min=torch.finfo(rest.dtype).min)).exp() @ fetched
    pull_v = einsum(pull, fetched, "b h q d, b h k d -> b h q k")
    pull_top, pull_z = ((pull * part).sum(-1, keepdim=True) for part in (mixed, z))
    weight = (score - pattern.lse[..., None]).exp()
    pull_o = torch.where(is_top, pull_top, (pull_z - weight * pull_v) / (1 - weight))
    rest = torch.where(is_top, rest, pattern.lse[..., None] + torch.log1p(-weight))
    moved = torch.sigmoid(after - rest) - torch.sigmoid(score - rest)
    each = (moved * (pull_v - pull_o)).where(seen, 0.0).sum(-2)
    return _by_kv_head(each, key)


def _by_kv_head(each: Tensor, key: Tensor) -> Float[Tensor, "example kv_head pos"]:
    """Sums over the query heads that a key-value head serves."""
    return reduce(each, "b (kv group) n -> b kv n", "sum", kv=key.shape[1])


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
    """Estimates beside exact effects, means over templates.

    Attributes:
        table: as ``tables.AUDIT`` describes: a row for each row of estimates that was patched exactly.
        rank_agreement: Spearman correlation of |estimate| and |exact| over the random rows, which stand
            for all that are not 0; NaN below three.
        sign_agreement: share of the random rows whose estimate has the sign of the exact effect.
        worst_miss: the audited row of the largest |estimate − exact|, by name, and that difference.
        largest_difference: of the exact effects to plain forward passes, over a sample.
    """

    table: pd.DataFrame
    rank_agreement: float
    sign_agreement: float
    worst_miss: tuple[str, float]
    largest_difference: float

    def __str__(self) -> str:
        what, miss = self.worst_miss
        drawn = int(self.table.in_random.sum())
        if not drawn:
            agree = "none was drawn at random, so agreement is undefined"
        else:
            rank = f"{self.rank_agreement:.2f}"
            if np.isnan(self.rank_agreement):
                rank = "undefined (below three, or all alike)"
            agree = f"over {drawn} of them drawn at random: rank agreement {rank}, "
            agree += f"sign agreement {self.sign_agreement:.0%}"
        return f"{len(self.table)} rows patched exactly; {agree}; worst miss {miss:.3g} ({what})"


def audit(
    model: Model,
    task: Task,
    estimates: pd.DataFrame,
    *,
    n_top: int = 10,
    n_random: int = 20,
    **options: Unpack[Options],
) -> Audit:
    """Exact effects where the estimates are largest, and at others drawn at random.

    Args:
        estimates: of :func:`attribute`, for this model and task.
        n_top, n_random: rows of each kind: heads, or heads (layers) at one place; drawn are those whose
            estimate is not 0.

    Raises:
        InterpError: no rows asked for, or what ``patch`` refuses.
    """
    for name, count in (("n_top", n_top), ("n_random", n_random)):
        whole_number(f"audit: {name}", count, least=0)
    if n_top + n_random == 0:
        raise InterpError(f"audit: n_top={n_top}, n_random={n_random}: expected at least one row")
    if estimates.empty:
        raise InterpError("audit: no estimates given; expected a table of attribute")
    keys = [key for key in ROW if key in estimates]
    table = _over_templates(estimates, keys).rename(columns={"effect": "estimate"})
    by_size = table.estimate.abs().sort_values(ascending=False, kind="stable").index
    # Where the prompts do not differ, estimate and effect are 0: no test of the one by the other.
    differing = table.index[table.estimate != 0]
    drawn = np.random.default_rng([options.get("seed", 0), 3]).permutation(differing)[:n_random]
    table = table.assign(
        in_top=table.index.isin(by_size[:n_top]), in_random=table.index.isin(drawn)
    )
    table = table[table.in_top | table.in_random]
    one = estimates.iloc[0]
    positions: Positions = "together"
    if "place" in keys:
        positions = "all" if (estimates.place == estimates.position.astype(str)).all() else "places"
    direction: Direction = "denoise" if one.edit.startswith("denoise") else "noise"
    only = [*table[keys].itertuples(index=False, name=None)]
    exact, difference = patch(
        model, task, one.site, positions, direction, one.metric, only=only, **options
    )
    exact = _over_templates(exact, keys).rename(columns={"effect": "exact"})
    table = table.merge(exact, on=keys, validate="one_to_one")
    for key in ("model", "site", "unit", "task", "edit", "metric"):
        table[key] = one[key]
    table = AUDIT.validate(table[[name for name in AUDIT.columns if name in table]])
    sample = table[table.in_random]
    miss = (table.estimate - table.exact).abs()
    return Audit(
        table,
        float(stats.spearman(sample.estimate.abs().to_numpy(), sample.exact.abs().to_numpy())),
        float((np.sign(sample.estimate) == np.sign(sample.exact)).mean()),
        (_named(table.iloc[int(miss.to_numpy().argmax())]), float(miss.max())),
        difference,
    )


def _over_templates(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Mean effect of each row, every template counting the same: as in the summary."""
    return table.groupby([*keys, "template"]).effect.mean().groupby(keys).mean().reset_index()


def _named(row: pd.Series) -> str:
    """Such as "head 1.3 at END"."""
    where = f"{row.unit} {row.layer}.{row['head']}" if "head" in row else f"layer {row.layer}"
    return where.replace("_", "-") + (f" at {row.place}" if "place" in row else "")
