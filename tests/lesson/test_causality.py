"""The causal mask: exact zeros for every family, what the mask being off shows, and one pass against many."""

import numpy as np
import pytest
import torch

from interp.attention.door import implementation
from interp.errors import InterpError
from interp.inputs.prompts import prompts_of_ids, python_docs, text_prompts
from interp.lesson import causality, figures, losses
from interp.lesson.causality import change_the_future, one_pass_or_many
from interp.models.model import load_model
from tests.families import tiny_model

IDS = torch.tensor([[(7 * i * i + 3 * i + p) % 58 + 3 for i in range(20)] for p in range(3)])
PROMPTS = prompts_of_ids(IDS)
N = IDS.shape[1]


def tiny(family="llama"):
    return load_model((tiny_model(family), None))


@pytest.fixture(scope="module")
def changed():
    return change_the_future(tiny(), PROMPTS, 3)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "gpt_oss", "deepseek_v3"])
def test_the_past_stays_as_it_was_to_the_bit(family):
    """And the future changes; without the mask the past changes too, in every family."""
    cuts, positions = change_the_future(tiny(family), PROMPTS, 2)
    own, none = (
        cuts[cuts["mask"] == name].set_index(["last_kept", "side"]) for name in ("own", "none")
    )
    assert own.index.get_level_values(0).unique().tolist() == [6, 12]
    for cut in (6, 12):
        assert own.difference[cut, "kept"] == 0 and own.kl[cut, "kept"] == 0
        assert own.difference[cut, "changed"] > 0.1 and own.ci_low[cut, "changed"] > 0
        assert none.difference[cut, "kept"] > 0.01 and none.ci_low[cut, "kept"] > 0
        rows = positions[(positions["mask"] == "own") & (positions.last_kept == cut)]
        assert (rows.difference > 0).tolist() == [position > cut for position in range(N)]


def test_it_is_what_the_librarys_own_attention_gives(changed):
    """With the tokens drawn again and eager attention: KL and difference at every position."""
    model = tiny()
    others = causality._other_tokens(model, PROMPTS, 0)
    assert (others != IDS).all()
    cuts, positions = changed
    cut = int(positions.last_kept.unique()[1])
    after_ids = torch.cat([IDS[:, : cut + 1], others[:, cut + 1 :]], dim=1)
    full = torch.zeros(3, 1, N, N)
    with torch.no_grad(), implementation(model.hf_model, "eager"):
        for name, masks in (("own", {}), ("none", {"attention_mask": full})):
            before, after = (model.hf_model(ids, **masks).logits for ids in (IDS, after_ids))
            rows = positions[(positions["mask"] == name) & (positions.last_kept == cut)]
            largest = (after - before).abs().amax((0, 2))
            np.testing.assert_allclose(rows.difference, largest, atol=1e-4)
            log_p, log_q = before.log_softmax(-1), after.log_softmax(-1)
            kl = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1)
            np.testing.assert_allclose(rows.kl, kl.mean(0), atol=1e-4)
            row = cuts[(cuts["mask"] == name) & (cuts.last_kept == cut) & (cuts.side == "changed")]
            assert row.kl.item() == pytest.approx(kl[:, cut + 1 :].mean().item(), abs=1e-4)
            assert row.n_positions.item() == 3 * (N - 1 - cut)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma3_text", "deepseek_v3"])
def test_one_pass_gives_what_a_pass_a_prefix_gives(family):
    model = tiny(family)
    table = one_pass_or_many(model, PROMPTS)
    assert len(table) == 3 * N and (table.difference < 1e-4).all() and table.same_top.all()
    np.testing.assert_allclose(table.loss, table.loss_alone, atol=1e-4)
    with torch.no_grad():
        logits = model.hf_model(IDS).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(logits.mT, IDS[:, 1:], reduction="none")
    wide = table.pivot(index="prompt", columns="position", values="loss").loc[
        [p.name for p in PROMPTS]
    ]
    np.testing.assert_allclose(wide.iloc[:, :-1], losses, atol=1e-4)
    assert wide.iloc[:, -1].isna().all()


def test_a_model_that_sees_the_future_fails(monkeypatch):
    """Were the mask not causal, both numbers would say so."""
    model = tiny()
    monkeypatch.setattr(causality, "MASKS", ("none",))
    cuts, _ = change_the_future(model, PROMPTS, 1)
    assert (cuts.difference > 0.01).all()
    real = causality._all_logits
    monkeypatch.setattr(causality, "_all_logits", lambda m, ids, mask, e: real(m, ids, "none", e))
    table = one_pass_or_many(model, PROMPTS)
    assert (table.difference[table.position < N - 1] > 1e-3).all()


def test_batches_make_no_difference(changed, monkeypatch):
    monkeypatch.setattr(losses, "LOGITS", 1)
    again, _ = change_the_future(tiny(), PROMPTS, 3)
    np.testing.assert_allclose(again.difference, changed[0].difference, atol=1e-4)
    np.testing.assert_allclose(again.kl, changed[0].kl, atol=1e-4)


def test_the_figure_is_the_tables(changed):
    prefixes = one_pass_or_many(tiny(), PROMPTS[:1])
    left, middle, right = figures.causality(changed[1], prefixes).axes
    for axis, name in ((left, "own"), (middle, "none")):
        rows = changed[1][changed[1]["mask"] == name]
        lines = [line for line in axis.lines if len(line.get_xdata()) == N]
        drawn = np.concatenate([line.get_ydata() for line in lines])
        np.testing.assert_allclose(drawn, rows.kl)
    np.testing.assert_allclose(right.lines[0].get_ydata(), prefixes.difference)


def test_what_is_refused():
    model = tiny()
    with pytest.raises(InterpError, match="n_cuts=20: expected 1 to 19 for prompts of 20 tokens"):
        change_the_future(model, PROMPTS, 20)
    mixed = prompts_of_ids([[3, 4, 5], [6, 7]])
    for call in (change_the_future, one_pass_or_many):
        with pytest.raises(
            InterpError, match="prompts of 2 to 3 tokens: expected all of one length"
        ):
            call(model, mixed)
        with pytest.raises(InterpError, match=r"prompts of 1 to 1 tokens: expected .* 2 or more"):
            call(model, prompts_of_ids([[3]]))


@pytest.mark.smollm2
def test_a_trained_model(smollm2_model):
    prompts = text_prompts(smollm2_model, python_docs(), n_prompts=2, length=24)
    cuts, _ = change_the_future(smollm2_model, prompts, 1)
    rows = cuts.set_index(["mask", "side"])
    assert rows.difference["own", "kept"] == 0 and rows.kl["own", "changed"] > 1
    assert rows.kl["none", "kept"] > 0.1
    table = one_pass_or_many(smollm2_model, prompts)
    assert (table.difference < 1e-3).all() and table.same_top.all()
