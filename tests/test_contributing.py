"""CONTRIBUTING's worked examples do what it says: a role, an edit, a task and an experiment of one's own."""

import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

import interp
from experiments.command_line import compose as composing
from experiments.command_line.launch import launch
from interp.results import tables

TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")


def block(title: str, language: str = "python") -> str:
    """The first block of code under a heading."""
    section = TEXT.split(f"### {title}\n", 1)[1]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found
    return found[1]


def defined(title: str) -> dict:
    names: dict = {}
    exec(compile(block(title), title, "exec"), names)
    return names


def test_the_role_finds_its_targets(model):
    role = defined("Add a role")["next_to_last_copy"]
    ids = [5, 6, 5, 7, 5, 6]
    assert [*role.targets(interp.prompts_of_ids([ids])[0])] == [(4, 1)]
    prompts = interp.repeated_random_prompts(model, n_prompts=4, periods=[10], repeats=3)
    summary = interp.score_heads(model, prompts, [role]).summary
    assert summary.n_queries.iloc[0] == 4 * 10
    assert summary.mass.max() > summary.chance.iloc[0]


def test_the_edit_leaves_only_what_is_near(model):
    edits = defined("Add an edit")["only_nearby"](0, 3, 12)
    seen = []
    text = "a b c d e f g h i j k l m n o p" * 4
    prompt = interp.text_prompts(model, text, n_prompts=1, length=12)[0]
    ids = torch.tensor([prompt.ids])
    with interp.edited(model, edits, look=lambda *visit: seen.append(visit[1].dense()[0])):
        interp.logits_at(model, ids, torch.tensor([[11]]))
    weights = seen[0].numpy()
    far = np.subtract.outer(np.arange(12), np.arange(12)) >= 3
    assert np.abs(weights[:, far]).max() == 0
    np.testing.assert_allclose(weights.sum(-1), 1, atol=2e-5)
    assert seen[1].numpy()[:, far].max() > 0.1


def test_the_task_is_one_that_the_default_model_can_do(model):
    task = defined("Add a task")["last_copy"](model)
    assert len(task.examples) + dict(task.dropped)["the wrong token occurs too"] == 8
    found = interp.sweep(
        model,
        task.examples,
        [[interp.Replace.zero(interp.Site("z", layer=1))]],
        [interp.METRICS["logit_difference"]],
    )
    assert (found.clean > 0).all()
    patched = interp.patch(model, task, site="resid_pre", positions="places").summary
    assert patched.set_index("layer").normalised[0] > 0.9


def test_the_experiment_runs_as_any_other(tmp_path, monkeypatch, capsys):
    configs = tmp_path / "configs"
    shutil.copytree(composing.CONFIGS, configs)
    (configs / "find_diffuse.yaml").write_text(block("Add an experiment", "yaml"), encoding="utf-8")
    monkeypatch.setattr(composing, "CONFIGS", configs)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "SCHEMAS", {**tables.SCHEMAS})
    module = ModuleType("find_diffuse")
    monkeypatch.setitem(sys.modules, "find_diffuse", module)
    exec(compile(block("Add an experiment"), "find_diffuse", "exec"), module.__dict__)
    asked = ["out=run", "prompts=text", "prompts.n_prompts=4", "prompts.length=16", "top=2"]
    assert launch("find_diffuse", asked, module) == 0
    table = tables.read(Path("run/table.csv"))
    assert len(table) == 24 and (table.entropy <= np.log(16)).all()
    assert (table.ci_low <= table.entropy).all() and (table.entropy <= table.ci_high).all()
    assert {"table.tex", "methods.txt"} <= {path.name for path in Path("run").iterdir()}
    assert "entropy" in capsys.readouterr().out
