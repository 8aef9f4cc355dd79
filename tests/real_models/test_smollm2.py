"""A real pretrained model: the heads it is known to have, and the same patterns by other programs."""

import numpy as np
import pytest
import torch

from interp.attention.door import implementation
from interp.inputs.prompts import python_docs, repeated_random_prompts, text_prompts
from interp.models.checks import check_model
from interp.models.forward import capture
from interp.scoring.roles import ROLES, find_roles
from interp.scoring.scores import score_heads

pytestmark = pytest.mark.smollm2


@pytest.fixture(scope="module")
def model(smollm2_model):
    return smollm2_model


@pytest.fixture(scope="module")
def scores(model):
    """Repeated random tokens, as the issue's figures were taken: n = 256, no BOS."""
    return score_heads(model, repeated_random_prompts(model, n_prompts=4, periods=[128], bos="off"))


def test_the_checks_pass(model):
    assert [check["name"].split(" (")[0] for check in check_model(model)] == [
        "pattern equals eager attention",
        "logits",
        "rows sum to 1",
        "left padding",
    ]


@pytest.mark.parametrize(
    "role, layer, head, low, high",
    [
        ("sink_first", 18, 8, 0.99, 1.0),
        ("previous_token", 16, 0, 0.84, 0.93),
        ("previous_token", 11, 1, 0.80, 0.91),
        ("induction", 18, 6, 0.5, 0.95),
        ("induction", 18, 7, 0.5, 0.95),
        ("induction", 17, 3, 0.5, 0.95),
    ],
)
def test_known_heads_are_found(scores, role, layer, head, low, high):
    table = scores.summary
    row = table[(table.role == role) & (table.layer == layer) & (table["head"] == head)].iloc[0]
    assert low < row.mass <= high and row.null < 0.1 and row.chance < 0.05
    top = scores.top(12, role)
    assert (layer, head) in set(zip(top.layer, top["head"], strict=True))


def test_about_a_dozen_heads_rest_on_the_first_position(scores):
    sinks = scores.summary[scores.summary.role == "sink_first"]
    assert 5 <= (sinks.mass > 0.9).sum() <= 20
    assert sinks.iloc[0][["layer", "head"]].tolist() == [18, 8]


def test_scores_equal_those_from_transformer_lens_patterns(model):
    """Second witness: hook_pattern of a TransformerBridge over the same weights, all 270 heads."""
    prompt = repeated_random_prompts(model, n_prompts=1, periods=[40], bos="off")
    table = score_heads(model, prompt, find_roles(["sink_first", "previous_token", "induction"]))
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.n_layers)]
    _, cache = model.bridge().run_with_cache(torch.tensor([prompt[0].ids]), names_filter=names)
    for layer, name in enumerate(names):
        pattern = cache[name][0]  # (head, query, key)
        # Queries 40 … 79 repeat 0 … 39; the token after the earlier copy stands 39 back.
        induction = pattern.diagonal(-39, dim1=-2, dim2=-1)[:, 1:].mean(-1)
        expected = {
            "sink_first": pattern[:, 1:, 0].mean(-1),
            "previous_token": pattern.diagonal(-1, dim1=-2, dim2=-1).mean(-1),
            "induction": induction,
        }
        rows = table.per_prompt[table.per_prompt.layer == layer]
        for role, values in expected.items():
            ours = rows[rows.role == role].sort_values("head").mass
            np.testing.assert_allclose(ours, values.numpy(), atol=2e-5, err_msg=f"{role} {layer}")


def test_tiled_and_fused_agree(model):
    prompts = text_prompts(model, python_docs(), n_prompts=2, length=300)
    roles = [role for name, role in ROLES.items() if name != "sink_any"]
    tables = [
        score_heads(model, prompts, roles, engine=engine).per_prompt
        for engine in ("fused", "tiled")
    ]
    assert tables[0].attention_path.unique() == ["fused"]
    assert tables[1].attention_path.unique() == ["tiled"]
    np.testing.assert_allclose(tables[0].mass, tables[1].mass, atol=2e-5)


def test_logits_through_the_door_are_the_models_own(model):
    prompts = text_prompts(model, python_docs(), n_prompts=2, length=100)
    ours = capture(model, prompts, lambda *_: None)
    with implementation(model.hf_model, "sdpa"), torch.no_grad():
        theirs = model.hf_model(torch.tensor([p.ids for p in prompts])).logits[:, -1]
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-4)
