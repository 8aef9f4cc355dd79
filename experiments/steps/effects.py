"""What the experiments that intervene share: task, measuring, table and figure, going on after a stop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from experiments.command_line.launch import progress
from experiments.steps.common import draw, keeping, load
from experiments.steps.evidence import save_stability, say_too_few
from interp.words import counted

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from interp.config.effects import EffectConfig, KnockOutSinksConfig, TaskConfig
    from interp.editing.sweep import Plan
    from interp.inputs.prompts import Prompt
    from interp.inputs.tasks import Task
    from interp.lesson.config import ResolvePronounConfig
    from interp.models.model import Model
    from interp.runs.run_folder import RunFolder

Found = TypeVar("Found")
Measuring = Callable[..., "tuple[pd.DataFrame, float]"]
"""(model, task, **options of effects.Options) → (a row a cell and prompt, largest difference)."""


def measure(
    config: EffectConfig,
    folder: RunFolder,
    measuring: Measuring,
    figure: Callable[[pd.DataFrame], Figure],
    what: str,
    n_tests: Callable[[Model, Task], int],
    also: Callable[[Model, Task], None] | None = None,
) -> None:
    """Load, measure, save, say, draw.

    Args:
        measuring: what is done to the model.
        n_tests: how many effects that will give.
        figure: draws the saved summary.
        what: the edits in words, for the line above the printed table.
        also: what is measured besides, with the same model and task.
    """
    from interp.results import tables

    model, task = prepare(config, folder)
    say_too_few(config, folder, prompts_of(task), n_tests(model, task), sides=2)
    per_prompt, difference = swept(config, folder, model, task, measuring)
    folder.record(largest_difference_from_plain_passes=difference)
    say(config, save(config, folder, per_prompt), what)
    if also is not None:
        also(model, task)
    save_stability(config, folder, per_prompt)
    sys.stdout.flush()
    draw(folder, "effects", figure(tables.read(folder.path("table.csv"))))
    folder.remove("parts")


def prepare(config: TaskConfig, folder: RunFolder) -> tuple[Model, Task]:
    """The model and what it is asked, both recorded."""
    model = load(config, folder)
    task = make_task(config, model)
    record_task(task, folder)
    return model, task


def save(config: EffectConfig, folder: RunFolder, per_prompt: pd.DataFrame) -> pd.DataFrame:
    """Write the effects on each prompt and their summary, which is given back."""
    from interp.results import summaries, tables

    summary = summaries.summarise_effects(
        per_prompt, confidence=config.confidence, correction=config.correction, seed=config.seed
    )
    folder.write("per_prompt.parquet", lambda path: tables.write(per_prompt, path))
    folder.write("table.csv", lambda path: tables.write(summary, path))
    measured = {
        "edits": sorted(summary.edit.unique()),
        "sites": sorted(summary.site.unique()) if "site" in summary else [],
        "estimated": bool(summary.edit.str.contains("attribution").all()),
        "metric": summary.metric.iloc[0],
        "n_rows": len(summary),
    }
    folder.record(measured={"kind": "effects"} | measured)
    return summary


def swept(
    config: TaskConfig | KnockOutSinksConfig | ResolvePronounConfig,
    folder: RunFolder,
    model: Model,
    task: Task,
    measuring: Callable[..., Found],
    part: str = "",
) -> Found:
    """Measure under a progress bar; what is finished is kept, and found again by the same command."""
    with (
        keeping(config, folder, model, part, repr(task)) as kept,
        progress(None, "cells × prompts") as bar,
    ):
        told: list[Plan] = []

        def on_plan(plan: Plan) -> None:
            folder.log.info("%s", plan)
            bar.expect(plan.n_cells * len(task.examples))
            if not told and sys.stderr.isatty():  # the others are of other examples, or alike
                seconds = plan.seconds * len(task.examples) / plan.n_examples
                several = f"; {len(task.examples)} examples in all, about {seconds:.0f} s"
                print(f"{folder.name}: {plan}{several}", file=sys.stderr)
            told.append(plan)

        return measuring(
            model,
            task,
            batch_tokens=config.batch_tokens,
            engine=config.engine,
            seed=config.seed,
            parts=kept,
            on_plan=on_plan,
            progress=bar,
        )


def prompts_of(task: Task) -> list[Prompt]:
    """The clean prompts."""
    return [example.prompt for example in task.examples]


def record_task(task: Task, folder: RunFolder) -> None:
    """What was asked of the model, for the manifest."""
    folder.record(
        task={
            "name": task.name,
            "n_examples": len(task.examples),
            "n_templates": len({prompt.group for prompt in prompts_of(task)}),
            "dropped": dict(task.dropped),
        }
    )


def counts(one: Any) -> str:
    """How many prompts and templates a row rests on, in words."""
    return f"{counted(one.n_prompts, 'prompt')} of {counted(one.n_templates, 'template')}"


def say(config: EffectConfig, summary: pd.DataFrame, what: str) -> None:
    """Print the largest effects, and what a reader must know beside."""
    from interp.results import tables

    one = summary.iloc[0]
    ends = ""
    if "clean" in summary:
        ends = f"; clean {one.clean:.3f}, corrupted {one.corrupted:.3f}"
    print(
        f"{one.task}, {what}: effect on {one.metric} (before: {one.baseline:.3f}{ends}; "
        f"{counts(one)}), largest of {len(summary)}"
    )
    said = ["site", "unit", "position", "baseline", "clean", "corrupted"]
    said += ["n_templates", "n_prompts"]
    print(tables.as_text(summary.head(config.top).drop(columns=said, errors="ignore")))
    if "normalised" in summary and summary.normalised.isna().all():
        print(
            "normalised effects are undefined: clean and corrupted prompts do not differ reliably"
        )


def make_task(config: TaskConfig, model: Model) -> Task:
    """Prompts with answers, by the section ``task`` of a config."""
    from interp.inputs import sentences, tasks, years

    asked, bos, seed = config.task, config.bos, config.seed
    n = asked.n_prompts
    match asked.kind:
        case "copying":
            return tasks.copying(model, n_prompts=n, period=asked.period, bos=bos, seed=seed)
        case "indirect_objects":
            return sentences.indirect_objects(
                model, n_prompts=n, corruption=asked.corruption, bos=bos, seed=seed
            )
        case "greater_than":
            return years.greater_than(model, n_prompts=n, bos=bos, seed=seed)
        case "pronouns":
            return sentences.pronouns(
                model, n_prompts=n, question_only=asked.question_only, bos=bos, seed=seed
            )
        case "little_world":
            return tasks.little_world(model, kind=asked.story, n_prompts=n, bos=bos, seed=seed)
