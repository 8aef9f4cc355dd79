"""Scores and their scaling: theory, eager attention with another scale, and what is refused."""

import math

import numpy as np
import pytest
import torch

from interp.attention.door import implementation
from interp.errors import InterpError
from interp.inputs.prompts import prompts_of_ids, python_docs, text_prompts
from interp.lesson import figures
from interp.lesson.rescaling import rescale, scales_of
from interp.lesson.scaling import quantities, softmax_of_random
from interp.models.model import load_model
from interp.sinks.sink_effects import text_task
from tests.families import tiny_model

IDS = torch.tensor([[(7 * i * i + 3 * i + p) % 58 + 3 for i in range(20)] for p in range(3)])
PROMPTS = prompts_of_ids(IDS)


@pytest.fixture(scope="module")
def random():
    return softmax_of_random((1, 16, 256), n_keys=32, n_draws=300, confidence=0.999)


def test_the_variance_of_scores_is_d_k(random):
    """And 1 when they are scaled; the interval holds what theory says."""
    rows = random[random.quantity == "variance"].set_index(["scaling", "d_k"])
    for d in (1, 16, 256):
        assert rows.reference["none", d] == d and rows.reference["1/√d_k", d] == pytest.approx(1)
        for scaling in ("none", "1/√d_k"):
            row = rows.loc[(scaling, d)]
            assert row.ci_low < row.reference < row.ci_high and row.ci_high < 2 * row.ci_low


def test_one_key_wins_without_scaling_only(random):
    wide = random.pivot(index=["scaling", "d_k"], columns="quantity", values="value")
    bare, scaled = wide.loc["none"], wide.loc["1/√d_k"]
    assert bare.largest_weight.is_monotonic_increasing and bare.largest_weight[256] > 0.85
    assert bare.gradient.is_monotonic_decreasing and bare.gradient[256] < 0.2
    assert bare.entropy[256] < 0.4 < 2.5 < scaled.entropy.min()
    assert scaled.largest_weight.max() < 0.2 and scaled.gradient.min() > 0.9
    np.testing.assert_allclose(bare.loc[1], scaled.loc[1])  # √1 = 1


def test_the_gradient_is_the_trace_of_the_jacobian():
    scores = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 2
    found = quantities(scores)
    for i, row in enumerate(scores):
        jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), row)
        assert found["gradient"][i].item() == pytest.approx(jacobian.trace().item())
        entropy = torch.distributions.Categorical(logits=row).entropy().item()
        assert found["entropy"][i].item() == pytest.approx(entropy)
    alike = quantities(torch.full((1, 5), 3.0))
    assert alike["largest_weight"].item() == pytest.approx(1 / 5)
    assert alike["gradient"].item() == pytest.approx(1 - 1 / 5)
    assert alike["entropy"].item() == pytest.approx(math.log(5))


def eager(model, factor, layers):
    """Losses, and weights of the layers, with the scale of some set by hand in the library's own modules."""
    modules = [layer.self_attn for layer in model.hf_model.model.layers]
    before = [module.scaling for module in modules]
    for layer in layers:
        modules[layer].scaling *= factor[layer]
    with torch.no_grad(), implementation(model.hf_model, "eager"):
        out = model.hf_model(IDS, output_attentions=True)
    for module, scaling in zip(modules, before, strict=True):
        module.scaling = scaling
    losses = -out.logits[:, :-1].log_softmax(-1).gather(-1, IDS[:, 1:, None])[..., 0].mean(-1)
    return losses.numpy(), [weights.numpy() for weights in out.attentions]


@pytest.mark.parametrize("family", ["llama", "gemma2", "granite"])
def test_the_undone_scaling_is_eager_attention_with_scale_1(family):
    """Grouped queries; soft cap, windows and 1/√8 for heads of 10; a multiplier of 0.3."""
    model = load_model((tiny_model(family), None))
    scales = scales_of(model, text_task(PROMPTS).examples)
    assert scales == pytest.approx(
        {
            layer: {"llama": 10**-0.5, "gemma2": 8**-0.5, "granite": 0.3}[family]
            for layer in range(3)
        }
    )
    heads, losses = rescale(model, PROMPTS)
    undone = {layer: 1 / scale for layer, scale in scales.items()}
    for name, factor in (
        ("own", dict.fromkeys(scales, 1)),
        ("none", undone),
        ("uniform", dict.fromkeys(scales, 0)),
    ):
        expected, weights = eager(model, factor, scales)
        row = losses[losses.layer.isna() & (losses.scaling == name)].iloc[0]
        assert row.loss == pytest.approx(expected.mean(), abs=2e-4)
        assert row.change == pytest.approx(
            (expected - eager(model, undone, ())[0]).mean(), abs=2e-4
        )
        for layer, written in enumerate(weights):
            rows = heads[(heads.scaling == name) & (heads.layer == layer)].sort_values("head")
            later = written[:, :, 1:]
            logs = np.log(later, where=later > 0, out=np.zeros_like(later))
            entropy = -(later * logs).sum(-1).mean((0, 2))
            np.testing.assert_allclose(rows.entropy, entropy, atol=2e-4)
            np.testing.assert_allclose(rows.largest_weight, later.max(-1).mean((0, 2)), atol=2e-4)
    for layer in scales:
        row = losses[(losses.layer == layer) & (losses.scaling == "none")].iloc[0]
        assert row.loss == pytest.approx(eager(model, undone, (layer,))[0].mean(), abs=2e-4)


def test_uniform_attention_is_the_chance_of_its_columns():
    model = load_model((tiny_model("mistral"), None))  # a window of 5
    heads, losses = rescale(model, PROMPTS, by_layer=False)
    uniform = heads[heads.scaling == "uniform"]
    np.testing.assert_allclose(uniform.entropy, uniform.uniform_entropy, atol=1e-5)
    np.testing.assert_allclose(uniform.largest_weight, uniform.chance, atol=1e-5)
    seen = np.minimum(np.arange(2, 21), 5)
    np.testing.assert_allclose(uniform.uniform_entropy, np.log(seen).mean(), atol=1e-6)
    assert (heads.entropy < heads.uniform_entropy + 1e-5).all() and len(losses) == 3
    assert losses.p.isna().tolist() == [True, False, False]
    assert losses.p[1] >= 2 * 2**-3


def test_prompts_of_several_lengths_keep_their_order():
    model = load_model((tiny_model("llama"), None))
    mixed = prompts_of_ids([[3, 4, 5, 6, 7], [9, 8, 7], [5, 6, 7, 8, 9]])
    _, together = rescale(model, mixed, by_layer=False)
    alone = [rescale(model, [prompt], by_layer=False)[1] for prompt in mixed]
    for name in ("loss", "change"):
        means = np.mean([table[name] for table in alone], axis=0)
        np.testing.assert_allclose(together[name], means, atol=1e-5)
    assert alone[0].loss_low.isna().all() and alone[0].p.isna().all()


def test_the_figure_is_the_tables(random):
    heads, losses = rescale(load_model((tiny_model("llama"), None)), PROMPTS)
    axes = figures.scaling(random, heads, losses).axes
    np.testing.assert_allclose([bar.get_height() for bar in axes[3].patches], losses.loss)
    assert [t.get_text() for t in axes[3].get_xticklabels()] == [
        "own",
        "none",
        "uniform",
        "0",
        "1",
        "2",
    ]
    drawn = axes[2].containers[1].lines[0].get_ydata().astype(float)
    np.testing.assert_allclose(drawn, heads[heads.scaling == "none"].entropy.sort_values())


def test_what_is_refused():
    with pytest.raises(InterpError, match=r"d_k=\[4, 0\]: expected widths of 1 or more"):
        softmax_of_random((4, 0))
    with pytest.raises(InterpError, match="n_keys=1, n_draws=400: expected 2 or more"):
        softmax_of_random((4,), n_keys=1)
    with pytest.raises(
        InterpError, match=r"d_k=1000000, .*: the keys take 1600032.0 GB, and .* free"
    ):
        softmax_of_random((4, 10**6), n_keys=10**6)
    with pytest.raises(InterpError, match="ids-0 is one token"):
        rescale(load_model((tiny_model("llama"), None)), prompts_of_ids([[3]]))
    with pytest.raises(
        InterpError, match="does not take its attention from transformers' interface"
    ):
        rescale(load_model((tiny_model("falcon"), None)), PROMPTS)


@pytest.mark.smollm2
def test_a_trained_model_needs_its_scaling(smollm2_model):
    prompts = text_prompts(smollm2_model, python_docs(), n_prompts=2, length=64)
    heads, losses = rescale(smollm2_model, prompts, by_layer=False)
    loss = losses.set_index("scaling").loss
    assert loss["own"] < 4 and loss["none"] > loss["own"] + 2
    entropy = heads.groupby("scaling").entropy.mean()
    assert entropy["none"] < entropy["own"] / 2 < entropy["uniform"] / 2
    assert set(heads.scale) == {1 / 8}
