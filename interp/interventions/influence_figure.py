"""Heads as dots: weight against influence, and direct against total effect.

Weight against influence, left: attention mass on the target across, size of the effect up; colours are
quadrants, and the heads of the largest mass and effect are named. Right: Spearman's correlation of each
weight with each effect, its interval in brackets.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.path import Path as Line
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from interp.results.figures import COLORS, STYLE, Drawing, with_unit
from interp.results.influence_tables import QUADRANTS
from interp.words import counted

NAMED = 8
# Where a name (16 × 7) may stand, in points from its dot: above or below, right or left, the nearest first.
UP_AND_DOWN = (3, -9, 13, -19, 29, -35, 45, -51)
CORNERS = sorted(
    ((side * x, y) for x in (3, 22, 41, 60) for y in UP_AND_DOWN for side in (1, -1)),
    key=lambda corner: np.hypot(abs(corner[0]) + 8, corner[1] + 3.5),
)
THREAD = {"arrowstyle": "-", "linewidth": 0.4, "color": "0.6", "shrinkA": 0, "shrinkB": 2}


def weight_and_influence(table: pd.DataFrame, agreement: pd.DataFrame, judge: str) -> Figure:
    """Two panels; see the module.

    Args:
        table: as ``tables.INFLUENCE`` describes.
        agreement: as ``tables.AGREEMENT`` describes.
        judge: the effect column that is drawn up the left panel.
    """
    with matplotlib.rc_context(STYLE):
        figure = Drawing(10.5, 4.4)
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
        _matrix(right, agreement)
        _scatter(left, table, judge)
        one = table.iloc[0]
        title = (
            f"{Path(one.model).name}, {one.task.replace('_', ' ')}: {counted(one.n_prompts, 'prompt')} of "
            f"{counted(one.n_templates, 'template')}, {counted(len(table), 'head')}; effects on "
            f"{one.metric.replace('_', ' ')}"
        )
        figure.suptitle(textwrap.fill(title, 110), size=9, parse_math=False)
    return figure


def direct_and_total(table: pd.DataFrame) -> Figure:
    """Direct effect across, total effect up: on the line a head acts by itself; off it others carry its
    effect on, or (nearer to 0 than the line) make up for it.

    Args:
        table: as ``tables.EFFECTS`` describes, of :func:`interp.interventions.direct.decompose`.
    """
    parts = {part: rows for part, rows in table.groupby(table.edit.str.split().str[-1])}
    total, direct = (parts[part].set_index(["layer", "head"]) for part in ("total", "direct"))
    direct = direct.loc[total.index]
    one = table.iloc[0]
    with matplotlib.rc_context(STYLE):
        figure = Drawing(5.6, 4.6)
        axis = figure.subplots()
        ends = [
            min(total.effect.min(), direct.effect.min()),
            max(total.effect.max(), direct.effect.max()),
        ]
        axis.plot(ends, ends, "--", color="0.6", linewidth=0.8)
        known = total.ci_low.notna() & direct.ci_low.notna()
        axis.errorbar(
            direct.effect[known],
            total.effect[known],
            xerr=_reach(direct[known]),
            yerr=_reach(total[known]),
            fmt="none",
            ecolor="0.8",
            linewidth=0.8,
        )
        axis.plot(direct.effect, total.effect, "o", color=COLORS[0], markersize=4)
        metric = with_unit(one.metric)
        axis.set(xlabel=f"direct effect on {metric}", ylabel=f"total effect on {metric}")
        how = one.edit.split()[0]
        title = (
            f"{Path(one.model).name}: {how} ablation of each head, {one.task.replace('_', ' ')}, "
            f"{counted(one.n_prompts, 'prompt')}; dashed: total = direct"
        )
        figure.suptitle(textwrap.fill(title, 66), size=9, parse_math=False)
        largest = total.effect.abs().nlargest(NAMED).index
        _name(
            axis,
            [
                (f"{layer}.{head}", direct.effect[layer, head], total.effect[layer, head])
                for layer, head in largest
            ],
        )
    return figure


def _reach(table: pd.DataFrame) -> np.ndarray:
    """How far the interval reaches below and above; a percentile interval may leave its mean out."""
    below, above = table.effect - table.ci_low, table.ci_high - table.effect
    return np.maximum(np.stack([below, above]), 0)


def _scatter(axis: Axes, table: pd.DataFrame, judge: str) -> None:

    size = table[judge].abs()
    for color, quadrant in zip((*COLORS[:3], "0.7"), QUADRANTS, strict=True):
        here = table.quadrant == quadrant
        axis.plot(
            table.mass[here],
            size[here],
            "o",
            color=color,
            markersize=4,
            label=f"{quadrant} ({here.sum()})",
        )
    known = table[table.mass.notna()]
    named = {*known.mass.nlargest(NAMED // 2).index, *size[known.index].nlargest(NAMED).index}
    largest = float(size.max()) or 1.0
    axis.set_yscale("symlog", linthresh=largest / 100)
    axis.set(
        xlabel=f"attention mass on {table.target.iloc[0]}",
        ylabel=f"|{judge.replace('_', ' ')} effect| on {with_unit(table.metric.iloc[0])}",
        xlim=(-0.02, 1.02),
        ylim=(0, largest * 1.6),
    )
    _name(
        axis,
        [(f"{table.layer[i]}.{table['head'][i]}", table.mass[i], size[i]) for i in sorted(named)],
    )
    axis.legend(frameon=False, fontsize=7, loc="upper right")


def _name(axis: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """A name beside each point, at the first of its corners within the axes that covers no name and no dot,
    and whose thread to its dot runs across none; where there is no such corner, at the least bad.

    To be called when all else is drawn, so that the axes have their size.
    """
    figure = axis.get_figure(root=True)
    if figure is not None and (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
    room = axis.get_window_extent()
    dots = [
        Bbox([place - radius, place + radius])
        for line in axis.lines
        if line.get_marker() == "o"
        for radius in [line.get_markersize() / 2 * axis.figure.dpi / 72]
        for place in axis.transData.transform(line.get_xydata())
    ]
    taken: list[Bbox] = []
    threads: list[Line] = []
    for text, x, y in points:
        here = axis.transData.transform((x, y))
        others = [dot for dot in dots if not dot.contains(*here)]
        tries = []
        for corner in CORNERS:
            label = axis.annotate(
                text,
                (x, y),
                xytext=corner,
                textcoords="offset points",
                ha="left" if corner[0] > 0 else "right",
                va="bottom",
                size=7,
                arrowprops=THREAD,
            )
            label.get_window_extent()  # puts it in its place
            box = Text.get_window_extent(label)  # of the name alone, without the thread
            thread = Line([here, box.corners().mean(axis=0)])
            faults = (
                not all(room.contains(*edge) for edge in box.corners()),
                any(box.overlaps(other) for other in (*taken, *dots)),
                any(thread.intersects_bbox(o, filled=False) for o in (*taken, *others))
                or any(earlier.intersects_bbox(box, filled=False) for earlier in threads),
            )
            label.remove()
            tries.append((faults, label, box, thread))
            if not any(faults):
                break
        _, label, box, thread = min(tries, key=lambda one: one[0])
        axis.add_artist(label)
        taken.append(box)
        threads.append(thread)


def _matrix(axis: Axes, agreement: pd.DataFrame) -> None:
    rows, columns = (list(agreement[name].unique()) for name in ("weight", "influence"))
    grid = np.full((len(rows), len(columns)), np.nan)
    for one in agreement.to_dict("records"):
        i, j = rows.index(one["weight"]), columns.index(one["influence"])
        grid[i, j] = found = float(one["spearman"])
        text = "undefined" if np.isnan(found) else f"{found:.2f}"
        if not np.isnan(one["ci_low"]):
            text += f"\n[{one['ci_low']:.2f}, {one['ci_high']:.2f}]"
        dark = abs(found) > 0.6
        axis.text(j, i, text, ha="center", va="center", size=7, color="white" if dark else "black")
    axis.imshow(grid, vmin=-1, vmax=1, cmap="RdBu_r", aspect="auto")
    axis.set_xticks(range(len(columns)), [name.replace("_", "\n") for name in columns])
    axis.set_yticks(range(len(rows)), [name.replace("_", "\n") for name in rows])
    axis.set_title("rank agreement (Spearman) of |weight| and |effect| over heads", size=9)
