"""Does it matter? Each head's output taken away in turn, and what that does to a task.

A weight says where a head looked; this says what the rest of the model loses without it (total effect:
everything after the head is recomputed). Exact, and several times as fast as one pass per head.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from experiments.launch import launch, progress
from experiments.scoring import draw, load
from interp.config import AblateHeadsConfig as Config
from interp.runs import RunFolder

if TYPE_CHECKING:
    from interp.model import Model
    from interp.tasks import Task


def run(config: Config, folder: RunFolder) -> None:
    """Ablate, save, say, draw."""
    from interp import figures, tables
    from interp.ablation import ablate_heads

    model = load(config, folder)
    task = make_task(config, model)
    folder.record(
        task={
            "name": task.name,
            "n_examples": len(task.examples),
            "n_templates": len({example.template for example in task.examples}),
            "dropped": dict(task.dropped),
        }
    )
    total = model.n_layers * model.n_heads * len(task.examples)
    with progress(total, "head-prompts") as advance:
        per_prompt, difference = ablate_heads(
            model,
            task,
            config.ablation,
            config.metric,
            batch_tokens=config.batch_tokens,
            engine=config.engine,
            seed=config.seed,
            on_plan=lambda plan: folder.log.info("%s", plan),
            progress=advance,
        )
    folder.record(largest_difference_from_plain_passes=difference)
    summary = tables.summarise_effects(per_prompt, confidence=config.confidence, seed=config.seed)
    folder.write("per_prompt.parquet", lambda path: tables.write(per_prompt, path))
    folder.write("table.csv", lambda path: tables.write(summary, path))
    one = summary.iloc[0]
    print(
        f"{task.name}, {config.ablation} ablation: effect of each of {len(summary)} heads on {one.metric} "
        f"(before: {one.baseline:.3f}; {one.n_prompts} prompts of {one.n_templates} templates)"
    )
    print(tables.as_text(summary.head(config.top)))
    sys.stdout.flush()
    figure = figures.effects(tables.read(folder.path("table.csv")))
    draw(folder, "effects", figure)


def make_task(config: Config, model: Model) -> Task:
    """The task as the config asks for it."""
    from interp import tasks

    asked, bos, seed = config.task, config.bos, config.seed
    n = asked.n_prompts
    if asked.kind == "copying":
        return tasks.copying(model, n_prompts=n, period=asked.period, bos=bos, seed=seed)
    if asked.kind == "indirect_objects":
        return tasks.indirect_objects(
            model, n_prompts=n, corruption=asked.corruption, bos=bos, seed=seed
        )
    return tasks.little_world(model, kind=asked.story, n_prompts=n, bos=bos, seed=seed)


if __name__ == "__main__":
    sys.exit(launch("ablate_heads"))
