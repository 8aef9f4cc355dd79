"""Edits against hand-made hooks, TransformerLens' own, and what must not change, on every family."""

import sys
import threading

import numpy as np
import pytest
import torch

from interp.attention.door import open_door
from interp.editing.edits import Cut, Placed, Recording, Redirect, Replace, edited, knock_out
from interp.editing.metrics import METRICS
from interp.editing.sites import HEAD_KINDS, STREAM_KINDS, Site, adders
from interp.editing.sweep import sweep
from interp.errors import InterpError
from interp.inputs.prompts import Prompt, prompts_of_ids
from interp.inputs.tasks import Example
from interp.models.model import load_model
from interp.scoring.scores import score_heads
from tests.families import BYPASSING, CONFIGS, N_HEADS, N_LAYERS, tiny_model

SERVED = [family for family in CONFIGS if family not in BYPASSING]
PARALLEL = ("gpt_neox", "gptj", "cohere2")
IDS = torch.tensor([[3, 9, 4, 9, 30, 7, 2, 11, 12], [5, 6, 7, 8, 9, 10, 11, 40, 13]])
N = IDS.shape[1]


def tiny(family, **changes):
    return load_model((tiny_model(family, **changes), None))


def logits(model, edits=(), ids=IDS, **options):
    with torch.no_grad(), edited(model, edits, **options):
        return model.hf_model(input_ids=ids, use_cache=False).logits


def plain(model, ids=IDS):
    with torch.no_grad(), open_door(model.hf_model):
        return model.hf_model(input_ids=ids, use_cache=False).logits


def kinds_of(model, layer=1):
    return [
        kind
        for kind in HEAD_KINDS + STREAM_KINDS
        if kind != "resid_mid" or adders(model, layer).sequential
    ]


@pytest.mark.parametrize("family", SERVED)
def test_writing_back_what_is_there_changes_nothing_at_all(family):
    """C55: exactly 0 in float32, at every kind of site; a pattern written out differs by rounding."""
    model = tiny(family)
    clean = plain(model)
    sites = [Site(kind, 2 if kind == "final" else 1) for kind in kinds_of(model)]
    recording = Recording(sites)
    assert torch.equal(logits(model, recording=recording), clean)
    for site in sites:
        again = logits(model, Replace(site, recording[site], "the same"))
        if site.kind == "pattern":
            torch.testing.assert_close(again, clean, atol=2e-5, rtol=1e-4)
        else:
            assert torch.equal(again, clean), site
    assert torch.equal(plain(model), clean)


@pytest.mark.parametrize("family", SERVED)
def test_the_residual_stream_of_another_prompt_is_that_prompt(family):
    """Patching the whole stream at a layer gives the donor's logits: normalised effect 1."""
    model = tiny(family)
    for kind in (
        "resid_pre",
        "resid_post",
        *(["resid_mid"] if "resid_mid" in kinds_of(model) else []),
    ):
        site = Site(kind, 1)
        recording = Recording([site])
        donor = logits(model, ids=IDS.flip(0), recording=recording)
        patched = logits(model, Replace(site, recording[site], "donor"))
        torch.testing.assert_close(patched, donor, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", SERVED)
def test_parts_add_up(family):
    """C52: resid_pre + attn_out = resid_mid, + mlp_out = resid_post, also behind norms and factors."""
    model = tiny(family)
    for layer in range(N_LAYERS):
        names = ["resid_pre", "attn_out", "mlp_out", "resid_post"]
        if adders(model, layer).sequential:
            names.append("resid_mid")
        recording = Recording([Site(name, layer) for name in names])
        logits(model, recording=recording)
        part = {name: recording[Site(name, layer)] for name in names}
        total = part["resid_pre"] + part["attn_out"]
        if "resid_mid" in part:
            torch.testing.assert_close(total, part["resid_mid"], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(
            total + part["mlp_out"], part["resid_post"], atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("family", SERVED)
def test_which_families_have_a_middle(family):
    model = tiny(family)
    # StableLM's is sequential unless asked; a parallel block has no stream between its parts.
    assert adders(model, 1).sequential == (family not in PARALLEL)
    if family in PARALLEL:
        with pytest.raises(InterpError, match="read the same stream"):
            logits(model, Replace.zero(Site("resid_mid", 1)))


def zeroed_by_hook(model, layer, head, ids=IDS):
    """What zeroing a head's columns of the output projection's input gives."""
    projection = model.component(f"blocks.{layer}.attn.o")

    def hook(module, args):
        z = args[0].clone()
        size = z.shape[-1] // model.n_heads
        z[..., head * size : (head + 1) * size] = 0
        return (z,)

    handle = projection.register_forward_pre_hook(hook)
    try:
        return plain(model, ids)
    finally:
        handle.remove()


@pytest.mark.parametrize("family", SERVED)
def test_a_zeroed_head_is_its_columns_of_the_output_projection(family):
    """C58: the projection's bias stays."""
    model = tiny(family)
    for layer, head in ((0, 1), (2, N_HEADS - 1)):
        ours = logits(model, Replace.zero(Site("z", layer, (head,))))
        torch.testing.assert_close(ours, zeroed_by_hook(model, layer, head), atol=1e-6, rtol=1e-6)
        assert (ours - plain(model)).abs().max() > 1e-4


def test_positions_are_positions_and_not_prompts():
    """C57: each prompt in a batch as it is alone, and only the named position is touched."""
    model = tiny("llama")
    site = Site("z", 1, positions=(0, 3))
    recording = Recording([Site("z", 1)])
    together = logits(model, Replace.zero(site), recording=recording)
    z = recording[Site("z", 1)]
    assert (z[:, :, [0, 3]] == 0).all() and (z[:, :, [1, 2, 4]] != 0).any()
    for row in range(2):
        alone = logits(model, Replace.zero(site), ids=IDS[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-5, rtol=1e-5)


def test_rows_of_a_batch_are_edited_each_for_itself():
    model = tiny("qwen2")
    edits = [Replace.zero(Site("z", 1, (head,))) for head in range(3)]
    ids = IDS.repeat(3, 1)
    rows = [Placed(edit, slice(2 * i, 2 * i + 2)) for i, edit in enumerate(edits)]
    together = logits(model, rows, ids=ids)
    for i, edit in enumerate(edits):
        torch.testing.assert_close(
            together[2 * i : 2 * i + 2], logits(model, edit), atol=1e-5, rtol=1e-5
        )


def test_a_value_per_prompt_follows_its_prompt():
    model = tiny("llama")
    site = Site("z", 1, (2,))
    recording = Recording([site])
    logits(model, ids=IDS, recording=recording)
    edit = Replace(site, recording[site], "own")

    def after(*order):
        return logits(model, [Placed(edit, slice(0, 2), torch.tensor(order))], ids=IDS.flip(0))

    right = plain(model, IDS.flip(0))
    torch.testing.assert_close(after(1, 0), right, atol=0, rtol=0)
    assert (after(0, 1) - right).abs().max() > 0.01


def by_hand(model, change):
    """Logits with each layer's z recomputed from its written-out, changed weights."""
    pattern = Recording([Site("pattern", 1)])
    logits(model, recording=pattern)
    weights = change(pattern[Site("pattern", 1)].clone())
    return logits(model, Replace(Site("pattern", 1), weights, "by hand"))


WITHOUT_SINKS = [family for family in SERVED if family != "gpt_oss"]


@pytest.mark.parametrize("family", WITHOUT_SINKS)
@pytest.mark.parametrize("heads", [None, (1, 2)])
def test_cut_edges(family, heads):
    """With and without renormalising, against weights changed by hand; windows and soft caps too."""
    model = tiny(family)
    chosen = list(range(N_HEADS)) if heads is None else list(heads)
    keys, queries = (0, 2), (3, 4, 7)

    def cut(weights, renormalise):
        part = weights[:, chosen]
        index = torch.tensor(queries)[:, None], torch.tensor(keys)[None]
        part[:, :, index[0], index[1]] = 0
        if renormalise:
            part /= part.sum(-1, keepdim=True)
        weights[:, chosen] = part
        return weights

    for renormalise in (True, False):
        ours = logits(model, Cut(1, keys, queries, heads, renormalise))
        expected = by_hand(model, lambda weights, r=renormalise: cut(weights, r))
        torch.testing.assert_close(ours, expected, atol=5e-5, rtol=1e-4)
        assert (ours - plain(model)).abs().max() > 1e-4


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "deepseek_v3"])
def test_five_ways_to_take_a_sink_away(family):
    model = tiny(family)
    clean = plain(model)
    recording = Recording([Site("v", 1)])
    logits(model, recording=recording)
    mean = recording[Site("v", 1)].mean((0, 2))
    got = {
        how: logits(model, knock_out(how, 1, mean=mean))
        for how in ("mask", "zero_weight", "zero_value", "mean_value", "to_current")
    }
    for how, result in got.items():
        assert (result - clean).abs().max() > 1e-4, how
    for a, b in (
        ("mask", "zero_weight"),
        ("zero_value", "mean_value"),
        ("zero_weight", "to_current"),
    ):
        assert (got[a] - got[b]).abs().max() > 1e-4

    def moved(weights):
        sent = weights[..., 0].clone()
        sent[..., 0] = 0
        weights[..., 1:, 0] = 0
        return weights + torch.diag_embed(sent)

    torch.testing.assert_close(got["to_current"], by_hand(model, moved), atol=5e-5, rtol=1e-4)
    # A value of 0 is a weight taken out, but for the first query itself, which has nothing else.
    torch.testing.assert_close(
        logits(model, [*knock_out("zero_weight", 1), Replace.zero(Site("z", 1, positions=(0,)))]),
        got["zero_value"],
        atol=5e-5,
        rtol=1e-4,
    )


def test_a_learned_sink_takes_part_in_renormalising():
    """gpt-oss: the mass of a cut key goes to the others and to the learned sink, in proportion."""
    model = tiny("gpt_oss")
    seen = {}

    def look(layer, pattern, z):
        seen[layer] = (pattern.dense()[:, :, 5], pattern.learned_sink()[:, :, 5])

    values, z = Recording([Site("v", 1), Site("z", 1)]), Recording([Site("z", 1)])
    with torch.no_grad(), edited(model, look=look, recording=values):
        model.hf_model(input_ids=IDS, use_cache=False)
    weights, _ = seen[1]
    logits(model, Cut(1, (3,), (5,)), recording=z)
    v = values[Site("v", 1)].repeat_interleave(N_HEADS // values[Site("v", 1)].shape[1], 1)
    kept = weights.clone()
    kept[..., 3] = 0
    kept /= 1 - weights[..., 3:4]
    torch.testing.assert_close(
        z[Site("z", 1)][:, :, 5], (kept[:, :, None] @ v)[:, :, 0], atol=1e-5, rtol=1e-4
    )


def test_pattern_preserving_ablation():
    """Olsson et al.: the head's output is zeroed, later patterns are held as they were."""
    model = tiny("llama")
    patterns = Recording([Site("pattern", layer) for layer in range(N_LAYERS)])
    logits(model, recording=patterns)
    held = [Replace(site, patterns[site], "clean") for site in patterns.sites[1:]]
    zero = Replace.zero(Site("z", 0, (1,)))
    after = Recording([Site("z", 2)])
    preserved, full = logits(model, [zero, *held], recording=after), logits(model, zero)
    assert (preserved - full).abs().max() > 1e-4
    assert (preserved - plain(model)).abs().max() > 1e-4


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("heads", [None, (0, 3)])
def test_who_looks_sees_the_pattern_after_the_edit(family, heads):
    """z is what the weights that are shown make of the values; and so is a recorded pattern."""
    model = tiny(family)
    sites = [Site("pattern", 1), Site("v", 1), Site("z", 1)]
    for edit in (
        Cut(1, (0, 2), None, heads),
        Cut(1, (0, 2), (3, 5), heads, renormalise=False),
        Redirect(1, 2, heads),
        Replace(Site("pattern", 1, heads, (4,)), 0.1, "flat"),
    ):
        recording, seen = Recording(sites), {}

        def look(layer, pattern, z, seen=seen):
            seen[layer] = pattern.dense()

        logits(model, edit, look=look, recording=recording)
        pattern, value, z = (recording[site] for site in sites)
        assert torch.equal(seen[1], pattern)
        each = value.repeat_interleave(N_HEADS // value.shape[1], 1)
        torch.testing.assert_close(pattern @ each, z, atol=2e-5, rtol=1e-4)
    cut = Cut(1, (0, 2), None, heads)
    recording = Recording(sites)
    logits(model, cut, recording=recording)
    chosen = list(heads or range(N_HEADS))
    assert (recording[sites[0]][:, chosen][:, :, 3:, [0, 2]] == 0).all()


def count_hooks(model):
    return sum(
        len(getattr(module, name))
        for module in model.hf_model.modules()
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    )


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_model_is_left_as_it_was(error):
    """C47, C51: no hook is left, not even after Ctrl-C in the middle; fifty runs equal one."""
    model = tiny("gemma2")
    clean = plain(model)
    edits = [Replace.zero(Site(kind, 1)) for kind in ("z", "attn_out", "resid_pre", "mlp_out")]
    hooks = count_hooks(model)
    first = logits(model, edits)

    def broken(layer, pattern, z):
        if layer == 1:
            raise error("stop")

    with pytest.raises(error), edited(model, edits, broken):
        model.hf_model(input_ids=IDS, use_cache=False)
    for _ in range(10):
        assert torch.equal(logits(model, edits), first)
    assert count_hooks(model) == hooks
    assert torch.equal(plain(model), clean)


def test_a_hook_of_the_users_own_stays():
    """C46: and it fires, also in the run we call clean; nobody takes it away."""
    model = tiny("llama")
    clean = plain(model)
    handle = model.hf_model.model.layers[0].mlp.register_forward_hook(lambda m, a, o: 0 * o)
    hooked = plain(model)
    logits(model, Replace.zero(Site("mlp_out", 0)))
    assert torch.equal(plain(model), hooked) and not torch.equal(hooked, clean)
    handle.remove()
    assert torch.equal(plain(model), clean)


def test_donors_are_not_written_into():
    """C50: what was recorded is still the same after it was used."""
    model = tiny("gpt2")
    recording = Recording([Site("q", 1), Site("k", 1)])
    logits(model, recording=recording)
    kept = recording[Site("q", 1)].clone(), recording[Site("k", 1)].clone()
    logits(
        model,
        [Replace.zero(Site("q", 1, (0,))), Replace(Site("k", 1), recording[Site("k", 1)], "x")],
    )
    assert torch.equal(kept[0], recording[Site("q", 1)])
    assert torch.equal(kept[1], recording[Site("k", 1)])


@pytest.mark.parametrize(
    "edit, says",
    [
        (Replace.zero(Site("z", 9)), "no layer 9"),
        (Replace.zero(Site("z", 1, (4,))), "query heads 0 to 3 in a layer, no head 4"),
        (Replace.zero(Site("k", 1, (2,))), "key-value heads 0 to 1 in a layer, no head 2"),
        (Replace.zero(Site("z", 1, None, (50,))), "positions 0 to 8, no 50"),
        (Replace.zero(Site("z", -1)), "no layer -1"),
        (Cut(1, (20,)), "positions 0 to 8, no 20"),
        (Cut(1, (0,), (0, 3)), "query 0 would have nothing left"),
        (Replace(Site("z", 1), torch.zeros(7, 4, 9, 10), "x"), "does not fit"),
        (Replace(Site("resid_pre", 1), torch.zeros(3), "x"), "does not fit"),
    ],
)
def test_what_is_not_there_is_refused(edit, says):
    model = tiny("llama")
    with pytest.raises(InterpError, match=says):
        logits(model, edit)


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("mlp_out", 1, (0,)), "has no heads"),
        (("z", 1, ()), "one or more different numbers"),
        (("z", 1, (1, 1)), "one or more different numbers"),
    ],
)
def test_a_site_that_makes_no_sense(arguments, says):
    with pytest.raises(InterpError, match=says):
        Site(*arguments)


@pytest.mark.parametrize(
    "arguments, says",
    [
        (dict(how="to_current", keys=()), "keys: none given"),
        (dict(how="mean_value", mean=torch.zeros(3)), r"mean is of shape \(3,\)"),
        (dict(how="mean_value", mean=torch.zeros(2, 3), heads=(2,)), r"mean is of shape \(2, 3\)"),
    ],
)
def test_a_knock_out_of_nothing_or_by_a_mean_that_does_not_fit(arguments, says):
    with pytest.raises(InterpError, match=says):
        knock_out(layer=1, **arguments)


def test_a_model_is_edited_by_one_block_at_a_time():
    """Through one door: the inner block's would take the place of the outer's edits and recordings."""
    model, other = tiny("llama"), tiny("llama")
    zero = Replace.zero(Site("z", 1, (2,)))
    expected = logits(model, zero)
    with edited(model, zero):
        with pytest.raises(InterpError, match="is being edited or recorded already"):
            logits(model, Replace.zero(Site("z", 2, (0,))))
        with pytest.raises(InterpError, match="put all edits into one"):
            score_heads(model, prompts_of_ids(IDS), ["sink_first"])
        plain(other)
        with torch.no_grad():
            assert torch.equal(model.hf_model(IDS, use_cache=False).logits, expected)


def test_threads_that_edit_one_model_wait_for_each_other():
    """No pass of one is run with the hooks of the other, or with the layers that it skips."""
    model = tiny("llama")
    stream, z = Replace.zero(Site("mlp_out", 0)), [[Replace.zero(Site("z", 2, (1,)))]]
    example = Example(Prompt(tuple(IDS[0].tolist()), "p"), 5, 20)
    expected = [logits(model), logits(model, stream)]
    measured = sweep(model, [example], z, [METRICS["logit_difference"]]).values
    failures = []

    def edit():
        try:
            for _ in range(20):
                assert torch.equal(logits(model), expected[0])
                assert torch.equal(logits(model, stream), expected[1])
        except BaseException as error:  # a thread's exception would be lost
            failures.append(error)

    def measure():
        try:
            for _ in range(4):
                again = sweep(model, [example], z, [METRICS["logit_difference"]]).values
                assert np.array_equal(again, measured)
        except BaseException as error:
            failures.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for work in (edit, measure)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failures


@pytest.mark.parametrize("family", BYPASSING)
def test_families_that_bypass_the_door_are_refused(family):
    model = tiny(family)
    with pytest.raises(InterpError, match="bypasses"), edited(model, Replace.zero(Site("z", 0))):
        pass


def test_what_was_not_recorded_is_not_given():
    model = tiny("llama")
    recording = Recording([Site("z", 1)])
    with pytest.raises(InterpError, match="was not recorded"):
        recording[Site("z", 1)]
    logits(model, recording=recording)
    with pytest.raises(InterpError, match="was not recorded"):
        recording[Site("q", 1)]
    assert recording[Site("z", 1, (2, 0), (5,))].shape == (2, 2, 1, 10)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "gpt_neox"])
def test_ablation_equals_transformerlens(family):
    """The same head zeroed through a bridge's ``hook_z``."""
    model = tiny(family)
    bridge = model.bridge()

    def zero(z, hook):
        z = z.clone()
        z[..., 2, :] = 0
        return z

    theirs = bridge.run_with_hooks(IDS, fwd_hooks=[("blocks.1.attn.hook_z", zero)])
    ours = logits(model, Replace.zero(Site("z", 1, (2,))))
    torch.testing.assert_close(ours, theirs, atol=5e-5, rtol=1e-4)


def test_edits_are_values():
    """They print, compare, and say what they are."""
    edit = Replace.zero(Site("k", 3, (1,), (0, 2)))
    assert str(edit) == "k of layer 3, kv_head 1, position 0, 2 ← zero"
    assert (
        edit == Replace.zero(Site("k", 3, (1,), (0, 2))) != Replace.zero(Site("v", 3, (1,), (0, 2)))
    )
    assert "masked" in str(Cut(1, (0,))) and "current token" in str(Redirect(1))


def test_cuts_that_would_undo_each_other_are_refused():
    model = tiny("llama")
    flat = Replace(Site("pattern", 1), 0.1, "flat")
    for edits in (
        [Cut(1, (0,)), Cut(1, (1,), heads=(2,))],
        [Cut(1, (0,), renormalise=False), Cut(1, (0, 1), renormalise=False)],  # 0 taken twice
        [Redirect(1, 0), Redirect(1, 0, (2,))],
        [Redirect(1, 0), Cut(1, (0, 2), renormalise=False)],
        [Cut(1, (0,)), flat],  # the cut would be lost
        knock_out("to_current", 1, keys=(2, 2)),
    ):
        with pytest.raises(InterpError, match="into one Cut"):
            logits(model, edits)
    for edits in ([flat, flat], [Redirect(1, 0), Redirect(1, 2)], [Cut(1, (0,)), Cut(2, (0,))]):
        logits(model, edits)
    apart = [Cut(1, (0,), heads=(0,)), Cut(1, (1,), heads=(2,))]
    both = logits(model, apart) - plain(model)
    assert both.abs().max() > 1e-4
    two = [Cut(1, (0,), (3,), renormalise=False), Cut(1, (2,), (3,), renormalise=False)]
    one = Cut(1, (0, 2), (3,), renormalise=False)
    torch.testing.assert_close(logits(model, two), logits(model, one), atol=1e-5, rtol=1e-5)
