"""Where heads look, for the viewer: weights as rows have them, lengths by hand, what is left out added up."""

import numpy as np
import pytest
import torch

from interp.editing.edits import Recording, edited
from interp.editing.sites import Site
from interp.errors import InterpError
from interp.inputs.prompts import prompts_of_ids
from interp.inputs.tasks import copying
from interp.interventions.influence import weigh_heads
from interp.models.forward import last_logits
from interp.models.model import load_model
from interp.report.views import BYPASSED, view_heads
from interp.scoring.reading import read_row
from tests.families import N_HEADS, tiny_model

IDS = [1, 5, 9, 13, 17, 5, 9, 21, 25, 29, 33, 37]
HEADS = [(2, 3), (0, 1), (2, 0)]


@pytest.fixture
def prompt():
    return prompts_of_ids(IDS)[0]


@pytest.mark.parametrize(
    "family", ["llama", "gpt2", "mistral", "gemma2", "gpt_oss", "deepseek_v3", "falcon"]
)
def test_weights_are_those_of_rows(family, prompt):
    """Windows, soft caps, latent attention, a learned sink; Falcon bypasses the door."""
    model = load_model((tiny_model(family), None))
    views = view_heads(model, prompt, HEADS)
    assert [(view.layer, view.head) for view in views] == HEADS
    for view in views:
        for query in (0, 5, len(IDS) - 1):
            row = read_row(model, prompt, view.layer, view.head, query).sort_values("key")
            keys, weights, _ = view.row(query)
            assert keys.tolist() == row.key.tolist()
            np.testing.assert_allclose(weights, row.weight, atol=1e-5)
            assert weights.sum() + view.learned_sink[query] == pytest.approx(1, abs=1e-5)
        assert (view.others == 0).all() and len(view.starts) == len(IDS) + 1
        assert (view.learned_sink > 0).all() == (family == "gpt_oss")


@pytest.mark.parametrize("family", ["llama", "olmo2"])
def test_lengths_by_hand(family, prompt):
    """Of OLMo 2 through the norm behind attention, which divides by the whole output's size."""
    model = load_model((tiny_model(family), None))
    layer, head, d = 2, 3, model.d_head
    (view,) = view_heads(model, prompt, [(layer, head)])
    recording = Recording([Site("v", layer), Site("z", layer)])
    with edited(model, recording=recording):
        last_logits(model, [prompt])
    v, z = (recording[Site(kind, layer)][0] for kind in "vz")
    block = model.hf_model.model.layers[layer]
    weight = block.self_attn.o_proj.weight.detach()
    written = v[head // 2] @ weight[:, head * d : (head + 1) * d].T
    whole = z.transpose(0, 1).flatten(1) @ weight.T
    for query in (0, 4, 11):
        keys, weights, fetched = view.row(query)
        expected = torch.tensor(weights)[:, None] * written[keys]
        if family == "olmo2":
            norm = block.post_attention_layernorm
            size = (whole[query].square().mean() + norm.variance_epsilon).sqrt()
            expected = norm.weight.detach() * expected / size
        np.testing.assert_allclose(fetched, expected.norm(dim=-1), rtol=1e-4)
    assert view.undefined_reason is None


def test_what_is_fetched_is_what_weight_vs_influence_calls_value_weighted():
    model = load_model("default")
    task = copying(model, n_prompts=2, period=9)
    table, _ = weigh_heads(model, task)
    for example in task.examples:
        (view,) = view_heads(model, example.prompt, [(1, 3)])
        found = []
        for position in example.scored:
            keys, _, fetched = view.row(position - 1)
            found.append(fetched[keys == position - 9].sum())
        rows = table[(table.layer == 1) & (table["head"] == 3)].set_index("prompt")
        assert np.mean(found) == pytest.approx(rows.value_weighted[example.prompt.name], rel=1e-4)


def test_where_values_are_not_seen_lengths_are_undefined(prompt):
    (view,) = view_heads(load_model((tiny_model("falcon"), None)), prompt, [(1, 2)])
    assert np.isnan(view.lengths).all() and view.undefined_reason == BYPASSED
    assert np.isnan(view.row(5)[2]).all() and not np.isnan(view.row(5)[1]).any()


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_of_a_long_prompt_the_largest_are_kept_and_the_others_added_up(family, prompt):
    model = load_model((tiny_model(family), None))
    whole, part = (
        view_heads(model, prompt, [(1, 2)], longest=longest, k=2)[0] for longest in (12, 11)
    )
    left_out = 0
    for query in range(len(IDS)):
        keys, weights, fetched = whole.row(query)
        some, kept, kept_fetched = part.row(query)
        largest = {*keys[np.argsort(-weights)[:2]], *keys[np.argsort(-fetched)[:2]]}
        assert {*some.tolist()} == {int(key) for key in largest}
        chosen = np.isin(keys, some)
        np.testing.assert_array_equal(kept, weights[chosen])
        np.testing.assert_allclose(kept_fetched, fetched[chosen], rtol=1e-6)
        assert part.others[query] == pytest.approx(weights[~chosen].sum(), abs=1e-6)
        assert part.others_fetched[query] == pytest.approx(fetched[~chosen].sum(), abs=1e-5)
        total = kept.sum() + part.others[query] + part.learned_sink[query]
        assert total == pytest.approx(1, abs=1e-5)
        left_out += (~chosen).sum()
    assert left_out > 40


@pytest.mark.parametrize("head", [(3, 0), (0, N_HEADS), (-1, 0)])
def test_a_head_that_is_not_there_is_refused(head, prompt):
    model = load_model((tiny_model("llama"), None))
    with pytest.raises(
        InterpError, match=r"head -?\d\.\d: LlamaForCausalLM has layers 0 to 2 with heads 0 to 3"
    ):
        view_heads(model, prompt, [(0, 0), head])
