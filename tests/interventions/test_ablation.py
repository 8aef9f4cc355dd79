"""What each head is worth: against plain passes with a hook, and on the model that comes along."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch

from interp.config.effects import AblateHeadsConfig
from interp.editing.edits import Replace, edited
from interp.editing.metrics import METRICS
from interp.editing.sites import Site
from interp.editing.sweep import sweep
from interp.errors import InterpError
from interp.inputs.prompts import prompts_of_ids
from interp.inputs.sentences import indirect_objects
from interp.inputs.tasks import Example, Task, copying, little_world
from interp.interventions.ablation import Ablating, ablate_heads
from interp.models.forward import logits_at
from interp.models.model import load_model
from interp.results import summaries, tables
from tests.families import tiny_model


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
    summary = summaries.summarise_effects(table)
    assert (summary.n_templates == 3).all() and (summary.n_prompts == 6).all()
    one = table[(table.layer == 0) & (table["head"] == 5)]
    row = summary[(summary.layer == 0) & (summary["head"] == 5)].iloc[0]
    assert row.effect == pytest.approx(one.groupby("template").effect.mean().mean())
    assert summary.effect.abs().is_monotonic_decreasing
    assert summary.p.min() >= 2 * 2**-3  # three templates: no two-sided p below that
    pd.testing.assert_frame_equal(summary, summaries.summarise_effects(table))


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


# --- means over tokens and over all positions ----------------------------------------------------


def pooled_by_hand(model, task, example, layer, head, over):
    """The mean z for each position of an example, and how many have a token that no donor shows."""
    donors = [e.corrupted for e in task.examples]
    vectors = torch.cat([z_at(model, donor, layer)[0, head] for donor in donors])
    tokens = torch.tensor([token for donor in donors for token in donor.ids])
    if over == "all":
        return vectors.mean(0)[None, None, None], 0
    shown = [(tokens == token) for token in example.prompt.ids]
    means = [vectors[one].mean(0) if one.any() else vectors.mean(0) for one in shown]
    return torch.stack(means)[None, None], sum(not one.any() for one in shown)


@pytest.mark.parametrize("over", ["token", "all"])
def test_means_over_tokens_and_over_all_positions(model, world, over):
    """Donors of all lengths; two tokens of one example are shown by none of them."""
    donors = {token for e in world.examples for token in e.corrupted.ids}
    new = tuple(token for token in range(700) if token not in donors)[:2]
    last = world.examples[-1]
    changed = replace(last.prompt, ids=(*last.prompt.ids[:3], *new, *last.prompt.ids[5:]))
    task = Task("world", (*world.examples[:-1], replace(last, prompt=changed)))
    assert len({len(e.prompt.ids) for e in task.examples}) > 1
    table, _ = ablate_heads(model, task, "mean", mean_over=over)
    assert set(table.edit) == {f"mean {'by token' if over == 'token' else 'over all positions'}"}
    for i, (layer, head) in ((0, (0, 5)), (5, (1, 3)), (2, (2, 7))):
        example = task.examples[i]
        z, missing = pooled_by_hand(model, task, example, layer, head, over)
        row = table[(table.layer == layer) & (table["head"] == head)].iloc[i]
        expected = value_by_hand(model, example, layer, head, z)
        assert row.effect + row.baseline == pytest.approx(expected, abs=1e-4)
        if over == "token":
            assert row.n_unseen == missing == (2 if i == 5 else 0)
    summary = summaries.summarise_effects(table)
    if over == "token":
        assert (summary.n_unseen == 2).all()
    else:
        assert "n_unseen" not in table and "n_unseen" not in summary


def test_the_donor_is_named(model, world):
    table, _ = ablate_heads(model, world, "resample")
    of = {e.prompt.name: e.corrupted.name for e in world.examples}
    assert (table.donor == table["prompt"].map(of)).all()
    assert "donor" not in ablate_heads(model, world, "mean")[0]
    # Where the task has no corrupted prompts: the next of the same length, the last one's the first.
    whole = copying(model, n_prompts=3, period=5)
    other = copying(model, n_prompts=2, period=6)
    mixed = [replace(e, corrupted=None) for e in (*whole.examples, *other.examples)]
    table, _ = ablate_heads(model, Task("copying", tuple(mixed)), "resample")
    names = [e.prompt.name for e in mixed]
    expected = dict(zip(names, [names[1], names[2], names[0], names[4], names[3]], strict=True))
    assert (table.donor == table["prompt"].map(expected)).all()


# --- patterns held -------------------------------------------------------------------------------


def test_held_patterns_are_those_of_transformerlens(model, world):
    """Their cache of patterns written back by their hooks, beside the head that is zeroed."""
    bridge = model.bridge()
    table, _ = ablate_heads(model, world, hold_patterns=True)
    assert set(table.edit) == {"zero, patterns held"}
    example = world.examples[1]
    ids = torch.tensor([example.prompt.ids])
    seen = {}
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(3)]
    keep = [(name, lambda p, hook: seen.update({hook.name: p.clone()})) for name in names]
    with torch.no_grad():
        bridge.run_with_hooks(ids, fwd_hooks=keep)
    for layer, head in ((0, 5), (1, 3), (2, 1)):

        def zero(z, hook, head=head):
            z = z.clone()
            z[..., head, :] = 0
            return z

        hooks = [(f"blocks.{layer}.attn.hook_z", zero)]
        hooks += [(name, lambda p, hook: seen[hook.name]) for name in names[layer + 1 :]]
        with torch.no_grad():
            logits = bridge.run_with_hooks(ids, fwd_hooks=hooks)[:, -1:]
        theirs = float(METRICS["logit_difference"].measure(logits, logits, [example])[0])
        row = table[(table.layer == layer) & (table["head"] == head)].iloc[1]
        assert row.effect + row.baseline == pytest.approx(theirs, abs=2e-3)


def test_with_patterns_held_and_nothing_else_bent_effects_are_linear():
    """No norms, no MLPs, patterns held: the logits are linear in a head's z. Two heads of a layer add up,
    half of a head has half its effect, and attention that is free to move does neither."""
    hf_model = tiny_model("llama")
    for part in (*hf_model.model.layers, hf_model.model):
        for name in ("input_layernorm", "post_attention_layernorm", "norm"):
            if hasattr(part, name):
                setattr(part, name, torch.nn.Identity())
    with torch.no_grad():
        for layer in hf_model.model.layers:
            layer.mlp.down_proj.weight.zero_()
    linear = load_model((hf_model, None))
    prompt, corrupted = prompts_of_ids([[5, 9, 14, 9, 33, 7], [6, 9, 21, 9, 40, 7]])
    task = Task("one", (Example(prompt, 11, 12, corrupted=corrupted),))

    def effect(edits):
        cells = [edits]
        return sweep(linear, task.examples, cells, [METRICS["logit_difference"]]).effects[0, 0, 0]

    for hold in (True, False):
        ablate = Ablating(linear, task, "zero", hold_patterns=hold)(task.examples)
        whole = Ablating(linear, task, "resample", hold_patterns=hold)(task.examples)
        first, second, both = (
            effect(ablate(heads)) for heads in ([(0, 1)], [(0, 3)], [(0, 1), (0, 3)])
        )
        donor = whole([(0, 1)])
        own = z_at(linear, prompt, 0)[:, 1:2]
        halfway = replace(donor[0], value=(donor[0].value + own) / 2)
        ratio = effect([halfway, *donor[1:]]) / effect(donor)
        assert abs(first) > 1e-2 and abs(second) > 1e-2
        assert (both == pytest.approx(first + second, abs=1e-3)) == hold
        assert (ratio == pytest.approx(0.5, abs=1e-2)) == hold


def test_the_previous_token_head_only_says_where_to_look(model):
    """Copying is lost without head 0.5, and is not where the induction heads look where they looked."""
    task = copying(model, n_prompts=4, period=20)
    free, held = (
        ablate_heads(model, task, hold_patterns=hold)[0].groupby(["layer", "head"]).effect.mean()
        for hold in (False, True)
    )
    assert free[0, 5] > 5 and abs(held[0, 5]) < 0.1
    assert held[2].to_numpy() == pytest.approx(free[2].to_numpy(), abs=1e-4)  # nothing behind them


def test_patterns_that_would_not_fit_are_refused(model, world, monkeypatch):
    monkeypatch.setattr("interp.interventions.ablation.PATTERN_BYTES", 1000)
    with pytest.raises(
        InterpError, match=r"patterns of . prompts of .. tokens, 2 layers × 8 heads, take"
    ):
        ablate_heads(model, world, hold_patterns=True)
    ablate_heads(model, Task("one", world.examples[:1]))
    with pytest.raises(InterpError, match="mean_over=token is for how='mean'"):
        ablate_heads(model, world, mean_over="token")


def test_a_mean_over_many_tokens_is_added_up_in_float32():
    """In bfloat16 a sum of some thousands no longer grows by what is added: off by a tenth and more."""
    narrow = load_model("default", dtype="bfloat16")
    task = copying(narrow, n_prompts=24, period=60)
    new, _ = Ablating(narrow, task, "mean", "all")._pooled_means(task.examples)
    z = torch.cat([z_at(narrow, example.corrupted, 1) for example in task.examples])
    expected = z.double().mean((0, 2))
    assert (new[1][0, :, 0].double() - expected).norm() < 1e-3 * expected.norm()


def test_donors_with_the_tokens_of_the_prompt_are_refused(model):
    """They would change nothing, and look like no effect."""
    (one, two) = copying(model, n_prompts=2, period=4).examples
    same = replace(one.prompt, name="same")
    of_corrupted = Task("t", (replace(one, corrupted=same),))
    of_others = Task("t", (replace(one, corrupted=None), replace(one, prompt=same, corrupted=None)))
    for task in (of_corrupted, of_others):
        for how in ("resample", "mean"):
            with pytest.raises(InterpError, match="would be given its own activations"):
                ablate_heads(model, task, how)
        ablate_heads(model, task, "zero")
    mixed = Task("t", (replace(one, corrupted=same), two))  # a mean over two prompts is another
    assert ablate_heads(model, mixed, "mean")[0].effect.abs().max() > 0
