"""What experiments say beside their results: whether there are prompts enough, and a stability card."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from experiments.steps.common import draw
from interp.words import counted

if TYPE_CHECKING:
    import pandas as pd

    from interp.inputs.prompts import Prompt
    from interp.results.stats import Family
    from interp.runs.run_folder import RunFolder


class Corrected(Protocol):
    """A config that says how false discoveries are held."""

    @property
    def correction(self) -> Literal["bh", "by"]: ...  # noqa: D102


class Interval(Protocol):
    """A config with a level and a seed."""

    @property
    def confidence(self) -> float: ...  # noqa: D102
    @property
    def seed(self) -> int: ...  # noqa: D102


def say_too_few(
    config: Corrected,
    folder: RunFolder,
    prompts: Sequence[Prompt],
    n_tests: int,
    sides: Literal[1, 2],
) -> None:
    """Record, before anything is run, what tests over these prompts can show at best; say if too little.

    Args:
        n_tests: over which false discoveries are held together.
        sides: of each.
    """
    from interp.results.stats import Family

    say_too_few_for(Family(n_tests, sides, config.correction), folder, prompts)


def say_too_few_for(
    family: Family, folder: RunFolder, prompts: Sequence[Prompt], level: float | None = None
) -> None:
    """The same for a family of tests.

    Args:
        level: of false discoveries; None: the usual one.
    """
    from interp.results.stats import LEVEL, smallest_p

    level = LEVEL if level is None else level
    n = len({prompt.group for prompt in prompts})
    folder.record(
        tests={
            "n_observations": n,
            "n_tests": family.count,
            "sides": family.sides,
            "correction": family.correction,
            "smallest_p": smallest_p(n, sides=family.sides),
            "smallest_q": family.smallest_q(n),
            "observations_needed": family.prompts_needed(level),
        }
    )
    few = family.too_few(n, "prompt" if n == len(prompts) else "template", level)
    if few is not None:
        folder.log.warning("%s", few)
        print(f"note: {few}", flush=True)


def save_stability(config: Interval, folder: RunFolder, per_prompt: pd.DataFrame) -> None:
    """Write, print and draw how far rankings depend on which prompts were taken."""
    from interp.results import tables
    from interp.results.stability import ENOUGH, stability, summary_card
    from interp.results.stability_figure import stability_card

    card = stability(per_prompt, confidence=config.confidence, seed=config.seed)
    folder.write("stability.csv", partial(tables.write, card))
    unit = "template" if "template" in per_prompt else "prompt"
    whole = counted(card.n_total.max(), unit)
    print(
        f"\nstability: rank agreement of two halves of {whole} (range of splits), and how many give "
        f"{ENOUGH:.0%} of the top k of all"
    )
    undefined = card[card.agreement.isna()]
    if card.agreement.notna().any():
        print(tables.as_text(summary_card(card)))
    for reason, rows in undefined.groupby("undefined_reason", sort=False):
        print(f"  undefined for {', '.join(rows.ranking)}: {reason}")
    draw(folder, "stability", stability_card(tables.read(folder.path("stability.csv")), unit))
