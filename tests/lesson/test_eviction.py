"""Eviction: a mask against a real cache, against eager attention, and against texts read anew."""

import numpy as np
import pandas as pd
import pytest
import torch

from interp.attention.door import implementation
from interp.errors import InterpError
from interp.inputs.prompts import prompts_of_ids, python_docs, text_prompts
from interp.lesson import eviction_effects
from interp.lesson.cache_steps import recomputed_losses, stepped_losses
from interp.lesson.eviction import (
    Policy,
    check_budget,
    masked_losses,
    most_attended,
    policies,
)
from interp.lesson.eviction_effects import (
    by_position,
    cache_against_mask,
    evict,
    evict_by_head,
    per_prompt,
    summarise_evictions,
    summarise_heads,
)
from interp.lesson.eviction_figure import evictions
from interp.models.model import load_model
from interp.results import tables
from interp.results.stats import false_discovery_q
from interp.runs.parts import Parts
from tests.families import tiny_model

N, BUDGET = 22, 7
IDS = torch.tensor([[(7 * i * i + 3 * i + p) % 58 + 3 for i in range(N)] for p in range(3)])
PROMPTS = prompts_of_ids(IDS)
PINS = torch.tensor([[0, 3], [5, 2], [6, 1]])  # of each prompt its own


def tiny(family="llama", **changes):
    return load_model((tiny_model(family, **changes), None))


def cached(pinned, t):
    """What a cache that lives through the text holds when token t comes: a list, and nothing else."""
    held = []
    for token in range(t):
        held.append(token)
        if len(held) > BUDGET:
            held.remove(next(one for one in held if one not in pinned))
    return held


def eager(model, seen):
    """Losses by the library's own attention under a mask (prompt, head or 1, query, key) of our own."""
    mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    with torch.no_grad(), implementation(model.hf_model, "eager"):
        logits = model.hf_model(IDS, attention_mask=mask).logits
    return -logits[:, :-1].log_softmax(-1).gather(-1, IDS[:, 1:, None])[..., 0]


def written_out(pins):
    seen = torch.zeros(len(IDS), 1, N, N, dtype=torch.bool)
    for row, pinned in enumerate(pins.tolist()):
        for t in range(N):
            seen[row, 0, t, [*cached(pinned, t), t]] = True
    return seen


@pytest.fixture(scope="module")
def model():
    return tiny()


@pytest.mark.parametrize("pins", [PINS, PINS[:, :0], torch.tensor([[0], [1], [6]])])
def test_the_mask_is_that_of_a_cache_that_is_lived_through(pins):
    batch, t, s = (torch.arange(n) for n in (len(IDS), N, N))
    index = batch[:, None, None, None], torch.tensor(0), t[:, None], s
    seen = Policy("x", pins).seen(N, BUDGET)(*index) & (s <= t[:, None])
    assert seen.expand(len(IDS), 1, N, N).equal(written_out(pins))
    assert seen[:, 0, BUDGET + 1 :].sum(-1).unique().tolist() == [BUDGET + 1]  # and itself


def test_the_masked_pass_is_eager_attention_with_such_a_mask(model):
    losses = masked_losses(model, PROMPTS, Policy("x", PINS), BUDGET)
    np.testing.assert_allclose(losses[:, 1:], eager(model, written_out(PINS)), atol=1e-4)
    assert np.isnan(losses[:, 0]).all()
    whole = masked_losses(model, PROMPTS, None, BUDGET)
    np.testing.assert_allclose(losses[:, : BUDGET + 2], whole[:, : BUDGET + 2], atol=1e-4)
    assert np.abs(losses - whole)[:, BUDGET + 2 :].max() > 0.1


@pytest.mark.parametrize("layer", range(3))
def test_one_head_alone(model, layer):
    """Eager attention in which this layer alone has another mask, and that for one head only."""
    oldest = PINS[:, :0]
    rows, difference = evict_by_head(model, PROMPTS, Policy("oldest", oldest), BUDGET)
    assert len(rows) == 3 * 4 * len(PROMPTS) and difference < 1e-4
    causal = torch.ones(N, N, dtype=torch.bool).tril().expand(len(IDS), 4, N, N).clone()
    before = eager(model, causal)[:, N // 2 - 1 :].mean(1)
    for head in range(4):
        seen = causal.clone()
        seen[:, head : head + 1] = written_out(oldest)
        mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)

        def narrow(module, args, kwargs, mask=mask):
            return args, kwargs | {"attention_mask": mask}

        attention = model.hf_model.model.layers[layer].self_attn
        with attention.register_forward_pre_hook(narrow, with_kwargs=True):
            after = eager(model, causal)[:, N // 2 - 1 :].mean(1)
        row = rows[(rows.layer == layer) & (rows["head"] == head)].set_index("prompt")
        assert row.index.tolist() == [prompt.name for prompt in PROMPTS]
        np.testing.assert_allclose(row.effect, after - before, atol=1e-4)
        np.testing.assert_allclose(row.baseline, before, atol=1e-4)
        assert row.effect.abs().max() > 1e-3


def test_head_by_head_goes_on_where_it_was_stopped(model, tmp_path):
    oldest = Policy("oldest", PINS[:, :0])
    whole, _ = evict_by_head(model, PROMPTS, oldest, BUDGET)

    def stop(n):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evict_by_head(model, PROMPTS, oldest, BUDGET, parts=Parts(tmp_path, ["x"]), progress=stop)
    kept = Parts(tmp_path, ["x"])
    rows, _ = evict_by_head(model, PROMPTS, oldest, BUDGET, parts=kept)
    assert kept.n_loaded and rows.equals(whole)


def test_a_head_that_writes_nothing_can_lose_nothing():
    one = tiny(num_hidden_layers=1)
    with torch.no_grad():
        one.hf_model.model.layers[0].self_attn.o_proj.weight[:, 30:] = 0
    rows, _ = evict_by_head(one, PROMPTS, Policy("oldest", PINS[:, :0]), BUDGET)
    effect = rows.groupby("head").effect.apply(lambda values: values.abs().max())
    assert effect[3] == 0 and (effect[:3] > 1e-3).all()


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gpt2", "qwen3", "deepseek_v3", "smollm3"])
def test_a_real_cache_and_the_mask_agree(family):
    """Two programs: transformers' cache with tokens thrown out of it, and our mask at the door."""
    model = tiny(family)
    for pins in (PINS, PINS[:, :0]):
        assert cache_against_mask(model, PROMPTS, Policy("x", pins), BUDGET) < 1e-4


def test_where_they_do_not_agree_it_is_said(model, monkeypatch):
    monkeypatch.setattr("interp.lesson.eviction_effects.AGREES", {torch.float32: 0.0})
    with pytest.raises(InterpError, match=r"differ by .* nats, expected at most 0"):
        cache_against_mask(model, PROMPTS, Policy("x", PINS), BUDGET)


# With one layer, keys and values know of no other token: what is left of the text, read as a text of its
# own, is what a re-indexed cache holds.


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
@pytest.mark.parametrize("n_pinned", [0, 2])
def test_reindexed_is_what_is_left_read_as_a_text_of_its_own(family, n_pinned):
    model = tiny(family, num_hidden_layers=1)
    pins = PINS[:, :n_pinned]
    losses, again = stepped_losses(model, PROMPTS, [Policy("x", pins)] * 2, BUDGET, "reindexed")
    np.testing.assert_allclose(losses, again, atol=1e-5)  # side by side
    for row, pinned in enumerate(pins.tolist()):
        for t in (BUDGET - 1, BUDGET + 3, N - 2):
            left = IDS[row, [*cached(pinned, t), t]][None]
            with torch.no_grad():
                logits = model.hf_model(left).logits[0, -1]
            expected = -logits.log_softmax(-1)[IDS[row, t + 1]].item()
            assert losses[row, t + 1] == pytest.approx(expected, abs=1e-4)
    recomputed = recomputed_losses(model, PROMPTS, BUDGET, 3)
    assert np.isnan(recomputed[:, :3]).all()
    if not n_pinned:
        np.testing.assert_allclose(recomputed[:, 3:], losses[:, 3:], atol=1e-4)


def test_reindexed_with_nothing_pinned_is_kept_and_with_pins_is_not(model):
    """Rotary embeddings know distances only, and those within a window are the same."""
    nothing, pinned = Policy("oldest", PINS[:, :0]), Policy("x", PINS)
    kept, kept_pinned = stepped_losses(model, PROMPTS, [nothing, pinned], BUDGET, "kept")
    moved, moved_pinned = stepped_losses(model, PROMPTS, [nothing, pinned], BUDGET, "reindexed")
    np.testing.assert_allclose(moved, kept, atol=1e-4)
    assert np.nanmax(np.abs(moved_pinned - kept_pinned)) > 0.01


def test_recomputed_is_a_plain_pass_over_a_window():
    model = tiny("gpt2")
    losses = recomputed_losses(model, PROMPTS, BUDGET, N // 2)
    with torch.no_grad():
        logits = model.hf_model(IDS[:, N - 2 - BUDGET : N - 1]).logits[:, -1]
    expected = -logits.log_softmax(-1).gather(-1, IDS[:, -1:])[:, 0]
    np.testing.assert_allclose(losses[:, -1], expected, atol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "opt", "smollm3", "gptj"])
def test_positions_that_do_not_turn_are_refused(family):
    """Learned positions, layers without any, and another kind of rotary embedding."""
    with pytest.raises(InterpError, match=r"can't be moved to other positions.*positions="):
        stepped_losses(tiny(family), PROMPTS, [Policy("x", PINS)], BUDGET, "reindexed")


def test_a_cache_that_evicts_by_itself_is_refused_and_its_mask_is_not():
    model = tiny("mistral")
    with pytest.raises(InterpError, match=r"layer 0: its cache .* does not hold the keys of all"):
        stepped_losses(model, PROMPTS, [Policy("x", PINS)], BUDGET)
    sees_less = masked_losses(model, PROMPTS, Policy("x", PINS[:, :0]), 3)
    assert np.nanmax(np.abs(sees_less - masked_losses(model, PROMPTS, None, 3))) > 0.01


# --- what is pinned ------------------------------------------------------------------------------


def test_the_most_attended_by_eager_attention(model):
    with torch.no_grad(), implementation(model.hf_model, "eager"):
        out = model.hf_model(IDS[:, :12], output_attentions=True)
    weights = torch.stack(out.attentions).mean((0, 2))  # (prompt, query, key)
    means = torch.tensor(
        [[one[key + 1 :, key].mean() for key in range(9)] for one in weights]  # 3 of 12 come after
    )
    found = most_attended(model, PROMPTS, 4, 12)
    assert found.tolist() == means.argsort(descending=True)[:, :4].tolist()


def test_of_uniform_attention_the_first_tokens_are_the_most_attended():
    model = tiny()
    with torch.no_grad():
        for layer in model.hf_model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    assert most_attended(model, PROMPTS, 3, BUDGET + 3).tolist() == [[0, 1, 2]] * 3


def test_random_pins_are_others_than_the_first_and_drawn_by_seed(model):
    found, again, other = (
        policies(model, PROMPTS, ["first", "random"], [1, 3], BUDGET, seed=seed)
        for seed in (0, 0, 1)
    )
    assert [(one.name, one.n_pinned) for one in found] == [
        ("oldest", 0), ("first", 1), ("first", 3), ("random", 1), ("random", 3),
    ]  # fmt: skip
    assert found[2].pinned.tolist() == [[0, 1, 2]] * 3
    random = found[4].pinned
    assert ((random >= 3) & (random < BUDGET)).all()
    assert all(len(set(row)) == 3 for row in random.tolist())
    assert random.equal(again[4].pinned) and not random.equal(other[4].pinned)
    assert found[3].pinned.equal(random[:, :1])


@pytest.mark.parametrize(
    ("budget", "pins", "message"),
    [
        (N - 2, [1], "budget=20: expected 1 to 19 for texts of 22 tokens"),
        (0, [1], "budget=0"),
        (4, [1, 5], r"pins=\[1, 5\]: expected numbers from 1 to the budget, 4"),
        (4, [0], r"pins=\[0\]"),
    ],
)
def test_budgets_and_pins_that_do_not_fit(model, budget, pins, message):
    with pytest.raises(InterpError, match=message):
        policies(model, PROMPTS, ["first"], pins, budget)


def test_the_largest_budget_still_costs_something(model):
    whole, evicted = (
        masked_losses(model, PROMPTS, policy, N - 3)
        for policy in (None, Policy("oldest", PINS[:, :0]))
    )
    assert (np.abs(evicted - whole)[:, -1] > 1e-4).all()
    np.testing.assert_allclose(evicted[:, :-1], whole[:, :-1], atol=1e-4)


def test_what_else_is_refused(model):
    with pytest.raises(InterpError, match="texts of 5 to 22 tokens: expected all of one length"):
        check_budget(prompts_of_ids([IDS[0].tolist(), IDS[1, :5].tolist()]), 3, [])
    with pytest.raises(InterpError, match="texts of 3 tokens: expected 4 or more"):
        check_budget(prompts_of_ids([[3, 4, 5]]), 1, [])
    with pytest.raises(InterpError, match=r"no room for 4 others than the first 4.*at least 8"):
        policies(model, PROMPTS, ["random"], [4], BUDGET)
    with pytest.raises(InterpError, match="attended pins: 5 of the first 7 tokens"):
        policies(model, PROMPTS, ["attended"], [7], BUDGET)
    with pytest.raises(
        InterpError, match=r"Falcon.* does not take its attention from transformers"
    ):
        policies(tiny("falcon"), PROMPTS, ["attended"], [2], BUDGET)


def test_a_model_that_can_not_do_all_is_refused_before_anything_is_measured(monkeypatch):
    def fail(*args, **options):
        raise AssertionError("measured")

    monkeypatch.setattr(eviction_effects, "masked_losses", fail)
    for family, message in (
        ("gpt2", "take positions"),
        ("mistral", "positions=.kept. n_checked=0"),
    ):
        model = tiny(family)
        with pytest.raises(InterpError, match=message):
            evict(model, PROMPTS, policies(model, PROMPTS, [], [1], BUDGET), BUDGET)


# --- tables --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def losses(model):
    return evict(model, PROMPTS, policies(model, PROMPTS, ["first"], [2], BUDGET), BUDGET)


def test_the_summary_holds_every_policy_against_a_cache_that_keeps_all(model, losses):
    rows = per_prompt(model, PROMPTS, losses)
    table = summarise_evictions(rows).set_index(["policy", "positions"])
    assert [*table.index] == [
        ("all", "kept"), ("oldest", "kept"), ("first", "kept"),
        ("oldest", "reindexed"), ("first", "reindexed"), ("oldest", "recomputed"),
    ]  # fmt: skip
    whole = table.loc[("all", "kept")]
    assert whole.effect == 0 and np.isnan(whole.p)
    for one in losses:
        row = table.loc[(one.name["policy"], one.name["positions"])]
        mean = one.values[:, N // 2 :].mean()
        assert (row.loss, row.effect) == pytest.approx((mean, mean - whole.loss))
        assert row.perplexity == pytest.approx(np.exp(mean))
        assert (row.n_scored, row.n_prompts) == (3 * (N - N // 2), 3)
    assert table.q.dropna().ge(table.p.dropna()).all()
    stricter = summarise_evictions(rows, correction="by").set_index(["policy", "positions"])
    np.testing.assert_allclose(
        stricter.q, false_discovery_q(table.p.to_numpy(), "by"), equal_nan=True
    )
    assert (stricter.q > table.q).any()


def test_the_loss_by_position(model, losses):
    table = by_position(model, losses)
    counts = table.groupby(["policy", "positions"]).position.agg(["min", "count"])
    assert counts.loc[("all", "kept")].tolist() == [1, N - 1]
    assert counts.loc[("oldest", "recomputed")].tolist() == [N // 2, N - N // 2]
    row = table[(table.policy == "first") & (table.positions == "kept") & (table.position == 15)]
    assert row.loss.item() == pytest.approx(losses[2].values[:, 15].mean())
    assert row.ci_low.item() < row.loss.item() < row.ci_high.item()


def test_sinks_and_evictions_on_paper(tmp_path, model, losses):
    """Mass and effect in the same order: 1; the figure draws what was written."""
    mass = [0.1, 0.7, 0.4]
    rows = pd.DataFrame(
        [
            {
                "model": "m", "layer": 0, "head": head, "prompt": f"p{i}",
                "sink_mass": mass[head] + 0.01 * i, "effect": mass[head] ** 2 + 0.001 * i,
                "baseline": 2.0,
            }
            for head in range(3)
            for i in range(4)
        ]
    )  # fmt: skip
    heads, agreement = summarise_heads(rows)
    assert heads["head"].tolist() == [1, 2, 0]
    by, _ = summarise_heads(rows, correction="by")
    np.testing.assert_allclose(heads.q, 1 / 8)  # two-sided, four texts, all heads alike
    np.testing.assert_allclose(by.q, (1 + 1 / 2 + 1 / 3) / 8)
    assert heads.effect[0] == pytest.approx(0.49 + 0.0015)
    one = agreement.iloc[0]
    assert (one.spearman, one.ci_low, one.ci_high, one.n_heads, one.n_prompts) == (1, 1, 1, 3, 4)
    rows["effect"] = -rows.sink_mass
    assert summarise_heads(rows)[1].spearman[0] == -1
    tables.write(heads, tmp_path / "heads.csv")
    saved = tables.read(tmp_path / "heads.csv")
    summary = summarise_evictions(per_prompt(model, PROMPTS, losses))
    along = by_position(model, losses)
    figure = evictions(summary, along, saved)
    left, middle, right = figure.axes
    labels = [text.get_text() for text in left.get_legend().get_texts()]
    assert labels == ["nothing pinned", "first 2 pinned", "recomputed"]
    assert [text.get_text() for text in middle.get_yticklabels()] == labels[:2]
    unkept = [
        table[table.positions.ne("kept") | table.policy.eq("all")] for table in (summary, along)
    ]
    left = evictions(*unkept).axes[0]
    labels = [text.get_text() for text in left.get_legend().get_texts()]
    assert labels == ["nothing pinned, reindexed", "first 2 pinned, reindexed", "recomputed"]
    drawn = right.containers[0].lines[0].get_xydata()
    np.testing.assert_allclose(drawn, heads[["sink_mass", "effect"]])


@pytest.mark.smollm2
def test_the_first_token_must_stay_in_a_real_model(smollm2_model):
    """Python's documentation, 512 tokens: what a window of 128 loses is little if the first token stays."""
    model = smollm2_model
    prompts = text_prompts(model, python_docs(), n_prompts=1, length=512)
    oldest, first = policies(model, prompts, ["first"], [1], 128)
    whole, lost, pinned = (
        np.exp(masked_losses(model, prompts, policy, 128)[:, 256:].mean())
        for policy in (None, oldest, first)
    )
    assert 5 < whole < 20
    assert lost > 1.6 * whole and pinned - whole < (lost - whole) / 3
