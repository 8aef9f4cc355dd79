"""What is a single attention map worth? How many heads look striking for patterns that mean nothing.

Made-up hypotheses, "the token here looks at the token there", are drawn at random, at the distances of a real
role. Counted are the heads that look striking on one map, above weights spread evenly, above a null matched
for distance, with many comparisons accounted for, and after an ablation; beside them the same for the real
role.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from experiments.command_line.launch import launch, progress
from experiments.steps.common import draw, load, make_prompts, write_tables
from experiments.steps.evidence import say_too_few_for
from interp.lesson.config import FindHypothesesConfig as Config
from interp.runs.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd


def run(config: Config, folder: RunFolder) -> None:
    """Draw, look, ablate, test, save, say, draw."""
    from interp.attention.door import check_serves
    from interp.lesson import hypotheses
    from interp.lesson.hypotheses_figure import counts
    from interp.results import tables
    from interp.results.stats import Family
    from interp.scoring.roles import Role, find_roles

    model = load(config, folder)
    check_serves(model.hf_model)  # what can't be ablated is refused before anything is said
    prompts = make_prompts(config, model, folder)
    (role,) = find_roles([config.role])
    assert isinstance(role, Role)  # the config refuses what is none
    drawn = hypotheses.draw_hypotheses(prompts, role, config.n_hypotheses, seed=config.seed)
    n_heads = model.n_layers * model.n_heads
    say_too_few_for(Family(config.n_hypotheses * n_heads), folder, prompts, config.level)
    with progress(n_heads * len(prompts), "heads × prompts") as advance:
        rows = hypotheses.measure(model, prompts, drawn, engine=config.engine, progress=advance)
    tests = hypotheses.compare_heads(rows, level=config.level, seed=config.seed)
    summary = hypotheses.count_striking(
        tests,
        level=config.level,
        striking=config.striking,
        confidence=config.confidence,
        seed=config.seed,
    )
    written = {"per_prompt.parquet": rows, "tests.csv": tests, "table.csv": summary}
    write_tables(folder, written)
    say(config, summary)
    sys.stdout.flush()
    saved = [tables.read(folder.path(name)) for name in ("table.csv", "tests.csv")]
    draw(folder, "hypotheses", counts(*saved, level=config.level, striking=config.striking))


def say(config: Config, summary: pd.DataFrame) -> None:
    """Print the counts by kind and criterion."""
    from interp.results import tables

    one = summary.iloc[0]
    said = ["kind", "n_hypotheses", "n_heads", "n_prompts"]
    for kind, counted in summary.groupby("kind", sort=False):
        what = "made-up hypotheses" if kind == "made-up" else f"draws of {config.role}"
        print(
            f"{one.n_hypotheses} {what} × {one.n_heads} heads, {one.n_prompts} prompts: what looks striking"
        )
        print(tables.as_text(counted.drop(columns=said)))


if __name__ == "__main__":
    sys.exit(launch("find_hypotheses"))
