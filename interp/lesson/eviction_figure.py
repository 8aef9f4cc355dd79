"""What evicting costs: the rise of the loss along the text, by policy, and by head against its sink.

Left: loss − loss of a cache that keeps all, means over blocks of positions; the dotted line is where the
cache is full. Middle: the same over the second half, with intervals. Right: each head's mass on the first
token against the rise when it alone no longer sees what left.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from interp.results.figures import COLORS, STYLE, Drawing

BLOCKS = 32
MARKS = {"kept": "o", "reindexed": "D", "recomputed": "s"}


def evictions(
    summary: pd.DataFrame, positions: pd.DataFrame, heads: pd.DataFrame | None = None
) -> Figure:
    """Two panels, or three with heads; see the module.

    Args:
        summary: as ``tables.EVICTION`` describes.
        positions: as ``tables.EVICTION_POSITIONS`` describes.
        heads: as ``tables.EVICTED_HEADS`` describes.
    """
    one = summary.iloc[0]
    with matplotlib.rc_context(STYLE):
        n = 2 if heads is None else 3
        figure = Drawing(4.4 * n, 4.2)
        axes = figure.subplots(1, n)
        _along(axes[0], positions, int(one.budget))
        _by_policy(axes[1], summary)
        if heads is not None:
            _by_head(axes[2], heads)
        title = (
            f"{Path(one.model).name}: no more than {one.budget} old tokens kept; {one.n_prompts} texts; loss "
            f"of a cache that keeps all: {one.loss:.2f}; bootstrap intervals over texts"
        )
        figure.suptitle(textwrap.fill(title, 46 * n), size=9, parse_math=False)
    return figure


def _along(axis: Axes, positions: pd.DataFrame, budget: int) -> None:
    """One line a policy: the largest number of pins of each choice; and recomputed.

    Positions kept, or reindexed where none are kept.
    """
    keys = ["policy", "n_pinned", "positions"]
    lines = {}
    for _, rows in positions.groupby(keys, sort=False):
        one = rows.iloc[0]
        name = str(one.policy), int(one.n_pinned), str(one.positions)
        lines[name] = rows.set_index("position").loss
    whole = next(iter(lines.values()))
    shown: dict[tuple[str, str], tuple[str, int, str]] = {}
    evicting = [name for name in lines if name[0] != "all"]
    placed = "kept" if any(name[2] == "kept" for name in evicting) else "reindexed"
    for name in evicting:
        if name[2] in (placed, "recomputed"):
            shown[name[0], name[2]] = name  # the last of a choice has most pins
    width = max(1, len(whole) // BLOCKS)
    for color, name in zip(COLORS, shown.values(), strict=False):
        rise = lines[name] - whole
        blocks = rise.dropna().groupby(rise.dropna().index // width)
        axis.plot(
            blocks.mean().index * width + width / 2, blocks.mean(), color=color, label=_label(*name)
        )
    axis.axhline(0, color="black", linewidth=0.8)
    axis.axvline(budget, color="0.5", linestyle=":", linewidth=0.9)
    axis.set(xlabel="position in the text (dotted: cache full)")
    axis.set(ylabel=f"rise of the loss (nats; blocks of {width})")
    axis.legend(frameon=False, fontsize=8)


def _by_policy(axis: Axes, summary: pd.DataFrame) -> None:
    rows = summary[summary.policy != "all"]
    names = list(dict.fromkeys(zip(rows.policy, rows.n_pinned.tolist(), strict=True)))
    kinds = [kind for kind in MARKS if (rows.positions == kind).any()]
    for i, (color, kind) in enumerate(zip(COLORS, kinds, strict=False)):
        part = rows[rows.positions == kind]
        y = [names.index(name) + 0.18 * i for name in zip(part.policy, part.n_pinned, strict=True)]
        arms = np.nan_to_num([part.effect - part.ci_low, part.ci_high - part.effect]).clip(0)
        axis.errorbar(
            part.effect,
            y,
            xerr=arms,
            fmt=MARKS[kind],
            color=color,
            markersize=4,
            linewidth=0.9,
            label=kind,
        )
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(names)), [_label(*name) for name in names])
    axis.invert_yaxis()
    axis.set(xlabel="rise of the loss, second half (nats)")
    axis.legend(fontsize=8, title="positions", title_fontsize=8, framealpha=0.9)


def _by_head(axis: Axes, heads: pd.DataFrame) -> None:
    last = int(heads.layer.max())
    for layer in range(last + 1):
        rows = heads[heads.layer == layer]
        color = matplotlib.colormaps["viridis"](0.9 * layer / max(1, last))
        arms = np.nan_to_num([rows.effect - rows.ci_low, rows.ci_high - rows.effect]).clip(0)
        label = f"layer {layer}" if last < 6 or layer in (0, last) else None
        axis.errorbar(
            rows.sink_mass,
            rows.effect,
            yerr=arms,
            fmt="o",
            markersize=3.5,
            linewidth=0.8,
            color=color,
            label=label,
        )
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set(xlabel="mass on the first token", ylabel="rise when this head alone evicts (nats)")
    axis.legend(frameon=False, fontsize=8)


def _label(policy: str, n_pinned: int, positions: str = "kept") -> str:
    words = {
        "oldest": "nothing pinned",
        "first": f"first {n_pinned} pinned",
        "random": f"{n_pinned} random pinned",
        "attended": f"{n_pinned} attended pinned",
    }[policy]
    return {"kept": words, "reindexed": f"{words}, reindexed"}.get(positions, positions)
