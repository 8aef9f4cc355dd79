"""Sinks taken away: the loss after each knock-out, and where the attention rests then.

Left: bars are the loss with the first keys of all layers knocked out, diamonds that with as many random keys,
both with the interval of the change; the dashed line is the clean loss. Right: mean attention mass by key,
clean and with those keys knocked out in one way; from "current" on these are no single keys.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from interp.results.figures import COLORS, STYLE, Drawing

_BARS: dict[str, Any] = {"error_kw": {"elinewidth": 0.8, "capsize": 1.5, "ecolor": "0.2"}}


def sinks(effects: pd.DataFrame, masses: pd.DataFrame, how: str | None = None) -> Figure:
    """Two panels; see the module.

    Args:
        effects: as ``tables.SINK_EFFECTS`` describes; drawn are those on the loss, of all layers at once.
        masses: as ``tables.SINK_MASSES`` describes.
        how: the knock-out whose masses are drawn; by default "mask" if it is there, else the first.
    """
    loss = effects[effects.layer.isna() & (effects.metric == "loss")]
    hows = list(loss.knock_out.unique())
    how = how or ("mask" if "mask" in hows else hows[0])
    with matplotlib.rc_context(STYLE):
        figure = Drawing(10.5, 3.8)
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
        _losses(left, loss, hows)
        _masses(right, masses, how)
        one = loss.iloc[0]
        title = (
            f"{Path(one.model).name}: the first keys of all heads and layers taken away; {one.n_prompts} "
            "prompts, bootstrap intervals"
        )
        figure.suptitle(textwrap.fill(title, 120), size=9, parse_math=False)
    return figure


def _losses(axis: Axes, loss: pd.DataFrame, hows: Sequence[str]) -> None:
    sizes = loss.n_keys.unique().tolist()
    width = 0.8 / len(sizes)
    for i, n in enumerate(sizes):
        rows = loss[loss.n_keys == n].set_index("knock_out").loc[list(hows)]
        x = np.arange(len(hows)) + (i - (len(sizes) - 1) / 2) * width
        axis.bar(
            x,
            rows.baseline + rows.effect,
            0.92 * width,
            yerr=_ends(rows.effect, rows.ci_low, rows.ci_high),
            color=COLORS[i % len(COLORS)],
            label=_keys(n),
            **_BARS,
        )
        if rows.control.notna().any():
            axis.errorbar(
                x,
                rows.baseline + rows.control,
                yerr=_ends(rows.control, rows.control_low, rows.control_high),
                fmt="D",
                color="black",
                markerfacecolor="white",
                markersize=3.5,
                elinewidth=0.8,
                label="as many random keys" if i == len(sizes) - 1 else None,
            )
    clean = float(loss.baseline.iloc[0])
    axis.axhline(clean, color="black", linestyle="--", linewidth=0.8, label=f"clean: {clean:.2f}")
    axis.set_xticks(range(len(hows)), [how.replace("_", " ") for how in hows])
    top = float((loss.baseline + loss[["effect", "ci_high", "control_high"]].max(axis=1)).max())
    axis.set(ylabel="loss (nats a token)", ylim=(0, 1.3 * top))
    axis.legend(frameon=False, ncols=2, loc="upper left", fontsize=8)


def _masses(axis: Axes, masses: pd.DataFrame, how: str) -> None:
    masses = masses[masses.knock_out.isin(["none", how])]
    held = masses.groupby("key").mass.max() > 1e-3
    masses = masses[masses.key.str.isdigit() | masses.key.map(held)]  # "nowhere" is empty for most
    shown = [("none", 0), *((how, n) for n in masses.n_keys.unique().tolist() if n)]
    width = 0.84 / len(shown)
    for i, (one, n) in enumerate(shown):
        rows = masses[(masses.knock_out == one) & (masses.n_keys == n)]
        axis.bar(
            np.arange(len(rows)) + (i - (len(shown) - 1) / 2) * width,
            rows.mass,
            0.95 * width,
            yerr=_ends(rows.mass, rows.ci_low, rows.ci_high),
            color=COLORS[(i - 1) % len(COLORS)] if n else "0.6",
            label=f"{how.replace('_', ' ')}: {_keys(n)}" if n else "clean",
            **_BARS,
        )
    places = list(masses.key.unique())
    single = sum(place.isdigit() for place in places)
    axis.axvline(single - 0.5, color="0.8", linewidth=0.8)
    axis.set_xticks(range(len(places)), places)
    for label in axis.get_xticklabels()[single:]:
        label.set(rotation=25, ha="right", rotation_mode="anchor")
    axis.set(xlabel="key (position)", ylabel="mean attention mass", ylim=(0, 1))
    axis.legend(frameon=False, loc="upper left", fontsize=8)


def _ends(middle: pd.Series, low: pd.Series, high: pd.Series) -> np.ndarray:
    """Lengths of both arms; none where there is no interval."""
    arms = np.array([middle - low, high - middle])
    return np.clip(np.nan_to_num(arms), 0, None)


def _keys(n: int) -> str:
    return "key 0" if n == 1 else f"keys 0–{n - 1}"
