"""The lazy pattern: every question gives the weights that stand in the written-out pattern."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.attention.kernels import attend
from interp.attention.masks import IndexMask, causal, sliding
from interp.attention.pattern import AttentionPattern, DensePattern
from interp.attention.questions import Questions
from interp.errors import InterpError


def written_out(query, key, scale, mask, softcap, sink):
    """The textbook way: all scores, mask, softmax over keys (and the learned sink)."""
    groups = query.shape[1] // key.shape[1]
    score = query @ key.repeat_interleave(groups, 1).mT * scale
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    n, m = mask.n_queries, mask.n_keys
    seen = mask.tile(slice(0, n), slice(0, m)).expand(score.shape)
    score = score.masked_fill(~seen, -torch.inf)
    if sink is not None:
        extra = sink[None, :, None, None].expand(*score.shape[:3], 1)
        score = torch.cat([score, extra], -1)
    weight = score.softmax(-1)[..., :m]
    return torch.where(seen, weight, 0.0)


@st.composite
def cases(draw):
    n = draw(st.integers(1, 40))
    groups, n_kv = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    d_head, d_value = draw(st.integers(1, 9)), draw(st.integers(1, 11))
    window = draw(st.one_of(st.none(), st.integers(1, n)))
    side = draw(st.sampled_from(["none", "left", "right"]))
    padded = draw(st.integers(0, n - 1)) if side != "none" else 0
    softcap = draw(st.sampled_from([None, 0.5, 3.0]))
    has_sink = draw(st.booleans())
    seed = draw(st.integers(0, 2**31))
    return n, groups, n_kv, d_head, d_value, window, side, padded, softcap, has_sink, seed


def build(case, dtype=torch.float32):
    n, groups, n_kv, d_head, d_value, window, side, padded, softcap, has_sink, seed = case
    g = torch.Generator().manual_seed(seed)
    query = torch.randn(2, groups * n_kv, n, d_head, generator=g, dtype=dtype) * 2
    key = torch.randn(2, n_kv, n, d_head, generator=g, dtype=dtype) * 2
    value = torch.randn(2, n_kv, n, d_value, generator=g, dtype=dtype)
    sink = torch.randn(groups * n_kv, generator=g, dtype=dtype) if has_sink else None
    padding = None
    if padded:
        padding = torch.ones(2, n, dtype=torch.bool)
        padding[0, slice(0, padded) if side == "left" else slice(n - padded, n)] = False
    mask = IndexMask(causal if window is None else sliding(window), 2, n, n, padding=padding)
    return query, key, value, mask, softcap, sink


@settings(max_examples=80, deadline=None)
@given(cases(), st.sampled_from(["auto", "tiled"]))
def test_weights_and_output_equal_the_textbook(case, engine):
    query, key, value, mask, softcap, sink = build(case)
    z, lse, path = attend(
        query, key, value, scale=0.7, mask=mask, softcap=softcap, sink=sink, engine=engine
    )
    pattern = AttentionPattern(query, key, lse, 0.7, mask, softcap, sink, path)
    expected = written_out(query, key, 0.7, mask, softcap, sink)
    torch.testing.assert_close(pattern.dense(), expected, atol=1e-5, rtol=1e-4)
    groups = query.shape[1] // key.shape[1]
    real = mask.real_queries[:, None, :, None]
    theirs = expected @ value.repeat_interleave(groups, 1)
    torch.testing.assert_close(z * real, theirs * real, atol=1e-4, rtol=1e-4)
    learned = pattern.learned_sink()
    total = expected.sum(-1) + (learned if learned is not None else 0)
    reach = mask.reachable.bool()[:, None].expand_as(total)
    torch.testing.assert_close(total[reach], torch.ones_like(total[reach]), atol=1e-5, rtol=0)


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(0, 2**31))
def test_every_question_agrees_with_the_dense_pattern(case, seed):
    query, key, value, mask, softcap, sink = build(case)
    z, lse, path = attend(query, key, value, scale=0.7, mask=mask, softcap=softcap, sink=sink)
    pattern = AttentionPattern(query, key, lse, 0.7, mask, softcap, sink, path)
    dense, n = pattern.dense(), mask.n_queries
    close = dict(atol=2e-6, rtol=1e-5)
    g = torch.Generator().manual_seed(seed)
    batch, q, k = (torch.randint(0, top, (50,), generator=g) for top in (2, n, n))
    torch.testing.assert_close(pattern.pairs(batch, q, k), dense[batch, :, q, k].mT, **close)
    asked = Questions(batch, q, torch.minimum(q, k), 2, n).ask(pattern)
    torch.testing.assert_close(asked, dense[batch, :, q, torch.minimum(q, k)].mT, **close)
    torch.testing.assert_close(pattern.keys(k), dense[..., k], **close)
    torch.testing.assert_close(pattern.rows(q), dense[:, :, q], **close)
    torch.testing.assert_close(pattern.received(), dense.sum(2), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(pattern.received(q), dense[:, :, q].sum(2), atol=1e-5, rtol=1e-4)
    distance = int(torch.randint(0, n, (), generator=g))
    diagonal = dense.diagonal(-distance, dim1=-2, dim2=-1)
    torch.testing.assert_close(pattern.offset(distance), diagonal, **close)
    own = torch.randint(0, n, (2, pattern.n_heads, 3), generator=g)
    odd = slice(1, None, 2)
    columns = dense.gather(-1, own[:, :, None].expand(-1, -1, n, -1))[:, :, odd]
    torch.testing.assert_close(pattern.head_keys(own, odd), columns, **close)
    entropy = -torch.xlogy(dense, dense).sum(-1)
    torch.testing.assert_close(pattern.entropy(), entropy, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("window", [None, 700])
def test_several_tiles_equal_one(window):
    """n = 2,100 crosses both tile sizes; every route of Questions is taken."""
    n = 2_100
    g = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, n, 16, generator=g)
    key, value = (torch.randn(1, 2, n, 16, generator=g) for _ in range(2))
    mask = IndexMask(causal if window is None else sliding(window), 1, n, n)
    z, lse, _ = attend(query, key, value, scale=0.25, mask=mask, engine="tiled")
    pattern = AttentionPattern(query, key, lse, 0.25, mask)
    expected = written_out(query, key, 0.25, mask, None, None)
    torch.testing.assert_close(pattern.dense(), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(pattern.received(), expected.sum(2), atol=1e-4, rtol=1e-4)
    q = torch.arange(n)
    few = torch.randint(0, n, (300,), generator=g)
    many = torch.randint(0, n, (60_000,), generator=g)
    for rest in (few, many):
        queries = torch.cat([q, q[1:], q, rest])
        keys = torch.cat([q * 0, q[1:] - 1, q, (rest * 0.7).long()])
        questions = Questions(queries * 0, queries, keys, 1, n)
        assert 0 in questions._keys
        assert questions._bands[0] == (0, 1)
        assert len(questions._rest) > 100
        torch.testing.assert_close(
            questions.ask(pattern), expected[0, :, queries, keys], atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("batch, n", [(1, 5), (3, 32), (2, 33), (1, 100)])
def test_a_band_is_its_diagonals(window, batch, n):
    """Whole blocks of queries, a rest, and a prompt shorter than a block."""
    g = torch.Generator().manual_seed(0)
    query = torch.randn(batch, 4, n, 8, generator=g)
    key, value = (torch.randn(batch, 2, n, 8, generator=g) for _ in range(2))
    mask = IndexMask(causal if window is None else sliding(window), batch, n, n)
    _, lse, _ = attend(query, key, value, scale=0.3, mask=mask, engine="tiled")
    pattern = AttentionPattern(query, key, lse, 0.3, mask)
    for nearest, farthest in ((0, 0), (0, 3), (1, 1), (2, 4), (n - 3, n - 1)):
        band = pattern.band(nearest, farthest)
        assert band.shape == (batch, 4, farthest - nearest + 1, n - nearest)
        for i, distance in enumerate(range(farthest, nearest - 1, -1)):
            diagonal, before = pattern.offset(distance), distance - nearest
            torch.testing.assert_close(band[:, :, i, before:], diagonal)
            assert (band[:, :, i, :before] == 0).all()


@pytest.mark.parametrize(
    "window, n, cells", [(None, 10, 55), (4, 10, 34), (None, 3, 6), (4, 3, 6), (1, 10, 10)]
)
def test_windows_leave_the_cells_they_should(window, n, cells):
    """C37: with uniform scores each row is uniform over the keys in reach."""
    query = torch.zeros(1, 2, n, 4)
    mask = IndexMask(causal if window is None else sliding(window), 1, n, n)
    _, lse, _ = attend(query, query, query, scale=1.0, mask=mask)
    dense = AttentionPattern(query, query, lse, 1.0, mask).dense()
    assert (dense > 0).sum().item() == 2 * cells
    torch.testing.assert_close(dense.amax(-1)[0, 0], 1 / mask.reachable[0].float())


def test_a_future_key_with_a_huge_score_stays_out():
    """exp(score − lse) overflows on an unseen key: it must be chosen away, not multiplied by 0."""
    query = torch.ones(1, 1, 3, 1)
    key = torch.tensor([0.0, 0.0, 500.0]).reshape(1, 1, 3, 1)
    mask = IndexMask(causal, 1, 3, 3)
    _, lse, _ = attend(query, key, key, scale=1.0, mask=mask)
    pattern = AttentionPattern(query, key, lse, 1.0, mask)
    expected = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0, 0, 1.0]])
    torch.testing.assert_close(pattern.dense()[0, 0], expected)
    assert pattern.pairs(*torch.tensor([[0], [0], [2]])).tolist() == [[0.0]]


def test_learned_sink_by_hand():
    """Scores 0, 0 and a sink of log 2: weights 1/4, 1/4 and 1/2 on the sink."""
    zero = torch.zeros(1, 1, 2, 3)
    mask = IndexMask(causal, 1, 2, 2)
    sink = torch.tensor([math.log(2.0)])
    z, lse, _ = attend(zero, zero, torch.ones(1, 1, 2, 3), scale=1.0, mask=mask, sink=sink)
    pattern = AttentionPattern(zero, zero, lse, 1.0, mask, None, sink)
    torch.testing.assert_close(pattern.dense()[0, 0, 1], torch.tensor([0.25, 0.25]))
    torch.testing.assert_close(pattern.learned_sink()[0, 0], torch.tensor([2 / 3, 0.5]))
    torch.testing.assert_close(z[0, 0, 1], torch.full((3,), 0.5))


def test_entropy_of_uniform_rows_is_the_log_of_their_reach():
    query = torch.zeros(1, 1, 5, 2)
    mask = IndexMask(causal, 1, 5, 5)
    _, lse, _ = attend(query, query, query, scale=1.0, mask=mask)
    entropy = AttentionPattern(query, query, lse, 1.0, mask).entropy()[0, 0]
    torch.testing.assert_close(entropy, torch.arange(1, 6).float().log())


def test_nothing_n_by_n_is_held(monkeypatch):
    """At n = 3,000 the largest tensor that attention and all questions make is far below n × n."""
    n, largest = 3_000, 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, list | tuple) else [out]:
                if isinstance(tensor, torch.Tensor):
                    largest = max(
                        largest, tensor.untyped_storage().nbytes() // tensor.element_size()
                    )
            return out

    g = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 2, n, 8, generator=g) for _ in range(2))
    for engine, window in (("fused", None), ("tiled", None), ("tiled", 100)):
        mask = IndexMask(causal if window is None else sliding(window), 1, n, n)
        with Watch():
            _, lse, path = attend(query, key, key, scale=0.3, mask=mask, engine=engine)
            pattern = AttentionPattern(query, key, lse, 0.3, mask)
            pattern.offset(1), pattern.keys(torch.tensor([0, 5])), pattern.received()
            pattern.entropy(), mask.reachable
        assert path == engine
    assert largest < n * n / 4


@pytest.mark.parametrize(
    "row, complaint",
    [
        ([-0.5, 0.25, 1.25], "head 0, query 2: negative weights"),
        ([float("nan"), 0.5, 0.5], "head 0, query 2: weights that are not numbers"),
        ([0.2, 0.2, 0.2], "head 0, query 2: rows that do not sum to 1"),
    ],
)
def test_what_is_no_probability_is_refused(row, complaint):
    weights = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], row]).reshape(1, 1, 3, 3)
    with pytest.raises(InterpError, match=complaint):
        DensePattern(weights, IndexMask(causal, 1, 3, 3))


def test_attention_to_the_future_is_refused():
    """C43: uniform 4 × 4 of a causal model."""
    with pytest.raises(InterpError, match="query 0: weight on keys the query cannot see"):
        DensePattern(torch.full((1, 1, 4, 4), 0.25), IndexMask(causal, 1, 4, 4))


@pytest.mark.parametrize("shape", [(1, 4, 4, 4), (2, 4, 3, 3)])
def test_axes_are_never_guessed(shape):
    """C68: prompts and tokens must be those of the mask."""
    with pytest.raises(InterpError, match="does not fit"):
        DensePattern(torch.full(shape, 0.25), IndexMask(causal, 2, 4, 4))


def test_offsets_outside_the_prompt_are_refused():
    pattern = DensePattern(torch.ones(1, 1, 1, 1), IndexMask(causal, 1, 1, 1))
    with pytest.raises(InterpError, match="offset 1 asked of a pattern over 1 tokens"):
        pattern.offset(1)
