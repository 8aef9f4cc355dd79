"""The figures of the lesson, each drawn from its saved tables."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from interp.results.figures import COLORS, STYLE, Drawing

_MOST_NUMBERS = 100  # a map of more cells has none written into them


def by_hand(steps: pd.DataFrame, flops: pd.DataFrame) -> Figure:
    """Scores, scaled scores and weights of the first example, weights of the masked one, FLOPs by heads.

    Args:
        steps: as ``tables.BY_HAND`` describes.
        flops: as ``tables.MULTI_HEAD_FLOPS`` describes.
    """
    first, second = (rows for _, rows in steps.groupby("example", sort=False))
    with matplotlib.rc_context(STYLE):
        figure = Drawing(13.0, 2.9)
        axes = figure.subplots(1, 5, width_ratios=(1, 1, 1, 1.2, 1.2))
        titles = ("score: query · key", "scaled: / √d_k", "weight: softmax")
        for axis, name, title in zip(axes, ("score", "scaled", "weight"), titles, strict=False):
            _map(axis, first, name, title)
        _map(axes[3], second, "weight", "scores in, causal mask: weight")
        _flops(axes[4], flops)
    return figure


def _map(axis: Axes, rows: pd.DataFrame, name: str, title: str) -> None:
    """Queries down, keys across, the number in each cell; hidden cells stay empty."""
    shown = rows.assign(shown=rows[name].where(rows.visible))
    grid = shown.pivot(index="query", columns="key", values="shown")
    limits = (0, 1) if name == "weight" else (None, None)
    axis.imshow(grid, cmap="cividis", vmin=limits[0], vmax=limits[1], aspect="auto")
    low, high = (grid.min().min(), grid.max().max()) if name != "weight" else (0, 1)
    for i, row in enumerate(grid.to_numpy()) if grid.size <= _MOST_NUMBERS else ():
        for j, value in enumerate(row):
            if not np.isnan(value):  # hidden
                bright = value > (low + high) / 2
                axis.text(
                    j, i, f"{value:.3f}", ha="center", va="center", color="k" if bright else "w"
                )
    tokens = rows.drop_duplicates("key").key_token.tolist()
    queries = rows.drop_duplicates("query").query_token.tolist()
    axis.set_xticks(range(len(tokens)), tokens, parse_math=False)
    axis.set_yticks(range(len(queries)), queries, parse_math=False)
    axis.set(xlabel="key", ylabel="query", title=title)


def _flops(axis: Axes, flops: pd.DataFrame) -> None:
    x = range(len(flops))
    axis.bar(x, flops.projection_flops / 1e6, color=COLORS[0], label="projections")
    axis.bar(
        x,
        flops.attention_flops / 1e6,
        bottom=flops.projection_flops / 1e6,
        color=COLORS[1],
        label="scores, weighted sums",
    )
    labels = [f"{n} × {d}" for n, d in zip(flops.n_heads, flops.d_head, strict=True)]
    axis.set_xticks(x, labels, size=7)
    one = flops.iloc[0]
    length = round((one.exponentials / one.n_heads) ** 0.5)
    axis.set(xlabel="heads × width of each", ylabel="counted MFLOPs")
    axis.set(title=f"one layer, {length:,} tokens")
    axis.set_ylim(0, 1.35 * flops.flops.max() / 1e6)
    axis.legend(frameon=False, fontsize=8, loc="upper left")


def scaling(random: pd.DataFrame, heads: pd.DataFrame, losses: pd.DataFrame) -> Figure:
    """Random vectors by d_k, then the entropy of a model's heads and its loss, by what is done to scores.

    Args:
        random: as ``tables.SCALING`` describes.
        heads: as ``tables.RESCALED_HEADS`` describes.
        losses: as ``tables.RESCALED_LOSSES`` describes.
    """
    with matplotlib.rc_context(STYLE):
        figure = Drawing(13.0, 3.2)
        axes = figure.subplots(1, 4)
        _by_width(axes[0], random[random.quantity == "largest_weight"], "largest weight")
        _by_width(axes[1], random[random.quantity == "gradient"], "gradient: 1 − Σ weight²")
        for i, (name, rows) in enumerate(heads.groupby("scaling", sort=False)):
            ranked = rows.sort_values("entropy")
            axes[2].errorbar(
                range(len(ranked)),
                ranked.entropy,
                yerr=_arms(ranked, "entropy"),
                fmt=".",
                markersize=4,
                elinewidth=0.8,
                color=COLORS[i],
                label=name,
            )
        axes[2].set(xlabel="heads, sorted each time", ylabel="entropy (nats)", ylim=(0, None))
        axes[2].legend(frameon=False, fontsize=8, title="scaling", title_fontsize=8)
        names = [
            scaling if pd.isna(layer) else f"{layer}"
            for layer, scaling in zip(losses.layer, losses.scaling, strict=True)
        ]
        colors = [COLORS[i] for i in range(3)] + [COLORS[1]] * (len(losses) - 3)
        axes[3].bar(range(len(losses)), losses.loss, color=colors)
        axes[3].errorbar(
            range(len(losses)), losses.loss, yerr=_arms(losses, "loss"), fmt="none", ecolor="0.2"
        )
        step = -(-len(losses) // 16)  # of a deep model not every layer has its number
        ticks = [i for i in range(len(losses)) if i < 3 or (i - 3) % step == 0]
        axes[3].set_xticks(ticks, [names[i] for i in ticks], size=7)
        axes[3].set(xlabel="scaling of all layers; undone in layer", ylabel="loss (nats a token)")
        one = losses.iloc[0]
        figure.suptitle(
            f"left: random vectors, {random.n_keys.iloc[0]} keys; right: {Path(one.model).name}, "
            f"{one.n_prompts} prompts; bootstrap intervals",
            size=9,
            parse_math=False,
        )
    return figure


def _by_width(axis: Axes, random: pd.DataFrame, name: str) -> None:
    for i, (scaling, rows) in enumerate(random.groupby("scaling", sort=False)):
        arms = [rows.value - rows.ci_low, rows.ci_high - rows.value]
        axis.errorbar(
            rows.d_k, rows.value, yerr=arms, fmt="o-", markersize=3, color=COLORS[i], label=scaling
        )
    axis.axhline(
        random.reference.iloc[0], color="black", linestyle="--", linewidth=0.8, label="uniform"
    )
    axis.set(xlabel="d_k", ylabel=name, xscale="log", ylim=(0, 1))
    axis.set_xticks(random.d_k.unique(), random.d_k.unique())
    axis.minorticks_off()
    axis.legend(frameon=False, fontsize=8, title="scaling", title_fontsize=8)


def _arms(rows: pd.DataFrame, name: str) -> np.ndarray:
    """Lengths of both arms of an interval; none where there is no interval."""
    arms = np.array([rows[name] - rows[f"{name}_low"], rows[f"{name}_high"] - rows[name]])
    return np.clip(np.nan_to_num(arms), 0, None)


def causality(positions: pd.DataFrame, prefixes: pd.DataFrame) -> Figure:
    """What a changed future changes, by position, with and without the mask; one pass against many.

    Args:
        positions: as ``tables.CAUSAL_POSITIONS`` describes.
        prefixes: as ``tables.CAUSAL_PREFIXES`` describes.
    """
    with matplotlib.rc_context(STYLE):
        figure = Drawing(12.0, 3.2)
        *axes, last = figure.subplots(1, 3)
        titles = {"own": "the model's causal mask", "none": "mask taken off"}
        for axis, (name, title) in zip(axes, titles.items(), strict=True):
            of_mask = positions[positions["mask"] == name]
            for i, cut in enumerate(of_mask.last_kept.unique().tolist()):
                rows = of_mask[of_mask.last_kept == cut]
                color = COLORS[i % len(COLORS)]
                axis.plot(rows.position, rows.kl, color=color, linewidth=0.9, label=f"t = {cut}")
                axis.fill_between(
                    rows.position, rows.ci_low, rows.ci_high, color=color, alpha=0.2, linewidth=0
                )
                axis.axvline(cut + 0.5, color=color, linewidth=0.6, linestyle=":")
            axis.set(
                xlabel="position", ylabel="KL(before ‖ after), nats", title=title, ylim=(0, None)
            )
            axis.legend(frameon=False, fontsize=7, title="tokens replaced after", title_fontsize=7)
        for i, (_, rows) in enumerate(prefixes.groupby("prompt", sort=False)):
            last.plot(
                rows.position, rows.difference, ".", markersize=3, color=COLORS[i % len(COLORS)]
            )
        last.axhline(
            prefixes.rounding.max(), color="black", linestyle="--", linewidth=0.8, label="rounding"
        )
        last.set(
            xlabel="position",
            ylabel="largest |difference of logits|",
            title="one pass against a pass a prefix",
            ylim=(0, 1.2 * max(prefixes.rounding.max(), prefixes.difference.max())),
        )
        last.legend(frameon=False, fontsize=8)
        one = positions.iloc[0]
        figure.suptitle(
            f"{Path(one.model).name}: {one.n_prompts} prompts, bootstrap intervals; right: "
            f"{prefixes.prompt.nunique()} prompts",
            size=9,
            parse_math=False,
        )
    return figure


def cost(costs: pd.DataFrame, exponents: pd.DataFrame) -> Figure:
    """Time, memory and FLOPs of each way against the number of tokens, both axes logarithmic.

    Args:
        costs: as ``tables.ATTENTION_COST`` describes.
        exponents: as ``tables.COST_EXPONENTS`` describes.
    """
    growth = exponents.set_index(["way", "quantity"])
    panels = {"seconds": ("seconds", 1), "memory": ("MB above the inputs", 1e6)}
    panels["flops"] = ("counted GFLOPs", 1e9)
    with matplotlib.rc_context(STYLE):
        figure = Drawing(12.0, 3.4)
        for axis, (quantity, (label, unit)) in zip(
            figure.subplots(1, 3), panels.items(), strict=True
        ):
            for i, way in enumerate(costs.way.unique()):
                rows = costs[(costs.way == way) & (costs[quantity] > 0)]
                fit = growth.loc[(way, quantity)]
                if rows.empty:
                    continue
                known = not np.isnan(fit.exponent)
                slope = f": n^{fit.exponent:.2f} ± {fit.standard_error:.2f}" if known else ""
                arms = [rows.seconds - rows.fastest, rows.slowest - rows.seconds]
                axis.errorbar(
                    rows.length,
                    rows[quantity] / unit,
                    yerr=arms if quantity == "seconds" else None,
                    fmt="o-",
                    markersize=3,
                    color=COLORS[i],
                    label=f"{way}{slope}",
                )
            if quantity == "flops":
                first = costs.drop_duplicates("length")
                for share, style in ((1, "--"), (0.5, ":")):
                    name = "4·n²·d·H" if share == 1 else "half of it"
                    axis.plot(
                        first.length, share * first.formula / unit, "k", linestyle=style,
                        linewidth=0.8, label=name, zorder=3,
                    )  # fmt: skip
                unseen = costs.groupby("way", sort=False).flops.apply(lambda one: one.isna().all())
                if unseen.any():
                    names = ", ".join(unseen[unseen].index)
                    axis.plot([], [], " ", label=f"{names}: not counted")
            axis.set(xlabel="n (tokens)", ylabel=label, xscale="log", yscale="log")
            axis.set_xticks(costs.length.unique(), costs.length.unique())
            axis.minorticks_off()
            axis.legend(frameon=False, fontsize=7)
        one = costs.iloc[0]
        figure.suptitle(
            f"causal attention of {one.n_heads} heads of width {one.d_head}, one layer; median of "
            f"{one.n_repeats} calls, from fastest to slowest; exponents ± standard error",
            size=9,
        )
    return figure


def cache_sizes(sizes: pd.DataFrame, growth: pd.DataFrame) -> Figure:
    """One user's cache against the context, and how many users fit into the memory at hand.

    Args:
        sizes: as ``tables.CACHE_SIZES`` describes.
        growth: as ``tables.CACHE_GROWTH`` describes.
    """
    with matplotlib.rc_context(STYLE):
        figure = Drawing(11.0, 3.6)
        left, right = figure.subplots(1, 2)
        for i, (name, rows) in enumerate(growth.groupby("name", sort=False)):
            label = Path(str(name)).name
            left.plot(
                rows.context, rows.bytes / 1e6, ".-", color=COLORS[i % len(COLORS)], label=label
            )
        left.set(xlabel="context (tokens)", ylabel="MB a user", xscale="log", yscale="log")
        left.legend(frameon=False, fontsize=8)
        fits = sizes.users_that_fit.astype(float)
        colors = [COLORS[i % len(COLORS)] for i in range(len(sizes))]
        right.barh(range(len(sizes)), fits.fillna(0), color=colors)
        labels = [
            f"{Path(name).name}\n{context:,} tokens"
            for name, context in zip(sizes.name, sizes.context, strict=True)
        ]
        right.set_yticks(range(len(sizes)), labels, size=7, parse_math=False)
        for i, fit in enumerate(fits):
            text = "memory not known" if np.isnan(fit) else f" {fit:,.0f}"
            right.text(0 if np.isnan(fit) else fit, i, text, va="center", size=8)
        right.invert_yaxis()
        memory = sizes.memory.iloc[0]
        known = "" if np.isnan(memory) else f" in {memory / 1e9:.1f} GB"
        right.set(xlabel=f"users that fit{known}", xscale="symlog")
        right.margins(x=0.25)
        one = sizes.iloc[0]
        figure.suptitle(
            f"{one.bytes_per_token / one.values_per_token:g} bytes a number; a × b × c: a layers of b query "
            "heads of width c",
            size=9,
        )
    return figure
