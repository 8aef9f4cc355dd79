"""What experiments say beside their results: whether there are prompts enough, and a stability card."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from experiments.steps.common import draw

if TYPE_CHECKING:
    import pandas as pd

    from interp.inputs.prompts import Prompt
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
    from interp.results.stats import Family, smallest_p

    family = Family(n_tests, sides, config.correction)
    n = len({prompt.group for prompt in prompts})
    folder.record(
        tests={
            "n_observations": n,
            "n_tests": n_tests,
            "sides": sides,
            "correction": config.correction,
            "smallest_p": smallest_p(n, sides=sides),
            "smallest_q": family.smallest_q(n),
            "observations_needed": family.prompts_needed(),
        }
    )
    few = family.too_few(n, "prompt" if n == len(prompts) else "template")
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
    unit = "templates" if "template" in per_prompt else "prompts"
    print(
        f"\nstability: rank agreement of two halves of {card.n_total.max()} {unit} (range of splits), and "
        f"how many give {ENOUGH:.0%} of the top k of all"
    )
    print(tables.as_text(summary_card(card)))
    draw(folder, "stability", stability_card(tables.read(folder.path("stability.csv")), unit))
