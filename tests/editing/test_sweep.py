"""The sweep against one plain forward pass per cell, and its arithmetic against hands."""

import math

import numpy as np
import pytest
import torch

from interp.editing.edits import Cut, Recording, Replace, edited
from interp.editing.metrics import METRICS, normalised, positions
from interp.editing.passes import started_at
from interp.editing.sites import Site
from interp.editing.sweep import sweep
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.inputs.tasks import Example, Task
from interp.interventions.effects import recorded
from interp.models.forward import logits_at
from interp.models.model import load_model
from interp.runs.parts import Parts
from tests.families import BYPASSING, CONFIGS, N_HEADS, N_LAYERS, tiny_model

SERVED = [family for family in CONFIGS if family not in BYPASSING]
GENERATOR = np.random.default_rng(0)
EXAMPLES = [
    Example(Prompt(tuple(GENERATOR.integers(3, 60, n).tolist()), f"p{i}"), 5 + i, 20 + i)
    for i, n in enumerate((9, 9, 7, 9, 7))
]
HEADS = [
    [Replace.zero(Site("z", layer, (head,)))]
    for layer in range(N_LAYERS)
    for head in range(N_HEADS)
]
DIFFERENCE = METRICS["logit_difference"]


def tiny(family, **changes):
    return load_model((tiny_model(family, **changes), None))


def plain(model, example, edits, metric=DIFFERENCE):
    ids = torch.tensor([example.prompt.ids])
    where = torch.tensor([positions(example)])
    with edited(model, []):
        clean = logits_at(model, ids, where)
    with edited(model, edits):
        return float(metric.measure(logits_at(model, ids, where), clean, [example])[0])


@pytest.mark.parametrize("family", SERVED)
def test_every_cell_is_one_plain_forward_pass(family):
    model = tiny(family)
    metrics = [DIFFERENCE, METRICS["kl"], METRICS["log_probability"]]
    found = sweep(model, EXAMPLES, HEADS, metrics)
    assert found.values.shape == (3, len(HEADS), len(EXAMPLES))
    for m, metric in enumerate(metrics):
        expected = [[plain(model, e, cell, metric) for e in EXAMPLES] for cell in HEADS]
        np.testing.assert_allclose(found.values[m], expected, atol=1e-4)
    np.testing.assert_allclose(found.clean[0], [plain(model, e, []) for e in EXAMPLES], atol=1e-5)
    assert found.largest_difference < 1e-4
    assert np.abs(found.effects[0]).max() > 1e-2


def test_the_last_layer_runs_on_what_the_metric_reads():
    """And on everything where a cell changes something in it."""
    model, seen = tiny("llama"), []
    last = model.hf_model.model.layers[-1]
    handle = last.mlp.register_forward_hook(lambda _, __, out: seen.append(out.shape[:2]))
    sweep(model, EXAMPLES[:1], HEADS[:4], [DIFFERENCE], batch_tokens=10_000)
    length = len(EXAMPLES[0].prompt.ids)
    assert (4, 1) in seen and (4, length) not in seen
    seen.clear()
    sweep(model, EXAMPLES[:1], [*HEADS[:4], (*HEADS[0], *HEADS[-1])], [DIFFERENCE])
    assert (5, length) in seen
    handle.remove()


@pytest.mark.parametrize("batch_tokens", [1, 20, 10_000])
def test_batches_make_no_difference(batch_tokens):
    model = tiny("qwen3")
    expected = sweep(model, EXAMPLES, HEADS, [DIFFERENCE])
    found = sweep(model, EXAMPLES, HEADS, [DIFFERENCE], batch_tokens=batch_tokens)
    np.testing.assert_allclose(found.values, expected.values, atol=1e-4)


def test_a_cell_may_span_layers_and_sites():
    model = tiny("gemma2")
    cells = [
        [Replace.zero(Site("z", 2, (0,))), Replace.zero(Site("mlp_out", 1))],
        [Replace.zero(Site("resid_pre", 1, None, (2,))), Cut(2, (0,))],
        [Replace.zero(Site("resid_post", 0, None, (1,)))],
    ]
    found = sweep(model, EXAMPLES, cells, [DIFFERENCE])
    expected = [[plain(model, e, cell) for e in EXAMPLES] for cell in cells]
    np.testing.assert_allclose(found.values[0], expected, atol=1e-4)


def test_values_of_a_donor_follow_their_examples():
    """Resampling: each example has its own donor, whatever the grouping."""
    model = tiny("llama")
    same = [e for e in EXAMPLES if len(e.prompt.ids) == 9]
    site = Site("z", 1, (2,))
    recording = Recording([site])
    ids = torch.tensor([e.prompt.ids for e in same])
    with edited(model, recording=recording):
        logits_at(model, ids, torch.tensor([[8]] * len(same)))
    own = Replace(site, recording[site], "own")
    found = sweep(model, same, [[own]], [DIFFERENCE], batch_tokens=9)
    assert np.abs(found.effects).max() == 0  # C55: self-patching, exactly
    others = Replace(site, recording[site].roll(1, 0), "the one before")
    found = sweep(model, same, [[others]], [DIFFERENCE], batch_tokens=18)
    assert np.abs(found.effects).min() > 1e-6  # C54: and another's does something


def test_denoising_runs_the_corrupted_and_measures_the_clean():
    """The whole stream patched: normalised effect 1 at every layer."""
    model = tiny("gpt2")
    clean = EXAMPLES[0].prompt
    corrupted = Prompt((*clean.ids[:3], 44, *clean.ids[4:]), "c")
    example = Example(clean, 5, 20, corrupted=corrupted)
    cells = []
    for layer in range(N_LAYERS):
        recording = Recording([Site("resid_pre", layer)])
        with edited(model, recording=recording):
            logits_at(model, torch.tensor([clean.ids]), torch.tensor([[8]]))
        stream = recording[Site("resid_pre", layer)]
        cells.append([Replace(Site("resid_pre", layer), stream, "clean")])
    found = sweep(model, [example], cells, [DIFFERENCE], base=[corrupted])
    right = sweep(model, [example], cells[:1], [DIFFERENCE]).clean[0]
    np.testing.assert_allclose(found.clean[0], right, atol=1e-5)
    shares = normalised(found.values[0], right, found.before[0])
    np.testing.assert_allclose(shares, 1, atol=1e-4)


def test_the_model_is_left_as_it_was_when_a_sweep_breaks():
    model = tiny("llama")
    ids = torch.tensor([EXAMPLES[0].prompt.ids])
    with edited(model, []):
        before = logits_at(model, ids, torch.tensor([[8]]))
    with pytest.raises(KeyboardInterrupt), started_at(model, 2):
        raise KeyboardInterrupt
    with edited(model, []):
        assert torch.equal(logits_at(model, ids, torch.tensor([[8]])), before)


def test_a_block_that_somebody_has_wrapped_stays_wrapped():
    """As accelerate does, to move a block's input to its device."""
    model = tiny("llama")
    block = model.hf_model.model.layers[0]
    own = block.forward

    def wrapped(*args, **kwargs):
        return own(*args, **kwargs)

    block.forward = wrapped
    with started_at(model, 1):
        assert block.forward is not wrapped
    assert block.forward is wrapped


def test_metrics_by_hand():
    logits = torch.tensor([[[1.0, 3.0, 0.0], [2.0, 0.0, 1.0]]])
    clean = torch.tensor([[[1.0, 2.0, 0.0], [0.0, 5.0, 1.0]]])
    example = [Example(Prompt((0, 1, 2), "x"), answer=0, wrong=2, scored=(1, 2))]

    def value(name):
        return float(METRICS[name].measure(logits, clean, example)[0])

    assert value("logit_difference") == 1.0
    total = math.log(math.exp(2) + 1 + math.e)
    assert value("log_probability") == pytest.approx(2 - total, abs=1e-6)
    first = math.log(math.e + math.exp(3) + 1)
    assert value("loss") == pytest.approx((first - 3 + total - 1) / 2, abs=1e-6)
    assert value("flips") == 0.5
    assert value("kl") > 0
    assert float(METRICS["kl"].measure(clean, clean, example)[0]) == 0
    assert np.isnan(normalised(np.array([1.0]), np.array([2.0]), np.array([2.0])))[0]


@pytest.mark.parametrize(
    "arguments, says",
    [
        (dict(cells=[]), "nothing to sweep"),
        (dict(examples=[]), "nothing to sweep"),
        (dict(cells=[[]]), "a cell without edits"),
        (dict(cells=[[Replace.zero(Site("z", 7))]]), "no layer 7"),
        (dict(metrics=[METRICS["loss"]]), "needs examples with 'scored'"),
        (dict(base=[Prompt((1, 2), "short")]), "has 2 tokens"),
        (dict(base=[EXAMPLES[0].prompt] * 2), "2 prompts for 1 examples"),
        (
            dict(
                examples=EXAMPLES[:2], cells=[[Replace(Site("z", 1), torch.zeros(3, 1, 1, 1), "x")]]
            ),
            "its value is of 3 prompts, and there are 2 examples",
        ),
        (
            dict(examples=[Example(EXAMPLES[0].prompt, 5, 20, scored=(2, 3))]),
            "reads the last position, and of p0 those that predict its scored tokens",
        ),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_runs(arguments, says):
    model = tiny("llama")
    given = dict(examples=EXAMPLES[:1], cells=HEADS[:1], metrics=[DIFFERENCE]) | arguments
    with pytest.raises(InterpError, match=says):
        sweep(model, given.pop("examples"), given.pop("cells"), given.pop("metrics"), **given)


def test_a_model_that_says_nan_is_refused():
    model = tiny("llama")
    model.hf_model.lm_head.weight.data[7] = torch.nan
    with pytest.raises(InterpError, match="NaN"):
        sweep(model, EXAMPLES[:1], HEADS[:1], [DIFFERENCE])


def test_examples_that_make_no_sense():
    prompt = Prompt((1, 2, 3), "p")
    with pytest.raises(InterpError, match="expected an answer"):
        Example(prompt)
    with pytest.raises(InterpError, match="clean prompt has 3 tokens, the corrupted one 2"):
        Example(prompt, 1, 2, corrupted=Prompt((1, 2), "c"))
    with pytest.raises(InterpError, match="predicted by none"):
        Example(prompt, scored=(0,))
    for scored in ((2, 1), (1, 1)):  # the first is where a cell begins, each counts once
        with pytest.raises(InterpError, match="expected rising positions, each once"):
            Example(prompt, scored=scored)
    with pytest.raises(InterpError, match="token 4 is both answer and wrong"):
        Example(prompt, 4, 4)
    with pytest.raises(InterpError, match="2 prompts are named 'p'"):
        Task("t", (Example(prompt, 1, 2), Example(prompt, 2, 1)))
    with pytest.raises(InterpError, match=r"no examples are left \(2 × name"):
        Task("t", (), (("name of several tokens", 2),))


def test_the_plan_says_what_will_be_done():
    said = []
    found = sweep(tiny("llama"), EXAMPLES, HEADS, [DIFFERENCE], on_plan=said.append)
    (plan,) = said
    assert plan == found.plan
    assert (plan.n_cells, plan.n_examples) == (12, 5)
    tokens = sum(len(example.prompt.ids) for example in EXAMPLES)
    # Four heads from each layer on, the clean pass, and two unedited cells to see what rounding does.
    assert plan.plain_work == 12 * 3 * tokens
    # The last layer is run on one position of each example, unless the head is in it.
    assert plan.work == (4 * (2 + 1 + 1) + 3 + 2 * 2) * tokens + (4 * (1 + 1) + 2) * 5
    assert plan.n_forwards == 2 * (2 + 3)  # two lengths; these two, and one for each layer
    assert 0 < plan.seconds < 60
    assert "12 cells × 5 examples in 10 forward passes, 67% of the work" in str(plan)


def at_positions(n_tokens):
    """Every kind of site, at one or two positions, and cells that must begin at the first."""
    return [
        [Replace.zero(Site("z", 1, (2,), (n_tokens - 1,)))],
        [Replace.zero(Site("z", 0, (1,), (3, 5)))],
        [Replace.zero(Site("q", 1, None, (4,))), Replace.zero(Site("mlp_out", 2, None, (6,)))],
        [Replace.zero(Site("k", 1, (0,), (4,)))],
        [Replace.zero(Site("v", 0, (0,), (2,)))],
        [Replace.zero(Site("resid_pre", 2, None, (5,)))],
        [Replace.zero(Site("resid_post", 0, None, (3,)))],
        [Replace.zero(Site("z", 2, (2,), (4,))), Cut(2, (0,), (5,))],
    ]


@pytest.mark.parametrize("family", SERVED)
def test_a_cell_at_a_position_begins_there_and_is_one_plain_pass(family):
    model = tiny(family)
    same = [e for e in EXAMPLES if len(e.prompt.ids) == 9]
    cells = at_positions(9)
    found = sweep(model, same, cells, [DIFFERENCE])
    expected = [[plain(model, e, cell) for e in same] for cell in cells]
    np.testing.assert_allclose(found.values[0], expected, atol=1e-4)
    # From each layer on, cells × layers left × positions left, or one position of the last layer where
    # no cell is in it; the clean pass; what rounding does.
    assert found.plan.work == 3 * (3 * (2 * 7 + 1) + 3 * 2 * 5 + 2 * 9 + 3 * 9 + 2 * (2 * 7 + 1))
    single = sweep(model, same, cells[:1], [DIFFERENCE])
    assert single.plan.work == 3 * (2 * 1 + 3 * 9 + 2 * 2 * 1)  # the last position of two layers


def test_where_nothing_changes_the_effect_is_exactly_0():
    """C55, also where a cell begins at a later position, and whatever else is in its pass."""
    model = tiny("qwen3")
    same = [e for e in EXAMPLES if len(e.prompt.ids) == 9]
    sites = [Site("resid_pre", layer, None, (p,)) for layer in range(N_LAYERS) for p in (3, 8)]
    sites += [Site("z", layer, (1,), (p,)) for layer in range(N_LAYERS) for p in (0, 5)]
    own = recorded(model, [e.prompt for e in same], sites)
    cells = [[Replace(site, own[site], "own")] for site in sites]
    for batch_tokens in (20, 4096):
        found = sweep(model, same, cells, [DIFFERENCE], batch_tokens=batch_tokens)
        assert np.abs(found.effects).max() == 0
        assert 0 < found.rounding[0] < 1e-4


def test_what_the_metric_reads_before_the_edit_is_as_it_was():
    model = tiny("llama")
    prompt = EXAMPLES[0].prompt
    early = Example(prompt, scored=(2, 3, 8))
    late = Replace.zero(Site("z", 0, None, (6,)))
    found = sweep(model, [early], [[late]], [METRICS["loss"]])
    assert found.effects[0, 0, 0] == pytest.approx(
        plain(model, early, [late], METRICS["loss"]) - found.clean[0, 0], abs=1e-5
    )


def test_a_stopped_sweep_goes_on(tmp_path):
    """What was measured is not measured again, and the end is the same, bit by bit."""
    model = tiny("llama")
    whole = sweep(model, EXAMPLES, HEADS, [DIFFERENCE], batch_tokens=30)
    done = []

    def stop(n):
        done.append(n)
        if len(done) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        parts = Parts(tmp_path / "parts", ["this"])
        sweep(model, EXAMPLES, HEADS, [DIFFERENCE], batch_tokens=30, parts=parts, progress=stop)
    files = sorted((tmp_path / "parts").iterdir())
    assert len(files) == 4
    files[0].write_bytes(files[0].read_bytes()[:50])  # a half-written piece
    damaged = bytearray(files[1].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    files[1].write_bytes(damaged)
    again = Parts(tmp_path / "parts", ["this"])
    found = sweep(model, EXAMPLES, HEADS, [DIFFERENCE], batch_tokens=30, parts=again)
    assert again.n_loaded == 2
    assert np.array_equal(found.values, whole.values)
    other = Parts(tmp_path / "parts", ["that"])
    with pytest.raises(InterpError, match="of another measurement"):
        sweep(model, EXAMPLES, HEADS, [DIFFERENCE], batch_tokens=30, parts=other)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_patching_equals_transformerlens_cell_by_cell(family):
    """Against its ``get_act_patch_attn_head_out_by_pos`` and ``get_act_patch_resid_pre``."""
    from transformer_lens import patching

    model = tiny(family)
    clean = EXAMPLES[0].prompt
    corrupted = Prompt((*clean.ids[:3], 44, *clean.ids[4:6], 17, *clean.ids[7:]), "c")
    example = Example(clean, 5, 20, corrupted=corrupted)
    ids, other = (torch.tensor([p.ids]) for p in (clean, corrupted))
    bridge = model.bridge()
    _, cache = bridge.run_with_cache(ids)

    def metric(logits):
        return logits[0, -1, 5] - logits[0, -1, 20]

    n = len(clean.ids)
    z = [Site("z", layer) for layer in range(N_LAYERS)]
    stream = [Site("resid_pre", layer) for layer in range(N_LAYERS)]
    recording = Recording([*z, *stream])
    with edited(model, recording=recording):
        logits_at(model, ids, torch.tensor([[n - 1]]))

    theirs = patching.get_act_patch_attn_head_out_by_pos(bridge, other, cache, metric)
    cells = [
        [Replace(site, recording[site], "clean")]
        for layer in range(N_LAYERS)
        for position in range(n)
        for head in range(N_HEADS)
        for site in [Site("z", layer, (head,), (position,))]
    ]
    ours = sweep(model, [example], cells, [DIFFERENCE], base=[corrupted])
    np.testing.assert_allclose(
        ours.values[0, :, 0].reshape(N_LAYERS, n, N_HEADS), theirs.numpy(), atol=1e-4
    )

    theirs = patching.get_act_patch_resid_pre(bridge, other, cache, metric)
    cells = [
        [Replace(site, recording[site], "clean")]
        for layer in range(N_LAYERS)
        for position in range(n)
        for site in [Site("resid_pre", layer, None, (position,))]
    ]
    ours = sweep(model, [example], cells, [DIFFERENCE], base=[corrupted])
    np.testing.assert_allclose(ours.values[0, :, 0].reshape(N_LAYERS, n), theirs.numpy(), atol=1e-4)
    assert np.abs(ours.effects).max() > 1e-2
