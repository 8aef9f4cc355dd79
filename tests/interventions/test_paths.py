"""Path patching against four passes done with module hooks, one example and one sender at a time."""

from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from interp.editing.edits import Replace
from interp.editing.sites import Site
from interp.errors import InterpError
from interp.inputs.tasks import Task
from interp.interventions.paths import Receiver, trace_paths
from interp.results import summaries
from tests.families import N_HEADS, N_LAYERS
from tests.pairs import pairs, recorded_alone, tiny, value

LATER = ("q1.3", "k2.1", "v2.0")


def projections(model, layer):
    """kind → (the module that makes it, how many numbers of its output come before, d_head)."""
    if hasattr(model.hf_model, "transformer"):  # gpt2: one module makes all three
        module = model.hf_model.transformer.h[layer].attn.c_attn
        each = zip("qkv", range(0, 120, 40), strict=True)
        return {kind: (module, first) for kind, first in each}
    attention = model.hf_model.model.layers[layer].self_attn
    # Latent attention has others, or None in their place: none is asked for there.
    made = {kind: getattr(attention, f"{kind}_proj", None) for kind in "qkv"}
    return {kind: (module, 0) for kind, module in made.items() if module is not None}


def run(model, prompt, z=None, given=None):
    """One pass of the model as it is: (logits of the last token, z by layer, q, k and v by layer).

    z: layer → (position, head × d) put in front of the output projection.
    given: receiver → (position, d) put in place of the projection's output for that head.
    """
    seen_z, seen = {}, {}

    def output(layer):
        def hook(_, args):
            seen_z[layer] = args[0][0].clone()
            return None if z is None else (z[layer][None],)

        return hook

    def made(kind, layer, first):
        def hook(_, __, out):
            out = out.clone()
            for one, new in (given or {}).items():
                if (one.kind, one.layer) == (kind, layer):
                    start = first + one.head * new.shape[-1]
                    out[0, :, start : start + new.shape[-1]] = new
            seen[kind, layer] = out[0]
            return out

        return hook

    with ExitStack() as stack, torch.no_grad():
        for layer in range(N_LAYERS):
            module = model.component(f"blocks.{layer}.attn.o")
            stack.callback(module.register_forward_pre_hook(output(layer)).remove)
            for kind, (module, first) in projections(model, layer).items():
                stack.callback(module.register_forward_hook(made(kind, layer, first)).remove)
        logits = model.hf_model(torch.tensor([prompt.ids])).logits[0, -1]
    return logits, seen_z, seen


def told(model, example, layer, head):
    """Pass C: the clean prompt, all heads held at their clean z but for the sender's."""
    (_, corrupted, _), (_, clean, _) = (
        run(model, prompt) for prompt in (example.corrupted, example.prompt)
    )
    size = clean[0].shape[-1] // N_HEADS
    held = {at: z.clone() for at, z in clean.items()}
    part = slice(head * size, (head + 1) * size)
    held[layer][:, part] = corrupted[layer][:, part]
    return held


def difference(logits, example):
    return float(logits[example.answer] - logits[example.wrong])


def by_hand(model, task, row):
    """The effect of one row, with passes A to D of appendix B of 2211.00593."""
    example = next(e for e in task.examples if e.prompt.name == row.prompt)
    held = told(model, example, row.layer, row.head)
    clean, _, _ = run(model, example.prompt)
    if row.receiver == "logits":
        after, _, _ = run(model, example.prompt, held)
        return difference(after, example) - difference(clean, example)
    _, _, made = run(model, example.prompt, held)
    given = {}
    for text in row.receiver.split(" + "):
        one = Receiver.parsed(text)
        _, first = projections(model, one.layer)[one.kind]
        start = first + one.head * 10
        given[one] = made[one.kind, one.layer][:, start : start + 10]
    after, _, _ = run(model, example.prompt, given=given)
    return difference(after, example) - difference(clean, example)


def assert_by_hand(model, task, table, n=12):
    some = table.sample(n, random_state=len(table))
    expected = [by_hand(model, task, row) for row in some.itertuples()]
    np.testing.assert_allclose(some.effect, expected, atol=3e-5)
    assert np.abs(expected).max() > 1e-3


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "olmo2", "deepseek_v3"])
def test_paths_to_the_logits(family):
    model, task = tiny(family), pairs()
    table, largest = trace_paths(model, task)
    assert len(table) == N_LAYERS * N_HEADS * 3 and set(table.receiver) == {"logits"}
    assert (table.edit == "path").all() and largest < 1e-4
    assert_by_hand(model, task, table)
    for example in task.examples:
        rows = table[table.prompt == example.prompt.name]
        clean, corrupted = (value(model, example, run=p) for p in (None, example.corrupted))
        np.testing.assert_allclose(rows.clean, clean, atol=1e-5)
        np.testing.assert_allclose(rows.baseline, clean, atol=1e-5)
        np.testing.assert_allclose(rows.corrupted, corrupted, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "qwen3"])
def test_paths_to_queries_keys_and_values(family):
    """With grouped queries k and v are those of a key-value head. No row leads back, or sideways."""
    model, task = tiny(family), pairs()
    table, largest = trace_paths(model, task, LATER)
    rows = table.groupby(["receiver", "layer", "head"]).size()
    assert (rows == 3).all() and largest < 1e-4
    assert rows.index.tolist() == sorted(
        (str(Receiver.parsed(text)), layer, head)
        for text in LATER
        for layer in range(int(text[1]))
        for head in range(N_HEADS)
    )
    assert_by_hand(model, task, table, 15)


def test_receivers_together():
    """All that are later than the sender, at once: its row names them."""
    model, task = tiny("llama"), pairs()
    table, _ = trace_paths(model, task, LATER, together=True)
    names = table.groupby("layer").receiver.unique()
    assert names[0].tolist() == ["q of 1.3 + k of 2.1 + v of 2.0"]
    assert names[1].tolist() == ["k of 2.1 + v of 2.0"]
    assert len(table) == 2 * N_HEADS * 3
    assert_by_hand(model, task, table)


def test_where_all_is_linear_the_paths_add_up():
    """No MLP and no final norm: what all heads say to the logits is the sum of what each says."""
    model, task = tiny("llama"), pairs()
    for layer in model.hf_model.model.layers:
        layer.mlp.down_proj.weight.data.zero_()
    model.hf_model.model.norm = nn.Identity()
    table, _ = trace_paths(model, task)
    for example in task.examples:
        (z, _) = (recorded_alone(model, p, "z") for p in (example.corrupted, example.prompt))
        all_told = [Replace(site, z[site], "corrupted") for site in z.sites]
        total = value(model, example, all_told) - value(model, example)
        rows = table[table.prompt == example.prompt.name]
        assert rows.effect.sum() == pytest.approx(total, abs=2e-4) and abs(total) > 1e-2


def test_who_says_nothing_tells_no_one():
    """Planted: of layer 0 only head 1 writes anything, and only key-value head 1 of layer 1 reads it."""
    model, task = tiny("llama"), pairs()
    layers = model.hf_model.model.layers
    written = layers[0].self_attn.o_proj.weight.data
    written[:, :10] = written[:, 20:] = 0
    layers[0].mlp.down_proj.weight.data.zero_()
    receivers = ["k1.0", "k1.1"]
    # The stream's width is 36; what head 1 writes goes to its first half, which k of 1.0 does not read.
    written[18:] = 0
    layers[1].self_attn.k_proj.weight.data[:10, :18] = 0
    layers[1].input_layernorm = nn.Identity()
    table, _ = trace_paths(model, task, receivers)
    summary = summaries.summarise_effects(table).set_index(["receiver", "head"]).effect
    assert summary["k of 1.1", 1] != 0
    assert (summary.drop(("k of 1.1", 1)) == 0).all() and len(summary) == 8


def test_how_it_is_batched_makes_no_difference():
    """C54; examples of one length that read different positions are told what is theirs."""
    model, task = tiny("llama"), pairs(((8, 1), (8, 3), (8, 2), (8, 4)))
    scored = [(3, 4, 5), (6,), (2, 3, 4), (5,)]
    mixed = tuple(
        replace(e, scored=some, answer=None, wrong=None)
        for e, some in zip(task.examples, scored, strict=True)
    )
    for one in (task, Task("scored", mixed)):
        whole, _ = trace_paths(model, one, ["k2.1"])
        small, _ = trace_paths(model, one, ["k2.1"], batch_tokens=20)
        np.testing.assert_allclose(small.effect, whole.effect, atol=3e-5)
    alone = pd.concat(trace_paths(model, Task("t", (e,)), ["k2.1"])[0] for e in mixed)
    alone = alone.sort_values(["layer", "head", "prompt"])
    np.testing.assert_allclose(alone.effect, whole.effect, atol=3e-5)
    assert (whole.effect != 0).all()


def test_the_metric_may_be_another():
    """The divergence from the clean prompt is 0 there, so a path's share is 1 − what it brings."""
    model, task = tiny("llama"), pairs()
    table, _ = trace_paths(model, task, metric="kl")
    row = table[(table.layer == 1) & (table["head"] == 2)].iloc[0]
    (z, own) = (
        recorded_alone(model, p, "z") for p in (task.examples[0].corrupted, task.examples[0].prompt)
    )
    sender = Site("z", 1, (2,))
    edits = [Replace(sender, z[sender], "corrupted"), Replace(Site("z", 2), own[Site("z", 2)], "")]
    assert row.effect == pytest.approx(value(model, task.examples[0], edits, metric="kl"), abs=1e-5)
    assert (table.clean == 0).all() and (table.corrupted > 0).all() and row.effect > 0


@pytest.mark.parametrize("text, kind", [("q2.5", "q"), (" k0.11 ", "k"), ("v of 3.1", "v")])
def test_receivers_are_read_as_they_are_written(text, kind):
    one = Receiver.parsed(text)
    assert one.kind == kind and Receiver.parsed(str(one)) == one
    assert one.site == Site(kind, one.layer, (one.head,))


@pytest.mark.parametrize(
    "receivers, says",
    [
        (["q0.1"], "receiver q of 0.1: no head comes before layer 0; nothing to trace"),
        (["q3.0"], "has layers 0 to 2, no layer 3"),
        (["q1.4"], "query heads 0 to 3 in a layer, no head 4"),
        (["k1.2"], "key-value heads 0 to 1 in a layer, no head 2"),
        (["v1.2", "k1.0"], "key-value heads 0 to 1 in a layer, no head 2"),
        (["k1.0", Receiver("k", 1, 0)], "k of 1.0, k of 1.0: one is given twice"),
        (["z1.0"], "receiver 'z1.0': expected q, k or v and layer.head, such as k1.3, or logits"),
        (["k1"], "receiver 'k1': expected"),
        (["k1.0.2"], "receiver 'k1.0.2': expected"),
        (["k-1.0"], "receiver 'k-1.0': expected"),
        (["logits", "k1.0"], "receiver 'logits': expected"),
        ([], "receivers: none given"),
    ],
)
def test_receivers_that_are_not_there_are_refused(receivers, says, monkeypatch):
    model, task = tiny("llama"), pairs()
    monkeypatch.setattr(model.hf_model, "forward", None)  # before anything runs
    with pytest.raises(InterpError, match=says) as error:
        trace_paths(model, task, receivers)
    assert "\n" not in str(error.value)


def test_what_cannot_be_traced_is_refused():
    model, task = tiny("llama"), pairs()
    lacking = Task("t", (task.examples[0], replace(task.examples[1], corrupted=None)))
    for receivers in ("logits", ["k1.0"]):
        with pytest.raises(InterpError, match="example p1 has no corrupted prompt"):
            trace_paths(model, lacking, receivers)
        with pytest.raises(InterpError, match="needs examples with 'scored'"):
            trace_paths(model, task, receivers, metric="loss")
    model.hf_model.model.layers[1].self_attn.k_proj.weight.data[3] = torch.nan
    with pytest.raises(InterpError, match="NaN"):
        trace_paths(model, task)
