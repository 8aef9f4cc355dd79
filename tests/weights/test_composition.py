"""What the weights say: planted heads, TransformerLens' own products, what passes the door, two models."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from interp.editing.edits import Recording, edited
from interp.editing.sites import Site
from interp.errors import InterpError
from interp.models.forward import logits_at
from interp.models.model import load_model
from interp.results import figures, tables
from interp.weights import named_pairs
from interp.weights.composition import (
    composition,
    composition_scores,
    copying_scores,
    eigenvalue_score,
    left_factor,
    random_compositions,
    right_factors,
)
from interp.weights.head_weights import HeadWeights, LayerWeights
from interp.weights.named_pairs import PAIR, named_against_others
from interp.weights.norms import Norm
from tests.families import BYPASSING, CONFIGS, N_HEADS, N_LAYERS, VOCAB_SIZE, tiny_model

SERVED = [family for family in CONFIGS if family not in (*BYPASSING, "deepseek_v3")]
NORM_BEHIND = ("gemma2", "gemma3_text", "olmo2")
NORMED_QUERIES = ("qwen3", "gemma3_text", "olmo2", "olmoe")
IDS = torch.tensor([[3, 9, 4, 9, 30, 7, 2, 11, 12], [5, 6, 7, 8, 9, 10, 11, 40, 13]])
nan = np.nan


def tiny(family, **changes):
    return load_model((tiny_model(family, **changes), None))


@pytest.fixture(scope="module")
def default():
    return HeadWeights(load_model("default"))


def axis(i, size=6):
    return torch.eye(size)[i]


def rank_one(a, b):
    """Two dimensions of which one is idle: reads a, (1, len a, 2), and writes b, (1, 2, len b)."""
    read = torch.outer(a, torch.tensor([3.0, 4.0]))
    return read[None], torch.outer(torch.tensor([1.0, 0.5]), b)[None]


# --- by hand -------------------------------------------------------------------------------------


def test_a_head_that_reads_what_another_writes():
    """Head 1 writes e3. Head 2's keys read e3 (1), its queries e4 (0), its values both (√½)."""
    value, output = rank_one(axis(0), axis(3))
    sender = LayerWeights(0, torch.ones(1, 6, 2), torch.ones(1, 6, 2), value, output)
    query, _ = rank_one(axis(4), axis(0))
    key, _ = rank_one(-7 * axis(3), axis(0))
    both, out = rank_one(axis(3) + axis(4), axis(5))
    receiver = LayerWeights(1, query, key, both, out)
    found = {
        kind: composition(left_factor(sender), right).item()
        for kind, right in right_factors(receiver).items()
    }
    assert found == pytest.approx({"q": 0, "k": 1, "v": 0.5**0.5}, abs=1e-6)


@pytest.mark.parametrize(
    "matrix, score",
    [
        (torch.eye(3), 1),
        (-2 * torch.eye(3), -1),
        (torch.tensor([[0.0, -1.0], [1.0, 0.0]]), 0),  # a quarter turn: ±i
        (torch.diag(torch.tensor([3.0, -1.0])), 0.5),
        (torch.tensor([[0.0, 1.0], [0.0, 0.0]]), nan),  # moves, but nothing onto itself
        (torch.zeros(2, 2), nan),
    ],
)
def test_copying_by_hand(matrix, score):
    assert eigenvalue_score(matrix).item() == pytest.approx(score, nan_ok=True)


def test_planted_in_a_model():
    """Grouped queries and norm gains between: 0.1 writes e5 only, keys of group 1 in layer 2 read e5 only."""
    hf_model = tiny_model("llama")
    with torch.no_grad():
        writes = hf_model.model.layers[0].self_attn.o_proj.weight  # (d_model, heads × 10)
        writes[:, 10:20] = 0
        writes[5, 10:20] = torch.randn(10)
        hf_model.model.layers[2].self_attn.k_proj.weight[10:, :5] = 0  # key-value head 1
        hf_model.model.layers[2].self_attn.k_proj.weight[10:, 6:] = 0
    table = composition_scores(
        HeadWeights(load_model((hf_model, None))), [(0, 1), (1, 0)], [(2, 2), (1, 3)]
    )
    row = table.set_index([*PAIR, "kind"]).loc
    for head in (2, 3):
        one = row[0, 1, 2, head, "k"]
        assert one.composition == pytest.approx(1, abs=1e-5) and one.layers_percentile > 0.9
    assert row[0, 1, 2, 1, "k"].composition < 0.6
    pairs = table[table.named & (table.kind == "v")][PAIR].to_numpy().tolist()
    assert pairs == [[0, 1, 1, 3], [0, 1, 2, 2], [1, 0, 2, 2]]  # 1.0 and 1.3 don't read one another
    assert len(table) == 3 * 3 * N_HEADS**2
    for _, rows in table.groupby("kind"):
        best, worst = rows.composition.idxmax(), rows.composition.idxmin()
        assert (table.percentile[best], table.percentile[worst]) == (
            1,
            0,
        ) or rows.composition.max() > 0.99


def test_a_head_of_zeros_is_undefined_and_not_zero():
    hf_model = tiny_model("gpt2")
    with torch.no_grad():
        hf_model.transformer.h[0].attn.c_proj.weight[:10] = 0
    weights = HeadWeights(load_model((hf_model, None)))
    table, copying = composition_scores(weights, [(0, 0)], [(1, 0)]), copying_scores(weights)
    zero = (table.sender_layer == 0) & (table.sender_head == 0)
    assert table.composition[zero].isna().all() and table.composition[~zero].notna().all()
    assert table.percentile[zero].isna().all() and table.percentile.max() == 1
    assert copying.copying_ov.isna().tolist() == [True] + [False] * (N_LAYERS * N_HEADS - 1)
    tests = named_against_others(table)
    assert tests.p.isna().all() and (tests.n_pairs == 0).all()


# --- random heads --------------------------------------------------------------------------------


def test_random_heads_compose_by_one_over_the_root_of_d_model():
    found = random_compositions(768, 64, n_random=30)
    assert found.mean() == pytest.approx(0.0361, abs=0.001) and found.std() < 0.001
    assert np.array_equal(found, random_compositions(768, 64, n_random=30))
    assert not np.array_equal(found, random_compositions(768, 64, n_random=30, seed=1))


def test_one_baseline_serves_heads_with_folded_gains(default):
    """A random sender's mean square composition with any receiver is 1 / d_model."""
    generator = torch.Generator().manual_seed(0)
    value, output = (torch.randn(200, 128, 32, generator=generator) for _ in range(2))
    sender = LayerWeights(0, value, value, value, output.mT)
    for right in right_factors(default.layer(1)).values():
        mean = composition(left_factor(sender), right).square().mean().item()
        assert mean**0.5 == pytest.approx(128**-0.5, rel=0.03)


def test_random_heads_do_not_copy(default):
    table = copying_scores(default, n_random=200)
    for name in ("ov", "full"):
        mean, sd = table[f"{name}_baseline"], table[f"{name}_sd"]
        assert mean.nunique() == 1 and abs(mean[0]) < 4 * sd[0] / 200**0.5 and 0.02 < sd[0] < 0.1


# --- second witness ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_against_transformer_lens_which_folds_by_itself(family):
    """Its processed weights, its composition scores, and whole matrices' eigenvalues."""
    model = tiny(family)
    weights = HeadWeights(model)
    table = composition_scores(weights).set_index(["kind", *PAIR]).composition
    copying = copying_scores(weights).set_index(["layer", "head"])
    bridge = tiny(family).bridge()
    bridge.enable_compatibility_mode(disable_warnings=True)
    for kind in "qkv":
        theirs = bridge.all_composition_scores(kind.upper()).scores.detach()
        for a, i, b, j in table[kind].index:
            assert table[kind, a, i, b, j] == pytest.approx(theirs[a, i, b, j].item(), abs=2e-5)
    for layer in range(N_LAYERS):
        for head in range(N_HEADS):
            own = bridge.blocks[layer].attn
            kv_head = head // (N_HEADS // len(own.W_V)) if own.W_V.shape[0] < N_HEADS else head
            ov = (own.W_V[kv_head] @ own.W_O[head]).detach().double()
            full = bridge.W_E.detach().double() @ ov @ bridge.W_U.detach().double()
            assert full.shape == (VOCAB_SIZE, VOCAB_SIZE)
            row = copying.loc[layer, head]
            for ours, matrix in ((row.copying_ov, ov), (row.copying_full, full)):
                assert ours == pytest.approx(eigenvalue_score(matrix).item(), abs=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "olmo2"])
def test_a_gain_may_stand_in_the_norm_or_in_the_matrices(family):
    """Twice the gain and half the weight is the same model, and gives the same scores."""
    first, second = tiny_model(family), tiny_model(family)
    scale = torch.linspace(0.5, 2, first.config.hidden_size)
    with torch.no_grad():
        if family == "gpt2":
            block = second.transformer.h[1]
            block.ln_1.weight *= scale
            block.ln_1.bias *= scale
            block.attn.c_attn.weight /= scale[:, None]
        elif family == "olmo2":  # a norm behind attention and none before it
            block = second.model.layers[0]
            block.post_attention_layernorm.weight *= 3
        else:
            block = second.model.layers[1]
            one = int(family == "gemma2")  # which stores its gain less 1
            block.input_layernorm.weight.copy_((block.input_layernorm.weight + one) * scale - one)
            for name in "qkv":
                getattr(block.self_attn, f"{name}_proj").weight /= scale
    tables_ = [composition_scores(HeadWeights(load_model((m, None)))) for m in (first, second)]
    pd.testing.assert_frame_equal(*tables_, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("size", [6, 7])
def test_norms_are_measured(size):
    generator = torch.Generator().manual_seed(0)
    gain, bias = torch.randn(size, generator=generator), torch.randn(size, generator=generator)
    layer_norm = nn.LayerNorm(size)
    layer_norm.weight.data, layer_norm.bias.data = gain, bias
    found = Norm.measured(layer_norm, size, torch.empty(0))
    assert found.centres
    torch.testing.assert_close(found.gain, gain, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.bias, bias, atol=1e-5, rtol=1e-5)
    rms_norm = nn.RMSNorm(size)
    rms_norm.weight.data = gain
    found = Norm.measured(rms_norm, size, torch.empty(0))
    assert not found.centres and found.bias.abs().max() < 1e-6
    torch.testing.assert_close(found.gain, gain, atol=1e-5, rtol=1e-5)
    x, weight = torch.randn(4, size, generator=generator), torch.randn(size, 3, generator=generator)
    scale = (x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True).sqrt()
    folded = Norm.measured(layer_norm, size, torch.empty(0)).into_rows(weight)
    torch.testing.assert_close(
        x / scale @ folded + bias @ weight, layer_norm(x) @ weight, atol=1e-4, rtol=1e-4
    )


# --- what passes the door ------------------------------------------------------------------------


@pytest.mark.parametrize("family", SERVED)
def test_the_matrices_give_what_passes_the_door(family):
    """With the norm by its formula here: v − (x / scale) W_V is one constant, whatever the token; so are
    queries and keys of first tokens, which no rotation turns; and attn_out − z W_O."""
    model = tiny(family)
    weights = HeadWeights(model)
    kinds = ("resid_pre", "q", "k", "v", "z", "attn_out")
    for layer in (0, 2):
        recording = Recording(Site(kind, layer) for kind in kinds)
        first = IDS.reshape(-1, 1)  # every token as a prompt of its own: all at position 0
        with edited(model, recording=recording):
            logits_at(model, first, torch.zeros_like(first))
        x, q, k, v, z, out = (recording[Site(kind, layer)][..., 0, :] for kind in kinds)
        one = weights.layer(layer)
        q = q * model.d_head**0.5 if family == "opt" else q  # which divides before the door
        scaled = by_formula(model, layer, x)
        groups = N_HEADS // model.n_kv_heads
        read = [("v", v, one.value[::groups])]
        if family not in NORMED_QUERIES:  # whose length is not in the matrices; see the check below
            read += [("q", q, one.query), ("k", k, one.key[::groups])]
        for kind, there, matrix in read:
            rest = there - torch.einsum("pd,hde->phe", scaled, matrix)
            assert rest.std(0).max() < 1e-4 * there.std(), kind
        said = torch.einsum("phe,hed->pd", z, one.output)
        if family in NORM_BEHIND:  # its scale is another for each token
            cosine = nn.functional.cosine_similarity(out, said, dim=-1)
            assert cosine.min() > 1 - 1e-6
        else:
            if centres(model, layer):
                out = out - out.mean(-1, keepdim=True)
            rest = out - said * getattr(model.config, "residual_multiplier", 1.0)
            assert rest.std(0).max() < 1e-4 * out.std()


def centres(model, layer):
    try:
        name = type(model.component(f"blocks.{layer}.ln1")).__name__
    except InterpError:
        return False
    return "LayerNorm" in name


def by_formula(model, layer, x):
    """x / scale, centred where the norm is a layer norm; x itself where none stands before attention."""
    try:
        norm = model.component(f"blocks.{layer}.ln1")
    except InterpError:
        return x
    centred = x - x.mean(-1, keepdim=True) if centres(model, layer) else x
    epsilon = getattr(norm, "eps", getattr(norm, "variance_epsilon", 0.0))
    return centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt()


@pytest.mark.parametrize("family", NORMED_QUERIES)
def test_queries_and_keys_behind_norms_of_their_own_point_where_the_matrices_say(family):
    model = tiny(family)
    weights = HeadWeights(model)
    recording = Recording(Site(kind, 1) for kind in ("resid_pre", "q", "k"))
    first = IDS.reshape(-1, 1)
    with edited(model, recording=recording):
        logits_at(model, first, torch.zeros_like(first))
    x, q, k = (recording[Site(kind, 1)][..., 0, :] for kind in ("resid_pre", "q", "k"))
    one = weights.layer(1)
    for there, matrix in ((q, one.query), (k, one.key[:: N_HEADS // model.n_kv_heads])):
        said = torch.einsum("pd,hde->phe", x, matrix)
        assert nn.functional.cosine_similarity(there, said, dim=-1).min() > 1 - 1e-6


@pytest.mark.parametrize(
    "name, what",
    [("q", "the q of"), ("k", "the k of"), ("v", "the v of"), ("o", "what attention adds")],
)
def test_an_architecture_that_does_more_than_its_matrices_is_refused(name, what):
    """A bent projection stands for a gate, a clip, or anything else that nobody thought of."""
    model = tiny("qwen2")
    projection = getattr(model.hf_model.model.layers[2].self_attn, f"{name}_proj")
    projection.register_forward_hook(lambda module, args, output: output.clamp(-0.5, 0.5))
    with pytest.raises(InterpError, match=rf"layer 2 of .*Qwen2ForCausalLM\): {what}.* not what"):
        HeadWeights(model)


@pytest.mark.parametrize("family", [*BYPASSING, "deepseek_v3"])
def test_what_has_no_such_matrices_is_refused_by_name(family):
    message = "latent attention" if family == "deepseek_v3" else "bypasses transformers' attention"
    with pytest.raises(InterpError, match=f"ForCausalLM .*{message}"):
        HeadWeights(tiny(family))


def test_half_precision():
    weights = HeadWeights(load_model((tiny_model("qwen3").to(torch.bfloat16), None)))
    exact = HeadWeights(tiny("qwen3"))
    ours, theirs = (composition_scores(w).composition for w in (weights, exact))
    np.testing.assert_allclose(ours, theirs, atol=0.01)


def test_bad_arguments(default):
    with pytest.raises(InterpError, match=r"head 3\.0: default has heads 0 to 7 in layers 0 to 2"):
        composition_scores(default, [(3, 0)], [(1, 0)])
    with pytest.raises(InterpError, match="n_random=1: "):
        copying_scores(default, n_random=1)
    with pytest.raises(InterpError, match="one layer of attention"):
        composition_scores(HeadWeights(tiny("llama", num_hidden_layers=1)))
    with pytest.raises(InterpError, match="layer 7 of default: no attention there"):
        default.layer(7)


# --- named pairs against others ------------------------------------------------------------------


def pairs_table(values, senders, receivers, kind="k"):
    """A table of all pairs of two layers of 4 heads with these K compositions; Q and V are flat."""
    index = np.indices((4, 4)).reshape(2, -1)
    frames = []
    for name in "qkv":
        frame = pd.DataFrame({"sender_head": index[0], "receiver_head": index[1]})
        frame["composition"] = np.asarray(values, float).ravel() if name == kind else 0.1
        frame["kind"] = name
        frames.append(frame)
    table = pd.concat(frames, ignore_index=True)
    table["named"] = table.sender_head.isin(senders) & table.receiver_head.isin(receivers)
    same = {
        "model": "m",
        "sender_layer": 0,
        "receiver_layer": 1,
        "baseline": 0.1,
        "baseline_sd": 0.01,
    }
    table = table.assign(**same, percentile=0.5, layers_percentile=0.5)
    return tables.COMPOSITION.validate(table[list(tables.COMPOSITION.columns)])


def test_p_by_hand():
    values = np.full((4, 4), 0.1)
    values[1, 2:] = 0.5, 0.4
    one = named_against_others(pairs_table(values, [1], [2])).set_index("kind")
    assert one.loc["k", ["composition", "others", "p", "n_relabellings"]].tolist() == [
        0.5,
        pytest.approx((14 * 0.1 + 0.4) / 15),
        1 / 16,  # the largest of 4 × 4
        16,
    ]
    assert one.p["q"] == one.p["v"] == 1 and one.exact.all() and (one.n_others == 15).all()
    second = named_against_others(pairs_table(values, [1], [3])).set_index("kind")
    assert second.p["k"] == 2 / 16
    # Both receivers: 4 senders × 6 pairs of receivers; as one group of two: 4 × 2.
    both = pairs_table(values, [1], [2, 3])
    assert named_against_others(both).p[1] == 1 / 24
    grouped = named_against_others(both, group_size=2)
    assert (grouped.p[1], grouped.n_relabellings[1]) == (1 / 8, 8)
    # One of each group: 4 senders × (2 × 2) receivers.
    apart = named_against_others(pairs_table(values, [1], [1, 2]), group_size=2)
    assert apart.n_relabellings[1] == 16


def test_drawn_relabellings_agree_with_all_of_them(monkeypatch):
    values = np.random.default_rng(0).random((4, 4))
    table = pairs_table(values, [0, 3], [1, 2])
    for size in (1, 2):
        exact = named_against_others(table, group_size=size)
        with monkeypatch.context() as patch:
            patch.setattr(named_pairs, "MOST_RELABELLINGS", 1)
            drawn = named_against_others(table, group_size=size)
        assert exact.exact.all() and not drawn.exact.any()
        assert drawn.p[1] == pytest.approx(exact.p[1], abs=0.02)
        assert drawn.null_high[1] == pytest.approx(exact.null_high[1], abs=0.05)
        assert drawn.n_relabellings[1] == 9_999


def test_p_is_fair():
    """Over all that could have been named, p takes each of its values once."""
    values = np.random.default_rng(0).random((4, 4))
    p = [
        named_against_others(pairs_table(values, [head], [other])).p[1]
        for head in range(4)
        for other in range(4)
    ]
    assert sorted(p) == [i / 16 for i in range(1, 17)]


def test_a_head_of_both_roles_stays_one_head():
    """1.0 receives from layer 0 and sends to layer 2: wherever it goes, it goes as one."""
    rng = np.random.default_rng(1)
    frames = []
    for a, b in ((0, 1), (0, 2), (1, 2)):
        frame = pairs_table(rng.random((4, 4)), [], []).assign(sender_layer=a, receiver_layer=b)
        frames.append(frame)
    table = pd.concat(frames, ignore_index=True)
    ends = [[(0, 0), (1, 0)], [(1, 0), (2, 3)]]
    is_end = [
        pd.Series(list(zip(table[layer], table[head], strict=True))).isin(heads)
        for (layer, head), heads in zip((PAIR[:2], PAIR[2:]), ends, strict=True)
    ]
    table["named"] = is_end[0] & is_end[1]
    assert table[table.kind == "k"].named.sum() == 3
    assert named_against_others(table).n_relabellings.unique().tolist() == [4 * 4 * 4]


def test_without_named_pairs_there_is_no_p():
    tests = named_against_others(pairs_table(np.full((4, 4), 0.1), [], []))
    assert tests.p.isna().all() and tests.composition.isna().all() and (tests.n_pairs == 0).all()


# --- files and figure ----------------------------------------------------------------------------


def test_tables_read_back_and_the_figure_shows_them(tmp_path, default):
    pairs = composition_scores(default, [(0, 5)], [(1, 3), (1, 6)], n_random=5)
    tests = named_against_others(pairs, group_size=2)
    for name, table in (("pairs", pairs), ("tests", tests), ("heads", copying_scores(default))):
        path = tmp_path / f"{name}.csv"
        tables.write(table, path)
        pd.testing.assert_frame_equal(tables.read(path), table, check_dtype=False)
    figure = figures.composition(pairs, tests)
    by_k = pairs[pairs.named & (pairs.kind == "k")].sort_values("composition")
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == [f"0.5 → 1.{head}" for head in by_k.receiver_head]
    dots = [line for line in figure.axes[1].lines if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in dots] == by_k.composition.tolist()
    colors = {mpl.colors.to_hex(dot.get_color()) for axis in figure.axes for dot in axis.lines[1:2]}
    assert len(colors) == 3
    assert f"p = {tests.p[1]:.2g}" in figure.axes[1].get_title()
    unnamed = composition_scores(default, n_random=5)
    figure = figures.composition(unnamed, named_against_others(unnamed), most=5)
    assert len(figure.axes[0].get_yticklabels()) == 5 and "p =" not in figure.axes[1].get_title()
    assert "no pair named" in figure.get_suptitle()


# --- what two models show ------------------------------------------------------------------------


def test_the_default_model(default):
    """The previous-token head 0.5 K-composes with every induction head of layer 1, and by nothing else; the
    induction heads copy, and it does not."""
    receivers = [(1, head) for head in range(8)]
    pairs = composition_scores(default, [(0, 5)], receivers)
    named = pairs[pairs.named].groupby("kind").composition
    assert named.min()["k"] == pytest.approx(0.201, abs=0.003)
    assert named.max()["k"] == pytest.approx(0.218, abs=0.003)
    # What their queries read is 0.4, the other head that copying can't do without (see ablate_heads).
    of_q = pairs[(pairs.kind == "q") & (pairs.receiver_layer == 1)]
    best = of_q.sort_values("composition").groupby("receiver_head").sender_head.last()
    assert (best == 4).all() and of_q[of_q.sender_head == 4].composition.min() > 0.18
    assert named.max()["q"] < 0.05 and named.max()["v"] < 0.04  # below random heads
    assert pairs.baseline[0] == pytest.approx(128**-0.5, abs=0.001)
    assert pairs[pairs.named & (pairs.kind == "k")].percentile.min() > 0.95
    # All eight heads of the layer are named, so only another sender could be: 1 of 8.
    tests = named_against_others(pairs, group_size=2).set_index("kind")
    assert tests.p["k"] == 1 / 8 and tests.n_relabellings["k"] == 8
    three = composition_scores(default, [(0, 5)], [(1, 3), (1, 2), (1, 6)])
    assert named_against_others(three, group_size=2).p[1] == pytest.approx(7 / 192)
    copying = copying_scores(default).set_index(["layer", "head"])
    assert copying.loc[1].copying_full.min() > 0.97 and copying.loc[1].copying_ov.min() > 0.97
    assert copying.copying_full[0, 5] == pytest.approx(-0.56, abs=0.02)


@pytest.mark.smollm2
def test_smollm2_the_previous_token_head_feeds_the_induction_heads(smollm2_model):
    """16.0 with 17.3, 18.6 and 18.7: four times random heads by keys, not by queries."""
    weights = HeadWeights(smollm2_model)
    sender = left_factor(weights.layer(16))
    found = {
        layer: {
            kind: composition(sender, right)
            for kind, right in right_factors(weights.layer(layer)).items()
        }
        for layer in (17, 18)
    }
    for layer, head, expected in ((17, 3, 0.168), (18, 6, 0.161), (18, 7, 0.165)):
        of_k = found[layer]["k"]
        assert of_k[0, head].item() == pytest.approx(expected, abs=0.003)
        assert (of_k > of_k[0, head]).sum() <= 2  # of 81 pairs
        assert found[layer]["q"][0, head] < 0.07
    assert random_compositions(576, 64, n_random=10).mean() == pytest.approx(1 / 24, abs=0.001)
