"""Made-up hypotheses: drawn as they should be, by eager attention, calibrated, and with heads planted."""

import numpy as np
import pandas as pd
import pytest
import torch

from interp.attention.door import implementation
from interp.errors import InterpError
from interp.inputs.prompts import prompts_of_ids
from interp.lesson.hypotheses import (
    CRITERIA,
    compare_heads,
    count_striking,
    draw_hypotheses,
    look_at,
    measure,
    rises,
)
from interp.lesson.hypotheses_figure import counts
from interp.models.model import load_model
from interp.results import tables
from interp.scoring.roles import ROLES, Role
from tests.families import tiny_model

IDS = torch.tensor([[(7 * i * i + 3 * i + p) % 13 + 3 for i in range(28)] for p in range(6)])
PROMPTS = prompts_of_ids(IDS)
INDUCTION = ROLES["induction"]


@pytest.fixture(scope="module")
def model():
    return load_model((tiny_model("llama"), None))


@pytest.fixture(scope="module")
def drawn():
    return draw_hypotheses(PROMPTS, INDUCTION, 40)


@pytest.fixture(scope="module")
def rows(model):
    return measure(model, PROMPTS, draw_hypotheses(PROMPTS, INDUCTION, 10))


def test_made_up_pairs_have_the_distances_of_the_role_and_are_none_of_its_own(drawn):
    pool = np.concatenate([np.subtract(*INDUCTION.pairs(prompt).T) for prompt in PROMPTS])
    for kind, draws in drawn.items():
        for i, prompt in enumerate(PROMPTS):
            own = {tuple(pair) for pair in INDUCTION.pairs(prompt).tolist()}
            queries = {query for query, _ in own}
            for query, key, null, control in np.stack(
                [draws.query[:, i], draws.key[:, i], draws.null[:, i], draws.control[:, i]], axis=1
            ).tolist():
                assert ((query, key) in own) == (kind == "real")
                assert (query, null) not in own and null != key
                assert query - key in pool and query - null in pool
                assert min(key, null) >= 0 and max(query, control) < len(prompt.ids) - 1
                assert control != query
                assert kind == "made-up" or control not in queries


def test_draws_are_those_of_the_seed_and_differ_between_prompts(drawn):
    again, other = (draw_hypotheses(PROMPTS, INDUCTION, 40, seed=seed) for seed in (0, 1))
    one = drawn["made-up"]
    assert (one.query == again["made-up"].query).all() and (one.key == again["made-up"].key).all()
    assert (one.query != other["made-up"].query).any()
    assert (one.query[:, 0] != one.query[:, 1]).any()


def test_common_distances_are_drawn_more_often():
    """Of the distances 2 (in nine of ten pairs), 5 and 6, two are drawn: the first is nearly always there."""
    pairs = [(q, q - 2) for q in range(10, 28)] + [(9, 4), (8, 2)]
    role = Role("mostly two back", lambda prompt: pairs)
    draws = draw_hypotheses(PROMPTS, role, 60)["made-up"]
    early = draws.query < 8  # queries of which no distance is the role's own
    distance = draws.query - draws.key
    other = draws.query - draws.null
    assert ((distance == 2) | (other == 2))[early].mean() > 0.9  # of two in three it would be 0.67
    assert 0.3 < (distance == 2)[early].mean() < 0.7  # which of both is the null is chance


def test_weights_and_rises_by_another_program(model, drawn, rows):
    """Eager attention; and the output projection's columns of a head at 0."""
    seen = look_at(model, PROMPTS, drawn["made-up"])
    with torch.no_grad(), implementation(model.hf_model, "eager"):
        out = model.hf_model(IDS, output_attentions=True)
    weights = torch.stack(out.attentions, 1)  # (prompt, layer, head, query, key)
    at = torch.arange(len(PROMPTS)).expand(40, -1)
    query, key = (torch.from_numpy(part) for part in (drawn["made-up"].query, drawn["made-up"].key))
    expected = weights[at, :, :, query, key].permute(0, 2, 3, 1)
    np.testing.assert_allclose(seen["weight"], expected, atol=1e-5)
    np.testing.assert_allclose(seen["uniform"][:, 0, 0], 1 / (drawn["made-up"].query + 1))

    def losses(hf_model):
        with torch.no_grad():
            logits = hf_model(IDS).logits[:, :-1]
        return -logits.log_softmax(-1).gather(-1, IDS[:, 1:, None])[..., 0]

    without = tiny_model("llama")
    with torch.no_grad():
        without.model.layers[1].self_attn.o_proj.weight[:, 20:30] = 0
    expected = losses(without) - losses(model.hf_model)
    found = rises(model, PROMPTS)
    for i, prompt in enumerate(PROMPTS):
        np.testing.assert_allclose(found[prompt.name][1, 2, :-1], expected[i], atol=1e-4)
    one = rows[(rows.layer == 1) & (rows["head"] == 2) & (rows["prompt"] == PROMPTS[3].name)]
    np.testing.assert_allclose(one.rise, expected[3][one["query"].to_list()], atol=1e-4)
    np.testing.assert_allclose(
        one.rise_control, expected[3][one.control_query.to_list()], atol=1e-4
    )


def table_of(weight, null, rise, control, kind="made-up"):
    """Rows of heads (hypothesis, head, prompt) made by hand."""
    h, head, at = np.indices(weight.shape).reshape(3, -1)
    frame = pd.DataFrame({"model": "m", "kind": kind, "hypothesis": h, "layer": 0, "head": head})
    frame["prompt"] = [f"p{i:02}" for i in at]
    for name, values in (
        ("weight", weight), ("null", null), ("uniform", np.full(weight.shape, 0.05)), ("rise", rise),
        ("rise_control", control),
    ):  # fmt: skip
        frame[name] = values.ravel()
    return frame.assign(query=5, key=2, null_key=1, control_query=6)


def test_under_chance_the_share_of_small_p_is_what_it_says():
    """600 tests of nothing: about 5 % look striking, none after control, 5 % of those after an ablation."""
    rng = np.random.default_rng(0)
    drawn = rng.beta(0.3, 3, (4, 30, 20, 12))  # most near 0, few large, as weights are
    summary = count_striking(compare_heads(table_of(*drawn))).set_index("criterion")
    matched = summary.loc["above matched"]
    assert matched.expected == 30 and 15 < matched.n_striking < 45
    assert matched.any_head > 0.4  # most made-up hypotheses have a head to show
    assert summary.n_striking["above matched, BH"] == summary.n_striking["above matched, BY"] == 0
    assert summary.n_striking["above matched, and an ablation"] < 8
    assert summary.n_tests["above matched, and an ablation"] == matched.n_striking
    assert list(summary.index) == list(CRITERIA)


def test_a_planted_head_passes_all_and_one_that_is_not_used_all_but_the_last():
    rng = np.random.default_rng(1)
    weight, null, rise, control = rng.beta(0.3, 3, (4, 5, 20, 14))
    weight[:, 3], null[:, 3] = 0.9, 0.01
    weight[:, 4], null[:, 4] = 0.8, 0.02
    rise[:, 3], control[:, 3] = 2.0, 0.1
    rise[:, 4] = control[:, 4] = 0.1
    tests = compare_heads(table_of(weight, null, rise, control, kind="real"))
    by_head = tests.groupby("head")[["p", "q_bh", "q_by", "p_ablation", "q_ablation"]].max()
    assert (by_head.loc[3] < 0.05).all()
    assert (by_head.loc[4, ["p", "q_bh", "q_by"]] < 0.05).all() and by_head.q_ablation[4] == 1
    assert tests[tests["head"] == 3].p.max() == pytest.approx(2**-14, rel=1)  # or the draws' 1e-4
    summary = count_striking(tests).set_index("criterion")
    assert summary.n_striking["above matched, BY"] == 10
    assert summary.n_striking["above matched, and an ablation, BH"] == 5
    assert summary.any_head["above matched, and an ablation, BH"] == 1
    assert np.isnan(summary.expected).all()  # what is real is not by chance


def test_one_map_is_the_first_prompt_alone():
    weight = np.full((2, 3, 5), 0.1)
    weight[0, 1, 0] = 0.4
    weight[1, 2, 1] = 0.9  # not in the first prompt
    tests = compare_heads(table_of(weight, weight, weight, weight))
    one = count_striking(tests, striking=0.4).set_index("criterion").loc["one map"]
    assert (one.n_striking, one.share, one.any_head) == (1, pytest.approx(1 / 6), 0.5)


def test_tables_and_figure(tmp_path, rows):
    tests = compare_heads(rows)
    summary = count_striking(tests)
    assert len(rows) == 2 * 10 * 12 * 6 and len(tests) == 2 * 10 * 12
    for name, table in (("table.csv", summary), ("tests.csv", tests)):
        tables.write(table, tmp_path / name)
        pd.testing.assert_frame_equal(tables.read(tmp_path / name), table)
    figure = counts(summary, tests)
    heads, anyone, right = figure.axes
    assert [text.get_text() for text in heads.get_yticklabels()] == list(CRITERIA)
    drawn = heads.containers[0].lines[0].get_xdata().astype(float)
    np.testing.assert_allclose(drawn, summary[summary.kind == "made-up"].share)
    assert len(anyone.containers) == 2 and len(right.lines) == 3


def test_what_is_refused():
    with pytest.raises(
        InterpError, match="role previous_token, prompt ids-0: its targets leave no room"
    ):
        draw_hypotheses(PROMPTS, ROLES["previous_token"], 2)
    with pytest.raises(InterpError, match=r"prompt ids-0: no.*take other prompts"):
        draw_hypotheses(prompts_of_ids([[3, 4, 5], [6, 7, 8]]), INDUCTION, 2)
    with pytest.raises(InterpError, match="1 prompt, 2 hypotheses: expected at least 2 prompts"):
        draw_hypotheses(PROMPTS[:1], INDUCTION, 2)
