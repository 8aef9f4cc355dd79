"""A run from Python, and a finished one opened again."""

import struct

import pandas as pd
import pytest
import torch

import experiments
from experiments.command_line.launch import launch
from interp.errors import InterpError
from interp.results import tables
from interp.runs.finished import read_run


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run without a model. Don't change it."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    return experiments.run("attention_by_hand", "n_heads=[1,2]", "threads=2", f"out={folder}")


def test_a_run_from_python_is_that_of_the_command_line(done, tmp_path):
    same = [f"out={tmp_path / 'again'}", "n_heads=[1,2]", "threads=2"]
    assert launch("attention_by_hand", same) == 0
    assert set(done.compare(read_run(tmp_path / "again")).verdict) == {"identical"}
    assert done.manifest["command"][:3] == ["python", "-m", "experiments.attention_by_hand"]


def test_what_is_in_it(done):
    assert done.experiment == "attention_by_hand" and done.config["n_heads"] == [1, 2]
    assert done.tables == ["flops.csv", "outputs.csv", "table.csv"]
    for name in done.tables:
        pd.testing.assert_frame_equal(done.table(name), tables.read(done.folder / name))
    assert len(done.table()) != len(done.table("flops.csv"))
    assert done.figures == ["steps.png"]
    for name in done.tables + done.figures:
        assert name in repr(done)


def test_the_figure_as_it_was_saved(done):
    png, size = done.figure()._repr_png_()
    assert png == (done.folder / "steps.png").read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    assert size == {"width": width * 96 // 150, "height": height * 96 // 150}  # 150 to the inch


def test_what_is_not_there_is_said(done, tmp_path):
    with pytest.raises(InterpError, match=r"no table 'x\.csv'; expected of flops\.csv, outputs"):
        done.table("x.csv")
    with pytest.raises(InterpError, match=r"no figure 'x\.png'; expected of steps\.png"):
        done.figure("x.png")
    with pytest.raises(InterpError, match="expected a run folder"):
        read_run(tmp_path)


def test_threads_are_as_they_were(tmp_path):
    threads = torch.get_num_threads()
    experiments.run("attention_by_hand", f"threads={threads + 1}", f"out={tmp_path / 'run'}")
    with pytest.raises(InterpError, match="holds a finished run"):
        experiments.run("attention_by_hand", f"threads={threads + 1}", f"out={tmp_path / 'run'}")
    assert torch.get_num_threads() == threads


def test_what_the_command_line_refuses():
    with pytest.raises(InterpError, match=r"no experiment 'find_sink'; did you mean find_sinks\?"):
        experiments.run("find_sink")
    with pytest.raises(InterpError, match="unknown key 'n_head'; did you mean 'n_heads'"):
        experiments.run("attention_by_hand", "n_head=[1]")
    with pytest.raises(InterpError, match="report makes a file and no run"):
        experiments.run("report", "runs/first")
