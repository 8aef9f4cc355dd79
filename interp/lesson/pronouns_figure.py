"""What "it" is: preferences, where heads look, and what carries the answer.

Left: mean preference of the right noun by reading, with intervals over frames; 0 is chance. Middle: attention
from the end to the right noun − to the wrong one, a dot a head, against what patching the head brings back.
Right: what patching brings back place by place, of the largest heads, and of the residual stream before each
layer.
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

PLACES = ("first noun", "second noun", "it", "adjective", "END")
MOST = 12


def pronouns(
    summary: pd.DataFrame,
    looked: pd.DataFrame,
    heads: pd.DataFrame,
    places: pd.DataFrame,
    stream: pd.DataFrame,
) -> Figure:
    """Four panels; see the module.

    Args:
        summary: as ``tables.PREFERENCES`` describes.
        looked: as ``tables.LOOKS`` describes.
        heads, places, stream: as ``tables.EFFECTS`` describes, of each head, of each at every place, and of
            the residual stream before each layer at every place.
    """
    with matplotlib.rc_context(STYLE):
        figure = Drawing(16.0, 4.0)
        left, middle, third, fourth = figure.subplots(1, 4, width_ratios=(1, 1.1, 1.1, 1.1))
        _by_reading(left, summary)
        left.set_xlabel("preference of the right noun (nats; question: logits)")
        end = looked[looked["query"] == "END"].set_index(["layer", "head"]).flip
        both = heads.set_index(["layer", "head"]).join(end)
        last = int(heads.layer.max())
        for layer in range(last + 1):
            of_layer = both[both.index.get_level_values("layer") == layer]
            color = matplotlib.colormaps["viridis"](0.9 * layer / max(1, last))
            label = f"layer {layer}" if last < 6 or layer in (0, last) else None
            arms = [of_layer.effect - of_layer.ci_low, of_layer.ci_high - of_layer.effect]
            middle.errorbar(
                of_layer.flip,
                of_layer.effect,
                yerr=np.nan_to_num(arms).clip(0),
                fmt="o",
                color=color,
                markersize=4,
                linewidth=0.8,
                label=label,
            )
        for axis in (middle.axhline, middle.axvline):
            axis(0, color="0.6", linewidth=0.8)
        middle.set(
            xlabel="attention from END: right − wrong noun", ylabel="effect of the patch (logits)"
        )
        middle.legend(frameon=False, fontsize=8)
        size = places.groupby(["layer", "head"]).effect.agg(lambda values: values.abs().max())
        chosen = sorted(size.sort_values(ascending=False, kind="stable").index[:MOST])
        grid = places.pivot_table(index=["layer", "head"], columns="place", values="effect")
        _by_place(third, grid.loc[chosen], [f"{layer}.{head}" for layer, head in chosen])
        third.set(ylabel="layer.head", title=f"the {len(chosen)} largest heads")
        grid = stream.pivot_table(index="layer", columns="place", values="effect")
        _by_place(fourth, grid, [str(layer) for layer in grid.index])
        fourth.set(ylabel="before layer", title="residual stream")
        one = summary.iloc[0]
        title = (
            f"{Path(one.model).name}: {one.n_frames} frames, two sentences each ({one.task}); bootstrap "
            f"intervals over frames; patches, of {heads.n_templates.iloc[0]} frames: each sentence's "
            "activations into the run of its twin"
        )
        figure.suptitle(textwrap.fill(title, 150), size=9, parse_math=False)
    return figure


def preferences(summary: pd.DataFrame) -> Figure:
    """The left panel alone, for a published set.

    Args:
        summary: as ``tables.PREFERENCES`` describes.
    """
    with matplotlib.rc_context(STYLE):
        figure = Drawing(5.6, 2.8)
        axis = figure.subplots()
        _by_reading(axis, summary)
        axis.set_xlabel("preference of the right candidate (nats)")
        one = summary.iloc[0]
        title = (
            f"{Path(one.model).name}: {one.task}, {one.n_prompts} sentences in {one.n_frames} frames (twins "
            "share one); bootstrap intervals over frames"
        )
        figure.suptitle(textwrap.fill(title, 70), size=9, parse_math=False)
    return figure


def _by_reading(axis: Axes, summary: pd.DataFrame) -> None:
    """Preferences with their intervals, a row a reading; 0 is chance."""
    y = np.arange(len(summary))
    arms = [
        summary.preference - summary.preference_low,
        summary.preference_high - summary.preference,
    ]
    axis.errorbar(summary.preference, y, xerr=np.nan_to_num(arms).clip(0), fmt="o", color=COLORS[0])
    axis.axvline(0, color="black", linewidth=0.8)
    labels = [
        f"{row.reading}\n{row.accuracy:.0%} right\n{row.verdict}" for row in summary.itertuples()
    ]
    axis.set_yticks(y, labels)
    axis.set_ylim(-0.6, len(y) - 0.4)
    axis.invert_yaxis()


def _by_place(axis: Axes, grid: pd.DataFrame, names: list[str]) -> None:
    """A map of effects: rows by places, white at 0."""
    values = grid[list(PLACES)]
    most = float(values.abs().max().max()) or 1.0
    image = axis.imshow(values, vmin=-most, vmax=most, cmap="RdBu_r", aspect="auto")
    axis.set_xticks(range(len(PLACES)), PLACES, rotation=25, ha="right", rotation_mode="anchor")
    step = max(1, -(-len(names) // MOST))
    axis.set_yticks(range(0, len(names), step), names[::step])
    assert axis.figure is not None
    axis.figure.colorbar(image, ax=axis, label="effect of the patch (logits)")
