"""A page of runs: nothing is fetched, nothing undefined is 0, nothing in a token is obeyed."""

import base64
import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from experiments.command_line.launch import launch
from experiments.report import _best
from interp.config.scoring import ReadAttentionConfig
from interp.errors import InterpError
from interp.lesson.config import AttentionByHandConfig
from interp.report.cells import packed, places, table_data
from interp.report.contents import read_runs, unlike
from interp.report.page import Section, ShownPrompt, Viewer, page
from interp.report.views import View
from interp.results import figures, tables
from interp.runs.run_folder import open_run

HOSTILE = "</script><script>alert(1)</script>"
ODD = [HOSTILE, "<!--", "&amp;", "\u2028", "\n", " ", "", "NA", "\u202e", "'\"", "{{ 7 * 7 }}"]


def row_of(tokens, weights=None):
    n = len(tokens)
    return pd.DataFrame(
        {
            "model": "default",
            "layer": 1,
            "head": 2,
            "query": n - 1,
            "query_token": tokens[-1],
            "key": range(n),
            "key_token": tokens,
            "weight": [1 / n] * n if weights is None else weights,
        }
    )


def run_of(folder, table, seed=0, name="read_attention", figure=None):
    """A finished run of that table, as an experiment would leave it."""
    config = ReadAttentionConfig(prompt=HOSTILE, layer=1, head=2, seed=seed)
    with open_run(folder, name, config, command=["interp", HOSTILE]) as run:
        run.record(checks=[{"name": HOSTILE, "difference": 2e-7, "allowed": 1e-5, "passed": True}])
        run.write("table.csv", lambda path: tables.write(table, path))
        if figure is not None:
            run.write("row.png", lambda path: figures.save_figure(figure, path))
    return folder


def view_of(n):
    """Every token looks evenly at all before it; lengths are 1, 2, 3, …"""
    counts = np.arange(1, n + 1)
    return View(
        layer=1,
        head=2,
        starts=np.concatenate([[0], counts.cumsum()]),
        keys=np.concatenate([np.arange(count) for count in counts]),
        weights=np.concatenate([np.full(count, 1 / count) for count in counts]).astype(np.float32),
        lengths=np.arange(1, n + 1, dtype=np.float32),
        scales=np.ones(n),
        learned_sink=np.zeros(n),
        others=np.zeros(n),
        others_fetched=np.zeros(n),
        undefined_reason=None,
    )


def viewer_of(tokens):
    shown = ShownPrompt("odd", tuple(tokens), (0,))
    return Viewer([shown], ["1.2"], [[view_of(len(tokens))]], 32, [])


class Read(HTMLParser):
    """The elements of a page, and the text of its scripts, as a browser would take them apart."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.text = [], [], ""
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        else:
            self.text += data


@pytest.fixture(scope="module")
def odd_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    table = row_of(ODD)
    run = run_of(folder / "odd", table, figure=figures.row_bars(table))
    (contents,) = read_runs(run)
    return page([Section(contents, "What is <b>?", viewer_of(ODD))], "by & for", 2000)


# ------------------------------------------------------------------------------ values


def test_undefined_is_null_and_infinities_are_read_back():
    """VERDICTS has a column of numbers that may be undefined, or infinite."""
    table = pd.DataFrame(
        {
            "table": "t.csv",
            "column": ["a", "b", "c", "d"],
            "verdict": "different",
            "largest_difference": [0.125, np.nan, np.inf, -np.inf],
            "n_different": 1,
            "n_rows": 4,
        }
    )
    data = table_data(tables.VERDICTS.validate(table), 3)
    names = [one["name"] for one in data["columns"]]
    assert names == ["column", "largest_difference"]  # the others are the same in every row
    column = data["columns"][1]
    assert column["values"] == [0.125, None, "Infinity"] and column["kind"] == "number"
    assert (data["rows"], data["all_rows"]) == (3, 4)
    assert column["about"] == tables.VERDICTS.columns["largest_difference"].description
    same = {one["name"]: one["value"] for one in data["same"]}
    assert same == {"table": "t.csv", "verdict": "different", "n_different": 1, "n_rows": 4}
    alone = table_data(tables.VERDICTS.validate(table.head(1)), 3)
    kinds = [one["kind"] for one in alone["columns"]]
    assert kinds == ["text"] * 3 + ["number", "count", "count"] and not alone["same"]
    json.dumps(data, allow_nan=False)


def test_numbers_keep_their_digits():
    table = row_of(["a", "b"], weights=[1 / 3, 2 / 3])
    weight = table_data(table, 10)["columns"][-1]
    assert weight["values"] == [1 / 3, 2 / 3] and weight["places"] == 4


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.95, 0.1], 4),
        ([1.0, 0.25], 3),
        ([0.003, np.nan], 6),
        ([1e-9], 6),
        ([123.456, -7], 1),
        ([1e7, 0.5], 0),
        ([3.0, 4.0], 0),
        ([np.nan, np.inf], 0),
        ([], 0),
    ],
)
def test_places(values, expected):
    """Four digits of the largest, and none where all are whole."""
    assert places(np.array(values, float)) == expected


def test_arrays_are_little_endian():
    assert base64.b64decode(packed(np.array([1, -2], dtype=">i8"), "<i4")) == bytes(
        [1, 0, 0, 0, 254, 255, 255, 255]
    )
    assert np.frombuffer(base64.b64decode(packed(np.array([0.5]), "<f4")), "<f4") == [0.5]


# ------------------------------------------------------------------------------ the page


def test_what_a_token_says_is_not_obeyed(odd_page):
    read = Read(odd_page)
    assert HOSTILE not in odd_page and "<!--" not in odd_page and "\u2028" not in odd_page
    kinds = [attributes.get("type") for tag, attributes in read.elements if tag == "script"]
    assert kinds == ["application/json"] * 2 + [None]
    viewer, table, _ = read.scripts
    assert json.loads(viewer)["prompts"][0]["tokens"] == ODD
    tokens = json.loads(table)["columns"][1]
    assert (tokens["kind"], tokens["values"]) == ("token", ODD)
    assert "{{ 7 * 7 }}" in viewer  # no template either
    assert HOSTILE in read.text  # in the check, the command and the manifest, as text
    assert "What is <b>?" in read.text and "b" not in {tag for tag, _ in read.elements}


def test_nothing_is_fetched(odd_page):
    """No element names a resource but data of the page's own; the policy allows no other."""
    for tag, attributes in Read(odd_page).elements:
        for name in ("src", "href", "srcset", "action", "data", "poster", "background"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, name)
        assert tag not in ("iframe", "object", "embed", "base", "form")
        assert not any(name.startswith("on") or name == "style" for name in attributes)
    assert not re.search(r"https?://|url\(|@import|fetch\(|XMLHttp|innerHTML", odd_page)
    assert "default-src 'none'" in odd_page and "unsafe" not in odd_page


def test_figures_say_what_they_show(odd_page):
    (image,) = (attributes for tag, attributes in Read(odd_page).elements if tag == "img")
    assert (
        image["alt"].startswith("panels: layer 1, head 2, query 10")
        and "attention weight" in (image["alt"])
    )
    data = base64.b64decode(image["src"].removeprefix("data:image/png;base64,"))
    assert data.startswith(b"\x89PNG") and int(image["width"]) > 100


def test_only_so_many_rows_go_into_the_page(tmp_path):
    (contents,) = read_runs(run_of(tmp_path / "long", row_of(["a"] * 500)))
    text = page([Section(contents, "")], "", 300)
    assert "500 rows" in Read(text).text
    (data, _) = Read(text).scripts
    assert json.loads(data)["rows"] == 300 and len(json.loads(data)["columns"][0]["values"]) == 300


def test_several_runs_have_a_list_and_what_differs(tmp_path):
    found = [
        one
        for seed in (0, 5)
        for one in read_runs(run_of(tmp_path / f"seed-{seed}", row_of(["a", "b"]), seed))
    ]
    assert unlike(found) == [("seed", [0, 5])]
    text = page([Section(one, "") for one in found], "", 10)
    links = [attributes["href"] for tag, attributes in Read(text).elements if tag == "a"]
    assert links == ["#run-1", "#run-2"] and all(f'id="{link[1:]}"' in text for link in links)
    assert "What differs in their configs" in text
    assert "What differs" not in page([Section(found[0], "")], "", 10)


def test_a_run_inside_another_shows_its_own_tables(tmp_path):
    outer = AttentionByHandConfig()
    with open_run(tmp_path / "whole", "reproduce", outer) as run:
        run_of(run.path("again"), row_of(["a", "b"]))
        run.write("table.csv", lambda path: tables.write(row_of(["a"]), path))
    whole, again = read_runs(tmp_path / "whole")
    assert (whole.depth, again.depth) == (0, 1)
    assert [[len(t) for t in one.tables.values()] for one in (whole, again)] == [[1], [2]]


def test_a_run_that_was_changed_is_refused(tmp_path):
    table = row_of(["a", "b"])
    run = run_of(tmp_path / "run", table, figure=figures.row_bars(table))
    shutil.copy(run / "row.png", tmp_path / "row.png")
    figures.save_figure(figures.row_bars(row_of(["c"])), run / "row.png")
    with pytest.raises(InterpError, match=r"row\.png is not what the run wrote"):
        read_runs(run)
    (run / "row.png").unlink()
    with pytest.raises(InterpError, match=r"row\.png can't be read: No such file"):
        read_runs(run)
    shutil.copy(tmp_path / "row.png", run)
    (run / "table.csv").write_text((run / "table.csv").read_text() + "\n")
    with pytest.raises(InterpError, match=r"table\.csv is not what the run wrote"):
        read_runs(run)


# ------------------------------------------------------------------------------ the command


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Runs of read_attention and attention_by_hand. Don't change them."""
    folder = tmp_path_factory.mktemp("done")
    prompt = ["prompt=when Ann saw Ben", "bos=off", "threads=1"]
    for name, arguments in (
        ("read_attention", [*prompt, "layer=1", "head=3"]),
        ("attention_by_hand", ["threads=1"]),
    ):
        assert launch(name, [*arguments, f"out={folder / name}"]) == 0
    return folder


@pytest.fixture
def report(done, tmp_path, monkeypatch, capsys):
    """Make a report, and give (exit code, page, what was said)."""
    monkeypatch.chdir(done)

    def make(*arguments, to="page.html"):
        capsys.readouterr()
        out = tmp_path / to
        code = launch("report", [*arguments, "threads=1", "--to", str(out)])
        said = capsys.readouterr()
        text = out.read_text(encoding="utf-8") if out.is_file() else ""
        return code, text, said.out if code == 0 else said.err

    return make


def test_a_report_of_two_runs(report, done):
    code, text, said = report("read_attention", "attention_by_hand")
    assert code == 0 and said.startswith("2 runs, 2 figures, 5 tables, 1 attention viewer; ")
    read = Read(text)
    viewer = json.loads(read.scripts[0])
    assert viewer["heads"] == ["1.3"] and viewer["prompts"][0]["tokens"][:2] == ["w", "hen"]
    assert "weights of the viewer are those of the run" in read.text
    assert "Where one query of one head looks" in text or "one query of one head" in text


def test_heads_and_prompts_are_chosen(report):
    _, text, _ = report("read_attention", "heads=[0.5,2.1]", "prompts=[0]")
    viewer = json.loads(Read(text).scripts[0])
    assert viewer["heads"] == ["0.5", "2.1"] and len(viewer["views"][0]) == 2
    code, text, said = report("read_attention", "viewer=false", to="other.html")
    assert code == 0 and "0 attention viewers" in said and 'class="viewer"' not in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["read_attention", "./read_attention/"], "read_attention is given twice"),
        (["nowhere"], "nowhere: expected a run folder with a manifest.json"),
        ([], "runs"),
        (["read_attention", "heads=[3.0]"], "head 3.0: read_attention: default has layers 0 to 2"),
        (["read_attention", "heads=[1.3,1.8]"], "heads 0 to 7"),
        (["read_attention", "heads=1"], "'1' is no head: expected layer.head"),
        (["read_attention", "prompts=[7]"], "there is no '7'; expected 0 to 0, or a name such as"),
        (["read_attention", "viewer=false", "heads=[1.3]"], "heads is for the viewer"),
        (["read_attention", "heads=[1.3]", "n_heads=2"], "n_heads is read where heads are not"),
        (["read_attention", "--multirun", "seed=0,1"], "--multirun is for experiments"),
    ],
)
def test_what_can_not_be_shown_is_refused_in_one_line(arguments, says, report):
    code, text, said = report(*arguments)
    assert code == 2 and says in said and said.count("\n") == 1 and not text


def test_a_manifest_that_lacks_something_is_refused(report, done, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(done / "read_attention", copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    for change, says in (
        ({"files": None}, "its manifest.json is not as a run writes it"),
        ({"environment": {}}, "its manifest.json is not as a run writes it"),
        ({"status": "running"}, "the run is running, expected done"),
        ({"model": manifest["model"] | {"weight_hash": "0" * 64}}, "the weights are not those"),
        ({"prompts": manifest["prompts"] | {"sha256": "0" * 64}}, "the prompts are not those"),
    ):
        (copy / "manifest.json").write_text(json.dumps(manifest | change))
        code, _, said = report(str(copy))
        assert code == 2 and says in said and said.count("\n") == 1, change


def test_where_it_goes_is_found_out_first(report, tmp_path):
    (tmp_path / "there").mkdir()
    code, _, said = report("nowhere", to="there")
    assert code == 2 and "there is a folder; expected a file such as" in said
    code, _, said = report("nowhere", to="a/page.html")
    assert code == 2 and "expected a run folder" in said
    assert not (tmp_path / "a").exists()


# ------------------------------------------------------------------------------ which heads, which prompts


def scores(*rows):
    names = ["role", "layer", "head", "mass"]
    return pd.DataFrame(rows, columns=names)


def test_of_several_roles_the_best_of_each_come_first():
    table = scores(
        ("sink", 2, 1, 0.9),
        ("sink", 0, 3, 0.8),
        ("induction", 2, 1, 0.7),
        ("induction", 1, 3, 0.6),
        ("bos", 0, 0, np.nan),
    )
    found = dict(_best({"table.csv": table}, 3))
    assert found == {(2, 1): "sink 0.90", (0, 3): "sink 0.80", (1, 3): "induction 0.60"}
    effects = pd.DataFrame({"unit": "head", "layer": [1, 0], "head": [2, 0], "effect": [-3, 1.0]})
    assert dict(_best({"table.csv": effects}, 1)) == {(1, 2): "effect -3.00"}


def test_what_ranks_no_query_heads_gives_none():
    of_keys = pd.DataFrame({"unit": "kv_head", "layer": [0], "head": [1], "effect": [1.0]})
    of_layers = pd.DataFrame({"layer": [0], "effect": [1.0]})
    assert not dict(_best({"table.csv": of_keys, "other.csv": of_layers}, 3))
    table = scores(("sink", 2, 1, 0.9))
    assert dict(_best({"table.csv": of_layers, "heads.csv": table}, 3)) == {(2, 1): "sink 0.90"}


def test_a_task_shows_the_prompts_that_were_measured(tmp_path, report):
    """The best head and the first prompts of a run that ablates, and of a sweep a section each."""
    arguments = ["task.n_prompts=3", "task.period=6", "threads=1", f"out={tmp_path / 'ablated'}"]
    assert launch("ablate_heads", arguments) == 0
    code, text, _ = report(str(tmp_path / "ablated"), "n_heads=1", "prompts=[2,0]")
    viewer = json.loads(Read(text).scripts[0])
    names = tables.read(tmp_path / "ablated" / "per_prompt.parquet").prompt.unique()
    shown = [prompt["name"] for prompt in viewer["prompts"]]
    assert code == 0 and shown == [names[2], names[0]]
    assert viewer["heads"][0].startswith("0.5 effect ")


def test_a_sweep_is_shown_with_its_runs(tmp_path, report):
    arguments = ["prompt=when Ann saw Ben", "layer=1", "head=3,5", "threads=1"]
    assert launch("read_attention", ["--multirun", *arguments, f"out={tmp_path / 'many'}"]) == 0
    code, text, said = report(str(tmp_path / "many"))
    assert code == 0, said
    assert said.startswith("3 runs, ") and "2 attention viewers" in said
    assert "None" not in text.split("</main>")[0].split("<script")[0]
    links = [attributes["href"] for tag, attributes in Read(text).elements if tag == "a"]
    assert links == ["#run-1", "#run-2", "#run-3"]
    differ = text.split("What differs in the configs")[1].split("</table>")[0]
    assert re.findall(r"<code>(\w+)</code>", differ) == ["head"]


def test_a_run_that_ranks_no_heads_says_so(tmp_path, report):
    arguments = ["prompts.n_prompts=2", "prompts.length=20", "first_keys=[1]", "knock_outs=[mask]"]
    run = tmp_path / "sinks"
    assert launch("knock_out_sinks", [*arguments, "n_random=0", "threads=1", f"out={run}"]) == 0
    _, text, said = report(str(run))
    assert "0 attention viewers" in said and "This run ranks no query heads" in text
    _, text, said = report(str(run), "heads=[2.7]", to="chosen.html")
    assert "1 attention viewer;" in said and json.loads(Read(text).scripts[0])["heads"] == ["2.7"]
