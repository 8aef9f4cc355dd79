"""Scores against patterns whose answer can be worked out on paper, and against other programs."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import interp
from interp.attention.door import implementation
from interp.attention.masks import IndexMask, causal, sliding
from interp.attention.pattern import DensePattern
from interp.errors import InterpError
from interp.inputs.prompts import Prompt, prompts_of_ids
from interp.models.forward import capture
from interp.models.model import load_model
from interp.scoring.roles import ROLES, AnySink, find_roles, role, sink_first_k
from interp.scoring.scores import score_heads, score_pattern
from interp.scoring.sink_rate import alphas, rate_table, sink_rate
from tests.families import tiny_model

F_IDS = [1, 5, 9, 13, 17, 21, 25, 29, 33, 37]
F_REP = [1, 5, 9, 13, 17, 5, 9, 13, 17]


def pattern_of(n: int, looks_at, heads: int = 1, window: int | None = None) -> DensePattern:
    """Query q puts all its weight on key ``looks_at(q)``, or spreads it over a list of keys."""
    weights = torch.zeros(1, heads, n, n)
    for query in range(n):
        keys = looks_at(query)
        keys = keys if isinstance(keys, list) else [keys]
        for key in keys:
            weights[:, :, query, key] += 1 / len(keys)
    return DensePattern(weights, IndexMask(causal if window is None else sliding(window), 1, n, n))


def uniform(n: int, window: int | None = None) -> DensePattern:
    reach = n if window is None else window
    return pattern_of(n, lambda q: list(range(max(0, q - reach + 1), q + 1)), window=window)


def one(pattern, ids, name, bos=None) -> pd.Series:
    prompt = Prompt(tuple(ids), "p", bos)
    return score_pattern(pattern, [prompt], find_roles([name])).iloc[0]


@pytest.mark.parametrize(
    "name, looks_at",
    [
        ("sink_first", lambda q: 0),
        ("sink_first_k", lambda q: min(q, 3)),
        ("previous_token", lambda q: max(0, q - 1)),
        ("current_token", lambda q: q),
        ("duplicate_token", lambda q: q - 4 if q > 4 else 0),
        ("induction", lambda q: q - 3 if q > 4 else 0),
        ("induction_last", lambda q: q - 3 if q > 4 else 0),
        ("sink_any", lambda q: min(q, 2)),
        ("sink_bos", lambda q: 0),
    ],
)
def test_planted_heads_score_one_and_only_for_their_role(name, looks_at):
    """A head planted for a role scores 1 for it, and the null is 0."""
    found = one(pattern_of(9, looks_at), F_REP, name, bos=1)
    assert found.mass == pytest.approx(1.0)
    assert found.null == pytest.approx(0.0)
    assert found.n_queries > 0
    if name == "sink_any":
        assert found.position == 2


@pytest.mark.parametrize("name", ["previous_token", "current_token", "induction"])
def test_a_pure_sink_scores_zero_elsewhere_and_its_rest_is_undefined(name):
    found = one(pattern_of(9, lambda q: 0), F_REP, name)
    expected = 1 / 8 if name == "previous_token" else 0  # query 1's previous token is the sink
    assert found.mass == pytest.approx(expected)
    assert math.isnan(found.mass_off_sink)


@pytest.mark.parametrize("name", [*ROLES, "sink_first_k"])
@pytest.mark.parametrize("window", [None, 6])
def test_uniform_attention_scores_chance(name, window):
    """The uniform oracle: mass, chance and null are one number where each query has one target."""
    found = one(uniform(9, window), F_REP, name, bos=1)
    if found.n_queries == 0:
        assert window and name in ("sink_any",)
        return
    assert found.mass == pytest.approx(found.chance, abs=1e-6)
    if name not in ("sink_any",):
        assert found.chance > 0


def test_chance_by_hand():
    """previous_token over n = 4: queries 1, 2, 3 see 2, 3, 4 keys."""
    found = one(uniform(4), [1, 5, 9, 13], "previous_token")
    assert found.chance == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    assert found.n_queries == 3


def test_two_heads_by_hand_are_never_averaged():
    """C45: last rows .9 .05 .05 and .1 .45 .45; per-head scores stay apart."""
    weights = torch.zeros(1, 2, 3, 3)
    weights[:, :, 0, 0] = 1
    weights[:, :, 1, :2] = torch.tensor([0.5, 0.5])
    weights[0, 0, 2] = torch.tensor([0.9, 0.05, 0.05])
    weights[0, 1, 2] = torch.tensor([0.1, 0.45, 0.45])
    pattern = DensePattern(weights, IndexMask(causal, 1, 3, 3))
    found = score_pattern(pattern, [Prompt((5, 6, 7), "p")], find_roles(["sink_first"]))
    assert found.mass.tolist() == pytest.approx([(0.5 + 0.9) / 2, (0.5 + 0.1) / 2])


def test_bos_in_the_middle_of_packed_text():
    """C06: position 0 draws 2/5; any earlier BOS draws everything."""
    pattern = pattern_of(6, lambda q: 3 if q >= 3 else 0)
    ids = [1, 5, 9, 1, 13, 17]
    assert one(pattern, ids, "sink_first").mass == pytest.approx(0.4)
    assert one(pattern, ids, "sink_bos", bos=1).mass == pytest.approx(1.0)


def test_mass_off_the_sink_by_hand():
    """Half on the sink, a quarter back, a quarter elsewhere: off the sink, half goes back."""
    n = 8
    weights = torch.zeros(1, 1, n, n)
    weights[0, 0, 0, 0] = 1
    weights[0, 0, 1, :2] = 0.5
    for q in range(2, n):
        weights[0, 0, q, 0] += 0.5
        weights[0, 0, q, q - 1] += 0.25
        weights[0, 0, q, q] += 0.25
    pattern = DensePattern(weights, IndexMask(causal, 1, n, n))
    found = one(pattern, list(range(10, 10 + n)), "previous_token")
    assert found.mass_off_sink == pytest.approx(0.5)
    assert found.mass == pytest.approx((0.5 + 6 * 0.25) / 7)


def test_induction_sums_over_every_copy_and_last_over_one():
    """Three copies: a head that spreads over both earlier targets scores 1, or 1/2 on the last."""
    ids = [1, *[5, 9, 13] * 3]  # at queries 7, 8, 9 the targets are q − 2 and q − 5
    pattern = pattern_of(10, lambda q: [q - 2, q - 5] if q >= 7 else ([q - 2] if q >= 4 else [0]))
    assert one(pattern, ids, "induction").mass == pytest.approx(1.0)
    assert one(pattern, ids, "induction_last").mass == pytest.approx((3 * 1 + 3 * 0.5) / 6)
    assert one(pattern, ids, "induction").n_queries == 6


def test_a_target_out_of_the_window_is_no_target():
    """Period 4, window 3: induction looks 3 back, out of reach: undefined, not 0."""
    found = one(uniform(9, window=3), F_REP, "induction")
    assert found.n_queries == 0 and math.isnan(found.mass)
    assert one(uniform(9, window=4), F_REP, "induction").n_queries == 4


@pytest.mark.parametrize("name", ["induction", "induction_last", "duplicate_token"])
def test_no_repeats_is_undefined_not_zero(name):
    """C64: undefined with a reason; averaged with a prompt that has repeats it is left out."""
    model = load_model((tiny_model("llama"), None))
    alone = score_heads(model, prompts_of_ids(F_IDS), find_roles([name])).summary
    assert alone.mass.isna().all() and (alone.n_queries == 0).all()
    assert alone.undefined_reason.str.startswith("no token of the prompt occurs twice").all()
    only = score_heads(model, prompts_of_ids(F_REP), find_roles([name])).summary
    both = score_heads(model, prompts_of_ids([F_IDS, F_REP]), find_roles([name])).summary
    pd.testing.assert_series_equal(both.mass, only.mass, atol=1e-6)
    assert (both.n_undefined == 1).all() and (both.n_prompts == 1).all()
    assert both.undefined_reason.isna().all()


def test_one_token_is_undefined_for_every_role():
    """C65: the pattern [[1.0]] must not make every head a perfect sink."""
    model = load_model((tiny_model("llama"), None))
    scores = score_heads(model, prompts_of_ids([1]))
    assert scores.summary.mass.isna().all() and (scores.summary.n_queries == 0).all()
    assert scores.summary.undefined_reason.notna().all()


def test_a_batch_scores_as_one_at_a_time():
    """C11, C19: prompts of unequal length; batch sizes 1, 2 and 3 agree to 1e-6."""
    for family in ("gpt2", "mistral", "gpt_oss", "deepseek_v3"):
        model = load_model((tiny_model(family), None))
        prompts = prompts_of_ids([F_REP, F_IDS, [1, 5, 5], [4, 4, 4, 4, 4, 4, 4, 4]])
        tables = [score_heads(model, prompts, batch_size=size).per_prompt for size in (1, 2, 4)]
        for table in tables[1:]:
            keys = ["layer", "head", "role", "prompt"]
            a, b = (t.sort_values(keys, ignore_index=True) for t in (tables[0], table))
            # mass_off_sink divides by what is off the sink, down to a thousandth.
            for columns, tolerance in (
                (["mass_off_sink"], 2e-3),
                (["mass", "null", "chance"], 2e-6),
            ):
                np.testing.assert_allclose(a[columns], b[columns], atol=tolerance)
            pd.testing.assert_frame_equal(a[[*keys, "n_queries"]], b[[*keys, "n_queries"]])


def test_the_same_seed_gives_the_same_table():
    """C25: nothing is drawn from a global generator."""
    model = load_model((tiny_model("llama"), None))
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = score_heads(model, prompts_of_ids([F_REP, F_IDS]), seed=3)
    again = score_heads(model, prompts_of_ids([F_REP, F_IDS]), seed=3)
    pd.testing.assert_frame_equal(first.summary, again.summary, check_exact=True)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()


def test_scanning_leaves_hooks_and_memory_alone():
    """C51: fifty scans leave no hook, and the last equals the first."""
    hf_model = tiny_model("llama")
    model = load_model((hf_model, None))

    def hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in hf_model.modules())

    before = hooks()
    runs = [score_heads(model, prompts_of_ids(F_REP), find_roles(["induction"])) for _ in range(50)]
    assert hooks() == before
    pd.testing.assert_frame_equal(runs[0].per_prompt, runs[-1].per_prompt, check_exact=True)


def test_a_users_own_hook_is_kept_and_counts():
    """C46: a hook that changes the model changes the scores, and is still there afterwards."""
    hf_model = tiny_model("llama")
    model = load_model((hf_model, None))
    clean = score_heads(model, prompts_of_ids(F_REP)).per_prompt
    handle = hf_model.model.layers[0].register_forward_hook(lambda m, a, out: out * 0.5)
    changed = score_heads(model, prompts_of_ids(F_REP)).per_prompt
    again = score_heads(model, prompts_of_ids(F_REP)).per_prompt
    assert np.abs(clean.mass - changed.mass).max() > 1e-3
    pd.testing.assert_frame_equal(changed, again, check_exact=True)
    handle.remove()
    pd.testing.assert_frame_equal(clean, score_heads(model, prompts_of_ids(F_REP)).per_prompt)


def test_training_mode_is_put_off_and_back():
    """C26: a model in training mode scores as in eval mode, and is given back as it was."""
    hf_model = tiny_model("gpt2")
    expected = score_heads(load_model((hf_model, None)), prompts_of_ids(F_REP)).per_prompt
    hf_model.train()
    found = score_heads(load_model((hf_model, None)), prompts_of_ids(F_REP)).per_prompt
    pd.testing.assert_frame_equal(found, expected)
    assert hf_model.training and hf_model.transformer.h[0].attn.attn_dropout.training


def test_an_exception_leaves_the_model_as_it_was():
    """C47: also after Ctrl-C inside a look."""
    hf_model = tiny_model("llama")
    model = load_model((hf_model, None))
    implementation = hf_model.config._attn_implementation

    def stop(layer, pattern, z):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture(model, prompts_of_ids(F_REP), stop)
    assert hf_model.config._attn_implementation == implementation
    score_heads(model, prompts_of_ids(F_REP))


def test_nan_names_layer_and_head():
    hf_model = tiny_model("llama")
    with torch.no_grad():
        hf_model.model.layers[1].self_attn.v_proj.weight[10:20] = torch.nan  # key-value head 1
    model = load_model((hf_model, None))
    with pytest.raises(InterpError, match=r"layer 1 \(LlamaAttention\), head 2.*NaN"):
        score_heads(model, prompts_of_ids(F_REP))


def test_an_id_or_a_prompt_out_of_range_is_refused():
    """C66: GPT-2 dies with an index error, Llama runs on silently; both are told the same."""
    for family in ("gpt2", "llama"):
        model = load_model((tiny_model(family), None))
        with pytest.raises(InterpError, match="65 tokens > 64"):
            score_heads(model, prompts_of_ids([1] * 65))
        with pytest.raises(InterpError, match="id 61 at position 1"):
            score_heads(model, prompts_of_ids([1, 61]))


def test_bfloat16_stays_near_float32():
    """C20: sums are taken in float32."""
    hf_model = tiny_model("llama")
    exact = score_heads(load_model((hf_model, None)), prompts_of_ids(F_REP)).per_prompt
    coarse = score_heads(load_model((hf_model.bfloat16(), None)), prompts_of_ids(F_REP)).per_prompt
    fixed = exact.role != "sink_any"  # which position draws most may change
    assert np.nanmax(np.abs(exact.mass - coarse.mass)[fixed]) < 0.1


@pytest.mark.parametrize("family", ["falcon", "bloom", "gpt_neo"])
def test_models_that_bypass_the_door_are_scored_and_say_so(family):
    """Patterns come from TransformerLens; they equal the library's own."""
    hf_model = tiny_model(family)
    model = load_model((hf_model, None))
    prompts = prompts_of_ids([F_REP, F_IDS])
    table = score_heads(model, prompts, find_roles(["sink_first", "previous_token"])).per_prompt
    assert (table.attention_path == "transformer_lens").all()
    for prompt in prompts:
        # Set at run time Falcon's eager attention gets no causal mask: its config must say eager.
        with torch.no_grad(), implementation(hf_model, "eager"):
            out = hf_model(torch.tensor([prompt.ids]), output_attentions=True)
        for layer, weights in enumerate(out.attentions):
            rows = table[(table.layer == layer) & (table.prompt == prompt.name)]
            sink = weights[0, :, 1:, 0].mean(-1).numpy()
            previous = weights[0].diagonal(-1, dim1=-2, dim2=-1).mean(-1).numpy()
            for name, expected in (("sink_first", sink), ("previous_token", previous)):
                got = rows[rows.role == name].sort_values("head").mass.to_numpy()
                if family != "gpt_neo" or name == "previous_token" or layer != 1:
                    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_learned_sink_has_its_own_column():
    model = load_model((tiny_model("gpt_oss"), None))
    table = score_heads(model, prompts_of_ids(F_REP), find_roles(["current_token"])).summary
    assert table.learned_sink.between(0, 1).all() and table.learned_sink.std() > 0
    without = load_model((tiny_model("llama"), None))
    assert score_heads(without, prompts_of_ids(F_REP)).summary.learned_sink.isna().all()


def test_a_role_of_ones_own_in_three_lines(tmp_path):
    @interp.role
    def two_back(prompt):
        return [(query, query - 2) for query in range(2, len(prompt.ids))]

    found = score_pattern(
        pattern_of(9, lambda q: max(0, q - 2)), [Prompt(tuple(F_IDS[:9]), "p")], [two_back]
    )
    assert found.mass.iloc[0] == pytest.approx(1.0) and found.role.iloc[0] == "two_back"
    file = tmp_path / "mine.py"
    file.write_text(
        "def two_back(prompt):\n    return [(q, q - 2) for q in range(2, len(prompt.ids))]\n"
    )
    assert find_roles([f"{file}:two_back"])[0].name == "two_back"


@pytest.mark.parametrize(
    "targets, complaint",
    [
        (lambda p: [(0, 3)], "query 0 cannot look at key 3"),
        (lambda p: [(99, 3)], "query 99 cannot look at key 3"),
        (lambda p: [1, 2], r"expected \(query, key\) pairs"),
    ],
)
def test_a_broken_role_is_refused(targets, complaint):
    with pytest.raises(InterpError, match=complaint):
        role(targets).pairs(Prompt((1, 2, 3, 4), "p"))


@pytest.mark.parametrize(
    "names, complaint",
    [
        (["inductoin"], "did you mean induction"),
        (["induction", "induction"], "is there twice"),
        ([], "at least one"),
        (["nowhere.py:x"], "no file nowhere.py"),
    ],
)
def test_unknown_roles_are_refused(names, complaint):
    with pytest.raises(InterpError, match=complaint):
        find_roles(names)


def test_finding_the_largest_of_many_does_not_flatter():
    """On patterns without any sink, the mass of the position found stays at chance."""
    n, heads = 64, 200
    generator = torch.Generator().manual_seed(0)
    score = torch.randn(1, heads, n, n, generator=generator)
    mask = IndexMask(causal, 1, n, n)
    score = score.masked_fill(~mask.tile(slice(0, n), slice(0, n)), -torch.inf)
    pattern = DensePattern(score.softmax(-1), mask)
    prompt = Prompt(tuple(range(n)), "p")
    found = score_pattern(pattern, [prompt], [AnySink()])
    excess = found.mass - found.chance
    standard_error = excess.std() / math.sqrt(heads)
    assert abs(excess.mean()) < 4 * standard_error, (excess.mean(), standard_error)


def test_the_sink_rate_of_gu_by_hand():
    """Uniform attention at T = 64 gives α = 0.0741, and a head is a sink only strictly above epsilon."""
    alpha = sum(1 / t for t in range(1, 65)) / 64
    assert alpha == pytest.approx(0.0741, abs=1e-4)
    found = {0: alphas(uniform(64)).numpy()}
    assert found[0] == pytest.approx(alpha)
    for epsilon, expected in ((alpha - 1e-6, 1.0), (alpha + 1e-6, 0.0)):
        table = rate_table(found, ["p"], epsilon=epsilon, tokens=64)
        assert table.sink_rate.tolist() == [expected, expected]


def test_the_indicator_is_taken_per_prompt():
    """A head that is a sink on one of two prompts counts one half, whatever its mean α."""
    found = torch.cat([alphas(pattern_of(64, lambda q: 0)), alphas(uniform(64))]).numpy()
    table = rate_table({3: found}, ["a", "b"], epsilon=0.3, tokens=64)
    assert table.set_index("layer").sink_rate.to_dict() == {"3": 0.5, "all": 0.5}


def test_the_sink_rate_of_a_model_is_that_of_the_first_tokens():
    """Whatever comes after them, in whichever order of lengths; checked against eager attention."""
    hf_model = tiny_model("llama")
    model = load_model((hf_model, None))
    rows = torch.randint(3, 60, (3, 20), generator=torch.Generator().manual_seed(0))
    prompts = prompts_of_ids([rows[0].tolist(), rows[1, :8].tolist(), rows[2].tolist()])
    hf_model.set_attn_implementation("eager")
    with torch.no_grad():
        layers = hf_model(rows[:, :8], output_attentions=True).attentions
    alpha = torch.stack([layer[..., 0].mean(-1) for layer in layers])  # layer, prompt, head
    epsilon = float(alpha.median())
    expected = (alpha > epsilon).double().mean((1, 2)).tolist()
    table = sink_rate(model, prompts, epsilon=epsilon, tokens=8)
    assert table.sink_rate.tolist()[:-1] == pytest.approx(expected)
    assert table.sink_rate.iloc[-1] == pytest.approx(sum(expected) / len(expected))
    assert 0 < table.sink_rate.iloc[-1] < 1 and set(table.n_prompts) == {3}
    with pytest.raises(InterpError, match="prompts of 9 tokens or more; too short: ids-1"):
        sink_rate(model, prompts, tokens=9)


def test_first_k_needs_a_position():
    with pytest.raises(InterpError, match="first_k=0"):
        sink_first_k(0)


def test_what_is_shown_first_and_what_prints_on_one_line():
    """In a terminal pandas cuts the middle: role, mass, chance, null and q come first."""
    scores = score_heads(load_model("default"), prompts_of_ids([[3, 9, 4, 9, 3, 9]]), ["induction"])
    shown = scores.top(2)
    assert [*shown][:9] == [
        "role", "layer", "head", "mass", "ci_low", "ci_high", "chance", "null", "q"
    ]  # fmt: skip
    assert "learned_sink" not in shown and len(shown) == 2
    assert "\n" not in repr(scores) and "24 rows" in repr(scores)
    seen = []
    capture(load_model("default"), prompts_of_ids([[3, 9, 4]]), lambda *one: seen.append(one[1]))
    assert repr(seen[0]).startswith("AttentionPattern(1 prompt, 8 heads on 4, 3 queries")
