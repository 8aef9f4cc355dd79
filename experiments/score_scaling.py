"""Why are scores divided by √d_k? What softmax does without it, to random vectors and in a real model.

The score of two vectors of d_k independent numbers of variance 1 has variance d_k; softmax of such scores
lets one key win, and passes no gradient on. Then the model's own scaling is undone in all heads, and in one
layer at a time: how sharp do its heads get, and what does the loss say? Beside it: attention made uniform.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from experiments.command_line.launch import launch, progress
from experiments.steps.common import draw, load, make_prompts, write_tables
from interp.lesson.config import ScoreScalingConfig as Config
from interp.runs.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd


def run(config: Config, folder: RunFolder) -> None:
    """Draw vectors, rescale, save, say, draw."""
    from interp.lesson import figures
    from interp.lesson.rescaling import SCALINGS, rescale
    from interp.lesson.scaling import softmax_of_random
    from interp.results import tables

    random = softmax_of_random(
        config.d_k,
        n_keys=config.n_keys,
        n_draws=config.n_draws,
        confidence=config.confidence,
        seed=config.seed,
    )
    model = load(config, folder)
    prompts = make_prompts(config, model, folder)
    n_passes = len(SCALINGS) + model.n_layers * config.by_layer
    with progress(n_passes * len(prompts), "prompts") as advance:
        heads, losses = rescale(
            model,
            prompts,
            by_layer=config.by_layer,
            engine=config.engine,
            confidence=config.confidence,
            seed=config.seed,
            progress=advance,
        )
    write_tables(folder, {"table.csv": random, "heads.csv": heads, "losses.csv": losses})
    say(random, heads, losses)
    sys.stdout.flush()
    saved = [tables.read(folder.path(f"{name}.csv")) for name in ("table", "heads", "losses")]
    draw(folder, "scaling", figures.scaling(*saved))


def say(random: pd.DataFrame, heads: pd.DataFrame, losses: pd.DataFrame) -> None:
    """Print the random vectors by d_k, then the model's heads and loss by scaling."""
    from interp.results import tables

    one = random.iloc[0]
    print(
        f"random vectors, {one.n_keys} keys: means over {one.n_draws} draws (intervals: table.csv); "
        "variance expected without scaling: d_k; last row: uniform weights"
    )
    wide = random.pivot(index=["scaling", "d_k"], columns="quantity", values="value")[
        random.quantity.unique()
    ]
    uniform = random[random.quantity != "variance"].drop_duplicates("quantity")
    wide.loc[("uniform", ""), uniform.quantity] = uniform.reference.to_numpy()
    print(tables.as_text(wide.reset_index()))
    two = losses.iloc[0]
    print(f"\n{two.model}, all heads and layers; {two.n_prompts} prompts, nats")
    means = heads.groupby("scaling")[["entropy", "largest_weight"]].mean()
    print(tables.as_text(losses[losses.layer.isna()].join(means, on="scaling")))
    alone = losses[losses.layer.notna()]
    if len(alone):
        print("\nundone in one layer alone")
        print(tables.as_text(alone.drop(columns="scaling")))


if __name__ == "__main__":
    sys.exit(launch("score_scaling"))
