"""What is lost when old tokens leave the key-value cache, and which of them must stay?

The same budget for all: the oldest leave, or some tokens are pinned (the first, random ones, those that draw
most attention) and the oldest of the others leave. Positions are kept, or counted by place in the cache, or
nothing is kept and the last tokens are read anew. Prints the perplexity of each text's second half, and how
far a head's mass on the first token tells what it costs that this head alone no longer sees old tokens.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from experiments.command_line.launch import launch, progress
from experiments.steps.common import draw, keeping, load, make_prompts, write_tables
from experiments.steps.evidence import say_too_few
from interp.lesson.config import EvictCacheConfig as Config
from interp.runs.run_folder import RunFolder
from interp.words import counted

if TYPE_CHECKING:
    import pandas as pd

    from interp.inputs.prompts import Prompt
    from interp.lesson.eviction import Policy
    from interp.models.model import Model


def run(config: Config, folder: RunFolder) -> None:
    """Check, evict, save, say, draw."""
    from interp.lesson import eviction_effects as effects
    from interp.lesson.cache_steps import turning
    from interp.lesson.eviction import policies
    from interp.lesson.eviction_figure import evictions
    from interp.results import tables

    model = load(config, folder)
    prompts = make_prompts(config, model, folder)
    chosen = policies(
        model,
        prompts,
        config.choices,
        config.pins,
        config.budget,
        engine=config.engine,
        seed=config.seed,
    )
    if "reindexed" in config.positions:
        turning(model)  # refuses what it can't move, before anything is measured
    n_policies = len(chosen) * len(config.positions) + config.recompute
    n_tests = model.n_layers * model.n_heads if config.by_head else n_policies
    say_too_few(config, folder, prompts, n_tests, sides=2)
    folder.record(pinned={f"{one.name} {one.n_pinned}": one.pinned.tolist() for one in chosen})
    difference = checked(config, model, prompts, chosen[-1], folder)
    n_passes = len(chosen) * len(config.positions)
    with progress(n_passes * len(prompts), "texts × policies") as advance:
        losses = effects.evict(
            model,
            prompts,
            chosen,
            config.budget,
            config.positions,
            recompute=config.recompute,
            engine=config.engine,
            progress=advance,
        )
    options: dict[str, Any] = {"confidence": config.confidence, "seed": config.seed}
    tested = options | {"correction": config.correction}
    rows = effects.per_prompt(model, prompts, losses)
    summary = effects.summarise_evictions(rows, **tested)
    written = {
        "per_prompt.parquet": rows,
        "table.csv": summary,
        "positions.csv": effects.by_position(model, losses, **options),
    }
    if config.by_head:
        written |= head_by_head(config, folder, model, prompts, chosen[0], tested)
    write_tables(folder, written)
    say(config, summary, difference)
    if config.by_head:
        say_heads(written["heads.csv"], written["agreement.csv"])
    sys.stdout.flush()
    names = ["table.csv", "positions.csv", *(["heads.csv"] if config.by_head else [])]
    draw(folder, "evictions", evictions(*(tables.read(folder.path(name)) for name in names)))
    folder.remove("parts")


def checked(
    config: Config, model: Model, prompts: list[Prompt], policy: Policy, folder: RunFolder
) -> float | None:
    """The largest difference between a stepped cache and the masked pass on some texts, recorded."""
    from interp.lesson.eviction_effects import cache_against_mask

    n = min(config.n_checked, len(prompts))
    if not n:
        return None
    difference = cache_against_mask(
        model, prompts[:n], policy.of(slice(n)), config.budget, engine=config.engine
    )
    folder.record(cache_against_mask={"largest_difference": difference, "n_prompts": n})
    return difference


def head_by_head(
    config: Config,
    folder: RunFolder,
    model: Model,
    prompts: list[Prompt],
    oldest: Policy,
    options: dict[str, Any],
) -> dict[str, pd.DataFrame]:
    """What each head's own eviction costs, and how far its sink mass tells: tables by their file names."""
    from interp.lesson.eviction_effects import evict_by_head, summarise_heads

    texts = folder.manifest["prompts"]["sha256"]
    with (
        keeping(config, folder, model, "heads", texts) as kept,
        progress(model.n_layers * model.n_heads * len(prompts), "texts × heads") as advance,
    ):
        rows, from_plain = evict_by_head(
            model,
            prompts,
            oldest,
            config.budget,
            engine=config.engine,
            seed=config.seed,
            parts=kept,
            progress=advance,
        )
    folder.record(largest_difference_from_plain_passes=from_plain)
    heads, agreement = summarise_heads(rows, **options)
    return {"heads_per_prompt.parquet": rows, "heads.csv": heads, "agreement.csv": agreement}


def say(config: Config, summary: pd.DataFrame, difference: float | None) -> None:
    """Print each policy's perplexity and rise of the loss."""
    from interp.results import tables

    whole = summary.iloc[0]
    print(
        f"perplexity of the second half ({whole.n_scored} tokens of {counted(whole.n_prompts, 'text')}) with "
        f"{config.budget} old tokens in the cache; effect: rise of the loss, nats. All tokens kept: "
        f"{whole.perplexity:.2f} {_ends(whole.perplexity_low, whole.perplexity_high)}"
    )
    said = ["budget", "loss", "loss_low", "loss_high", "n_scored", "n_prompts"]
    print(tables.as_text(summary[summary.policy != "all"].drop(columns=said)))
    if difference is not None:
        print(
            f"positions kept: a real cache and one masked pass differ by {difference:.2g} nats at most "
            f"({min(config.n_checked, whole.n_prompts)} of {counted(whole.n_prompts, 'text')})"
        )


def say_heads(heads: pd.DataFrame, agreement: pd.DataFrame) -> None:
    """Print whether sink scores tell what a head's eviction costs."""
    one, largest = agreement.iloc[0], heads.iloc[0]
    print(
        f"by head: mass on the first token against the rise when this head alone evicts: Spearman "
        f"{one.spearman:.2f} {_ends(one.ci_low, one.ci_high)}, {counted(one.n_heads, 'head')}, "
        f"{counted(one.n_prompts, 'text')}; costliest: {largest.layer}.{largest['head']}, mass "
        f"{largest.sink_mass:.2f}, rise {largest.effect:.3f} {_ends(largest.ci_low, largest.ci_high, 3)}"
    )


def _ends(low: float, high: float, digits: int = 2) -> str:
    """An interval, or that there is none."""
    return "(no interval)" if math.isnan(low) else f"[{low:.{digits}f}, {high:.{digits}f}]"


if __name__ == "__main__":
    sys.exit(launch("evict_cache"))
