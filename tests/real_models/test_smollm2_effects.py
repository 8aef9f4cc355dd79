"""On a real pretrained model: sinks move, induction heads matter together, edits are what hooks do."""

import pytest
import torch

from interp.editing.edits import Replace, edited
from interp.editing.metrics import METRICS
from interp.editing.sites import Site, adders
from interp.editing.sweep import sweep
from interp.inputs.prompts import python_docs, text_prompts
from interp.inputs.sentences import indirect_objects
from interp.inputs.tasks import copying
from interp.interventions.together import ablate_together, summarise_sets
from interp.models.forward import logits_at
from interp.models.model import load_model
from interp.sinks.sink_effects import knock_out_sinks, text_task
from interp.sinks.sink_mass import sink_masses

pytestmark = pytest.mark.smollm2
INDUCTION = [(18, 6), (17, 3), (18, 7)]


@pytest.fixture(scope="module")
def model(smollm2_model):
    return smollm2_model


def zeroed(heads):
    return [Replace.zero(Site("z", layer, (head,))) for layer, head in heads]


def test_the_sink_moves(model):
    """A third of all attention rests on key 0. With it masked as much goes to the next key, and the loss
    hardly changes; with keys 0 to 3 masked, to key 4. Where the mass is lost, the loss rises."""
    prompts = text_prompts(model, python_docs(), n_prompts=1, length=256, seed=0)
    table, _ = knock_out_sinks(
        model, text_task(prompts), ["mask", "zero_weight"], (1, 4), n_random=1
    )
    loss = table[table.metric == "loss"]
    assert 1.5 < loss.baseline.mean() < 4
    effect = loss.groupby(["knock_out", "n_keys"])[["effect", "control"]].mean()
    assert effect.loc["mask"].abs().max().max() < 0.2  # first keys and random keys alike
    assert effect.effect["zero_weight", 1] > 0.25 > abs(effect.control["zero_weight", 1])

    masses = sink_masses(model, prompts, ["mask"], (1, 4)).set_index(["n_keys", "key"]).mass
    assert masses[0, "0"] == pytest.approx(0.33, abs=0.06) and masses[0, "1"] < 0.02
    assert masses[1, "0"] == 0 and masses[1, "1"] == pytest.approx(0.33, abs=0.06)
    assert masses[4, "4"] == pytest.approx(0.33, abs=0.08)
    assert (masses[4][["0", "1", "2", "3"]] == 0).all()


def test_induction_heads_matter_and_random_heads_of_their_layers_do_not(model):
    """Loss on the repeat: from 3.0 to about 10, and less than 1 away for as many other heads."""
    task = copying(model, n_prompts=4, period=50)
    sets = summarise_sets(ablate_together(model, task, INDUCTION, n_random=6)[0])
    named, random = sets.iloc[0], sets[1:]
    assert named["heads"] == "17.3 18.6 18.7" and named.n_as_large == 0
    assert named.effect > 4 and named.p == pytest.approx(1 / 7)
    assert random.effect.abs().max() < 1


def test_indirect_objects_are_known_and_a_sweep_is_plain_passes(model):
    """Clean logit difference of about 5; a few heads against a hook on the output projection."""
    task = indirect_objects(model, n_prompts=8)
    heads = [(23, 3), (1, 5), (29, 0)]
    found = sweep(
        model, task.examples, [zeroed([head]) for head in heads], [METRICS["logit_difference"]]
    )
    assert (found.clean > 0).all() and 4 < found.clean.mean() < 7.5
    assert found.largest_difference < 1e-4
    example = task.examples[0]
    for (layer, head), values in zip(heads, found.values[0], strict=True):

        def hook(module, args, head=head):
            z = args[0].clone()
            z[..., head * 64 : (head + 1) * 64] = 0
            return (z,)

        projection = model.hf_model.model.layers[layer].self_attn.o_proj
        handle = projection.register_forward_pre_hook(hook)
        with torch.no_grad():
            logits = model.hf_model(torch.tensor([example.prompt.ids])).logits[0, -1]
        handle.remove()
        assert float(logits[example.answer] - logits[example.wrong]) == pytest.approx(
            values[0], abs=1e-4
        )


def test_ablation_equals_transformerlens(model):
    bridge = model.bridge()
    example = indirect_objects(model, n_prompts=1).examples[0]
    ids = torch.tensor([example.prompt.ids])

    def zero(z, hook):
        z = z.clone()
        z[..., 3, :] = 0
        return z

    with torch.no_grad():
        theirs = bridge.run_with_hooks(ids, fwd_hooks=[("blocks.23.attn.hook_z", zero)])[:, -1]
    with edited(model, zeroed([(23, 3)])):
        ours = logits_at(model, ids, torch.tensor([[ids.shape[1] - 1]]))[:, 0]
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_parts_of_a_block_are_told_apart_in_narrow_numbers(model, dtype):
    """Massive activations swallow what is added: any two parts seem to add up there."""
    narrow = load_model(model.name, dtype=dtype)
    for layer in (0, 1, 15, 29):
        found = adders(narrow, layer)
        module = narrow.hf_model.model.layers[layer]
        assert (found.attention, found.mlp) == (module.self_attn, module.mlp)
        assert found.sequential
