"""Does the rest of the model make up for a head? Its total effect split into direct, norm and later.

total = direct (what the head writes itself, all else held) + norm (what the final norm's scale does about
it) + later (what goes through later heads and MLPs: carried on, or made up for).
"""

from __future__ import annotations

import sys
from functools import partial

from experiments.command_line.launch import launch
from experiments.steps.common import draw, load
from experiments.steps.effects import counts, make_task, prompts_of, record_task, save, swept
from experiments.steps.evidence import save_stability, say_too_few
from interp.config.effects import SplitEffectsConfig as Config
from interp.runs.run_folder import RunFolder


def run(config: Config, folder: RunFolder) -> None:
    """Measure, save, say, draw."""
    import pandas as pd

    from interp.interventions import influence_figure
    from interp.interventions.direct import PARTS, decompose
    from interp.results import tables

    model = load(config, folder)
    task = make_task(config, model)
    record_task(task, folder)
    n_effects = len(PARTS) * model.n_layers * model.n_heads
    say_too_few(config, folder, prompts_of(task), n_effects, sides=2)
    splitting = partial(decompose, how=config.ablation, metric=config.metric)
    per_prompt, difference = swept(config, folder, model, task, splitting)
    folder.record(largest_difference_from_plain_passes=difference)
    summary = save(config, folder, per_prompt)
    one = summary.iloc[0]
    print(
        f"{one.task}, {config.ablation} ablation of each head: {one.metric} (before: {one.baseline:.3f}; "
        f"{counts(one)}), largest total effects of "
        f"{len(summary) // len(PARTS)} heads"
    )
    by_part = summary.groupby(summary.edit.str.split().str[-1])
    wide = pd.concat(
        [
            rows.set_index(["layer", "head"])[["effect", "ci_low", "ci_high"]].set_axis(
                [str(part), f"{part}_low", f"{part}_high"], axis="columns"
            )
            for part, rows in by_part
        ],
        axis="columns",
    )
    shown = [name for part in PARTS for name in (part, f"{part}_low", f"{part}_high")]
    order = wide.total.abs().sort_values(ascending=False, kind="stable").index[: config.top]
    print(tables.as_text(wide.loc[order, shown].reset_index()))
    save_stability(config, folder, per_prompt)
    sys.stdout.flush()
    saved = tables.read(folder.path("table.csv"))
    draw(folder, "effects", influence_figure.direct_and_total(saved))
    folder.remove("parts")


if __name__ == "__main__":
    sys.exit(launch("split_effects"))
