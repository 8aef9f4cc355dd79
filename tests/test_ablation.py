"""What each head is worth: against plain passes with a hook, and on the model that comes along."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch

from interp import tables
from interp.ablation import ablate_heads
from interp.config import AblateHeadsConfig
from interp.edits import Replace, edited
from interp.errors import InterpError
from interp.forward import logits_at
from interp.metrics import METRICS
from interp.model import load_model
from interp.sentences import indirect_objects
from interp.sites import Site
from interp.sweep import sweep
from interp.tasks import Task, copying, little_world


@pytest.fixture(scope="module")
def model():
    return load_model("default")


@pytest.fixture(scope="module")
def world(model):
    return little_world(model, n_prompts=6, seed=3)


def z_at(model, prompt, layer):
    """A head's z of one plain run."""
    seen = {}
    ids = torch.tensor([prompt.ids])
    with edited(model, look=lambda at, pattern, z: seen.update({at: z})):
        logits_at(model, ids, torch.tensor([[ids.shape[1] - 1]]))
    return seen[layer]


def value_by_hand(model, example, layer, head, z):
    ids = torch.tensor([example.prompt.ids])
    where = torch.tensor([[ids.shape[1] - 1]])
    with edited(model, Replace(Site("z", layer, (head,)), z, "by hand")):
        logits = logits_at(model, ids, where)
    return float(METRICS["logit_difference"].measure(logits, logits, [example])[0])


@pytest.mark.parametrize("how", ["zero", "mean", "resample"])
def test_against_plain_passes(model, world, how):
    table, difference = ablate_heads(model, world, how)
    tables.EFFECTS_PER_PROMPT.validate(table)
    assert len(table) == 24 * 6 and difference < 1e-4
    lengths = [len(e.prompt.ids) for e in world.examples]
    for layer, head, i in ((0, 5, 0), (1, 3, 4), (2, 7, 5)):
        example = world.examples[i]
        same = [e for e, n in zip(world.examples, lengths, strict=True) if n == lengths[i]]
        donors = [example.corrupted] if how == "resample" else [e.corrupted for e in same]
        z = torch.stack([z_at(model, donor, layer)[:, head : head + 1] for donor in donors]).mean(0)
        z = torch.zeros(()) if how == "zero" else z
        row = table[(table.layer == layer) & (table["head"] == head)].iloc[i]
        assert row.prompt == example.prompt.name
        expected = value_by_hand(model, example, layer, head, z)
        assert row.effect + row.baseline == pytest.approx(expected, abs=1e-4)


def test_the_summary_takes_templates_as_its_observations(model, world):
    table, _ = ablate_heads(model, world)
    summary = tables.summarise_effects(table)
    assert (summary.n_templates == 3).all() and (summary.n_prompts == 6).all()
    one = table[(table.layer == 0) & (table["head"] == 5)]
    row = summary[(summary.layer == 0) & (summary["head"] == 5)].iloc[0]
    assert row.effect == pytest.approx(one.groupby("template").effect.mean().mean())
    assert summary.effect.abs().is_monotonic_decreasing
    assert summary.p.min() >= 2 * 2**-3  # three templates: no two-sided p below that
    pd.testing.assert_frame_equal(summary, tables.summarise_effects(table))


def test_resampling_without_another_prompt_is_refused(model):
    whole = copying(model, n_prompts=1, period=5)
    one = Task("copying", tuple(replace(e, corrupted=None) for e in whole.examples))
    assert set(METRICS) == set(
        get_args(get_args(AblateHeadsConfig.model_fields["metric"].annotation)[0])
    )
    for how in ("resample", "mean"):
        with pytest.raises(InterpError, match="no other of its"):
            ablate_heads(model, one, how)
    with pytest.raises(InterpError, match="expected one of logit_difference"):
        ablate_heads(model, one, metric="accuracy")
    with pytest.raises(InterpError, match="needs examples with 'wrong'"):
        ablate_heads(model, one, metric="logit_difference")


def test_a_single_induction_head_is_not_what_copying_hangs_on(model):
    """The lesson of the default model: eight look at the target, none is needed; 0.5 is."""
    task = copying(model, n_prompts=4, period=20)
    effects, _ = ablate_heads(model, task)
    mean = effects.groupby(["layer", "head"]).effect.mean()
    assert mean[0, 5] > 5
    assert mean[1].abs().max() < 0.5
    together = [Replace.zero(Site("z", 1))]
    others = [Replace.zero(Site("z", 2))]
    found = sweep(model, task.examples, [together, others], [METRICS["loss"]])
    assert found.effects[0, 0].mean() > 5 and np.abs(found.effects[0, 1]).max() < 0.5


def test_tasks_of_the_default_model(model, world):
    clean = sweep(
        model, world.examples, [[Replace.zero(Site("z", 0, (5,)))]], [METRICS["logit_difference"]]
    ).clean[0]
    assert (clean > 0).mean() > 0.9
    for a, b in zip(world.examples[::2], world.examples[1::2], strict=True):
        assert (a.answer, a.wrong) == (b.wrong, b.answer)
        assert a.corrupted == b.prompt and a.template == b.template
    with pytest.raises(InterpError, match="4 of 20 names are one token"):
        indirect_objects(model)
    task = copying(model, n_prompts=2, period=5)
    assert task.examples[0].scored == (7, 8, 9, 10)  # BOS, five tokens, five again but the first
    with pytest.raises(InterpError, match="period=1"):
        copying(model, period=1)
