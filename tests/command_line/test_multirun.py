"""Several configs in one command: a folder each, one joined table, nothing lost and nothing done twice."""

import json
from pathlib import Path

import pytest

from experiments import kv_cache_size
from experiments.command_line.launch import launch
from experiments.command_line.multirun import values_of
from interp.errors import InterpError
from interp.results import tables
from tests import example_experiment

pytestmark = pytest.mark.usefixtures("composed_once")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def caches(*arguments: str) -> int:
    return launch(
        "kv_cache_size", ["--multirun", "memory_gb=80", *arguments, "out=many"], kv_cache_size
    )


def example(*arguments: str) -> int:
    return launch("find_sinks", ["--multirun", *arguments, "out=many"], example_experiment)


def manifest(folder: str) -> dict:
    return json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))


def test_each_combination_is_a_run_of_its_own_and_the_tables_are_joined(capsys):
    assert caches("users=1,2", "bytes_per_value=2,4") == 0
    runs = [
        f"{i}_users={u}_bytes_per_value={b}"
        for i, (u, b) in enumerate([(1, 2), (1, 4), (2, 2), (2, 4)])
    ]
    assert sorted(path.name for path in Path("many").iterdir() if path.is_dir()) == runs
    joined = tables.read(Path("many/table.csv"))
    assert [*joined.columns[:3]] == ["run", "config.users", "config.bytes_per_value"]
    for run in runs:
        alone = tables.read(Path("many") / run / "table.csv")
        mine = joined[joined.run == run].drop(columns=[*joined.columns[:3]]).reset_index(drop=True)
        assert mine.equals(alone)
    assert set(joined["config.users"]) == {"1", "2"}
    assert manifest("many")["config"]["swept"] == {
        "users": ["1", "2"],
        "bytes_per_value": ["2", "4"],
    }
    assert manifest(f"many/{runs[3]}")["config"]["users"] == 2
    assert "of 4 runs" in capsys.readouterr().out


def test_one_of_the_runs_is_what_it_would_be_alone():
    assert caches("users=1,3") == 0
    assert launch("kv_cache_size", ["users=3", "memory_gb=80", "out=alone"], kv_cache_size) == 0
    for name in ("table.csv", "config.yaml"):
        there = Path("many/1_users=3", name).read_text().replace("many/1_users=3", "alone")
        assert there == Path("alone", name).read_text()


def test_the_whole_is_run_again_run_by_run(capsys):
    assert caches("users=1,3") == 0
    capsys.readouterr()
    assert launch("reproduce", ["many", "--to", "again"]) == 0
    assert capsys.readouterr().out.startswith("2 runs of kv_cache_size, run again: ")
    verdicts = tables.read(Path("again/table.csv"))
    assert set(verdicts.verdict) == {"identical"}
    assert set(verdicts.table) >= {"0_users=1/table.csv", "1_users=3/table.csv"}
    assert manifest("again")["again"].keys() == {"0_users=1/run", "1_users=3/run"}
    changed = Path("many/1_users=3/table.csv")
    changed.write_text(changed.read_text() + "\n")
    assert launch("reproduce", ["many", "--to", "another"]) == 2
    assert "many: 1_users=3/table.csv is not what the run wrote" in capsys.readouterr().err


def test_a_refused_run_does_not_stop_the_others_and_the_same_command_goes_on(capsys, monkeypatch):
    asked = ["model=default,refuse,chatty"]
    assert example(*asked) == 2
    assert "1 of 3 runs were refused (1_model=refuse: no ordinary tokens" in capsys.readouterr().err
    assert manifest("many")["status"] == "failed"
    assert manifest("many/0_model=default")["status"] == "done"
    assert not Path("many/1_model=refuse").exists()
    started = []
    for name in ("default", "refuse", "chatty"):
        monkeypatch.setitem(
            example_experiment.BEHAVIOURS,
            name,
            lambda folder, name=name: started.append(name) or example_experiment.write(folder),
        )
    assert example(*asked) == 0
    assert started == ["refuse"]
    assert manifest("many")["status"] == "done"


def test_if_all_are_refused_nothing_is_left(capsys):
    assert example("model=refuse", "seed=1,2") == 2
    assert "2 of 2 runs were refused" in capsys.readouterr().err
    assert not Path("many").exists()


def test_an_interrupted_one_goes_on(monkeypatch):
    assert example("model=default,interrupt_late") == 130
    assert manifest("many/0_model=default")["status"] == "done"
    monkeypatch.setitem(example_experiment.BEHAVIOURS, "interrupt_late", example_experiment.write)
    assert example("model=default,interrupt_late") == 0
    assert manifest("many/1_model=interrupt_late")["status"] == "done"


@pytest.mark.parametrize(
    "text, values",
    [
        ("1,2", ["1", "2"]),
        ("range(0,3)", ["0", "1", "2"]),
        ("choice(a,b)", ["a", "b"]),
        ("1.10,1.1,007", ["1.10", "1.1", "007"]),
        ("a b, c d", ["a b", "c d"]),
        (r"a\,b,c", ["a,b", "c"]),
        (r"C:\x,D:\y", [r"C:\x", r"D:\y"]),
        ("'a, b',\"it's\"", ["'a, b'", '"it\'s"']),
        (r'["a, b","say \"x\""],[c]', [r'["a, b","say \"x\""]', "[c]"]),
        ("[1,[2,3]],{a:1,b:2}", ["[1,[2,3]]", "{a:1,b:2}"]),
        ("[1,2]", None),
        ("'a,b'", None),
        ("a", None),
        ("it's,b", None),
    ],
)
def test_values_are_those_that_would_be_written_alone(text, values):
    assert values_of(f"key={text}") == values


def test_texts_with_commas_and_quotes_are_taken_whole():
    texts = r'prompts.texts=["a, b","say \"x\""],["it’s, well"]'
    assert example("prompts=given", texts) == 0
    found = [json.loads(path.read_text()) for path in sorted(Path("many").glob("*/manifest.json"))]
    assert [one["config"]["prompts"]["texts"] for one in found] == [
        ["a, b", 'say "x"'],
        ["it’s, well"],
    ]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["users=interval(0,1)"],
            "expected values that can be listed, such as 0,1,2 or range(0,3)",
        ),
        (["users=glob(*)"], "expected values that can be listed"),
        (["users=1"], "--multirun: expected a key with several values, such as seed=0,1,2"),
        (["users=1,1"], "users=1,1: a value is there twice"),
        (["users=1,x"], "users"),
        (["usres=1,2"], "unknown key 'usres'; did you mean 'users'?"),
        (["users=1,2", "users=3,4"], "users is given several values twice"),
        (["users=1,2", "overwrite=maybe"], "overwrite=maybe: expected true or false"),
    ],
)
def test_all_is_checked_before_anything_runs(arguments, message, capsys):
    assert caches(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not Path("many").exists()


def test_other_values_in_the_same_folder_are_refused(capsys):
    assert example("model=default,refuse") == 2
    assert example("model=default,chatty") == 2
    assert "unfinished run of another config: swept" in capsys.readouterr().err
    assert caches("users=1,2", "overwrite=true") == 0
    assert caches("users=1,2") == 2
    assert "holds a finished run" in capsys.readouterr().err


def test_tables_that_can_not_be_joined_are_named(monkeypatch, capsys):
    columns = (
        "model,layer,head,task,edit,metric,effect,ci_low,ci_high,baseline,p,q,n_templates,n_prompts"
    )
    row = "default,0,1,copying,zero,loss,1.5,1.0,2.0,0.5,0.1,0.2,3,3"
    tables_of = {
        "default": {"table.csv": f"{columns}\n{row}\n", "sets.csv": "a\n1\n"},
        "chatty": {
            "table.csv": f"{columns.replace('n_templates', 'n_unseen,n_templates')}\n{row},4\n"
        },
    }
    for name, files in tables_of.items():
        monkeypatch.setitem(
            example_experiment.BEHAVIOURS,
            name,
            lambda folder, files=files: [folder.write(*file) for file in files.items()],
        )
    assert example("model=default,chatty") == 0
    said = capsys.readouterr().out
    assert "table.csv is not joined: not all runs have the column n_unseen in it" in said
    assert "sets.csv is not joined: " in said
    assert not [*Path("many").glob("*.csv")]
    assert manifest("many")["status"] == "done"


def test_a_joined_table_keeps_its_contract(tmp_path):
    assert caches("users=1,2") == 0
    joined = tables.read(Path("many/table.csv"))
    again = tmp_path / "again.parquet"
    tables.write(joined, again)
    assert tables.read(again).equals(joined)
    twice = joined.assign(run="one")
    with pytest.raises(Exception, match="unique"):
        tables.write(twice, again)
    with pytest.raises(InterpError, match="no table of ours"):
        tables.write(joined.assign(more=1), again)
