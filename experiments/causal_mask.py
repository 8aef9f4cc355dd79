"""Does the past depend on the future? Tokens replaced after a position, and one pass against many.

Every token after a position is replaced by another: what was predicted up to there stays the same to the bit,
and with the mask taken off it does not. That is why one pass over n tokens gives n predictions, those of n
passes over its prefixes: the second part runs them all.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from experiments.command_line.launch import launch, progress
from experiments.steps.common import draw, load, make_prompts, write_tables
from interp.lesson.config import CausalMaskConfig as Config
from interp.runs.run_folder import RunFolder
from interp.words import counted

if TYPE_CHECKING:
    import pandas as pd


def run(config: Config, folder: RunFolder) -> None:
    """Change the future, run all prefixes, save, say, draw."""
    from interp.lesson import figures
    from interp.lesson.causality import MASKS, change_the_future, one_pass_or_many
    from interp.results import tables

    model = load(config, folder)
    prompts = make_prompts(config, model, folder)
    total = len(MASKS) * (1 + config.n_cuts) * len(prompts)
    with progress(total, "changing, prompts") as advance:
        cuts, positions = change_the_future(
            model,
            prompts,
            config.n_cuts,
            engine=config.engine,
            confidence=config.confidence,
            seed=config.seed,
            progress=advance,
        )
    chosen = prompts[: config.n_prefixed]
    with progress(sum(len(prompt.ids) for prompt in chosen), "prefixes") as advance:
        prefixes = one_pass_or_many(model, chosen, engine=config.engine, progress=advance)
    written = {"table.csv": cuts, "positions.csv": positions, "prefixes.csv": prefixes}
    write_tables(folder, written)
    say(cuts, prefixes)
    sys.stdout.flush()
    saved = [tables.read(folder.path(f"{name}.csv")) for name in ("positions", "prefixes")]
    draw(folder, "causality", figures.causality(*saved))


def say(cuts: pd.DataFrame, prefixes: pd.DataFrame) -> None:
    """Print what changed on both sides of each cut, and how one pass and many agree."""
    from interp.results import tables

    one = cuts.iloc[0]
    print(
        f"{one.model}: every token after position t replaced; largest |difference of logits| and mean KL of "
        f"the predictions up to t (kept) and after it (changed); {counted(one.n_prompts, 'prompt')}"
    )
    print(tables.as_text(cuts))
    own = cuts[(cuts["mask"] == "own") & (cuts.side == "kept")]
    print(f"largest difference up to t under the model's own mask: {own.difference.max():g}")
    n, length = counted(prefixes.prompt.nunique(), "prompt"), int(prefixes.position.max()) + 1
    known = prefixes.dropna()
    print(
        f"\none pass over {length} tokens against {length} passes over its prefixes ({n}): largest "
        f"|difference of logits| {prefixes.difference.max():.2g} (rounding: {prefixes.rounding.max():.2g}), "
        f"same top token in {prefixes.same_top.sum()} of {len(prefixes)}, loss {known.loss.mean():.6f} and "
        f"{known.loss_alone.mean():.6f}; tokens read: {length} against {length * (length + 1) // 2}"
    )


if __name__ == "__main__":
    sys.exit(launch("causal_mask"))
