"""Where a head looks beside what it is worth: attention weights and causal effects in one table.

For every head: attention mass on the target, what is fetched there, direct logit attribution; the effect of
zero, mean and resample ablation, the direct effect, a gradient estimate; and the quadrant it falls into. How
far weights and effects rank heads alike, and whether heads of most weight beat random heads of their layers.
"""

from __future__ import annotations

import sys
from functools import partial

from experiments.command_line.launch import launch
from experiments.steps.common import draw, load
from experiments.steps.effects import counts, make_task, prompts_of, record_task, swept
from experiments.steps.evidence import say_too_few
from interp.config.effects import WeightVsInfluenceConfig as Config
from interp.runs.run_folder import RunFolder
from interp.words import counted


def run(config: Config, folder: RunFolder) -> None:
    """Weigh, save, say, draw."""
    from interp.interventions import influence_figure
    from interp.interventions.influence import weigh_heads
    from interp.interventions.quadrants import QUADRANTS, rank_agreement, short, summarise_influence
    from interp.results import tables

    model = load(config, folder)
    task = make_task(config, model)
    record_task(task, folder)
    say_too_few(config, folder, prompts_of(task), model.n_layers * model.n_heads, sides=2)
    weigh = partial(
        weigh_heads, target=config.target, metric=config.metric, judged_by=config.judged_by
    )
    per_prompt, difference = swept(config, folder, model, task, weigh)
    folder.record(largest_difference_from_plain_passes=difference)
    summary = summarise_influence(
        per_prompt,
        judged_by=f"total_{config.judged_by}",
        least_mass=config.least_mass,
        least_share=config.least_share,
        confidence=config.confidence,
        correction=config.correction,
        seed=config.seed,
    )
    agreement = rank_agreement(
        per_prompt, n_top=config.n_top, confidence=config.confidence, seed=config.seed
    )
    for name, table in (
        ("per_prompt.parquet", per_prompt),
        ("table.csv", summary),
        ("agreement.csv", agreement),
    ):
        folder.write(name, partial(tables.write, table))
    one = summary.iloc[0]
    folder.record(measured={"kind": "influence", "target": one.target, "metric": one.metric})
    print(
        f"{one.task}, target {one.target}, {one.metric}: clean {per_prompt.clean.mean():.3f}, corrupted "
        f"{per_prompt.corrupted.mean():.3f}; {counts(one)}"
    )
    for quadrant in QUADRANTS:
        print(f"  {counted((summary.quadrant == quadrant).sum(), 'head'):>9}: {quadrant}")
    judge = f"total_{config.judged_by}"
    print(tables.as_text(short(summary, judge).head(config.top)))
    print("\nrank agreement over all heads, and the effect of the heads of most weight:")
    judged = agreement[agreement.influence == judge]
    print(tables.as_text(judged.drop(columns=["n_heads", "n_draws", "n_templates", "influence"])))
    sys.stdout.flush()
    heads, ranks = (tables.read(folder.path(name)) for name in ("table.csv", "agreement.csv"))
    draw(folder, "influence", influence_figure.weight_and_influence(heads, ranks, judge))
    folder.remove("parts")


if __name__ == "__main__":
    sys.exit(launch("weight_vs_influence"))
