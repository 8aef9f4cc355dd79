"""Figures, drawn only from a saved table: a layer × head map for each role.

Perceptually uniform, colour-blind-safe colours (cividis); one scale from 0 to 1 for all maps;
undefined heads are hatched, not coloured; a dot marks q below the level. Fonts are embedded in PDF.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg", force=False)
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

STYLE: dict[Any, Any] = {
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "none",
    "font.size": 9,
}
LEVEL = 0.05


def layer_by_head(summary: pd.DataFrame, *, value: str = "mass", level: float = LEVEL) -> Figure:
    """One panel a role: layers down, heads across, colour the attention mass.

    Args:
        summary: a table as ``tables.SUMMARY`` describes.
        value: the column that is coloured.
        level: a dot marks heads whose q is below it.
    """
    roles = list(summary.role.unique())
    n_layers, n_heads = int(summary.layer.max()) + 1, int(summary["head"].max()) + 1
    columns = min(4, len(roles))
    rows = -(-len(roles) // columns)
    with matplotlib.rc_context(STYLE):
        width = min(4.2, max(1.9, 0.22 * n_heads + 0.9))
        height = min(6.0, max(1.6, 0.17 * n_layers + 0.9))
        figure = Figure(
            figsize=(columns * width + 0.9, rows * height + 0.6), layout="constrained", dpi=150
        )
        axes = figure.subplots(rows, columns, squeeze=False)
        for axis, role in zip(axes.flat, roles, strict=False):
            image = _panel(axis, summary[summary.role == role], value, level, (n_layers, n_heads))
            axis.set_title(role.replace("_", " "))
        for axis in axes.flat[len(roles) :]:
            axis.set_axis_off()
        for axis in axes[:, 0]:
            axis.set_ylabel("layer")
        for axis in axes[-1, :]:
            axis.set_xlabel("head")
        figure.colorbar(image, ax=axes, shrink=0.8, label=f"attention {value}".replace("_", " "))
        names = ", ".join(sorted(summary.model.unique()))
        prompts = int(summary.n_prompts.max())
        figure.suptitle(
            f"{names}: {prompts} prompts; dot: q < {level:g}; hatched: undefined", size=9
        )
    return figure


def _panel(
    axis: Axes, rows: pd.DataFrame, value: str, level: float, shape: tuple[int, int]
) -> AxesImage:
    """Draw one role's map; returns the image for the colour bar."""
    grid = np.full(shape, np.nan)
    grid[rows.layer, rows["head"]] = rows[value]
    axis.set_facecolor("white")
    axis.patch.set(hatch="////", edgecolor="0.6")
    image = axis.imshow(grid, vmin=0, vmax=1, cmap="cividis", aspect="auto", interpolation="none")
    found = rows[rows.q < level]
    dark = found[value] < 0.6
    for part, color in ((found[dark], "white"), (found[~dark], "black")):
        axis.plot(part["head"], part.layer, ".", color=color, markersize=3)
    for direction, n in (("x", shape[1]), ("y", shape[0])):
        step = max(1, -(-n // 10))
        getattr(axis, f"set_{direction}ticks")(range(0, n, step))
    return image


def save_figure(figure: Figure, path: Path) -> None:
    """Write PNG or PDF by the path's ending; without dates, so that one table gives one file."""
    undated = {"Software": None} if path.suffix == ".png" else {"CreationDate": None}
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, metadata=undated)
