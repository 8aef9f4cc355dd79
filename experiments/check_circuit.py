"""Is a set of heads enough, and is it needed? Only the set kept, and only the set taken away.

Growing sets, best heads first, and a circuit by name if you have one: what share of what the model's heads
do to a task is left with only these heads (faithfulness), and what is left without them. Beside each stand
random sets with as many heads in every layer. MLPs and embeddings are always kept; heads at all positions.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command_line.launch import launch
from experiments.steps.common import draw, load
from experiments.steps.effects import counts, make_task, record_task, swept
from interp.config.circuits import CheckCircuitConfig as Config
from interp.errors import InterpError
from interp.runs.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd

    from interp.inputs.tasks import Task
    from interp.models.model import Model

MADE_HERE = ("patching", "attribution")


def run(config: Config, folder: RunFolder) -> None:
    """Rank heads, keep the best and the named ones, save, say, draw."""
    from interp.circuits import faithfulness, faithfulness_figure
    from interp.circuits.check import check_circuit, check_sets, goes_with, heads_of
    from interp.circuits.head_sets import growing_sets, named_sets
    from interp.inputs.prompts import text_hash
    from interp.results import tables

    given = None if config.ranking in MADE_HERE else read_ranking(config.ranking)
    model = load(config, folder)
    sets = named_sets(config.circuit.classes) if config.circuit.classes else []
    if sets:
        check_sets(model, sets)
    ranking, task = rank(config, folder, model, make_task(config, model), given)
    record_task(task, folder)
    together = Counter(goes_with(e, config.ablation, config.mean_within) for e in task.examples)
    folder.record(prompts_ablated_alike=sorted(together.values()))
    sets += growing_sets(heads_of(ranking), config.shares)
    keeping = partial(check_circuit, sets=sets, how=config.ablation, mean_within=config.mean_within)
    measuring = partial(keeping, metric=config.metric, n_random=config.n_random)
    part = f"sets-{text_hash(repr(sets))[:8]}"  # a ranking's file may have changed since a stop
    per_prompt, difference = swept(config, folder, model, task, measuring, part)
    folder.record(largest_difference_from_plain_passes=difference)
    confidence, seed = config.confidence, config.seed
    measured = {"metric": per_prompt.metric.iloc[0], "ablation": config.ablation}
    folder.record(measured={"kind": "circuits"} | measured)
    table = faithfulness.summarise(per_prompt, confidence=confidence, seed=seed)
    areas = faithfulness.areas(per_prompt, confidence=confidence, seed=seed)
    folder.write("per_prompt.parquet", partial(tables.write, per_prompt))
    for name, found in (("table", table), ("areas", areas), ("heads", ranking)):
        folder.write(f"{name}.csv", partial(tables.write, found))
    say(config, sorted(together.values()), ranking, table, areas)
    sys.stdout.flush()
    saved = [tables.read(folder.path(f"{name}.csv")) for name in ("table", "areas")]
    draw(folder, "faithfulness", faithfulness_figure.growing_and_named(*saved))
    folder.remove("parts")


def read_ranking(file: str) -> pd.DataFrame:
    """The table of another run, before a model is loaded."""
    from interp.results import tables

    try:
        return tables.read(Path(file))
    except InterpError as error:
        raise InterpError(f"ranking: {error}") from None


def rank(
    config: Config, folder: RunFolder, model: Model, whole: Task, given: pd.DataFrame | None
) -> tuple[pd.DataFrame, Task]:
    """The heads, best first, and the prompts to test them on: other ones than they are chosen on."""
    from interp.circuits.check import halves, rank_heads
    from interp.interventions.gradients import attribute
    from interp.interventions.patching import patch
    from interp.results import summaries
    from interp.runs.files import sha256

    if given is not None:
        ranking = rank_heads(model, given)
        path, name = Path(config.ranking), given["model"].iloc[0]
        folder.record(ranking={"from": str(path), "sha256": sha256(path), "model": name})
        return ranking, whole
    chosen_on, task = halves(whole, config.seed)
    if config.ranking == "attribution":
        estimate = partial(attribute, batch_tokens=config.batch_tokens, engine=config.engine)
        per_prompt = estimate(model, chosen_on, direction="noise", metric=config.metric)
    else:
        noise = partial(patch, direction="noise", metric=config.metric)
        per_prompt, _ = swept(config, folder, model, chosen_on, noise, "ranking")
    folder.record(ranking={"from": config.ranking, "n_prompts": len(chosen_on.examples)})
    return rank_heads(model, summaries.summarise_effects(per_prompt, seed=config.seed)), task


def say(
    config: Config, alike: list[int], heads: pd.DataFrame, table: pd.DataFrame, areas: pd.DataFrame
) -> None:
    """Print what each set does, and what a reader must know beside."""
    from interp.circuits.faithfulness import SHORT
    from interp.results import tables

    one = table.iloc[0]
    print(
        f"{one.task}, {one.edit} ablation of all other heads: {one.metric} {one.all_heads:.3f} with all, "
        f"{one.no_heads:.3f} with none ({counts(one)})"
    )
    if config.ablation == "mean":
        print(
            f"means are over {alike[0]} to {alike[-1]} corrupted prompts of one {config.mean_within}"
        )
    for family, rows in table.groupby("family", sort=False):
        where = f"; best first by {config.ranking}" if family == "growing" else ""
        print(f"\n{family} sets, beside {one.n_random} random sets of the same layers{where}")
        print(tables.as_text(rows[SHORT].head(config.top)))
    if isinstance(one.undefined_reason, str):
        print(f"faithfulness is undefined: {one.undefined_reason}")
    first = heads.head(config.top)
    names = [f"{i}.{j}" for i, j in zip(first.layer, first["head"], strict=True)]
    print(f"\nfirst heads: {' '.join(names)}\n")
    shown = ["area", "value", "ci_low", "ci_high", "perfect", "random", "p"]
    print(tables.as_text(areas[shown]))
    reason = areas.undefined_reason.iloc[0]
    if isinstance(reason, str) and reason != one.undefined_reason:
        print(f"the areas are undefined: {reason}")


if __name__ == "__main__":
    sys.exit(launch("check_circuit"))
