"""The results that the repository holds come out again, within the tolerances of `reproduce`."""

import json
from pathlib import Path

import pytest

from experiments.command_line.launch import launch
from interp.results import tables

RESULTS = Path(__file__).parent.parent / "results"
RUNS = sorted(path.parent for path in RESULTS.glob("*/manifest.json"))


def test_the_results_are_there():
    assert {run.name for run in RUNS} == {"sinks", "induction", "weight_vs_influence"}


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_result_comes_out_again(run, tmp_path, capsys):
    """At the command's own tolerances: exit code 0 says that no column is different."""
    again = tmp_path / "again"
    assert launch("reproduce", [str(run), "--to", str(again)]) == 0, capsys.readouterr().out
    verdicts = tables.read(again / "table.csv")
    shown = {"table.csv", "per_prompt.parquet"}
    assert shown <= set(verdicts.table)
    before = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    second = json.loads((again / "again" / "manifest.json").read_text(encoding="utf-8"))
    assert second["model"]["weight_hash"] == before["model"]["weight_hash"]
