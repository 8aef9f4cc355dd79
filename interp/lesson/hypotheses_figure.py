"""How many heads look striking, by criterion; and whether p is what it says.

Left: share of heads that meet each criterion, mean over hypotheses, with intervals over them. Middle: share
of hypotheses for which some head meets it. Right: distribution of p above the null; for made-up hypotheses it
must not lie above the diagonal, which is what chance gives.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from interp.results.figures import COLORS, STYLE, Drawing


def counts(
    summary: pd.DataFrame, tests: pd.DataFrame, *, level: float = 0.05, striking: float = 0.4
) -> Figure:
    """Three panels; see the module.

    Args:
        summary: as ``tables.HYPOTHESES`` describes.
        tests: as ``tables.HYPOTHESIS_TESTS`` describes.
        level: drawn as a dotted line.
        striking: the weight that counts on one map, said in the title.
    """
    names = list(summary.criterion.unique())
    with matplotlib.rc_context(STYLE):
        figure = Drawing(13.0, 3.8)
        heads, anyone, right = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
        for i, (color, kind) in enumerate(zip(COLORS, summary.kind.unique(), strict=False)):
            rows = summary[summary.kind == kind].set_index("criterion").loc[names]
            y = np.arange(len(names)) + 0.2 * i
            for axis, value, low, high in (
                (heads, rows.share, rows.ci_low, rows.ci_high),
                (anyone, rows.any_head, rows.any_low, rows.any_high),
            ):
                arms = np.nan_to_num([value - low, high - value]).clip(0)
                axis.errorbar(value, y, xerr=arms, fmt="o", color=color, markersize=4, label=kind)
            p = np.sort(tests[tests.kind == kind].p.dropna())
            right.step(p, np.arange(1, len(p) + 1) / len(p), color=color, label=kind, where="post")
        for axis in (heads, anyone):
            axis.axvline(0, color="black", linewidth=0.8)
            axis.set_yticks(range(len(names)), names if axis is heads else [])
            axis.invert_yaxis()
        heads.axvline(level, color="0.5", linestyle=":", linewidth=0.9)
        heads.set(xlabel="share of heads that look striking")
        heads.legend(frameon=False, fontsize=8)
        anyone.set(xlabel="share of hypotheses with such a head", xlim=(-0.03, 1.03))
        right.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=0.8)
        right.set(
            xlabel="p (above matched)", ylabel="share of tests below", xlim=(0, 1), ylim=(0, 1)
        )
        one = summary.iloc[0]
        title = (
            f"{Path(one.model).name}: {one.n_hypotheses} hypotheses of each kind × {one.n_heads} heads, "
            f"{one.n_prompts} prompts; one map: weight ≥ {striking:g}; bootstrap intervals over hypotheses; "
            f"dotted: level {level:g}, dashed: chance"
        )
        figure.suptitle(textwrap.fill(title, 150), size=9, parse_math=False)
    return figure
