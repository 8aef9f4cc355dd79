"""What would each patch do? All of them estimated from gradients, and the largest and some others checked.

Two passes and a backward one for every head and position at once, where `patch_heads` takes a pass each.
Estimates are of first order and can be far off, most of all early in the model: the audit patches those
that are estimated to be largest, and others drawn at random, and says how well the estimates rank them.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from experiments.command_line.launch import launch
from experiments.steps.common import draw
from experiments.steps.effects import prepare, prompts_of, save, say, swept
from experiments.steps.evidence import save_stability, say_too_few
from interp.config.effects import AttributeHeadsConfig as Config
from interp.runs.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd

    from interp.inputs.tasks import Task
    from interp.models.model import Model


def run(config: Config, folder: RunFolder) -> None:
    """Estimate, save, audit, say, draw."""
    from interp.interventions.gradients import attribute
    from interp.interventions.patching import sites_of
    from interp.results import figures, tables

    model, task = prepare(config, folder)
    n_rows = len(sites_of(model, config.site, task.examples[0], config.positions))
    say_too_few(config, folder, prompts_of(task), n_rows, sides=2)
    estimates = attribute(
        model,
        task,
        config.site,
        config.positions,
        config.direction,
        config.metric,
        steps=config.steps,
        correct_qk=config.correct_qk,
        batch_tokens=config.batch_tokens,
        engine=config.engine,
    )
    summary = save(config, folder, estimates).rename(columns={"effect": "estimate"})
    audited = "not audited: an estimate can be far from what the patch does"
    if config.audit:
        summary, audited = check(config, folder, model, task, estimates, summary)
    where = "" if config.positions == "together" else " at each position"
    say(config, summary, f"{estimates.edit.iloc[0]} of {config.site}{where}")
    print(audited)
    save_stability(config, folder, estimates)
    sys.stdout.flush()
    draw(folder, "effects", figures.effects(tables.read(folder.path("table.csv"))))
    folder.remove("parts")


def check(
    config: Config,
    folder: RunFolder,
    model: Model,
    task: Task,
    estimates: pd.DataFrame,
    summary: pd.DataFrame,
) -> tuple[pd.DataFrame, str]:
    """Patch some exactly and save them: the summary with what they do beside, and the audit in words."""
    from interp.interventions.gradients import audit
    from interp.interventions.patching import ROW
    from interp.results import tables

    auditing = partial(audit, estimates=estimates, n_top=config.audit, n_random=config.n_random)
    found = swept(config, folder, model, task, auditing)
    folder.write("audit.csv", partial(tables.write, found.table))
    folder.record(
        audit={
            "rank_agreement": found.rank_agreement,
            "sign_agreement": found.sign_agreement,
            "worst_miss": found.worst_miss,
        },
        largest_difference_from_plain_passes=found.largest_difference,
    )
    keys = [key for key in ROW if key in found.table]
    beside = summary.merge(found.table[[*keys, "exact"]], on=keys, how="left")
    columns = [*summary.columns]
    columns.insert(columns.index("estimate") + 1, "exact")
    return beside[columns], str(found)


if __name__ == "__main__":
    sys.exit(launch("attribute_heads"))
