"""Does it matter? Each head's output taken away in turn, and what that does to a task.

A weight says where a head looked; this says what the rest of the model loses without it (total effect:
everything after the head is recomputed, or with hold_patterns everything but where later heads look). Heads
that can stand in for one another matter only together: `together` ablates a set of them at once, beside
random sets of the same layers. Exact, and several times as fast as one pass per head.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.command_line.launch import launch
from experiments.steps.effects import measure, swept
from interp.config.effects import AblateHeadsConfig as Config
from interp.runs.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd

    from interp.inputs.tasks import Task
    from interp.models.model import Model


def run(config: Config, folder: RunFolder) -> None:
    """Ablate, save, say, draw."""
    from interp.circuits.head_sets import heads_in
    from interp.interventions.ablation import ablate_heads
    from interp.interventions.together import sets_of
    from interp.results import figures

    how: dict[str, Any] = {
        "how": config.ablation,
        "metric": config.metric,
        "mean_over": config.mean_over,
        "hold_patterns": config.hold_patterns,
    }

    def measuring(model: Model, task: Task, **options: Any) -> tuple[pd.DataFrame, float]:
        if config.together is not None:  # refused before anything is measured
            sets_of(model, heads_in(config.together), config.n_random)
        return ablate_heads(model, task, **how, **options)

    over = f" over {config.mean_over}" if config.ablation == "mean" else ""
    held = ", patterns of later layers held" if config.hold_patterns else ""
    what = f"{config.ablation}{over} ablation of each head{held}"
    also = None if config.together is None else partial(ablate_set, config, folder, how)
    measure(config, folder, measuring, figures.effects, what, n_heads_of, also)


def n_heads_of(model: Model, task: Task) -> int:
    """How many heads are ablated one by one."""
    return model.n_layers * model.n_heads


def ablate_set(
    config: Config, folder: RunFolder, how: dict[str, Any], model: Model, task: Task
) -> None:
    """The heads of `together` at once, and random sets: measure, save, say."""
    from interp.circuits.head_sets import heads_in
    from interp.interventions.together import ablate_together, summarise_sets
    from interp.results import tables

    assert config.together is not None
    heads = heads_in(config.together)
    measuring = partial(ablate_together, heads=heads, n_random=config.n_random, **how)
    per_prompt, difference = swept(config, folder, model, task, measuring, "sets")
    folder.record(largest_difference_of_sets=difference)
    summary = summarise_sets(per_prompt, confidence=config.confidence, seed=config.seed)
    folder.write("sets_per_prompt.parquet", partial(tables.write, per_prompt))
    folder.write("sets.csv", partial(tables.write, summary))
    say_set(summary)


def say_set(sets: pd.DataFrame) -> None:
    """Print the set's effect beside those of the random sets."""
    named, random = sets.iloc[0], sets[sets.kind == "random"]
    interval = f" [{named.ci_low:.3f}, {named.ci_high:.3f}]" if named.n_templates > 1 else ""
    print(
        f"\ntogether, {named['heads']}: {named.metric} {named.baseline:.3f} → "
        f"{named.baseline + named.effect:.3f}, effect {named.effect:.3f}{interval}"
    )
    if len(random):
        print(
            f"{len(random)} random sets of as many other heads of the same layers: effects "
            f"{random.effect.min():.3f} to {random.effect.max():.3f}, mean {random.effect.mean():.3f}; "
            f"{named.n_as_large} of them as large (p = {named.p:.2g})"
        )


if __name__ == "__main__":
    sys.exit(launch("ablate_heads"))
