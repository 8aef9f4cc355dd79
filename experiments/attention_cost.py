"""What does attention cost? Time, peak memory and FLOPs against the number of tokens, in four ways.

Eager attention with its weights given back, torch's fused operator, ours (weights questioned, not written),
and an online softmax in plain torch. Each is measured in a process of its own; the exponents of growth come
with their standard errors, and all outputs are compared.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from experiments.command_line.launch import launch, progress
from experiments.steps.common import draw, set_threads, write_tables
from interp.lesson.config import AttentionCostConfig as Config
from interp.runs.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd


def run(config: Config, folder: RunFolder) -> None:
    """Measure, fit, save, say, draw."""
    from interp.lesson import cost, figures
    from interp.results import tables

    set_threads(config, folder)
    with progress(len(cost.WAYS) * len(config.lengths), "processes") as advance:
        costs = cost.measure_costs(
            sorted(config.lengths),
            n_heads=config.n_heads,
            d_head=config.d_head,
            repeats=config.repeats,
            threads=config.threads,
            seed=config.seed,
            progress=advance,
        )
    exponents = cost.exponents(costs)
    write_tables(folder, {"table.csv": costs, "exponents.csv": exponents})
    say(costs, exponents)
    sys.stdout.flush()
    saved = [tables.read(folder.path(f"{name}.csv")) for name in ("table", "exponents")]
    draw(folder, "cost", figures.cost(*saved))


def say(costs: pd.DataFrame, exponents: pd.DataFrame) -> None:
    """Print each measurement, the exponents, and how the outputs agree."""
    one = costs.iloc[0]
    print(
        f"causal attention, {one.n_heads} heads of width {one.d_head}, float32: seconds (median of "
        f"{one.n_repeats} calls), MB above the inputs, counted GFLOPs beside 4·n²·d·H"
    )
    shown = costs[["way", "length"]].assign(
        seconds=costs.seconds.map("{:.4f}".format),
        fastest=costs.fastest.map("{:.4f}".format),
        slowest=costs.slowest.map("{:.4f}".format),
        MB=(costs.memory / 1e6).map("{:.1f}".format),
        GFLOPs=(costs.flops / 1e9).map("{:.3f}".format, na_action="ignore"),
        formula=(costs.formula / 1e9).map("{:.3f}".format),
        difference=costs.difference.map("{:.1e}".format),
    )
    print(shown.astype(object).where(shown.notna(), "").to_string(index=False))
    print("\ngrowth: quantity ∝ n^exponent (± standard error)")
    cells = [
        "undefined" if exponent != exponent else f"{exponent:.2f} ± {error:.2f}"  # noqa: PLR0124
        for exponent, error in zip(exponents.exponent, exponents.standard_error, strict=True)
    ]
    wide = exponents.assign(cell=cells).pivot(index="way", columns="quantity", values="cell")
    print(wide.loc[exponents.way.unique(), exponents.quantity.unique()].to_string())
    print(f"\nlargest |difference of outputs| from eager attention: {costs.difference.max():.1e}")


if __name__ == "__main__":
    sys.exit(launch("attention_cost"))
