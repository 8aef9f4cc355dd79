"""Proofs on a real pretrained model: what does nothing, what does everything, and TransformerLens' sweeps."""

import numpy as np
import pytest
import torch

from interp.editing.edits import Replace, edited
from interp.editing.metrics import METRICS
from interp.editing.sites import Site
from interp.editing.sweep import sweep
from interp.inputs.sentences import indirect_objects
from interp.inputs.tasks import Task
from interp.interventions.effects import recorded
from interp.interventions.outputs import Ending, Writing, observed, sites_for_outputs
from interp.interventions.patching import patch
from interp.models.forward import logits_at
from interp.results.summaries import summarise_effects

pytestmark = pytest.mark.smollm2
DIFFERENCE = METRICS["logit_difference"]


@pytest.fixture(scope="module")
def model(smollm2_model):
    return smollm2_model


@pytest.fixture(scope="module")
def task(model):
    """Two prompts of one template, and so of one length and with places at the same positions."""
    whole = indirect_objects(model, n_prompts=40)
    one = whole.examples[0].template
    return Task("indirect_objects", tuple(e for e in whole.examples if e.template == one)[:2])


def test_what_is_there_already_changes_nothing(model, task):
    """Exactly 0: patching a run into itself, at several kinds of site, layers and positions."""
    sites = [Site("z", 20, (3,)), Site("z", 4, None, (5,)), Site("resid_pre", 17, None, (9,))]
    sites += [
        Site("k", 11, (1,)),
        Site("v", 11, (1,), (2,)),
        Site("mlp_out", 8),
        Site("q", 29, (0,)),
    ]
    own = recorded(model, [example.prompt for example in task.examples], sites)
    cells = [[Replace(site, own[site], "its own")] for site in sites]
    found = sweep(model, task.examples, cells, [DIFFERENCE])
    assert (found.effects == 0).all()
    assert found.rounding[0] < 1e-2 and found.largest_difference < 1e-3


@pytest.mark.parametrize("layer", [0, 13, 29])
def test_the_whole_stream_is_the_whole_effect(model, task, layer):
    corrupted = [example.corrupted for example in task.examples]
    site = Site("resid_pre", layer)
    clean = recorded(model, [example.prompt for example in task.examples], [site])
    found = sweep(
        model, task.examples, [[Replace(site, clean[site], "clean")]], [DIFFERENCE], base=corrupted
    )
    gap = found.clean - found.before
    assert (np.abs(gap) > 1).all()
    np.testing.assert_allclose(found.effects[:, 0] / gap, 1, atol=1e-4)


def test_a_head_is_its_columns_of_the_output_projection(model, task):
    layer, head, d = 20, 3, 64
    ids = torch.tensor([example.prompt.ids for example in task.examples])
    where = torch.full((len(ids), 1), ids.shape[1] - 1)
    with edited(model, Replace.zero(Site("z", layer, (head,)))):
        ours = logits_at(model, ids, where)
    weight = model.hf_model.model.layers[layer].self_attn.o_proj.weight
    kept = weight[:, head * d : (head + 1) * d].clone()
    with torch.no_grad():
        weight[:, head * d : (head + 1) * d] = 0
        try:
            with edited(model):
                theirs = logits_at(model, ids, where)
        finally:
            weight[:, head * d : (head + 1) * d] = kept
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-5)


def test_heads_add_up_to_attention_and_parts_to_the_logits(model, task):
    """In every layer, and through the final norm: 270 heads, 30 MLPs and the embedding."""
    ids = torch.tensor([example.prompt.ids for example in task.examples])
    where = torch.full((len(ids), 1), ids.shape[1] - 1)
    sites = sites_for_outputs(model, "mlp_out", "resid_pre")
    recording = observed(model, ids, where, sites)
    ending = Ending.of(model, recording, where)
    total = ending.frozen(recording[Site("resid_pre", 0)][:, -1:])
    for layer in range(model.n_layers):
        heads = Writing(model, layer, recording)(recording[Site("z", layer)])
        whole = recording[Site("attn_out", layer)]
        torch.testing.assert_close(heads.sum(1), whole, atol=2e-3, rtol=1e-3)
        parts = heads.sum(1)[:, -1:], recording[Site("mlp_out", layer)][:, -1:]
        total = total + sum(ending.frozen(part) for part in parts)
    torch.testing.assert_close(total, ending.final, atol=2e-3, rtol=1e-3)


def test_patching_equals_transformerlens_cell_by_cell(model, task):
    """Against ``get_act_patch_attn_head_out_all_pos`` and ``get_act_patch_resid_pre``, in three layers."""
    from transformer_lens import patching

    bridge = model.bridge()
    example = task.examples[0]
    clean, corrupted = (torch.tensor([p.ids]) for p in (example.prompt, example.corrupted))
    _, cache = bridge.run_with_cache(clean)

    def metric(logits):
        return logits[0, -1, example.answer] - logits[0, -1, example.wrong]

    layers, n = (0, 14, 29), clean.shape[1]
    one = Task("one", (example,))
    ours, _ = patch(model, one, "z", only=[(layer, head) for layer in layers for head in range(9)])
    found = (ours.baseline + ours.effect).to_numpy().reshape(3, 9)
    frame = [(layer, head) for layer in layers for head in range(9)]
    theirs = _of(patching, "generic_activation_patch", bridge, corrupted, cache, metric, frame, "z")
    np.testing.assert_allclose(found.ravel(), theirs, atol=2e-3)

    only = [(layer, str(position)) for layer in layers for position in range(n)]
    ours, _ = patch(model, one, "resid_pre", "all", only=only)
    found = (ours.baseline + ours.effect).to_numpy()
    frame = [(layer, position) for layer in layers for position in range(n)]
    theirs = _of(
        patching, "generic_activation_patch", bridge, corrupted, cache, metric, frame, "resid_pre"
    )
    np.testing.assert_allclose(found, theirs, atol=2e-3)
    assert np.abs(ours.effect).max() > 1


def _of(patching, name, bridge, corrupted, cache, metric, rows, kind):
    """TransformerLens' generic sweep (which its two functions fill in) over chosen rows only."""
    import pandas as pd

    setter = {
        "z": patching.layer_head_vector_patch_setter,
        "resid_pre": patching.layer_pos_patch_setter,
    }[kind]
    columns = ["layer", "head"] if kind == "z" else ["layer", "pos"]
    frame = pd.DataFrame(rows, columns=columns)
    result = getattr(patching, name)(
        model=bridge,
        corrupted_tokens=corrupted,
        clean_cache=cache,
        patching_metric=metric,
        patch_setter=setter,
        activation_name=kind,
        index_df=frame,
    )
    return np.asarray(result)


def test_denoising_finds_where_the_name_is_moved(model):
    """S2 tells END who gives; the residual stream holds it at S2 early and at END late."""
    task = indirect_objects(model, n_prompts=4, corruption="symmetric")
    only = [(layer, place) for layer in (0, 28) for place in ("S2", "END")]
    table, difference = patch(model, task, "resid_pre", "places", only=only)
    assert difference < 1e-3
    summary = summarise_effects(table).set_index(["layer", "place"]).normalised
    assert summary[28, "END"] > 0.8 and abs(summary[0, "END"]) < 1e-6
    assert summary[0, "S2"] > 0.8 and abs(summary[28, "S2"]) < 0.1
