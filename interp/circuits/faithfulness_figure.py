"""Faithfulness over growing sets of heads, kept and taken away, beside random sets of the same layers.

Left only the sets are kept, right only they are taken away. Above: the first heads of a ranking, over their
number (logarithmic). Below: named sets, a row each, over the range of their random sets.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from interp.results.figures import COLORS, STYLE, Drawing
from interp.words import counted

KEPT = (
    ("faithfulness", "ci", "random", "only these heads kept"),
    ("without", "without", "random_without", "only these heads taken away"),
)


def growing_and_named(table: pd.DataFrame, areas: pd.DataFrame) -> Figure:
    """Growing sets of heads kept, and taken away, beside random sets; below them the named sets.

    Args:
        table: as ``tables.HEAD_SETS`` describes.
        areas: as ``tables.FAITHFULNESS_AREAS`` describes, of the same run.
    """
    growing = table[table.family == "growing"].sort_values("size")
    named = table[table.family == "named"][::-1]
    with matplotlib.rc_context(STYLE):
        height = 3.6 + (0.7 + 0.24 * len(named) if len(named) else 0)
        figure = Drawing(7.6, height)
        ratios = [2.6, 0.4 + 0.24 * len(named)] if len(named) else [1]
        axes = figure.subplots(len(ratios), 2, squeeze=False, sharey="row", height_ratios=ratios)
        for j, (column, ends, random, title) in enumerate(KEPT):
            _growing(axes[0, j], growing, column, ends, random)
            axes[0, j].set_title(title, size=9)
            if len(named):
                _named(axes[1, j], named, column, ends, random)
        axes[0, 0].set_ylabel("f: share of what heads do")
        lines = axes[0, 0].get_legend_handles_labels()
        figure.legend(*lines, loc="outside lower center", ncols=2, frameon=False)
        one = table.iloc[0]
        worth = ", ".join(f"{row.area} {row.value:.2f}" for row in areas.itertuples())
        title = (
            f"{Path(one.model).name}, {one.task.replace('_', ' ')}, {one.edit} ablation: "
            f"{one.metric.replace('_', ' ')} {one.all_heads:.2f} with all heads, {one.no_heads:.2f} with "
            f"none; {worth}; {counted(one.n_prompts, 'prompt')}; bands: intervals, range of random sets"
        )
        figure.suptitle(textwrap.fill(title, 96), size=9, parse_math=False)
    return figure


def _growing(axis: Axes, rows: pd.DataFrame, column: str, ends: str, random: str) -> None:
    """A line over the share of heads, with the bands of both."""
    for value, low, high, color, label in (
        (random, f"{random}_low", f"{random}_high", "0.5", "random sets, same layers"),
        (column, f"{ends}_low", f"{ends}_high", COLORS[0], "best first"),
    ):
        axis.plot(rows["share"], rows[value], ".-", color=color, label=label)
        axis.fill_between(rows["share"], rows[low], rows[high], color=color, alpha=0.2, linewidth=0)
    for level in (0, 1):
        axis.axhline(level, color="black", linestyle=":", linewidth=0.8)
    if rows[column].isna().all():
        text = textwrap.fill(f"undefined: {rows.undefined_reason.iloc[0]}", 30)
        axis.text(0.5, 0.5, text, ha="center", va="center", transform=axis.transAxes, size=8)
    axis.set(xscale="log", xlabel=f"heads in the set, of {rows['size'].max()}")
    axis.set_xticks(rows["share"], rows["size"].astype(str))
    axis.minorticks_off()


def _named(axis: Axes, rows: pd.DataFrame, column: str, ends: str, random: str) -> None:
    """A row a set: its value and interval, over the range of random sets."""
    down = range(len(rows))
    axis.hlines(down, rows[f"{random}_low"], rows[f"{random}_high"], color="0.8", linewidth=6)
    axis.hlines(down, rows[f"{ends}_low"], rows[f"{ends}_high"], color=COLORS[1], linewidth=1.2)
    axis.plot(rows[column], down, "o", color=COLORS[1], markersize=4)
    for level in (0, 1):
        axis.axvline(level, color="black", linestyle=":", linewidth=0.8)
    axis.set_yticks(
        down, [f"{name} ({size})" for name, size in zip(rows["set"], rows["size"], strict=True)]
    )
    axis.set(xlabel="f", ylim=(-0.6, len(rows) - 0.4))
