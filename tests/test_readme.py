"""The README's code runs, its commands are accepted, its tables name what there is."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from experiments.command_line import multirun
from experiments.command_line.compose import compose
from experiments.command_line.launch import _options
from interp.models.model import ALIASES
from interp.results.tables import SUMMARY

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^(?:python -m experiments\.|interp )(\w+)([^#\n]*)", README, re.MULTILINE)


def python_blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.skipif(not Path(ALIASES["default"]).exists(), reason="no default model yet")
@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_python_blocks_run(name, monkeypatch):
    blocks = python_blocks(name)
    assert blocks
    for block in blocks:
        exec(compile(block, name, "exec"), {})


@pytest.mark.parametrize("experiment, rest", COMMANDS)
def test_commands_are_accepted(experiment, rest):
    arguments = shlex.split(rest)
    if "--help" in arguments:
        return
    module = importlib.import_module(f"experiments.{experiment}")
    if "--multirun" in arguments:
        given = [a for a in arguments if a != "--multirun" and not a.startswith("out=")]
        _, jobs = multirun.planned(experiment, module, [], given)
        assert len(jobs) > 2
        return
    files, assignments = _options(arguments, getattr(module, "POSITIONAL", None))
    assert not files
    compose(experiment, module.Config, assignments)


def test_there_are_commands_and_all_experiments_are_named():
    named = {experiment for experiment, _ in COMMANDS}
    there = {path.stem for path in (ROOT / "experiments" / "configs").glob("*.yaml")}
    assert named == there - {"any_run", "shared", "scoring"}


def test_every_column_of_the_summary_is_explained():
    table = README.split("## What the columns mean")[1].split("##")[0]
    explained = set(re.findall(r"`(\w+)`", table))
    assert set(SUMMARY.columns) - {"model", "layer", "head", "role"} <= explained


def test_every_room_of_the_library_is_on_the_map_and_what_is_on_it_is_there():
    table = README.split("## A map of the code")[1].split("##")[0]
    rooms = {path.name for path in (ROOT / "interp").iterdir() if (path / "__init__.py").exists()}
    assert len(rooms) > 10 and rooms <= set(re.findall(r"`interp/(\w+)/`", table))
    there = {path.stem for path in (ROOT / "interp").rglob("*.py")} | {"launch", "*_tables"}
    assert set(re.findall(r"([\w*]+)\.py", table)) <= there
