"""The stability card, drawn: a row a ranking, a column a number of prompts."""

from __future__ import annotations

import textwrap
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from interp.results.figures import STYLE
from interp.results.stability import ENOUGH, SPLIT_HALF
from interp.words import counted

SHOWN = 0.6  # of the colour scale: letters are black above it, white below


def stability_card(card: pd.DataFrame, unit: str = "prompt") -> Figure:
    """Agreement as colour and number: of two halves, then of the top k of n prompts with that of all, k by k.

    Bold from the number of prompts on with which a top k is stable; hatched where undefined.

    Args:
        card: a table as ``tables.STABILITY`` describes.
        unit: what was drawn: prompt or template.
    """
    rankings = [str(name) for name in card.ranking.unique()]
    keys = {(str(row["measure"]), int(row["n_prompts"])) for row in card.to_dict("records")}
    columns = sorted(keys, key=lambda key: (key[0] != SPLIT_HALF, key))
    with matplotlib.rc_context(STYLE):
        size = max(5.0, 0.48 * len(columns) + 2.6), 0.3 * len(rankings) + 1.6
        figure = Figure(figsize=size, layout="constrained", dpi=150)
        axis = figure.subplots()
        image = _cells(axis, card, rankings, columns)
        measures = [measure for measure, _ in columns]
        for x, (before, after) in enumerate(pairwise(measures)):
            if before != after:
                axis.axvline(x + 0.5, color="white", linewidth=3)
        axis.set_xticks(range(len(columns)), [str(n) for _, n in columns])
        names = [textwrap.fill(name.replace("_", " "), 26) for name in rankings]
        axis.set_yticks(range(len(rankings)), names)
        axis.set_xlabel(f"{unit}s in each half, or in a subsample")
        above = axis.secondary_xaxis("top")
        groups = [
            [x for x, one in enumerate(measures) if one == m] for m in dict.fromkeys(measures)
        ]
        above.set_xticks([float(np.mean(group)) for group in groups], [*dict.fromkeys(measures)])
        above.tick_params(length=0)
        figure.colorbar(image, ax=axis, label="agreement")
        name = Path(str(card.model.iloc[0])).name
        title = (
            f"{name}, {counted(card.n_total.max(), unit)}: rank correlation of two halves; share of the "
            f"top k that a subsample has, too; bold: {ENOUGH:g} or more from there on"
        )
        figure.suptitle(textwrap.fill(title, int(12 * size[0])), size=9, parse_math=False)
    return figure


def _cells(
    axis: Axes, card: pd.DataFrame, rankings: list[str], columns: list[tuple[str, int]]
) -> AxesImage:
    """Colour and write every defined agreement; returns the image for the colour bar."""
    grid = np.full((len(rankings), len(columns)), np.nan)
    axis.patch.set(hatch="////", edgecolor="0.6")
    for row in card[card.agreement.notna()].to_dict("records"):
        y, x = rankings.index(row["ranking"]), columns.index((row["measure"], row["n_prompts"]))
        grid[y, x] = row["agreement"]
        stable = not pd.isna(row["needed"]) and row["n_prompts"] >= row["needed"]
        color = "black" if row["agreement"] > SHOWN else "white"
        weight = "bold" if stable else "normal"
        text = f"{row['agreement']:.2f}"
        axis.text(x, y, text, color=color, weight=weight, ha="center", va="center", size=8)
    return axis.imshow(grid, vmin=0, vmax=1, cmap="cividis", aspect="auto")
