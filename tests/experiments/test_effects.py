"""The experiments that patch, on the model that comes along: killed and gone on with, and what they save."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch

import experiments
from experiments.command_line.launch import launch
from interp.inputs.tasks import little_world
from interp.interventions.gradients import attribute, audit
from interp.interventions.patching import patch
from interp.interventions.paths import trace_paths
from interp.results import figures, summaries, tables
from tests.families import tiny_model
from tests.tokenizers_ import word_tokenizer

pytestmark = pytest.mark.usefixtures("composed_once")
ROOT = Path(experiments.__file__).parent.parent
FEW = ["threads=1", "task.n_prompts=4", "seed=2"]


class Run(NamedTuple):
    code: int
    out: str
    err: str


def start(name: str, *arguments: str) -> Run:
    """Run an experiment in this process, as the command line would."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = launch(name, [*FEW, *arguments])
    return Run(code, out.getvalue(), err.getvalue())


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def task(model):
    return little_world(model, n_prompts=4, seed=2)


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text())


KILLED = """
import os, signal, sys
from experiments.command_line.launch import launch
from interp.runs.parts import Parts

save, saved = Parts.save, []

def killed(parts, name, values):
    save(parts, name, values)
    saved.append(name)
    if len(saved) == 5:
        os.kill(os.getpid(), signal.SIGKILL)

Parts.save = killed
launch("patch_heads", sys.argv[1:])
"""


def test_a_killed_run_goes_on_and_ends_the_same(here, monkeypatch):
    """SIGKILL in the middle; then stopped again by Ctrl-C; then the same command: the same bytes."""
    same = ["batch_tokens=100", "direction=noise", "out=run"]
    path = os.pathsep.join([str(ROOT), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, *FEW, *same],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == -9, ran.stderr
    run = here / "run"
    assert manifest_of(run)["status"] == "running" and not (run / "table.csv").exists()
    parts = {file: file.stat().st_mtime_ns for file in run.rglob("*.npz")}
    assert len(parts) == 5

    other = start("patch_heads", "batch_tokens=100", "direction=denoise", "out=run")
    assert (
        other.code == 2 and "unfinished run of another config: direction (noise there" in other.err
    )

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("interp.runs.parts.Parts.save", interrupt)
        assert start("patch_heads", *same).code == 130
    assert {file: file.stat().st_mtime_ns for file in run.rglob("*.npz")} == parts

    done = start("patch_heads", *same)
    assert (done.code, done.err) == (0, "patch_heads: results in run\n")
    manifest = manifest_of(run)
    assert manifest["status"] == "done" and len(manifest["resumed"]) == 2
    assert "5 finished parts were taken over" in (run / "log.txt").read_text()
    assert not (run / "parts").exists()

    whole = start("patch_heads", *same[:-1], "out=whole")
    assert (whole.code, whole.out) == (0, done.out)
    for file in ("table.csv", "per_prompt.parquet", "effects.png", "effects.pdf"):
        assert (run / file).read_bytes() == (here / "whole" / file).read_bytes(), file
    assert "taken over" not in (here / "whole" / "log.txt").read_text()


def assert_saved(folder, per_prompt):
    """The files are what the library gives."""
    saved = tables.read(folder / "per_prompt.parquet")
    pd.testing.assert_frame_equal(saved, per_prompt)
    summary = summaries.summarise_effects(per_prompt, seed=2)
    pd.testing.assert_frame_equal(tables.read(folder / "table.csv"), summary)
    assert manifest_of(folder)["largest_difference_from_plain_passes"] < 1e-4
    return summary


def test_patches_at_named_places(here, model, task):
    arguments = ["positions=places", "site=resid_pre", "top=3", "out=run"]
    run = start("patch_heads", *arguments)
    assert run.code == 0, run.err
    summary = assert_saved(here / "run", patch(model, task, "resid_pre", "places")[0])
    note, first, columns, *rows = run.out.splitlines()[:6]
    assert note.startswith(
        "note: with 2 templates no p is below 0.5; a single real effect among 12 tests"
    )
    assert "little_world_indirect_object, denoise resid_pre at each position: effect on" in first
    assert "(before: " in first and "4 prompts of 2 templates), largest of 12" in first
    assert columns.split()[:3] == ["layer", "place", "effect"] and len(rows) == 3
    assert f"{summary.effect.iloc[0]:.4f}" in rows[0]
    assert manifest_of(here / "run")["task"]["n_templates"] == 2


@pytest.mark.parametrize(
    "receivers, together",
    [("[logits]", "false"), ("[q2.5,k1.0]", "false"), ("[q2.5,k1.0]", "true")],
)
def test_paths(here, model, task, receivers, together):
    run = start("trace_paths", f"receivers={receivers}", f"together={together}", "out=run")
    assert run.code == 0, run.err
    names = receivers.strip("[]").split(",")
    expected, _ = trace_paths(
        model, task, "logits" if names == ["logits"] else names, together=together == "true"
    )
    assert_saved(here / "run", expected)
    assert f"paths to {', '.join(names)}: effect on logit_difference" in run.out


def test_a_receiver_that_is_not_there_leaves_nothing(here):
    run = start("trace_paths", "receivers=[k1.4]", "out=run")
    assert run.code == 2 and "key-value heads 0 to 3 in a layer, no head 4" in run.err
    assert not (here / "run").exists()


def test_estimates_and_their_audit(here, model, task):
    """Estimates are called so; the exact effects of the audited stand beside them, and in a file."""
    run = start("attribute_heads", "site=v", "steps=2", "audit=2", "n_random=4", "out=run")
    assert run.code == 0, run.err
    estimates = attribute(model, task, "v", steps=2)
    summary = assert_saved(here / "run", estimates)
    assert (summary.edit == "denoise: attribution, 2 steps").all()
    expected = audit(model, task, estimates, n_top=2, n_random=4, seed=2)
    saved = tables.read(here / "run" / "audit.csv")
    pd.testing.assert_frame_equal(saved, expected.table)
    lines = run.out.splitlines()[1:]  # the first says that there are too few prompts
    assert "denoise: attribution, 2 steps of v: effect on logit_difference" in lines[0]
    assert lines[1].split()[:4] == ["layer", "head", "estimate", "exact"]
    exact = saved.set_index(["layer", "head"]).exact
    for line, row in zip(lines[2:12], summary.itertuples(), strict=False):
        shown = line.split()
        assert shown[2] == f"{row.effect:.4f}"
        if (row.layer, row.head) in exact:
            assert shown[3] == f"{exact[row.layer, row.head]:.4f}"
    assert lines[lines.index("") - 1] == str(expected)  # then, the stability card
    recorded = manifest_of(here / "run")["audit"]
    assert recorded["rank_agreement"] == pytest.approx(expected.rank_agreement)
    assert recorded["worst_miss"] == [*expected.worst_miss]


def test_estimates_without_an_audit_say_so(here, model, task):
    run = start("attribute_heads", "positions=places", "direction=noise", "audit=0", "out=run")
    assert run.code == 0, run.err
    assert "\nnot audited: an estimate can be far from" in run.out
    assert "exact" not in run.out and not (here / "run" / "audit.csv").exists()
    saved = tables.read(here / "run" / "per_prompt.parquet")
    expected = attribute(model, task, "z", "places", "noise")
    pd.testing.assert_frame_equal(saved, expected)
    assert np.isfinite(saved.effect).all()


def test_what_has_no_gradient_is_refused(here):
    run = start("attribute_heads", "metric=flips", "out=run")
    assert (run.code, run.out) == (2, "")
    assert 'metric = "flips": expected one of logit_difference' in run.err
    assert run.err.count("\n") == 1 and not (here / "run").exists()


@pytest.mark.parametrize("name", ["patch_heads", "attribute_heads"])
@pytest.mark.parametrize("site", ["attn_out", "resid_post"])
def test_a_stream_as_a_whole(here, model, task, name, site):
    """A row a layer, and a figure of them; all of the stream of the last layer brings back all."""
    run = start(name, f"site={site}", "out=run")
    assert run.code == 0, run.err
    table = tables.read(here / "run" / "table.csv")
    assert sorted(table.layer) == [0, 1, 2] and "head" not in table
    if (name, site) == ("patch_heads", "resid_post"):
        np.testing.assert_allclose(table.normalised, 1, atol=1e-4)
    axis = figures.effects(table).axes[0]
    assert [label.get_text() for label in axis.get_xticklabels()] == [site]
    column = table.sort_values("layer").normalised
    np.testing.assert_allclose(axis.images[0].get_array()[:, 0], column)


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("check_circuit", ["ranking=no.csv"], "ranking: no table no.csv"),
        ("knock_out_sinks", ["prompts.source=file", "prompts.path=no.txt"], "no text file no.txt"),
        ("knock_out_sinks", ["prompts.length=15"], "prompts.length=15 is too short for first_keys"),
        ("weight_vs_influence", ["target=answer"], "target=answer is not for task=copying"),
        ("trace_paths", ["together=true", "receivers=q2.5"], "there is one: q2.5"),
    ],
)
def test_what_needs_no_model_is_refused_before_it_is_loaded(
    here, monkeypatch, name, arguments, message
):
    monkeypatch.setattr("interp.models.model.load_model", lambda *_, **__: 1 / 0)
    keys = FEW if name != "knock_out_sinks" else FEW[:1]
    with contextlib.redirect_stderr(io.StringIO()) as err:
        assert launch(name, [*keys, *arguments, "out=run"]) == 2
    assert message in err.getvalue() and err.getvalue().count("\n") == 1
    assert [*here.iterdir()] == []


@pytest.mark.parametrize(
    "name, argument, message",
    [
        ("ablate_heads", "together=9.9", "together: 9.9: .* has layers 0 to 2, no layer 9"),
        ("trace_paths", "receivers=q9.0", "receivers: .* has layers 0 to 2, no layer 9"),
        ("ablate_heads", "task.period=400", "copying, period=400: .* 801 tokens > 512"),
    ],
)
def test_what_the_model_lacks_is_said_of_the_key(here, name, argument, message):
    run = start(name, argument, "out=run")
    assert run.code == 2 and re.search(message, run.err) and not (here / "run").exists()


def test_windows_too_narrow_are_found_before_anything_is_measured(here, monkeypatch):
    tiny_model("mistral", vocab_size=64).save_pretrained(here / "model")
    word_tokenizer(here / "model")
    monkeypatch.setattr("interp.sinks.sink_effects.sweep", lambda *_, **__: 1 / 0)
    given = ["prompts=given", f"prompts.texts={'t5 t6 t7 ' * 8}", "first_keys=[1]"]
    with contextlib.redirect_stderr(io.StringIO()) as err:
        assert launch("knock_out_sinks", ["model=model", "threads=1", *given, "out=run"]) == 2
    assert "its windows are narrower" in err.getvalue() and not (here / "run").exists()


def test_words_that_a_tokenizer_does_not_know_are_said_to_be_so(here):
    """All of them are its one token for the unknown: one token, but not one each."""
    tiny_model("llama", vocab_size=64).save_pretrained(here / "model")
    word_tokenizer(here / "model")
    run = start("patch_heads", "model=model", "out=run")
    assert run.code == 2 and "are not a token each of model's tokenizer" in run.err
