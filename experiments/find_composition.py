"""Which head writes where a later one reads, and which heads copy: what the weights say.

Names the best previous-token and induction heads by where they look, then asks the weights: does an
induction head find its key by what a previous-token head wrote (K-composition), more than other heads
of the same layers do? Nothing is run for that: what an architecture does beside its matrices (rotation,
the scale of norms) is left out.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from experiments.command_line.launch import launch, progress
from experiments.steps.common import draw, load, make_prompts, write_tables
from interp.config.scoring import FindCompositionConfig as Config
from interp.runs.run_folder import RunFolder
from interp.words import counted

if TYPE_CHECKING:
    import pandas as pd


def run(config: Config, folder: RunFolder) -> None:
    """Name heads, read the weights, save, say, draw."""
    from interp.results import figures, tables
    from interp.scoring.scores import score_heads
    from interp.weights.composition import composition_scores, copying_scores
    from interp.weights.head_weights import HeadWeights
    from interp.weights.named_pairs import named_against_others

    model = load(config, folder)
    prompts = make_prompts(config, model, folder, templates=True)
    weights = HeadWeights(model)
    heads = score_heads(
        model,
        prompts,
        ["previous_token", "induction"],
        batch_size=config.batch_size,
        engine=config.engine,
        confidence=config.confidence,
        correction=config.correction,
        seed=config.seed,
    ).summary
    named = name_heads(config, heads)
    ends = {
        role: list(zip(rows.layer.tolist(), rows["head"].tolist(), strict=True))
        for role, rows in named.groupby("role", sort=False)
    }
    folder.record(named=ends)
    random = {"n_random": config.n_random, "seed": config.seed}
    copying = copying_scores(weights, **random)
    with progress(len(weights.layers), "layers") as advance:
        senders, receivers = (ends.get(role, []) for role in ("previous_token", "induction"))
        pairs = composition_scores(weights, senders, receivers, progress=advance, **random)
    tests = named_against_others(
        pairs,
        group_size=model.n_heads // model.n_kv_heads,
        confidence=config.confidence,
        seed=config.seed,
    )
    found = {"table": pairs, "copying": copying, "heads": heads, "tests": tests}
    write_tables(folder, {f"{name}.csv": table for name, table in found.items()})
    say(config, named, pairs, tests, copying)
    sys.stdout.flush()
    saved = [tables.read(folder.path(f"{name}.csv")) for name in ("table", "tests")]
    draw(folder, "composition", figures.composition(*saved))


def name_heads(config: Config, heads: pd.DataFrame) -> pd.DataFrame:
    """The rows of the heads with most mass on each role's targets, if they have enough of it."""
    import pandas as pd

    wanted = {"previous_token": config.previous_token_heads, "induction": config.induction_heads}
    enough = heads[heads.mass >= config.least_mass]
    return pd.concat([enough[enough.role == role].head(n) for role, n in wanted.items()])


def say(
    config: Config,
    named: pd.DataFrame,
    pairs: pd.DataFrame,
    tests: pd.DataFrame,
    copying: pd.DataFrame,
) -> None:
    """Print the named heads, how their pairs stand among all, the tests, and which of them copy."""
    from interp.results import tables

    for role in ("previous_token", "induction"):
        rows = named[named.role == role]
        heads = zip(rows.layer, rows["head"], rows.mass, strict=True)
        words = [f"{layer}.{head} (mass {mass:.2f})" for layer, head, mass in heads]
        print(f"{role}: {', '.join(words) or f'no head has a mass of {config.least_mass:g}'}")
    by_k = pairs[pairs.kind == "k"].sort_values("composition", ascending=False)
    chosen, one = by_k[by_k.named], by_k.iloc[0]
    what = counted(len(chosen), "named pair") if len(chosen) else "no named pair; the largest"
    print(
        f"\nK-composition, {what} of {len(by_k)} (random heads: {one.baseline:.4f}, sd "
        f"{one.baseline_sd:.4f}, {config.n_random} drawn)"
    )
    shown = (chosen if len(chosen) else by_k).head(config.top)
    print(tables.as_text(shown.drop(columns=["kind", "named", "baseline", "baseline_sd"])))
    if len(chosen):
        print(
            "\nmean of the named pairs, of the others, and of other heads in the named ones' place"
        )
        print(tables.as_text(tests.drop(columns="baseline")))
    if len(named):
        one = copying.iloc[0]
        print(
            f"\ncopying of the named heads (random heads: W_OV {one.ov_baseline:.2f}, sd {one.ov_sd:.2f}; "
            f"full circuit {one.full_baseline:.2f}, sd {one.full_sd:.2f}; {one.n_random} drawn)"
        )
        columns = ["layer", "head", "copying_ov", "copying_full"]
        print(tables.as_text(named[["layer", "head"]].merge(copying[columns])))


if __name__ == "__main__":
    sys.exit(launch("find_composition"))
