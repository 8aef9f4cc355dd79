"""Nulls: against eager attention, weights drawn by hand, and heads known to find what they look for."""

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from interp.attention.door import implementation
from interp.errors import InterpError
from interp.inputs.prompts import prompts_of_ids, repeated_random_prompts
from interp.models.model import load_model
from interp.results import tables
from interp.scoring.nulls import ANEW, SAME, score_nulls, shuffled, untrained
from interp.scoring.roles import NO_REPEAT, ROLES
from interp.scoring.scores import score_heads
from tests.families import tiny_model

IDS = [[1, *row, *row] for row in ([5, 9, 13, 40, 21], [8, 30, 31, 2, 17], [50, 4, 3, 60, 22])]
PROMPTS = prompts_of_ids(IDS, bos_id=1)


@pytest.fixture(scope="module")
def tiny():
    return load_model((tiny_model("llama"), None))


@pytest.fixture(scope="module")
def default():
    """The default model, its scores on repeated random tokens, and the nulls."""
    model = load_model("default")
    prompts = repeated_random_prompts(model, n_prompts=6, periods=[30])
    scores = score_heads(model, prompts)
    return model, prompts, scores, score_nulls(model, prompts, ROLES, scores)


def test_shuffled_tokens_are_the_same_in_another_order():
    found = shuffled(PROMPTS, seed=3)
    for one, prompt in zip(found, PROMPTS, strict=True):
        assert sorted(one.ids) == sorted(prompt.ids) and one.ids != prompt.ids
        assert (one.ids[0], one.name, one.text) == (1, prompt.name, None)
    assert found == shuffled(PROMPTS, seed=3) != shuffled(PROMPTS, seed=4)
    orders = [np.argsort(one.ids[1:], kind="stable").tolist() for one in found]
    assert orders[0] != orders[1]
    (free,) = shuffled(prompts_of_ids([[1, 2, 3, 4, 5, 6, 7, 8]]))  # no BOS: all may move
    assert free.ids[0] != 1 and sorted(free.ids) == list(range(1, 9))


@pytest.mark.parametrize("family", ["gpt2", "gpt_oss", "deepseek_v3", "falcon"])
def test_untrained_weights_are_those_of_the_architecture(family):
    """As a fresh model of that config draws them; the model itself and the global generator stay."""
    model = load_model((tiny_model(family, dtype="float32"), None))
    before, state = model.weight_hash, torch.get_rng_state()
    found = untrained(model, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert load_model((model.hf_model, None)).weight_hash == before != found.weight_hash
    with torch.random.fork_rng():
        torch.manual_seed(5)
        fresh = AutoModelForCausalLM.from_config(model.hf_model.config)
    assert load_model((fresh, None)).weight_hash == found.weight_hash
    assert found.weight_hash == untrained(model, 5).weight_hash != untrained(model, 6).weight_hash
    assert (found.architecture, found.n_heads, found.dtype) == (
        model.architecture,
        model.n_heads,
        model.dtype,
    )
    assert not found.hf_model.training and "untrained" in found.name


def test_shuffled_masses_are_those_of_eager_attention_where_the_targets_were(tiny):
    """Another program: the shuffled ids through the library's own attention; induction's targets by hand."""
    scores = score_heads(tiny, PROMPTS, ["induction"])
    table = score_nulls(tiny, PROMPTS, ["induction"], scores, ["shuffled"], seed=2)
    table = table.set_index(["layer", "head"])
    ids = torch.tensor([prompt.ids for prompt in shuffled(PROMPTS, seed=2)])
    with torch.no_grad(), implementation(tiny.hf_model, "eager"):
        weights = torch.stack(tiny.hf_model(ids, output_attentions=True).attentions)
    queries = torch.arange(
        6, 11
    )  # of the second copy of 5 tokens; the token after the first copy: q − 4
    expected = weights[..., queries, queries - 4].mean(-1).mean(1)  # (layer, head)
    for (layer, head), row in table.iterrows():
        assert row.null_mass == pytest.approx(expected[layer, head].item(), abs=1e-6)
        assert row.mass != pytest.approx(row.null_mass, abs=1e-3)
    assert (table.n_prompts == 3).all() and (table.null_low <= table.null_mass).all()


def test_random_init_masses_are_the_scores_of_such_a_model(tiny):
    """And the interval is that over prompts; every role has one, found anew or not."""
    scores = score_heads(tiny, PROMPTS)
    table = score_nulls(tiny, PROMPTS, ROLES, scores, ["random_init"], seed=4, confidence=0.8)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        fresh = AutoModelForCausalLM.from_config(tiny.hf_model.config)
    other = score_heads(load_model((fresh, None)), PROMPTS, confidence=0.8, seed=4).summary
    keys = ["role", "layer", "head"]
    both = table.merge(other, on=keys, suffixes=("", "_other"))
    assert len(both) == len(table) == len(scores.summary)
    for one, two in (("null_mass", "mass_other"), ("null_low", "ci_low"), ("null_high", "ci_high")):
        np.testing.assert_allclose(both[one], both[two])
    assert table.null_mass.notna().all()
    pd.testing.assert_series_equal(table.mass, scores.summary.mass)


@pytest.mark.parametrize("null", ["random_init", "shuffled"])
def test_a_head_is_held_against_all_heads_of_the_null(default, null):
    *_, table = default
    rows = table[(table.null == null) & table.null_mass.notna()]
    assert len(rows)
    for _, of_role in rows.groupby("role"):
        masses = of_role.null_mass.to_numpy()
        expected = [(masses >= mass).mean() for mass in of_role.mass]
        np.testing.assert_allclose(of_role.share_as_large, expected)
        assert (of_role.null_largest == masses.max()).all() and (of_role.n_heads == 24).all()
    assert {0.0, 1.0} <= set(rows.share_as_large)  # untrained heads are all alike, at chance
    assert null == "random_init" or rows.share_as_large.between(0.01, 0.99).any()


def test_trained_heads_stand_out_and_only_what_follows_tokens_falls(default):
    """Induction in the default model: 0.9; chance, 0.02, untrained, and 0.04 where the targets were before
    shuffling. With the targets of the shuffled prompts themselves it is found all the same: no null."""
    model, prompts, scores, table = default
    best = table.groupby(["null", "role"], sort=False).head(1).set_index(["null", "role"])
    chance = scores.summary.groupby("role").chance.first()
    for null in ("random_init", "shuffled"):
        row = best.loc[null, "induction"]
        assert row.mass > 0.85 and row.share_as_large == 0
        assert row.null_mass == pytest.approx(chance["induction"], abs=0.025)
        assert row.null_low <= row.null_mass <= row.null_high
    itself = score_heads(model, shuffled(prompts), ["induction"]).summary
    assert itself.mass.iloc[0] > 0.8
    # A head that rests on position 0 until something repeats does so wherever it is new.
    fresh = best.loc["shuffled", "sink_fresh"]
    assert fresh.mass > 0.95 and 0.1 < fresh.null_mass < 0.5


def test_where_there_is_no_such_null_it_says_so(default):
    model, _, _, table = default
    rows = table[table.null == "shuffled"]
    undefined = rows[rows.null_mass.isna()].groupby("role").undefined_reason.unique()
    assert undefined.to_dict() == {
        role: [SAME] for role in ("sink_first", "sink_bos", "previous_token", "current_token")
    } | {"sink_any": [ANEW]}
    assert rows[rows.null_mass.isna()][["null_largest", "share_as_large"]].isna().all().all()
    assert (rows[rows.null_mass.isna()].n_heads == 0).all()
    # Without repeats there is nothing to look for, in any order.
    plain = prompts_of_ids([[1, 5, 9, 13, 40, 21]], bos_id=1)
    scores = score_heads(model, plain, ["induction"])
    for _, row in score_nulls(model, plain, ["induction"], scores).iterrows():
        assert np.isnan([row.mass, row.null_mass, row.share_as_large]).all()
        assert row.undefined_reason == NO_REPEAT


def test_it_reads_back_as_it_was(default, tmp_path):
    *_, table = default
    tables.write(table, tmp_path / "nulls.csv")
    pd.testing.assert_frame_equal(tables.read(tmp_path / "nulls.csv"), table)


def test_what_is_refused(tiny):
    scores = score_heads(tiny, PROMPTS, ["induction"])
    for nulls in ([], ["shuffled", "shuffled"], ["suffled"]):
        with pytest.raises(InterpError, match="expected some of random_init, shuffled, each once"):
            score_nulls(tiny, PROMPTS, ["induction"], scores, nulls)
