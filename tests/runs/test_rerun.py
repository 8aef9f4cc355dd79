"""A run held against another: what is identical, within tolerance, different; by column, by place."""

import json
import shutil
import subprocess
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from experiments.command_line.launch import BUG, DIFFERENT, launch
from interp.errors import InterpError
from interp.results import tables
from interp.runs import files, rerun

PROMPT = ["prompt=when Ann saw Ben", "layer=0", "head=1", "bos=off", "threads=1"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run of read_attention on the default model. Don't change it."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    assert launch("read_attention", [*PROMPT, f"out={folder}"]) == 0
    return folder


@pytest.fixture
def other(done, tmp_path):
    """A copy of it, and a way to change its table.csv as if the run had written it so."""
    copy = tmp_path / "other"
    shutil.copytree(done, copy)

    def change(how):
        for name in ("table.csv", "table.parquet"):
            tables.write(how(tables.read(copy / name)), copy / name)
        manifest = json.loads((copy / "manifest.json").read_text())
        for name in ("table.csv", "table.parquet"):
            manifest["files"][name]["sha256"] = files.sha256(copy / name)
        (copy / "manifest.json").write_text(json.dumps(manifest))
        return copy

    return change


def verdict_of(found, column="weight"):
    return found.set_index(["table", "column"]).loc[("table.csv", column)]


def test_a_run_is_identical_to_itself(done):
    found = rerun.compare(done, done)
    assert set(found.verdict) == {"identical"}
    assert {*found.table} == {"table.csv", "table.parquet"}
    assert (found.n_different == 0).all() and (
        found.n_rows == len(tables.read(done / "table.csv"))
    ).all()
    manifest = rerun.finished_run(done)
    assert rerun.differences(manifest, manifest) == {}


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1 + 1e-7, "within tolerance"), (1 + 5e-3, "different")]
)
def test_numbers_that_moved(done, other, factor, verdict):
    def scaled(table):
        return table.assign(weight=(table.weight * factor).clip(upper=1.0))

    found = rerun.compare(done, other(scaled))
    weight = tables.read(done / "table.csv").weight
    row = verdict_of(found)
    assert row.verdict == verdict
    assert row.largest_difference == pytest.approx(weight.max() * (factor - 1), rel=1e-6)
    assert set(found[found.column != "weight"].verdict) == {"identical"}


def test_rows_are_matched_by_what_they_are_of(done, other):
    again = other(lambda table: table.iloc[::-1].reset_index(drop=True))
    assert set(rerun.compare(done, again).verdict) == {"identical"}


def test_a_row_less_is_different(done, other):
    found = rerun.compare(done, other(lambda table: table.iloc[:-1]))
    assert set(found.verdict) == {"different"} and set(found.column) == {"(rows)"}
    assert (found.n_different == 1).all()


def test_another_token_is_different(done, other):
    again = other(lambda table: table.assign(key_token="NA"))
    assert verdict_of(rerun.compare(done, again), "key_token").verdict == "different"


@pytest.mark.parametrize(
    ("before", "again", "name", "verdict", "largest"),
    [
        ([1.0, np.nan], [1.0, np.nan], "x", "identical", 0.0),
        ([1.0, np.nan], [1.0, 0.0], "x", "different", 0.0),
        ([np.inf, 1.0], [np.inf, 1.0], "x", "identical", 0.0),
        ([np.inf, 1.0], [-np.inf, 1.0], "x", "different", np.inf),
        ([0.0, 1.0], [9e-5, 1.0], "x", "within tolerance", 9e-5),
        ([0.0, 1.0], [1.1e-4, 1.0], "x", "different", 1.1e-4),
        ([0.5, 1.0], [0.505, 1.0], "x", "different", 0.005),
        ([0.5, 1.0], [0.505, 1.0], "q", "within tolerance", 0.005),
        ([0.5, 1.0], [0.505, 1.0], "q_effect", "within tolerance", 0.005),
        ([0.5, 1.0], [0.505, 1.0], "perplexity", "different", 0.005),
        ([0.5, 1.0], [0.52, 1.0], "p", "different", 0.02),
    ],
)
def test_a_column(before, again, name, verdict, largest):
    columns = (pd.Series(values, name=name) for values in (before, again))
    found, gap, _ = rerun._verdict(*columns, rerun.Tolerance())
    assert (found, gap) == (verdict, pytest.approx(largest))


def test_what_differs_in_the_manifest(done):
    before = rerun.finished_run(done)
    again = json.loads(json.dumps(before))
    again["environment"]["packages"]["torch"] = "9.9"
    again["started"] = "later"
    again["config"]["out"] = "elsewhere"
    torch = before["environment"]["packages"]["torch"]
    assert rerun.differences(before, again) == {"environment.packages.torch": (torch, "9.9")}


def test_what_can_not_be_compared_is_refused(done, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(done, copy)
    with open(copy / "table.csv", "a") as table:
        table.write("\n")
    with pytest.raises(InterpError, match=r"table\.csv is not what the run wrote"):
        rerun.finished_run(copy)
    (copy / "config.yaml").rename(tmp_path / "config.yaml")
    shutil.copy(done / "table.csv", copy)
    with pytest.raises(
        InterpError, match=r"config\.yaml is in the manifest, but not in the folder"
    ):
        rerun.finished_run(copy)
    (copy / "config.yaml").write_text(
        (tmp_path / "config.yaml").read_text().replace("head: 1", "head: 2")
    )
    with pytest.raises(InterpError, match=r"config\.yaml is not what the run wrote"):
        rerun.finished_run(copy)
    (copy / "table.csv").unlink()
    with pytest.raises(InterpError, match=r"table\.csv is in the manifest, but not in the folder"):
        rerun.finished_run(copy)
    manifest = json.loads((copy / "manifest.json").read_text()) | {"status": "failed"}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InterpError, match="the run is failed, expected done"):
        rerun.finished_run(copy)
    for lacking in ("config", "environment", "files", "experiment"):
        some = {key: value for key, value in manifest.items() if key != lacking}
        (copy / "manifest.json").write_text(json.dumps(some | {"status": "done"}))
        with pytest.raises(InterpError, match=f"not as a run writes it: no {lacking}"):
            rerun.finished_run(copy)
    (copy / "manifest.json").write_text('{"tool": "another"}')
    with pytest.raises(InterpError, match="not of a run of interp"):
        rerun.finished_run(copy)
    with pytest.raises(InterpError, match="expected a run folder"):
        rerun.finished_run(tmp_path / "nowhere")


# ------------------------------------------------------------------------------ the command


def test_a_run_comes_out_again(done, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert launch("reproduce", [str(done), "--to", "again", "threads=1"]) == 0
    out = capsys.readouterr()
    assert out.err == "reproduce: results in again\n"
    assert out.out.startswith("read_attention, run again: ")
    assert " 0 columns different" in out.out
    verdicts = tables.read(tmp_path / "again" / "table.csv")
    assert set(verdicts.verdict) == {"identical"}
    manifest = json.loads((tmp_path / "again" / "manifest.json").read_text())
    assert {"table.csv", "again/table.csv"} <= manifest["files"].keys()


def test_threads_are_those_of_the_first_or_as_told(done, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = []

    def refused(command, **options):
        commands.append(command)
        return subprocess.CompletedProcess(command, 2, "", "no")

    monkeypatch.setattr("experiments.reproduce.subprocess", SimpleNamespace(run=refused))
    for arguments in ([], ["threads=3"]):
        assert launch("reproduce", [str(done), "out=again", *arguments]) == 2
    assert [[word for word in one if "threads" in word] for one in commands] == [[], ["threads=3"]]
    assert launch("reproduce", [str(done), "seed=3"]) == 2  # no key of it: it would change nothing


def test_what_comes_out_different_has_an_exit_code_of_its_own(other, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = other(lambda table: table.assign(weight=table.weight / 2))
    assert launch("reproduce", [str(before), "out=again", "threads=1"]) == DIFFERENT
    assert "weight" in capsys.readouterr().out


def test_a_run_that_can_not_be_run_again_leaves_nothing(done, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(done, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    for change, says in (
        ({"experiment": "no_such"}, "there is no experiment 'no_such'"),
        ({"experiment": "find_sinks"}, "run again, it ended with code 2: find_sinks: "),
    ):
        (copy / "manifest.json").write_text(json.dumps(manifest | change))
        assert launch("reproduce", ["copy", "out=again"]) == 2
        err = capsys.readouterr().err
        assert says in err and err.count("\n") == 1
        assert not (tmp_path / "again").exists()
    assert launch("reproduce", ["out=again"]) == 2
    assert "run" in capsys.readouterr().err


def test_of_a_second_run_that_breaks_the_log_is_kept(done, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def broken(command, **options):
        log = tmp_path / "again" / "again" / "log.txt"
        log.parent.mkdir()
        log.write_text("traceback")
        return subprocess.CompletedProcess(command, BUG, "", "a bug, see again/again/log.txt\n")

    monkeypatch.setattr("experiments.reproduce.subprocess", SimpleNamespace(run=broken))
    assert launch("reproduce", [str(done), "out=again"]) == 2
    assert "it ended with code 1: a bug, see again/again/log.txt" in capsys.readouterr().err
    assert (tmp_path / "again" / "again" / "log.txt").read_text() == "traceback"
