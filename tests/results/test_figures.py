"""Figures: what is drawn is what the table says, undefined is not 0, and one table gives one file."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from pypdf import PdfReader

from interp.results import figures, tables

nan = np.nan
# Layers down, heads across: 2 layers of 3 heads. Layer 1 of the second role is a hybrid's layer
# without attention: no row at all.
MASS = {
    "sink_first": [[0.1, 0.95, nan], [0.0, 0.5, 0.3]],
    "previous_token": [[0.2, nan, 0.8], None],
    "sink_bos": [[nan, nan, nan], [nan, nan, nan]],
}
Q = {0.95: 0.01, 0.5: 0.05, 0.3: 0.02, 0.8: 0.2}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A table on the disk, best first as ever, so that its order is not that of the map."""
    rows = [
        {"model": "m", "layer": layer, "head": head, "role": role, "mass": mass}
        for role, layers in MASS.items()
        for layer, masses in enumerate(layers)
        for head, mass in enumerate(masses or [])
    ]
    table = pd.DataFrame(rows)
    needed = [name for name, column in tables.SUMMARY.columns.items() if column.required]
    for name in {*needed} - {*table.columns}:
        table[name] = nan
    table["q"] = table.mass.map(Q).where(table.mass.notna())
    table["p"] = table["q"]
    table["chance"] = table.mass.map({0.3: 0.31}).fillna(0.05)  # one head is below it
    table["n_prompts"] = table.mass.notna().astype(int) * 7
    table["undefined_reason"] = pd.Series(["no BOS"] * len(table)).where(table.mass.isna())
    table["attention_path"] = "fused"
    table = table.astype({"n_queries": "Int64", "n_undefined": "Int64", "position": "Int64"})
    table = table.fillna({"n_queries": 5, "n_undefined": 0})
    table = table.astype({"n_queries": int, "n_undefined": int})
    table = table.sort_values("mass", ascending=False, kind="stable")
    table = table.sort_values("role", key=lambda r: r.map([*MASS].index), kind="stable")
    path = tmp_path_factory.mktemp("figures") / "table.csv"
    tables.write(table[needed], path)
    return path


@pytest.fixture
def figure(saved) -> Figure:
    return figures.layer_by_head(tables.read(saved))


def panels(figure: Figure) -> dict[str, mpl.axes.Axes]:
    return {axis.get_title(): axis for axis in figure.axes if axis.images}


def test_one_panel_a_role_with_every_head_in_its_place(figure):
    assert [*panels(figure)] == ["sink first", "previous token", "sink bos"]
    expected = {"sink bos": [[nan] * 3] * 2, "previous token": [[0.2, nan, 0.8], [nan] * 3]}
    expected["sink first"] = MASS["sink_first"]
    for title, axis in panels(figure).items():
        (image,) = axis.images
        grid = np.ma.filled(image.get_array().astype(float), nan)
        np.testing.assert_array_equal(grid, expected[title])  # NaN where undefined, 0 where 0
        assert image.get_clim() == (0, 1), "one scale for all maps"
        assert image.origin == "upper"


def test_what_is_undefined_shows_the_hatching(figure):
    """Transparent, not the colour of 0 (dark blue in cividis)."""
    for axis in panels(figure).values():
        (image,) = axis.images
        shown = image.to_rgba(image.get_array())
        undefined = np.ma.getmaskarray(image.get_array())
        assert undefined.any()
        assert (shown[undefined, 3] == 0).all() and (shown[~undefined, 3] == 1).all()
        assert axis.patch.get_hatch() and axis.get_facecolor() == to_rgba("white")


def test_dots_mark_heads_above_chance_with_q_below_the_level(saved):
    def dots(level):
        found = figures.layer_by_head(tables.read(saved), level=level)
        return {
            title: {(x, y) for line in axis.lines for x, y in line.get_xydata()}
            for title, axis in panels(found).items()
        }

    none = {"previous token": set(), "sink bos": set()}
    assert dots(0.05) == none | {"sink first": {(1, 0)}}  # (head, layer); 0.05 is not below
    assert dots(0.015) == none | {"sink first": {(1, 0)}}
    assert dots(0.5) == none | {
        "sink first": {(1, 0), (1, 1)},
        "previous token": {(2, 0)},
    }


def test_another_column_can_be_coloured(saved):
    table = tables.read(saved)
    axis = panels(figures.layer_by_head(table, value="q"))["sink first"]
    grid = np.ma.filled(axis.images[0].get_array().astype(float), nan)
    np.testing.assert_array_equal(grid, [[nan, 0.01, nan], [nan, 0.05, 0.02]])


def test_the_title_says_what_was_measured(figure):
    assert (
        figure.get_suptitle()
        == "m: 7 prompts; dot: above null (q < 0.05) and chance; hatched: undefined"
    )


@pytest.mark.parametrize("name", ["m", "a-model-with-quite-a-long-name-Instruct-v0.3", "x" * 90])
def test_the_title_is_not_cut(saved, name, tmp_path):
    """One small panel is narrower than a line of text."""
    table = tables.read(saved).query("role == 'sink_first'").assign(model=name)
    figure = figures.layer_by_head(table)
    figures.save_figure(figure, tmp_path / "x.png")
    box = figure._suptitle.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height
    assert "undefined" in figure.get_suptitle()


@pytest.mark.parametrize("n_roles", [1, 4, 5, 9])
def test_any_number_of_roles(saved, n_roles, tmp_path):
    table = tables.read(saved)
    one = table[table.role == "sink_first"]
    many = pd.concat([one.assign(role=f"role_{i}") for i in range(n_roles)])
    figure = figures.layer_by_head(many)
    assert [*panels(figure)] == [f"role {i}" for i in range(n_roles)]
    figures.save_figure(figure, tmp_path / "x.png")


@pytest.mark.parametrize("model", ["$x_{$ & 100 % #", "模型_é"], ids=["signs", "scripts"])
def test_a_model_name_is_text_and_no_formula(saved, model, tmp_path):
    """ "$x_{$" is broken mathematics; a script that the font lacks must not fill the terminal."""
    figure = figures.layer_by_head(tables.read(saved).assign(model=f"/data/{model}"))
    assert figure.get_suptitle().startswith(f"{model}: 7 prompts")
    for ending in ("png", "pdf"):
        figures.save_figure(figure, tmp_path / f"x.{ending}")


def test_bars_of_a_row_by_hand(tmp_path):
    """The k largest from the top down; a newline or a dollar sign in a token is shown as it is."""
    tokens = ["\n", "$", " the", "t5"]
    row = pd.DataFrame({"key": [4, 0, 2, 1], "key_token": tokens, "weight": [0.5, 0.3, 0.15, 0.05]})
    row = row.assign(model="m", layer=3, head=1, query=4, query_token="$x_{$")
    figure = figures.row_bars(row[[*tables.ROW.columns]], k=3)
    (axis,) = figure.axes
    bars = [bar.get_width() for bar in sorted(axis.patches, key=lambda bar: -bar.get_y())]
    assert bars == [0.5, 0.3, 0.15]
    labels = [label.get_text() for label in axis.get_yticklabels()][::-1]
    assert labels == [r"4  '\n'", r"0  '\$'", "2  ' the'"]
    assert axis.get_title() == r"layer 3, head 1, query 4: '\$x_{\$'"
    figures.save_figure(figure, tmp_path / "row.pdf")
    text = PdfReader(tmp_path / "row.pdf").pages[0].extract_text()
    for words in (r"'\n'", "'$'", "' the'", "'$x_{$'"):
        assert words in text


def test_png_and_pdf_are_written_and_the_pdf_embeds_its_fonts(figure, tmp_path):
    for ending, begins in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        figures.save_figure(figure, tmp_path / f"heads.{ending}")
        assert (tmp_path / f"heads.{ending}").read_bytes().startswith(begins)
    (page,) = PdfReader(tmp_path / "heads.pdf").pages
    fonts = [font.get_object() for font in page["/Resources"]["/Font"].values()]
    fonts = [f["/DescendantFonts"][0].get_object() if "/DescendantFonts" in f else f for f in fonts]
    assert fonts
    for font in fonts:  # TrueType, embedded: journals refuse Type 3, and PDF readers substitute
        assert font["/Subtype"] in ("/TrueType", "/CIDFontType2")
        assert "/FontFile2" in font["/FontDescriptor"].get_object()
    text = page.extract_text()
    for words in ("sink first", "previous token", "layer", "head", "attention mass"):
        assert words in text


@pytest.mark.parametrize("ending", ["png", "pdf"])
def test_one_table_gives_one_file_byte_by_byte(saved, ending, tmp_path):
    """tests/experiments holds a run in another process to it."""
    table = tables.read(saved)
    files = []
    for mass in (table.mass, table.mass, 0.4):
        figures.save_figure(
            figures.layer_by_head(table.assign(mass=mass)), tmp_path / f"x.{ending}"
        )
        files.append((tmp_path / f"x.{ending}").read_bytes())
    assert files[0] == files[1] != files[2]


def test_the_users_settings_are_left_alone(saved, tmp_path):
    """Also a style of the user's own does not reach into the fonts of the file."""
    with mpl.rc_context({"pdf.fonttype": 3, "font.size": 30}):
        before = dict(mpl.rcParams)
        figures.save_figure(figures.layer_by_head(tables.read(saved)), tmp_path / "x.pdf")
        assert dict(mpl.rcParams) == before
    (page,) = PdfReader(tmp_path / "x.pdf").pages
    subtypes = {font.get_object()["/Subtype"] for font in page["/Resources"]["/Font"].values()}
    assert "/Type3" not in subtypes
