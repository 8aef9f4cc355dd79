"""train_default_model end to end on a tiny recipe; stopped and gone on with, it gives the same model."""

import json

import pytest
import torch

from experiments.command_line.launch import DONE, INTERRUPTED, REFUSED, launch
from interp.models.model import load_model
from interp.pretraining import training
from interp.results import tables

TINY = [
    "recipe.steps=6",
    "recipe.evaluate_every=2",
    "recipe.evaluation_prompts=2",
    "recipe.tokens_per_step=256",
    "recipe.row_lengths=[32,64]",
    "recipe.d_model=24",
    "recipe.d_mlp=28",
    "recipe.d_head=4",
    "recipe.heads=6",
    "recipe.key_value_heads=2",
    "recipe.context=160",
]


def weights(out):
    return load_model(out / "model").weight_hash


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("train") / "whole"
    assert launch("train_default_model", [*TINY, f"out={out}"]) == DONE
    return out


def test_the_run_folder_holds_a_model_that_loads(whole, capsys):
    names = {path.name for path in whole.iterdir()}
    assert names >= {"model", "training.csv", "training.png", "training.pdf", "manifest.json"}
    model = load_model(whole / "model")
    assert model.n_heads == 6 and model.tokenizer.encode("Ann")[0] == 1
    assert tables.read(whole / "training.csv").step.tolist() == [0, 2, 4, 6]
    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["model"]["weight_hash"] == model.weight_hash and manifest["threads"] == 1


def test_stopped_and_gone_on_with_it_gives_the_same_weights(whole, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    batch = training.training_batch

    def stop(config, tokenizer, step):
        if step == 5:
            raise KeyboardInterrupt
        return batch(config, tokenizer, step)

    monkeypatch.setattr(training, "training_batch", stop)
    assert launch("train_default_model", [*TINY, f"out={out}"]) == INTERRUPTED
    assert (out / "training" / training.CHECKPOINT).is_file()
    monkeypatch.setattr(training, "training_batch", batch)
    assert launch("train_default_model", [*TINY, f"out={out}", "seed=9"]) == REFUSED
    assert "seed (0 there, 9 here)" in capsys.readouterr().err
    assert launch("train_default_model", [*TINY, f"out={out}"]) == DONE
    assert weights(out) == weights(whole)
    assert torch.get_num_threads() == 1


def test_a_recipe_that_contradicts_itself_is_one_line(capsys):
    assert launch("train_default_model", ["recipe.context=64"]) == REFUSED
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "row of 512 tokens exceeds the context, 64" in said
