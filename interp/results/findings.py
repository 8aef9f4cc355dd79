"""What an intervention gives back: what it did on every prompt, and what that comes to.

    found = interp.ablate_heads(model, task)
    found.top(3)                               the largest effects, with interval and test
    found.figure()                             the map of all heads
    per_prompt, largest_difference = found     the same as a pair

``summary`` is made when it is first asked for, at 95 %; for another level give ``per_prompt`` to the function
that makes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from interp.results import figures, tables
from interp.results.summaries import summarise_effects
from interp.words import counted


class _Measured(NamedTuple):
    per_prompt: pd.DataFrame
    largest_difference: float


class Findings(_Measured, ABC):
    """The numbers of each prompt; see the module.

    Attributes:
        per_prompt: a row for each thing that was done and each prompt.
        largest_difference: what the sweep differed by from plain forward passes, over a sample.
    """

    @cached_property
    @abstractmethod
    def summary(self) -> pd.DataFrame:
        """A row for each thing that was done, with interval, test and counts."""

    def top(self, n: int = 10) -> pd.DataFrame:
        """The first ``n`` rows of the summary, without columns that are empty."""
        return self.summary.head(n).dropna(axis="columns", how="all")

    def __repr__(self) -> str:
        rows = counted(len(self.summary), "row")
        prompts = counted(self.per_prompt["prompt"].nunique(), "prompt")
        return f"{type(self).__name__}({self.per_prompt.model.iloc[0]}: {rows}, {prompts})"

    def _repr_html_(self) -> str:
        return tables.as_html(self.top())


class Effects(Findings):
    """Effects of edits: ``tables.EFFECTS_PER_PROMPT``, summed up as ``tables.EFFECTS``, largest first."""

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Mean effects over templates; see :func:`interp.results.summaries.summarise_effects`."""
        return summarise_effects(self.per_prompt)

    def figure(self) -> Figure:
        """The map of effects: layers down, heads (or places, receivers) across."""
        return figures.effects(self.summary)
