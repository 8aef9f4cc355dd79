"""Where a head looks beside what it is worth: every head's weights and effects, on the same prompts.

What a weight says:
    mass            attention mass on the target, from the positions that the metric reads
    value_weighted  Σ_target ‖weight · value · W_O‖: the size of what is fetched there (Kobayashi et al.,
                    2004.10102); a length in the residual stream, no share
    direct_logit    direct logit attribution: what the head adds to the answer's logit less the wrong
                    one's (or less the mean logit), through the final norm as it was
What intervening says (metric after − before):
    total_zero, total_mean, total_resample   z of the head ablated, all else recomputed
    direct          of the ablation that judges, all else held (:mod:`interp.interventions.direct`)
    attribution     gradient estimate of total_resample (:mod:`interp.interventions.gradients`)

The two can disagree both ways: a head may look at the target and fetch nothing that counts, or matter
without looking there (Jain & Wallace, 1902.10186). Each head falls into one of four quadrants: looked at
and used, looked at and unused, used though hardly looked at, neither.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Unpack

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.attention.pattern import Pattern
from interp.editing.edits import Recording, edited
from interp.editing.metrics import positions
from interp.editing.passes import split
from interp.editing.sites import Site
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.inputs.tasks import Example, Task, check_asked
from interp.interventions.ablation import How, ablate_heads
from interp.interventions.direct import decompose
from interp.interventions.effects import Options, metric_for
from interp.interventions.gradients import attribute, check_estimate
from interp.interventions.outputs import Ending, Writing, sites_for_outputs
from interp.interventions.quadrants import HEAD, Influence
from interp.models.forward import BATCH_TOKENS, logits_at
from interp.models.model import Model
from interp.results.tables import INFLUENCE_PER_PROMPT
from interp.scoring.roles import ROLES, Role
from interp.scoring.scores import score_heads


def weigh_heads(
    model: Model,
    task: Task,
    target: str | None = None,
    metric: str | None = None,
    judged_by: How = "resample",
    **options: Unpack[Options],
) -> Influence:
    """Every quantity of every head on every example.

    Args:
        target: where heads are expected to look: "answer" (earlier occurrences of the answer), the name of
            a place of the task, or of a role of ``roles.ROLES``; None: "induction" for a task with
            scored positions, else "answer".
        metric: a name of ``metrics.METRICS``; None: that of ``metrics.usual_metric``.
        judged_by: the ablation whose direct effect is taken.

    Returns:
        a row a head and prompt, as ``tables.INFLUENCE_PER_PROMPT`` describes, its summary with the verdict on
        each head, and how far weights and effects agree.

    Raises:
        InterpError: an unknown target, no example with one, or what the parts refuse.
    """
    check_asked(model, task)
    if judged_by not in ("zero", "mean", "resample"):
        raise InterpError(f"judged_by={judged_by!r}: expected zero, mean or resample")
    role = target_role(task, target)
    measure = metric_for(task, metric)
    check_estimate("z", "noise", measure)  # the last part, refused before the others are measured
    chosen = measure.name
    prompts = [example.prompt for example in task.examples]
    engine, seed = options.get("engine", "auto"), options.get("seed", 0)
    keys = [*HEAD, "prompt"]
    scores = score_heads(model, prompts, [role], engine=engine, seed=seed).per_prompt
    table = scores.set_index(keys)[["mass", "chance", "null", "n_queries"]]
    if table["mass"].isna().all():
        raise InterpError(
            f"target={target}: no example of task {task.name} has one where it is read"
        )
    table = table.join(fetched(model, task, role, options).set_index(keys))
    largest = 0.0
    parts = options.get("parts")
    measured: dict[str, pd.DataFrame] = {}
    for how in ("zero", "mean", "resample"):
        if parts is not None:
            options["parts"] = parts.under(how)
        if how == judged_by:
            both, difference = decompose(model, task, how, chosen, **options)
            measured["direct"] = both[both.edit == f"{how} direct"]
            measured[f"total_{how}"] = both[both.edit == f"{how} total"]
        else:
            measured[f"total_{how}"], difference = ablate_heads(model, task, how, chosen, **options)  # type: ignore[arg-type]
        largest = max(largest, difference)
    measured["attribution"] = attribute(
        model,
        task,
        direction="noise",
        metric=chosen,
        batch_tokens=options.get("batch_tokens", BATCH_TOKENS),
        engine=engine,
    )
    for name, effects in measured.items():
        table[name] = effects.set_index(keys).effect
    rest = measured["attribution"].set_index(keys)
    for name in ("template", "task", "metric", "baseline", "clean", "corrupted"):
        table[name] = rest[name]
    table = table.reset_index().assign(model=model.name, target=role.name)
    table = INFLUENCE_PER_PROMPT.validate(table[list(INFLUENCE_PER_PROMPT.columns)])
    return Influence(table, largest, judged_by)


def target_role(task: Task, target: str | None) -> Role:
    """The target as a role: from the positions that the metric reads to where heads should look."""
    first = task.examples[0]
    target = target or ("induction" if first.scored else "answer")
    by_name = {example.prompt.name: example for example in task.examples}
    places = {place for example in task.examples for place, _ in example.places}
    fixed = {name: role for name, role in ROLES.items() if isinstance(role, Role)}
    known = ["answer"] * (first.answer is not None) + sorted(places - {"answer"}) + sorted(fixed)
    if target not in known:
        raise InterpError(
            f"target={target!r}: expected one of {', '.join(known)} for task {task.name}"
        )

    def targets(prompt: Prompt) -> list[tuple[int, int]]:
        example = by_name[prompt.name]
        read = positions(example)
        if target in fixed:
            pairs = fixed[target].pairs(prompt)
            return [(int(query), int(key)) for query, key in pairs if int(query) in read]
        if target == "answer":
            keys = [i for i, token in enumerate(prompt.ids) if token == example.answer]
        else:
            keys = [dict(example.places)[target]] if target in dict(example.places) else []
        return [(query, key) for query in read for key in keys if key <= query]

    return Role(target, targets, f"no {target} in the prompt where it is read")


def fetched(model: Model, task: Task, role: Role, options: Options) -> pd.DataFrame:
    """value_weighted and direct_logit of every head on every example."""
    together: dict[Hashable, list[Example]] = {}
    for example in task.examples:
        key = (len(example.prompt.ids), tuple(positions(example)))
        together.setdefault(key, []).append(example)
    frames = []
    for examples in together.values():
        for members in split(model, examples, [], options.get("batch_tokens", BATCH_TOKENS)):
            ours = [examples[i] for i in members]
            frames.append(_fetched(model, ours, role, options))
    return pd.concat(frames, ignore_index=True)


def _fetched(
    model: Model, examples: Sequence[Example], role: Role, options: Options
) -> pd.DataFrame:
    ids = torch.tensor([example.prompt.ids for example in examples], device=model.device)
    where = torch.tensor([positions(example) for example in examples], device=model.device)
    rows: dict[int, Tensor] = {}

    def look(layer: int, pattern: Pattern, _: Tensor) -> None:
        rows[layer] = pattern.rows(where[0])

    recording = Recording(sites_for_outputs(model, "v"))
    with edited(model, [], look, recording=recording, engine=options.get("engine", "auto")):
        logits_at(model, ids, where)
    ending = Ending.of(model, recording, where)
    direction = _direction(ending.unembedding, examples)
    wanted = _wanted(examples, role, ids)
    frames = []
    for layer, weights in rows.items():
        writing = Writing(model, layer, recording)
        v = recording[Site("v", layer)]
        values = v.repeat_interleave(model.n_heads // v.shape[1], dim=1)
        lengths = writing.norms(values)[:, :, None] * weights.float()
        scale = writing.scale_of(where)
        on_target = (lengths * wanted[:, None]).sum(-1)
        on_target = on_target / (scale[:, None] if isinstance(scale, Tensor) else scale)
        has_one = wanted.any(-1)[:, None]
        mean = (on_target * has_one).sum(-1) / has_one.sum(-1)  # 0 / 0 is NaN: undefined
        z = recording[Site("z", layer)]
        index = where[:, None, :, None].expand(-1, z.shape[1], -1, z.shape[-1])
        written = writing(z.gather(2, index), where)
        for head in range(model.n_heads):
            added = ending.direct(written[:, head], direction)
            frames.append(
                pd.DataFrame(
                    {
                        "layer": layer,
                        "head": head,
                        "prompt": [example.prompt.name for example in examples],
                        "value_weighted": mean[:, head].double().cpu().numpy(),
                        "direct_logit": added.double().cpu().numpy(),
                    }
                )
            )
    return pd.concat(frames, ignore_index=True)


def _wanted(
    examples: Sequence[Example], role: Role, ids: Tensor
) -> Bool[Tensor, "example scored key"]:
    """Which keys each read position should look at."""
    read = positions(examples[0])
    found = torch.zeros(len(examples), len(read), ids.shape[1], dtype=torch.bool, device=ids.device)
    for i, example in enumerate(examples):
        for query, key in role.pairs(example.prompt):
            found[i, read.index(int(query)), int(key)] = True
    return found


def _direction(
    unembedding: Float[Tensor, "d_vocab d_model"], examples: Sequence[Example]
) -> Float[Tensor, "example scored d_model"]:
    """Of the right token's logit, less the wrong one's; less the mean logit where none is wrong."""
    unembedding = unembedding.float()
    mean = unembedding.mean(0)
    found = []
    for example in examples:
        if example.scored:
            rights = unembedding[[example.prompt.ids[position] for position in example.scored]]
            found.append(rights - mean)
            continue
        right = unembedding[list(example.answers or [example.answer])].mean(0)  # type: ignore[list-item]
        wrong = example.wrongs or (() if example.wrong is None else (example.wrong,))
        found.append((right - (unembedding[list(wrong)].mean(0) if wrong else mean))[None])
    return torch.stack(found)
