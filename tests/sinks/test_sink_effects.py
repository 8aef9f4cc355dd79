"""Sinks taken away: against eager attention with a mask of one's own, on paper, and what is refused."""

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_rgba

from interp.attention.door import implementation
from interp.errors import InterpError
from interp.inputs.prompts import prompts_of_ids
from interp.models.model import load_model
from interp.results import tables
from interp.sinks import sink_figure
from interp.sinks.sink_effects import (
    HOWS,
    control_keys,
    knock_out_sinks,
    knock_outs,
    mean_values,
    summarise_sinks,
    text_task,
)
from interp.sinks.sink_mass import PLACES, SHOWN, check_windows, sink_masses
from tests.families import tiny_model

IDS = torch.tensor([[(7 * i * i + 3 * i + p) % 58 + 3 for i in range(20)] for p in range(3)])
N = IDS.shape[1]
PROMPTS = prompts_of_ids(IDS)


def tiny(family="llama", **changes):
    return load_model((tiny_model(family, **changes), None))


def eager(model, hidden=(), ids=IDS):
    """Losses and weights of the library's own attention with some keys hidden from later queries."""
    mask = torch.full((N, N), -torch.inf).triu(1)
    for key in hidden:
        mask[len(hidden) :, key] = -torch.inf  # the first queries see nothing else, and keep them
    with torch.no_grad(), implementation(model.hf_model, "eager"):
        out = model.hf_model(
            ids, attention_mask=mask.expand(len(ids), 1, N, N), output_attentions=True
        )
    losses = -out.logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0].mean(-1)
    return losses, torch.stack(out.attentions, 1)  # (prompt, layer, head, query, key)


@pytest.fixture(scope="module")
def model():
    return tiny()


@pytest.fixture(scope="module")
def measured(model):
    return knock_out_sinks(model, text_task(PROMPTS), first_keys=(1, 3), n_random=2, by_layer=True)


def test_hiding_keys_is_eager_attention_with_such_a_mask(model, measured):
    """Another program: a mask written out by hand, the library's own weights, plain cross-entropy."""
    table, difference = measured
    assert difference < 1e-4
    losses = table[(table.metric == "loss") & table.layer.isna() & (table.knock_out == "mask")]
    masses = sink_masses(model, PROMPTS, ["mask"], (1, 3)).set_index(["n_keys", "key"]).mass
    for n in (1, 3):
        rows = losses[losses.n_keys == n].set_index("prompt")
        before, after = eager(model)[0], eager(model, hidden=range(n))[0]
        for prompt, clean, masked in zip(PROMPTS, before, after, strict=True):
            assert rows.baseline[prompt.name] == pytest.approx(clean.item(), abs=1e-4)
            assert rows.effect[prompt.name] == pytest.approx((masked - clean).item(), abs=2e-4)
        for hidden, name in ((0, "clean"), (n, "masked")):
            weights = eager(model, hidden=range(hidden))[1][..., SHOWN:, :]
            for key in range(SHOWN):
                expected = weights[..., key].mean().item()
                assert masses[hidden, str(key)] == pytest.approx(expected, abs=1e-5), name
            current = weights.diagonal(SHOWN, -2, -1).mean().item()
            assert masses[hidden, "current"] == pytest.approx(current, abs=1e-5)
        assert (masses[n][[str(key) for key in range(n)]] == 0).all()


def test_the_mean_value_is_that_of_all_prompts_and_positions(model, measured):
    """By hooks on the value projections: the mean they give, then that mean at the first keys."""
    means = mean_values(model, PROMPTS)
    projections = [layer.self_attn.v_proj for layer in model.hf_model.model.layers]
    seen = {}
    handles = [
        module.register_forward_hook(lambda _, __, out, i=i: seen.update({i: out.mean((0, 1))}))
        for i, module in enumerate(projections)
    ]
    eager(model)
    for handle in handles:
        handle.remove()
    for layer, mean in means.items():
        torch.testing.assert_close(mean.flatten(), seen[layer], atol=1e-5, rtol=1e-4)

    def put_in(i):
        def hook(_, __, out):
            out = out.clone()
            out[:, :3] = seen[i]
            return out

        return hook

    handles = [m.register_forward_hook(put_in(i)) for i, m in enumerate(projections)]
    after = eager(model)[0]
    for handle in handles:
        handle.remove()
    table = measured[0]
    rows = table[(table.metric == "loss") & table.layer.isna() & (table.knock_out == "mean_value")]
    rows = rows[rows.n_keys == 3]
    np.testing.assert_allclose(rows.baseline + rows.effect, after, atol=2e-4)


def test_masses_of_uniform_attention_on_paper():
    """Every weight of query q is 1 / (q + 1); with k keys hidden 1 / (q + 1 − k); taken out, k of them
    are nowhere; sent to the current token, it has them."""
    model = tiny()
    with torch.no_grad():
        for layer in model.hf_model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    masses = sink_masses(model, PROMPTS, ["mask", "zero_weight", "to_current"], (2,))
    mass = masses.set_index(["knock_out", "key"]).mass
    queries = np.arange(SHOWN, N)
    each, hidden = (1 / (queries + 1)).mean(), (1 / (queries - 1)).mean()
    for how, first, later, current, nowhere in (
        ("none", each, each, each, 0),
        ("mask", 0, hidden, hidden, 0),
        ("zero_weight", 0, each, each, 2 * each),
        ("to_current", 0, each, 3 * each, 0),
    ):
        for key in range(SHOWN):
            assert mass[how, str(key)] == pytest.approx(first if key < 2 else later, abs=1e-6)
        assert mass[how, "current"] == pytest.approx(current, abs=1e-6)
        assert mass[how, "nowhere"] == pytest.approx(nowhere, abs=1e-6)
        assert mass[how].sum() == pytest.approx(1, abs=1e-6)
        assert "learned sink" not in mass[how]
    # No interval without a difference between prompts.
    np.testing.assert_allclose(masses.ci_low, masses.ci_high, atol=1e-6)


def test_queries_are_behind_all_keys_that_are_taken_away():
    """Ten keys, more than are told apart: queries 8 and 9 would see nothing but these, and keep them."""
    model = tiny()
    with torch.no_grad():
        for layer in model.hf_model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    mass = (
        sink_masses(model, PROMPTS, ["mask"], (10, 1))
        .set_index(["knock_out", "n_keys", "key"])
        .mass
    )
    queries = np.arange(10, N)
    for key in range(SHOWN):
        assert mass["none", 0, str(key)] == pytest.approx((1 / (queries + 1)).mean(), abs=1e-6)
        assert mass["mask", 10, str(key)] == pytest.approx(0, abs=1e-6)
        assert mass["mask", 1, str(key)] == pytest.approx(
            (key > 0) * (1 / queries).mean(), abs=1e-6
        )
    assert mass["mask", 10, "current"] == pytest.approx((1 / (queries - 9)).mean(), abs=1e-6)
    with pytest.raises(InterpError, match="ids-0 has 20 tokens; expected 21 or more"):
        sink_masses(model, PROMPTS, ["mask"], (N,))


def test_without_a_control_the_prompt_need_not_hold_one(model):
    """Effects: a query behind the keys, and a token that it predicts."""
    longest = N - 2
    table, _ = knock_out_sinks(model, text_task(PROMPTS), ["mask"], (longest,), n_random=0)
    losses = eager(model, hidden=range(longest))[0] - eager(model)[0]
    found = table[table.metric == "loss"].set_index("prompt").effect
    np.testing.assert_allclose(found, losses, atol=2e-4)
    assert found.abs().min() > 1e-5
    assert control_keys(PROMPTS, (longest,), 0) == {longest: []}
    with pytest.raises(InterpError, match=r"a query behind the first 19 .* expected at least 21"):
        knock_out_sinks(model, text_task(PROMPTS), ["mask"], (N - 1,), n_random=0)


def test_a_learned_sink_is_counted_and_narrow_windows_are_left_out():
    """gpt-oss: of three layers only the middle one has queries that see the first keys."""
    model = tiny("gpt_oss")
    mass = sink_masses(model, PROMPTS, ["mask"], (1,)).set_index(["knock_out", "key"]).mass
    assert set(mass["none"].index) == set(PLACES)
    with torch.no_grad(), implementation(model.hf_model, "eager"):
        weights = model.hf_model(IDS, output_attentions=True).attentions[1][:, :, SHOWN:]
    assert mass["none", "0"] == pytest.approx(weights[..., 0].mean().item(), abs=1e-5)
    learned = 1 - weights.sum(-1).mean().item()
    assert mass["none", "learned sink"] == pytest.approx(learned, abs=1e-5)
    for how in ("none", "mask"):
        assert mass[how].sum() == pytest.approx(1, abs=1e-5)
    assert mass["mask", "learned sink"] > mass["none", "learned sink"]
    for refuse in (
        lambda narrow: sink_masses(narrow, PROMPTS, ["mask"], (1,)),
        lambda narrow: check_windows(narrow, PROMPTS, (1,)),
    ):
        with pytest.raises(InterpError, match="its windows are narrower"):
            refuse(tiny("mistral"))
    check_windows(model, PROMPTS, (1,))


def test_the_control_is_as_many_other_keys_of_the_first_half(model, measured):
    drawn = control_keys(PROMPTS, (1, 3), 50, seed=1)
    assert drawn == control_keys(PROMPTS, (1, 3), 50, seed=1) != control_keys(PROMPTS, (1, 3), 50)
    for n, sets in drawn.items():
        assert len(sets) == 50 and all(len(set(keys)) == n for keys in sets)
    assert {key for keys in drawn[1] for key in keys} == set(range(3, N // 2))
    # By hand: key 5 hidden by eager attention is what a draw of key 5 gives.
    table = measured[0]
    rows = table[(table.metric == "loss") & table.layer.isna() & (table.knock_out == "mask")]
    rows = rows[rows.n_keys == 1].set_index("prompt")
    effects = []
    for (key,) in control_keys(PROMPTS, (1, 3), 2)[1]:
        mask = torch.full((N, N), -torch.inf).triu(1)
        mask[1:, key] = -torch.inf
        mask[0, 1:] = -torch.inf
        with torch.no_grad(), implementation(model.hf_model, "eager"):
            logits = model.hf_model(IDS, attention_mask=mask.expand(3, 1, N, N)).logits
        losses = -logits[:, :-1].log_softmax(-1).gather(-1, IDS[:, 1:, None])[..., 0].mean(-1)
        effects.append(losses - eager(model)[0])
    np.testing.assert_allclose(rows.control, torch.stack(effects).mean(0), atol=2e-4)


def test_the_summary(measured, tmp_path):
    """Means, signs, what is undefined, and layers that survive being written and read."""
    table, _ = measured
    summary = summarise_sinks(table)
    assert len(summary) == 2 * 4 * len(HOWS) * 2 and (summary.n_prompts == 3).all()
    one = table[(table.knock_out == "to_current") & (table.n_keys == 3) & (table.layer == 1)]
    row = summary[(summary.knock_out == "to_current") & (summary.n_keys == 3)]
    row = row[(row.layer == 1) & (row.metric == "kl")].iloc[0]
    of_kl = one[one.metric == "kl"]
    assert row.effect == pytest.approx(of_kl.effect.mean()) and row.effect > 0
    assert row.control == pytest.approx(of_kl.control.mean()) and row.baseline == 0
    assert np.isnan(row.p) and row.p_control >= 2 * 2**-3
    assert summary[summary.metric == "kl"].p.isna().all()
    assert (table[table.metric == "kl"].effect > -1e-6).all()
    for name in ("table.csv", "table.parquet"):
        tables.write(summary, tmp_path / name)
        pd.testing.assert_frame_equal(tables.read(tmp_path / name), summary)
    assert summary.layer.isna().sum() == 2 * len(HOWS) * 2
    alone, _ = knock_out_sinks(
        tiny(), text_task(PROMPTS), ["to_current"], (3,), n_random=0, by_layer=True
    )
    again = alone[(alone.layer == 1) & (alone.metric == "kl")]
    np.testing.assert_allclose(again.effect, of_kl.effect, atol=1e-5)
    assert summarise_sinks(alone)[["control", "control_low", "p_control"]].isna().all().all()


def test_the_figure_is_the_table(model, measured):
    summary = summarise_sinks(measured[0])
    masses = sink_masses(model, PROMPTS, ["mask", "zero_weight"], (1, 3))
    figure = sink_figure.sinks(summary, masses)
    left, right = figure.axes
    loss = summary[summary.layer.isna() & (summary.metric == "loss")]
    heights = [patch.get_height() for patch in left.patches]
    expected = [
        row.baseline + row.effect for n in (1, 3) for row in loss[loss.n_keys == n].itertuples()
    ]
    np.testing.assert_allclose(heights, expected)
    assert [t.get_text() for t in left.get_xticklabels()] == [h.replace("_", " ") for h in HOWS]
    shown = masses[masses.knock_out.isin(["none", "mask"]) & (masses.key != "nowhere")]
    np.testing.assert_allclose([patch.get_height() for patch in right.patches], shown.mass)
    assert len({to_rgba(patch.get_facecolor()) for patch in right.patches}) == 3
    labels = [text.get_text() for text in right.get_legend().get_texts()]
    assert labels == ["clean", "mask: key 0", "mask: keys 0–2"]
    (other,) = sink_figure.sinks(summary, masses, "zero_weight").axes[1:]
    assert len(other.patches) == 3 * (SHOWN + 3)  # "nowhere" is there now


def test_what_is_refused(model):
    for hows, numbers, message in (
        (["mask", "mask"], (1,), "each once"),
        (["mask"], (0,), "expected numbers of 1 or more"),
        (["mask"], (2, 2), "each once"),
        ([], (1,), "expected some of"),
    ):
        with pytest.raises(InterpError, match=message):
            knock_outs(hows, numbers)
    with pytest.raises(InterpError, match=r"ids-0 has 20 tokens: too few .* expected at least 24"):
        knock_out_sinks(model, text_task(PROMPTS), first_keys=(6,))
    short = prompts_of_ids([[3, 4, 5, 6, 7, 8, 9, 10]])
    with pytest.raises(InterpError, match="has 8 tokens; expected 9 or more"):
        sink_masses(model, short, ["mask"], (1,))
    with pytest.raises(InterpError, match="ids-0 is one token"):
        text_task(prompts_of_ids([[3]]))
    with pytest.raises(InterpError, match="bypasses transformers' attention interface"):
        knock_out_sinks(tiny("falcon"), text_task(PROMPTS), ["mask"], (1,))
