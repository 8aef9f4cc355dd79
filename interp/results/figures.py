"""Figures, drawn only from a saved table: a layer × head map for each role.

Perceptually uniform, colour-blind-safe colours (cividis); one scale from 0 to 1 for all maps;
undefined heads are hatched, not coloured; a dot marks heads that are above chance and, with q below
the level, above their null. Fonts are embedded in PDF.
"""

from __future__ import annotations

import io
import textwrap
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from interp.words import counted

STYLE: dict[Any, Any] = {
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "none",
    "font.size": 9,
}
LEVEL = 0.05
MOST_BARS = 40
DPI = 150
# Okabe and Ito: told apart by colour-blind readers.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# Of effects, by metric.
UNITS = {
    "logit_difference": "logits",
    "log_probability": "nats",
    "probability_difference": "share",
    "loss": "nats",
    "kl": "nats",
    "flips": "share",
}


class Drawing(Figure):
    """A figure that a notebook shows by itself: pyplot, and with it any global state, is left alone."""

    def __init__(self, width: int | float, height: int | float) -> None:
        """Sizes are in inches."""
        super().__init__(figsize=(width, height), layout="constrained", dpi=DPI)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """The picture, and its size on the page in CSS pixels, of which an inch has 96."""
        picture = io.BytesIO()
        with _drawing():
            self.savefig(picture, format="png")
        width, height = (int(96 * inches) for inches in self.get_size_inches())
        return picture.getvalue(), {"width": width, "height": height}


def layer_by_head(summary: pd.DataFrame, *, value: str = "mass", level: float = LEVEL) -> Figure:
    """One panel a role: layers down, heads across, colour the attention mass.

    Args:
        summary: a table as ``tables.SUMMARY`` describes.
        value: the column that is coloured.
        level: a dot marks heads whose q is below it and whose mass is above chance.
    """
    roles = list(summary.role.unique())
    n_layers, n_heads = int(summary.layer.max()) + 1, int(summary["head"].max()) + 1
    columns = min(4, len(roles))
    rows = -(-len(roles) // columns)
    with matplotlib.rc_context(STYLE):
        width = min(4.2, max(1.9, 0.22 * n_heads + 0.9))
        height = min(6.0, max(1.6, 0.17 * n_layers + 0.9))
        figure = Drawing(columns * width + 0.9, rows * height + 0.6)
        axes = figure.subplots(rows, columns, squeeze=False)
        for axis, role in zip(axes.flat, roles, strict=False):
            image = _panel(axis, summary[summary.role == role], value, level, (n_layers, n_heads))
            axis.set_title(role.replace("_", " "))
        for axis in axes.flat[len(roles) :]:
            axis.set_axis_off()
        for axis in axes[:, 0]:
            axis.set_ylabel("layer")
        for axis in axes.flat[max(0, len(roles) - columns) : len(roles)]:
            axis.set_xlabel("head")
        figure.colorbar(
            image, ax=axes, shrink=0.8, aspect=30, label=f"attention {value}".replace("_", " ")
        )
        names = ", ".join(sorted(Path(name).name for name in summary.model.unique()))
        prompts = counted(int(summary.n_prompts.max()), "prompt")
        title = (
            f"{names}: {prompts}; dot: above null (q < {level:g}) and chance; hatched: undefined"
        )
        wrapped = textwrap.fill(title, int(12 * figure.get_figwidth()))  # 12 letters an inch
        figure.suptitle(wrapped, size=9, parse_math=False)
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
    found = rows[(rows.q < level) & (rows.mass > rows.chance)]
    dark = found[value] < 0.6
    for part, color in ((found[dark], "white"), (found[~dark], "black")):
        axis.plot(part["head"], part.layer, ".", color=color, markersize=3)
    for direction, n in (("x", shape[1]), ("y", shape[0])):
        step = max(1, -(-n // 10))
        getattr(axis, f"set_{direction}ticks")(range(0, n, step))
    return image


def effects(table: pd.DataFrame, *, level: float = LEVEL, most: int = 30) -> Figure:
    """Effects as a map: blue below 0, red above, white at 0; of denoising, the normalised effect.

    Layers down and heads across; with places, layers down and places across; with heads and places (or
    several receivers), the heads of the largest effects down and those across.

    Args:
        table: a table as ``tables.EFFECTS`` describes, of one edit and one metric.
        level: a dot marks those whose q is below it.
        most: heads at most, where places go across.
    """
    value = "effect"
    if table.edit.str.startswith("denoise").all() and table.normalised.notna().any():
        value = "normalised"
    down, across, names_down, names_across = _axes_of(table, value, most)
    shape = len(names_down), len(names_across)
    one = table.iloc[0]
    grid = np.full(shape, np.nan)
    shown = (down >= 0).to_numpy()
    grid[down[shown], across[shown]] = table[value][shown]
    most_seen = float(np.nanmax(np.abs(grid), initial=0)) or 1.0
    with matplotlib.rc_context(STYLE):
        width = min(16.0, max(4.2, 0.3 * shape[1] + 1.6))
        height = max(2.2, 0.17 * shape[0] + 1.0)
        figure = Drawing(width, height)
        axis = figure.subplots()
        axis.patch.set(hatch="////", edgecolor="0.6")
        image = axis.imshow(grid, vmin=-most_seen, vmax=most_seen, cmap="RdBu_r", aspect="auto")
        found = shown & (table.q < level).to_numpy()
        axis.plot(across[found], down[found], ".", color="black", markersize=3)
        key = _across(table)
        unit = str(one.unit).replace("_", "-") if "unit" in table else "head"
        axis.set(
            xlabel=unit if key == "head" else key,
            ylabel=f"layer.{unit}" if key != "head" and "head" in table else "layer",
        )
        for direction, names in (("y", names_down), ("x", names_across)):
            each = not all(name.isdigit() for name in names)
            step = 1 if each else max(1, -(-len(names) // 10))
            ticks = range(0, len(names), step)
            turned = {"rotation": 90} if direction == "x" and each else {}
            getattr(axis, f"set_{direction}ticks")(ticks, [names[i] for i in ticks], **turned)
        label = f"effect on\n{with_unit(one.metric)}" if value == "effect" else f"{value} effect"
        estimated = table.edit.str.contains("attribution").all()
        figure.colorbar(image, ax=axis, label=f"estimated {label}" if estimated else label)
        what = one.receiver if "receiver" in table else one.site if "site" in table else "ablation"
        title = (
            f"{Path(one.model).name}: {one.edit} {what}, {one.task.replace('_', ' ')}, "
            f"{one.metric.replace('_', ' ')} (before: {one.baseline:.3g}), "
            f"{counted(int(table.n_prompts.max()), 'prompt')}; dot: q < {level:g}"
        )
        wrapped = textwrap.fill(title, int(12 * figure.get_figwidth()))
        figure.suptitle(wrapped, size=9, parse_math=False)
    return figure


def with_unit(metric: str) -> str:
    """A metric in words, such as "loss (nats)"."""
    unit = UNITS.get(metric)
    return metric.replace("_", " ") + (f" ({unit})" if unit else "")


def _across(table: pd.DataFrame) -> str:
    """The column that goes across: head, place, receiver, or, of a stream as a whole, site."""
    if "place" in table or "head" not in table:
        return "place" if "place" in table else "site"
    return "receiver" if "receiver" in table and table.receiver.nunique() > 1 else "head"


def _axes_of(
    table: pd.DataFrame, value: str, most: int
) -> tuple[pd.Series, pd.Series, list[str], list[str]]:
    """Each row's place on the map (−1 down: not shown), and the names of rows and columns."""
    key = _across(table)
    if key == "head":
        layers, heads = (
            [str(i) for i in range(int(table[name].max()) + 1)] for name in ("layer", "head")
        )
        return table.layer, table["head"], layers, heads
    places = sorted(table[key].unique())
    if key == "place":
        places = table.groupby("place").position.mean().sort_values(kind="stable").index.tolist()
    across = table[key].map({place: i for i, place in enumerate(places)})
    if "head" not in table:
        return table.layer, across, [str(i) for i in range(int(table.layer.max()) + 1)], places
    largest = table[value].abs().groupby([table.layer, table["head"]]).max()
    chosen = sorted(largest.sort_values(ascending=False, kind="stable").index[:most])
    number = {pair: i for i, pair in enumerate(chosen)}
    down = pd.Series(
        [number.get(pair, -1) for pair in zip(table.layer, table["head"], strict=True)],
        index=table.index,
    )
    return down, across, [f"{layer}.{head}" for layer, head in chosen], places


def composition(pairs: pd.DataFrame, tests: pd.DataFrame, *, most: int = 16) -> Figure:
    """Q, K and V composition of the named pairs, a row each, among the other pairs of the same layers.

    Args:
        pairs: a table as ``tables.COMPOSITION`` describes; the named pairs are drawn, those of the largest
            K-composition first, or the best of all where none is named.
        tests: a table as ``tables.NAMED_PAIRS`` describes.
        most: rows at most.
    """
    ends = ["sender_layer", "sender_head", "receiver_layer", "receiver_head"]
    by_k = pairs[pairs.kind == "k"].sort_values("composition", ascending=False)
    named = by_k[by_k.named]
    shown = (named if len(named) else by_k)[ends].head(most)[::-1]
    readers = {"q": "queries", "k": "keys", "v": "values"}
    with matplotlib.rc_context(STYLE):
        size = 7.2, 1.7 + 0.24 * len(shown)
        figure = Drawing(*size)
        axes = figure.subplots(1, 3, sharex=True, sharey=True)
        for axis, color, (kind, words) in zip(axes, COLORS, readers.items(), strict=False):
            of_kind = pairs[pairs.kind == kind]
            for y, (a, i, b, j) in enumerate(shown.itertuples(index=False)):
                near = of_kind[(of_kind.sender_layer == a) & (of_kind.receiver_layer == b)]
                one = (near.sender_head == i) & (near.receiver_head == j)
                axis.plot(near.composition, [y] * len(near), "|", color="0.7", markersize=7)
                axis.plot(near.composition[one], [y], "o", color=color, markersize=6)
            axis.axvline(pairs.baseline.iloc[0], color="black", linestyle="--", linewidth=0.8)
            test = tests[tests.kind == kind].iloc[0]
            p = f", p = {test.p:.2g}" if test.n_pairs else ""
            axis.set_title(f"{kind.upper()}: read by the later\nhead's {words}{p}", size=9)
        axes[0].set_yticks(
            range(len(shown)), [f"{a}.{i} → {b}.{j}" for a, i, b, j in shown.to_numpy()]
        )
        axes[0].set(xlim=(0, None), ylim=(-0.6, len(shown) - 0.4), ylabel="earlier → later head")
        axes[1].set_xlabel("composition")
        what = (
            f"{len(shown)} of {counted(len(named), 'named pair')}"
            if len(named)
            else "no pair named: best K"
        )
        title = (
            f"{Path(pairs.model.iloc[0]).name}: {what}; grey: all pairs of the same two layers; "
            "dashed: random heads"
        )
        figure.suptitle(textwrap.fill(title, 84), size=9, parse_math=False)
    return figure


def formation(heads: pd.DataFrame, losses: pd.DataFrame) -> Figure:
    """How heads form: the loss on fresh and repeated tokens, and the best head of each role, by step.

    Args:
        heads: a table as ``tables.FORMATION`` describes.
        losses: a table as ``tables.LOSSES`` describes.
    """
    with matplotlib.rc_context(STYLE):
        figure = Drawing(6.4, 5.6)
        above, below = figure.subplots(2, sharex=True)
        for color, (tokens, rows) in zip(COLORS, losses.groupby("tokens"), strict=False):
            _band(above, rows.sort_values("step"), "loss", f"{tokens} tokens", color)
        above.set(ylabel="loss (nats a token)", ylim=(0, None))
        for color, (role, rows) in zip(COLORS, heads.groupby("role", sort=False), strict=False):
            best = rows.sort_values("mass", ascending=False).groupby("step").head(1)
            _band(below, best.sort_values("step"), "mass", str(role).replace("_", " "), color)
        below.set(xlabel="training step", ylabel="attention mass, best head", ylim=(0, 1))
        for axis in (above, below):
            axis.legend(frameon=False)
        names = ", ".join(sorted(Path(name).name for name in heads.model.unique()))
        figure.suptitle(
            f"{names}: {counted(int(losses.n_prompts.max()), 'prompt')}; bands: bootstrap intervals",
            size=9,
        )
    return figure


def training(records: pd.DataFrame) -> Figure:
    """Held-out losses and accuracies along a training run (see ``tables.TRAINING``)."""
    with matplotlib.rc_context(STYLE):
        figure = Drawing(6.4, 5.6)
        above, below = figure.subplots(2, sharex=True)
        for axis, columns, label, top in (
            (above, ("story_loss", "fresh_loss", "repeat_loss"), "loss (nats a token)", None),
            (below, tuple(records.columns[-4:]), "both members of a pair right", 1.02),
        ):
            for color, column in zip(COLORS, columns, strict=False):
                name = column.replace("_", " ")
                axis.plot(records.step, records[column], ".-", color=color, label=name)
            axis.set(ylabel=label, ylim=(0, top))
            axis.legend(frameon=False)
        below.set_xlabel("training step")
    return figure


def _band(axis: Axes, rows: pd.DataFrame, value: str, label: str, color: str) -> None:
    axis.plot(rows.step, rows[value], ".-", color=color, label=label)
    axis.fill_between(rows.step, rows.ci_low, rows.ci_high, color=color, alpha=0.2, linewidth=0)


def row_bars(row: pd.DataFrame, k: int = 10) -> Figure:
    """The ``k`` tokens (40 at most) that one query looks at most, as bars.

    Args:
        row: a table as ``tables.ROW`` describes, largest weight first.
    """
    shown, one = row.head(min(k, MOST_BARS))[::-1], row.iloc[0]
    with matplotlib.rc_context(STYLE):
        figure = Drawing(5.0, 0.6 + 0.25 * len(shown))
        axis = figure.subplots()
        labels = [
            f"{key}  {_shown(token)}" for key, token in zip(shown.key, shown.key_token, strict=True)
        ]
        axis.barh(range(len(shown)), shown.weight, color="#00468c")
        axis.set_yticks(range(len(shown)), labels)
        axis.set(xlim=(0, 1), xlabel="attention weight", ylabel="key")
        query = _shown(one.query_token)
        axis.set_title(
            f"layer {one.layer}, head {one['head']}, query {one['query']}: {query}", size=9
        )
    return figure


def _shown(token: str) -> str:
    """A token as a label: a newline or a dollar sign is shown, not obeyed; a long one is cut."""
    text = repr(token if len(token) <= 24 else token[:23] + "…").replace("$", r"\$")
    if any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in text):
        return f"\u2066{text}\u2069"  # isolated, so that it leaves the number beside it alone
    return text


def save_figure(figure: Figure, path: Path) -> None:
    """Write PNG or PDF by the path's ending; without dates, so that one table gives one file.

    A PNG says in its metadata what it shows, for who can't see it (see :func:`in_words`).
    """
    with _drawing():
        if figure.get_layout_engine() is not None:  # lay out once: it costs as much as drawing
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        said = {"Software": None, "Description": in_words(figure)}
        undated = said if path.suffix == ".png" else {"CreationDate": None}
        figure.savefig(path, metadata=undated)


def in_words(figure: Figure) -> str:
    """Title, panels and axes of a figure, as one line."""
    named = {
        "panels": [axis.get_title() for axis in figure.axes],
        "across": [axis.get_xlabel() for axis in figure.axes],
        "upwards or in colour": [axis.get_ylabel() for axis in figure.axes],
    }
    parts = [figure.get_suptitle()]
    for what, texts in named.items():
        there = list(dict.fromkeys(filter(None, texts)))
        parts += [f"{what}: {', '.join(there)}"] if there else []
    return " ".join("; ".join(filter(None, parts)).split())


@contextmanager
def _drawing() -> Iterator[None]:
    """In our style. A token in a script that the font lacks is a box in the figure; the table has it."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield
