"""On a real pretrained model: sinks move, induction heads matter together, edits are what hooks do."""

import numpy as np
import pytest
import torch

from interp.edits import Cut, Replace, edited
from interp.forward import logits_at
from interp.metrics import METRICS
from interp.model import load_model
from interp.prompts import python_docs, text_prompts
from interp.sentences import indirect_objects
from interp.sites import Site, adders
from interp.sweep import sweep
from interp.tasks import Example, copying

pytestmark = pytest.mark.smollm2
INDUCTION = [(18, 6), (17, 3), (18, 7)]


@pytest.fixture(scope="module")
def model(smollm2_model):
    return smollm2_model


def zeroed(heads):
    return [Replace.zero(Site("z", layer, (head,))) for layer, head in heads]


def test_the_sink_moves(model):
    """A third of all attention rests on key 0; with it masked, as much goes to the next key, and the
    loss hardly changes; with keys 0 to 3 masked, to key 4."""
    prompts = text_prompts(model, python_docs(), n_prompts=2, length=256, seed=0)
    examples = [Example(p, scored=tuple(range(1, 256))) for p in prompts]
    cuts = {keys: [Cut(layer, keys) for layer in range(30)] for keys in ((0,), (0, 1, 2, 3))}
    found = sweep(model, examples, list(cuts.values()), [METRICS["loss"]])
    assert 1.5 < found.clean.mean() < 4
    assert np.abs(found.effects.mean(-1)).max() < 0.2

    ids = torch.tensor([prompts[0].ids])
    mass = {}
    for keys, edits in {(): [], **cuts}.items():
        total = torch.zeros(6)

        def look(layer, pattern, z, total=total):
            total += pattern.keys(torch.arange(6))[:, :, 8:].mean((0, 1, 2)) / 30

        with edited(model, edits, look):
            logits_at(model, ids, torch.tensor([[255]]))
        mass[keys] = total
    assert mass[()][0] == pytest.approx(0.33, abs=0.06) and mass[()][1] < 0.02
    assert mass[0,][0] == 0 and mass[0,][1] == pytest.approx(0.33, abs=0.06)
    assert mass[0, 1, 2, 3][4] == pytest.approx(0.33, abs=0.08)
    assert (mass[0, 1, 2, 3][:4] == 0).all()


def test_induction_heads_matter_and_random_heads_of_their_layers_do_not(model):
    task = copying(model, n_prompts=4, period=50)
    rng = np.random.default_rng(0)
    others = {layer: [h for h in range(9) if (layer, h) not in INDUCTION] for layer in (17, 18)}
    controls = [
        [
            (17, int(rng.choice(others[17]))),
            *((18, int(h)) for h in rng.choice(others[18], 2, False)),
        ]
        for _ in range(5)
    ]
    cells = [zeroed(heads) for heads in [INDUCTION, *controls]]
    effects = sweep(model, task.examples, cells, [METRICS["loss"]]).effects[0].mean(-1)
    assert effects[0] > 4
    assert np.abs(effects[1:]).max() < 1


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
