"""The online softmax is the whole one; what attention costs, counted and measured; what is refused."""

import math
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from interp.errors import InterpError
from interp.lesson import cost, figures
from interp.lesson.attention_ways import WAYS, count_flops, eager, measure, ours
from interp.lesson.cost import check_memory, exponents, measure_costs
from interp.lesson.online_softmax import online_attention
from interp.runs import environment


def whole(query, key, value, causal):
    """The softmax of whole rows, in float64, by torch's own operators."""
    score = query @ key.mT / math.sqrt(query.shape[-1])
    if causal:
        future = torch.ones(score.shape[-2:], dtype=torch.bool).triu(1)
        score = score.masked_fill(future, -torch.inf)
    return score.softmax(-1) @ value, score.logsumexp(-1)


@settings(max_examples=60, deadline=None)
@given(
    n_queries=st.integers(1, 40),
    n_keys=st.integers(1, 40),
    tile=st.integers(1, 50),
    causal=st.booleans(),
    size=st.sampled_from([1e-3, 1.0, 30.0]),
    seed=st.integers(0, 2**16),
)
def test_the_online_softmax_is_the_whole_one(n_queries, n_keys, tile, causal, size, seed):
    """Any sizes and tiles, also those that do not divide; scores of 0.001 and of some thousands."""
    n_queries = n_keys if causal else n_queries
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, n_queries, 5), (2, n_keys, 5), (2, n_keys, 3))
    q, k, v = (torch.randn(s, dtype=torch.float64, generator=generator) * size for s in shapes)
    z, lse = online_attention(q, k, v, causal=causal, tile=tile)
    expected, sums = whole(q, k, v, causal)
    torch.testing.assert_close(z, expected)
    torch.testing.assert_close(lse, sums)


def test_every_way_gives_the_same_output():
    found = {way: measure(way, 150, 3, 16, 1, None, 0) for way in WAYS}
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 3, 150, 16, generator=generator).double() for _ in range(3))
    expected = whole(q, k, v, True)[0]
    for way, one in found.items():
        np.testing.assert_allclose(one.output, expected, atol=2e-6, err_msg=way)
    _, sink, previous = ours(q, k, v)
    weights = eager(q, k, v)[1]
    torch.testing.assert_close(sink[..., 0], weights[..., 0])
    torch.testing.assert_close(previous, weights.diagonal(-1, -2, -1))


def test_the_flops_are_those_of_the_formula():
    """4·n²·d·H for the whole; what lies on and below the diagonal tile by tile; four times at twice n."""
    flops = {n: count_flops("eager", n, 2, 8) for n in (256, 512)}
    assert flops[256] == 4 * 256**2 * 8 * 2 and flops[512] == 4 * flops[256]
    n, tile = 512, 128
    q, k, v = (torch.randn(1, 2, n, 8) for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        online_attention(q, k, v, tile=tile)
    tiles = n // tile
    assert counter.get_total_flops() == count_flops("online", n, 2, 8)
    assert math.isnan(count_flops("fused", n, 2, 8))
    assert counter.get_total_flops() == flops[512] * (tiles + 1) / (2 * tiles)
    with FlopCounterMode(display=False) as counter:
        online_attention(q, k, v, tile=tile, causal=False)
    assert counter.get_total_flops() == flops[512]


def test_exponents_of_known_growth():
    n = np.array([64, 128, 256, 512])
    costs = pd.DataFrame({"way": "eager", "length": n, "seconds": 3e-9 * n**2.0, "memory": 5.0 * n})
    costs["flops"] = [np.nan, 1.0, 2.0, np.nan]
    found = exponents(costs).set_index("quantity")
    assert found.exponent["seconds"] == pytest.approx(2) and found.exponent[
        "memory"
    ] == pytest.approx(1)
    assert found.standard_error["seconds"] == pytest.approx(0, abs=1e-6)
    assert np.isnan(found.exponent["flops"]) and found.n_lengths["flops"] == 2
    noisy = exponents(costs.assign(seconds=costs.seconds * [1, 1.3, 1, 1.3])).set_index("quantity")
    assert 0.02 < noisy.standard_error["seconds"] < 0.5


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
def test_fresh_processes_see_the_weights_in_memory():
    """Eager attention holds its n × n numbers, the others do not; each peak is its own."""
    done = []
    costs = measure_costs([1100], n_heads=4, d_head=16, repeats=1, progress=done.append)
    assert len(costs) == len(WAYS) == sum(done)
    memory = costs.set_index("way").memory
    written = 4 * 4 * 1100**2
    assert memory["eager"] >= 2 * written
    assert memory["fused"] < written / 2 and memory["ours"] < memory["eager"] / 2
    assert (costs.difference < 1e-5).all() and (costs.fastest <= costs.seconds).all()
    assert costs.flops.isna().tolist() == [way not in ("eager", "online") for way in WAYS]
    figure = figures.cost(
        pd.concat([costs.assign(length=n) for n in (512, 1024, 1100)]),
        exponents(pd.concat([costs.assign(length=n) for n in (512, 1024, 1100)])),
    )
    seconds = figure.axes[0].containers[0].lines[0].get_ydata()
    np.testing.assert_allclose(seconds.astype(float), costs.seconds[0])


def test_what_is_refused(monkeypatch):
    with pytest.raises(InterpError, match=r"lengths=\[1\]: expected lengths of 2 tokens or more"):
        measure_costs([1])
    q = torch.ones(1, 3, 4)
    with pytest.raises(InterpError, match="tile=0, 3 keys: expected 1 or more of each"):
        online_attention(q, q, q, tile=0)
    with pytest.raises(InterpError, match="2 queries and 3 keys: the causal mask needs as many"):
        online_attention(q[:, :2], q, q)
    monkeypatch.setattr(cost, "available_memory", lambda: 10**9)
    check_memory(1000, 8, 64)
    with pytest.raises(
        InterpError, match=r"length 50000: .* take about 240\.4 GB, and 1\.0 GB are free"
    ):
        check_memory(50_000, 8, 64)
    with pytest.raises(InterpError, match=r"2 heads of width 1000000000 .* about 320\.0 GB"):
        check_memory(10, 2, 10**9)
    monkeypatch.setattr(cost, "available_memory", lambda: None)
    check_memory(50_000, 8, 64)


def test_memory_that_is_available(monkeypatch):
    """What the kernel says, or what the container is still allowed."""
    there = {"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:     2000 kB\n"}
    monkeypatch.setattr(environment, "_text", lambda path: there.get(path, ""))
    assert environment.available_memory() == 2000 * 1024
    there |= {"/sys/fs/cgroup/memory.max": "max\n", "/sys/fs/cgroup/memory.current": "5\n"}
    assert environment.available_memory() == 2000 * 1024
    there["/sys/fs/cgroup/memory.max"] = "1005\n"
    assert environment.available_memory() == 1000
    there.clear()
    assert environment.available_memory() is None
