"""The stability card, drawn: a row a ranking, a column a number of prompts."""

from __future__ import annotations

import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from interp.results.figures import STYLE
from interp.results.stability import ENOUGH, SPLIT_HALF

SHOWN = 0.6  # of the colour scale: letters are black above it, white below


def stability_card(card: pd.DataFrame, unit: str = "prompts") -> Figure:
    """Agreement as colour and number: of two halves, then of the top k of n prompts with that of all, k by k.

    Bold from the number of prompts on with which a top k is stable; hatched where undefined.

    Args:
        card: a table as ``tables.STABILITY`` describes.
        unit: what was drawn: prompts or templates.
    """
    columns = [*card[["measure", "n_prompts"]].drop_duplicates().itertuples(index=False)]
    columns.sort(key=lambda column: (column.measure != SPLIT_HALF, column))
    rankings = list(card.ranking.unique())
    place = {(measure, n): x for x, (measure, n) in enumerate(columns)}
    grid = np.full((len(rankings), len(columns)), np.nan)
    with matplotlib.rc_context(STYLE):
        names = [textwrap.fill(name.replace("_", " "), 26) for name in rankings]
        size = max(5.0, 0.48 * len(columns) + 2.6), 0.3 * len(rankings) + 1.6
        figure = Figure(figsize=size, layout="constrained", dpi=150)
        axis = figure.subplots()
        axis.patch.set(hatch="////", edgecolor="0.6")
        told = [card[name] for name in ("measure", "n_prompts", "ranking", "agreement", "needed")]
        for measure, n, ranking, agreement, needed in zip(*told, strict=True):
            x, y = place[measure, n], rankings.index(ranking)
            grid[y, x] = agreement
            if not np.isnan(agreement):
                color = "black" if agreement > SHOWN else "white"
                weight = "bold" if not pd.isna(needed) and n >= needed else "normal"
                what: dict[str, Any] = {"color": color, "weight": weight}
                axis.text(x, y, f"{agreement:.2f}", ha="center", va="center", size=8, **what)
        image = axis.imshow(grid, vmin=0, vmax=1, cmap="cividis", aspect="auto")
        measures = [measure for measure, _ in columns]
        for x, (before, after) in enumerate(pairwise(measures)):
            if before != after:
                axis.axvline(x + 0.5, color="white", linewidth=3)
        axis.set_xticks(range(len(columns)), [str(n) for _, n in columns])
        axis.set_yticks(range(len(rankings)), names)
        axis.set_xlabel(f"{unit} in each half, or in a subsample")
        above = axis.secondary_xaxis("top")
        groups = [
            [x for x, one in enumerate(measures) if one == m] for m in dict.fromkeys(measures)
        ]
        above.set_xticks([float(np.mean(group)) for group in groups], [*dict.fromkeys(measures)])
        above.tick_params(length=0)
        figure.colorbar(image, ax=axis, label="agreement")
        one = card.iloc[0]
        title = (
            f"{Path(one.model).name}, {card.n_total.max()} {unit}: rank correlation of two halves; share of "
            f"the top k that a subsample has, too; bold: {ENOUGH:g} or more from there on"
        )
        figure.suptitle(textwrap.fill(title, int(12 * size[0])), size=9, parse_math=False)
    return figure
