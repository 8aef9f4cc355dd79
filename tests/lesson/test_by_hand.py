"""Attention by hand: the numbers that are known, the library's own attention, and what is refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments.command_line.compose import compose
from experiments.command_line.keys import keys_of
from interp.attention.kernels import attend_tiled
from interp.attention.masks import IndexMask, causal
from interp.errors import InterpError
from interp.lesson import by_hand, figures
from interp.lesson.by_hand import attend, masked_table, weigh
from interp.lesson.config import AttentionByHandConfig, AttentionCostConfig
from interp.lesson.multi_head import count_flops, multi_head
from interp.results import tables

CONFIG = AttentionByHandConfig()
SCORES = torch.tensor(CONFIG.masked_scores, dtype=torch.float64)


def test_the_cat_sat():
    steps = attend(CONFIG.queries, CONFIG.keys, CONFIG.values, causal=True)
    for found, expected, digits in (
        (steps.scores, (0.28, 1.20, 0.44), 1e-12),
        (steps.scaled, (0.198, 0.849, 0.311), 5e-4),
        (steps.weights, (0.248, 0.475, 0.277), 5e-4),
        (steps.outputs, (0.435, 0.559), 5e-4),
    ):
        np.testing.assert_allclose(found[0], expected, atol=digits)


def test_the_causal_mask_on_rows_of_scores():
    table = masked_table("masked", CONFIG.masked_scores)
    weights = table.pivot(index="query", columns="key", values="weight").to_numpy()
    expected = [(1, 0, 0, 0), (0.08, 0.92, 0, 0), (0.18, 0.08, 0.74, 0)]
    np.testing.assert_allclose(weights[:3], expected, atol=5e-3)
    assert (weights[np.triu_indices(4, 1)] == 0).all()
    assert table.visible.sum() == 10 and (table.chance[table["query"] == 3] == 1 / 4).all()


@given(st.floats(-1e300, 1e300))
def test_the_first_row_is_1_whatever_its_score(score):
    scores = SCORES.clone()
    scores[0, 0] = score
    visible, weights = weigh(scores, causal=True)
    assert weights[0].tolist() == [1, 0, 0, 0] and visible[0].tolist() == [True] + [False] * 3


@pytest.mark.parametrize("n_queries", [1, 3, 7])
def test_it_is_the_attention_of_the_library(n_queries):
    """The tiled kernel; fewer queries than keys are the last ones."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(7, d, dtype=torch.float64) for d in (5, 5, 3))
    steps = attend(q[-n_queries:].tolist(), k.tolist(), v.tolist(), causal=True)
    z, _ = attend_tiled(
        q[None, None], k[None, None], v[None, None], 5**-0.5, IndexMask(causal, 1, 7, 7)
    )
    torch.testing.assert_close(steps.outputs, z[0, 0, -n_queries:])
    assert steps.visible.sum() == sum(range(8 - n_queries, 8))


def test_many_heads_for_the_price_of_one():
    """By the formula, and the same whatever the number of heads; only the softmax's exponentials grow."""
    table = count_flops(48, 24, (1, 2, 4, 8, 24))
    assert (table.projection_flops == 8 * 48 * 24**2).all()
    assert (table.attention_flops == 4 * 48**2 * 24).all()
    assert (table.flops == table.projection_flops + table.attention_flops).all()
    assert (table.exponentials == table.n_heads * 48**2).all()
    assert (table.n_heads * table.d_head == 24).all()


def test_the_heads_that_are_counted_do_attend():
    """Each head is attention by hand on its part of the width."""
    torch.manual_seed(1)
    residual = torch.randn(6, 8, dtype=torch.float64)
    *reading, w_output = torch.randn(4, 8, 8, dtype=torch.float64)
    found = multi_head(residual, [*reading, w_output], 2)
    halves = []
    for part in (slice(0, 4), slice(4, 8)):
        q, k, v = ((residual @ w)[:, part].tolist() for w in reading)
        halves.append(attend(q, k, v, causal=True).outputs)
    torch.testing.assert_close(found, torch.cat(halves, -1) @ w_output)


def test_the_tables_and_the_figure():
    steps = attend(CONFIG.queries, CONFIG.keys, CONFIG.values)
    outputs = by_hand.outputs_table(steps, CONFIG.tokens)
    assert outputs.query_token.tolist() == ["sat", "sat"]
    np.testing.assert_allclose(outputs.uniform, np.mean(CONFIG.values, axis=0))
    crossed = attend([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], [[1.0, 2.0]], [[3.0]])
    more = by_hand.steps_table("more queries than keys", crossed, ["a"])
    assert more.query_token.tolist() == ["a", "query 1", "query 2"]
    assert more.score.tolist() == [2, 1, 3] and more.weight.tolist() == [1, 1, 1]
    masked = masked_table("masked", CONFIG.masked_scores)
    both = tables.pd.concat([by_hand.steps_table("vectors", steps, CONFIG.tokens), masked])
    figure = figures.by_hand(both, count_flops(4, 4, (1, 2)))
    written = [[text.get_text() for text in axis.texts] for axis in figure.axes]
    assert written[:3] == [
        ["0.280", "1.200", "0.440"],
        ["0.198", "0.849", "0.311"],
        ["0.248", "0.475", "0.277"],
    ]
    assert len(written[3]) == 10 and written[3][0] == "1.000"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (([[]], [[]], [[1.0]]), "queries: row 0 is empty; expected rows of at least one number"),
        (([], [[1.0]], [[1.0]]), "queries: there is no row; expected rows of at least one"),
        (([[1.0]], [[1.0, 2.0]], [[1.0]]), "queries have width 1, keys have width 2"),
        (([[1.0]], [[1.0], [2.0]], [[1.0]]), "2 keys and 1 values"),
        (([[1.0]], [[1.0], [2.0, 3.0]], [[1.0]]), "keys: row 1 has length 2, row 0 has length 1"),
        (([[1.0], [2.0]], [[1.0]], [[1.0]]), "2 queries and 1 keys under the causal mask"),
        (([[1.0]], [[1e200]], [[1.0]]), r"keys: 1e\+200: expected numbers from -1e\+06 to 1e\+06"),
        (([[1.0]], [[1.0]], [[math.nan]]), "values: nan: expected numbers from"),
        (([[-math.inf]], [[1.0]], [[1.0]]), "queries: -inf: expected numbers from"),
    ],
)
def test_what_is_refused(rows, message):
    with pytest.raises(InterpError, match=message):
        attend(*rows, causal=True)


def test_what_else_is_refused():
    with pytest.raises(InterpError, match="2 tokens and 3 keys; expected a token for each key"):
        by_hand.steps_table("x", attend(CONFIG.queries, CONFIG.keys, CONFIG.values), ["a", "b"])
    with pytest.raises(InterpError, match="a width of 10 does not divide into 4 heads"):
        count_flops(4, 10, (2, 4))


def test_rows_are_read_from_the_command_line():
    given = compose("attention_by_hand", AttentionByHandConfig, ["queries=[[1,0.5],[2,-1e-1]]"])
    assert given.queries == ((1.0, 0.5), (2.0, -0.1))
    assert keys_of(AttentionByHandConfig, {})["queries"].words == "list of lists of numbers"
    with pytest.raises(InterpError, match="n_heads holds something twice; expected each once"):
        compose("attention_by_hand", AttentionByHandConfig, ["n_heads=[2,2]"])
    with pytest.raises(InterpError, match="length = 1000000000: expected integer >= 1 and <="):
        compose("attention_by_hand", AttentionByHandConfig, ["length=1000000000"])
    for wrong in ("queries=[1,2]", "queries=[[a]]", "queries=1", "keys=[]", "queries=[[[1]]]"):
        key = wrong.partition("=")[0]
        with pytest.raises(InterpError, match=f"{key} = .*: expected list of lists of numbers"):
            compose("attention_by_hand", AttentionByHandConfig, [wrong])
    for wrong, advice in (
        ("1", r"; write \[\[1\]\]$"),
        ("[1,2]", r"; write \[1\]$"),
        ("null", "numbers$"),
    ):
        with pytest.raises(InterpError, match=advice):
            compose("attention_by_hand", AttentionByHandConfig, [f"queries={wrong}"])
    with pytest.raises(InterpError, match="expected list of integers >= 2, 3 or more of them"):
        compose("attention_cost", AttentionCostConfig, ["lengths=[64,128]"])
    counted = compose("attention_by_hand", AttentionByHandConfig, ["tokens=[I,have,2]"])
    assert counted.tokens == ("I", "have", "2")
