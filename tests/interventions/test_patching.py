"""Patches against one plain pass each, against TransformerLens, and where the answer is known."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from interp.editing.edits import Replace
from interp.editing.sites import HEAD_KINDS, Site, adders
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.inputs.tasks import Example, Task, little_world
from interp.interventions.patching import patch
from interp.models.model import load_model
from interp.results import summaries
from tests.families import N_HEADS, N_LAYERS
from tests.pairs import pairs, recorded_alone, tiny, value

FAMILIES = ["llama", "gpt2", "gemma2", "olmo2", "deepseek_v3", "gpt_neox"]
KINDS = (*HEAD_KINDS, "resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
STREAM = ("resid_pre", "resid_mid", "resid_post")


def kinds_of(model):
    return [kind for kind in KINDS if kind != "resid_mid" or adders(model, 0).sequential]


def ends(example, direction):
    """(the prompt that is run, the one that is taken from)."""
    both = (example.corrupted, example.prompt)
    return both if direction == "denoise" else both[::-1]


def by_hand(model, task, table, direction):
    """The effect of each row's patch: one plain pass over one prompt, with the donor's activations."""
    found = np.full(len(table), np.nan)
    for example in task.examples:
        run, donor = ends(example, direction)
        activations = recorded_alone(model, donor, table.site.iloc[0])
        before = value(model, example, run=run)
        for i, row in enumerate(table.itertuples()):
            if row.prompt == example.prompt.name:
                heads = (row.head,) if "head" in table else None
                position = (row.position,) if "position" in table else None
                site = Site(row.site, row.layer, heads, position)
                patched = [Replace(site, activations[site], "donor")]
                found[i] = value(model, example, patched, run=run) - before
    return found


def assert_by_hand(model, task, table, direction):
    """A dozen of the rows, drawn."""
    some = table.sample(min(12, len(table)), random_state=len(table))
    np.testing.assert_allclose(some.effect, by_hand(model, task, some, direction), atol=2e-5)


@pytest.mark.parametrize(
    "family, direction", [*((family, "denoise") for family in FAMILIES), ("llama", "noise")]
)
def test_a_patch_is_one_plain_pass(family, direction):
    """Every kind of site, every head, prompts of two lengths; units are those of the site."""
    model, task = tiny(family), pairs()
    n_heads = dict.fromkeys(("q", "z", "pattern"), model.n_heads) | dict.fromkeys(
        "kv", model.n_kv_heads
    )
    known = {
        (column, e.prompt.name): value(model, e, run=prompt)
        for e in task.examples
        for column, prompt in (
            ("baseline", ends(e, direction)[0]), ("clean", e.prompt), ("corrupted", e.corrupted),
        )
    }  # fmt: skip
    for kind in kinds_of(model):
        table, difference = patch(model, task, kind, direction=direction)
        assert len(table) == N_LAYERS * n_heads.get(kind, 1) * len(task.examples)
        assert set(table.unit) == {
            "kv_head" if kind in "kv" else "head" if kind in n_heads else "layer"
        }
        assert_by_hand(model, task, table, direction)
        assert table.effect.abs().max() > 1e-2 and difference < 1e-4
        for column in ("baseline", "clean", "corrupted"):
            expected = [known[column, name] for name in table.prompt]
            np.testing.assert_allclose(table[column], expected, atol=1e-5)
        assert (table.edit == direction).all()


@pytest.mark.parametrize(
    "family, kind",
    [("llama", "k"), ("llama", "pattern"), ("gemma2", "z"), ("gpt2", "mlp_out"), ("olmo2", "q")],
)
def test_one_position_at_a_time(family, kind):
    """C57: of each prompt the same position, and of the pattern the query at it."""
    model, task = tiny(family), pairs(((6, 1), (6, 2)))
    table, _ = patch(model, task, kind, "all", "noise")
    assert sorted(table.position.unique()) == [*range(6)]
    assert_by_hand(model, task, table, "noise")
    # What both prompts read before they differ is the same: nothing to patch.
    before = table[(table.position == 0) | ((table.position == 1) & (table.prompt == "p1"))]
    assert (before.effect == 0).all() and (table.effect != 0).mean() > 0.3


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_named_places_stand_at_each_templates_own_position(direction):
    model, task = tiny("llama"), pairs()
    table, _ = patch(model, task, "z", "places", direction)
    assert_by_hand(model, task, table, direction)
    at = {(row.prompt, row.place): row.position for row in table.itertuples()}
    assert at == {
        ("p0", "A"): 1, ("p0", "END"): 7, ("p1", "A"): 3, ("p1", "END"): 7, ("p2", "A"): 2,
        ("p2", "END"): 5,
    }  # fmt: skip
    summary = summaries.summarise_effects(table)
    assert len(summary) == N_LAYERS * N_HEADS * 2 and (summary.n_templates == 3).all()
    row = summary[(summary.place == "A") & (summary.layer == 1) & (summary["head"] == 2)].iloc[0]
    one = table[(table.place == "A") & (table.layer == 1) & (table["head"] == 2)]
    assert row.effect == pytest.approx(by_hand(model, task, one, direction).mean(), abs=2e-5)
    assert row.position == 2  # the mean of 1, 3 and 2


@pytest.mark.parametrize("family", FAMILIES)
def test_the_whole_stream_carries_everything(family):
    """Denoised it is the clean run, normalised effect 1; noised the corrupted one, 0."""
    model, task = tiny(family), pairs(((8, 1), (8, 1)))
    for kind in [kind for kind in kinds_of(model) if kind in STREAM]:
        for direction, share in (("denoise", 1), ("noise", 0)):
            table, _ = patch(model, task, kind, direction=direction)
            table = table.assign(
                template="one"
            )  # else undefined, where the two gaps differ in sign
            summary = summaries.summarise_effects(table)
            np.testing.assert_allclose(summary.normalised, share, atol=1e-4)


@pytest.mark.parametrize(
    "family, direction", [("llama", "denoise"), ("gemma2", "noise"), ("deepseek_v3", "denoise")]
)
def test_a_run_patched_with_itself_is_as_it_was(family, direction):
    """C55: an effect of exactly 0, and nothing to normalise it by; weights written out round a little."""
    model, task = tiny(family), pairs()
    same = Task("same", tuple(replace(e, corrupted=e.prompt) for e in task.examples[1:]))
    wanted = [(kind, "together") for kind in kinds_of(model)] + [("z", "places"), ("k", "places")]
    for kind, positions in wanted:
        table, _ = patch(model, same, kind, positions, direction)
        assert table.effect.abs().max() <= (2e-5 if kind == "pattern" else 0), kind
        assert (table.clean == table.corrupted).all()
        summary = summaries.summarise_effects(table)
        assert summary.normalised.isna().all() and (summary.p == 1).all()


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_what_differs_by_rounding_only_divides_nothing(direction):
    """One layer without position encoding sees a set of tokens: exchanged, they add up in another order."""
    model = tiny("smollm3", num_hidden_layers=1, no_rope_layers=[0])
    ids = pairs(((9, 1),)).examples[0].prompt.ids
    order = [0, 2, 1, 3, 6, 5, 4, 7, 8]
    clean, corrupted = Prompt(ids, "p"), Prompt(tuple(ids[i] for i in order), "c")
    task = Task("order", (Example(clean, 5, 20, corrupted=corrupted),))
    exact = [value(model, task.examples[0], run=run) for run in (clean, corrupted)]
    assert exact[0] != exact[1] and exact[0] == pytest.approx(exact[1], abs=1e-5)
    table, _ = patch(model, task, direction=direction)
    assert (table.effect == 0).all()
    assert summaries.summarise_effects(table).normalised.isna().all()


def test_how_it_is_batched_makes_no_difference():
    """C54: also one row at a time; and examples of one length may read different positions."""
    model, task = tiny("qwen3"), pairs(((8, 1), (8, 3), (8, 2), (6, 2)))
    scored = [(7,), (5, 6), (6,), (2, 5)]
    mixed = tuple(
        replace(e, scored=some, answer=None, wrong=None)
        for e, some in zip(task.examples, scored, strict=True)
    )
    for one in (task, Task("scored", mixed)):
        whole, _ = patch(model, one, "v")
        for batch_tokens in (1, 20):
            small, _ = patch(model, one, "v", batch_tokens=batch_tokens)
            np.testing.assert_allclose(small.effect, whole.effect, atol=2e-5)
        alone = pd.concat(patch(model, Task("one", (e,)), "v")[0] for e in one.examples)
        alone = alone.sort_values(["layer", "head", "prompt"])
        np.testing.assert_allclose(alone.effect, whole.effect, atol=2e-5)
        assert whole.effect.abs().min() > 0


def test_only_some_rows():
    model, task = tiny("llama"), pairs()
    whole, _ = patch(model, task, "z", "places")
    some, _ = patch(model, task, "z", "places", only=[(1, 2, "A"), (0, 3, "END")])
    chosen = [
        (r.layer, r.head, r.place) in {(1, 2, "A"), (0, 3, "END")} for r in whole.itertuples()
    ]
    np.testing.assert_allclose(some.effect, whole[chosen].effect, atol=1e-5)
    assert len(some) == 2 * 3
    assert set(patch(model, task, "mlp_out", only=[(2,)])[0].layer) == {2}
    head = patch(model, task, "z", "places", only=[(1, 2)])[0]
    assert {*zip(head.layer, head["head"], head.place, strict=True)} == {(1, 2, "A"), (1, 2, "END")}
    for only, says in (
        ([(1, 2), (3, 0)], r"only: \(3, 0\): there is no such row; expected such as \(0, 0\)"),
        ([(0, 4)], r"\(0, 4\): there is no such row"),
        ([(1, 2, "A")], "there is no such row"),
        ([], "nothing to sweep: 0 cells"),
    ):
        with pytest.raises(InterpError, match=says):
            patch(model, task, only=only)


def changed(task, **changes):
    return Task("t", (task.examples[0], replace(task.examples[1], **changes)))


REFUSED = {
    "no corrupted prompt": (dict(corrupted=None), {}, "example p1 has no corrupted prompt"),
    "metric": (dict(wrong=None), {}, "needs examples with 'wrong'; p1 has none"),
    "unknown metric": ({}, dict(metric="accuracy"), "metric='accuracy': expected one of logit_d"),
    "answer": (dict(answer=61), {}, "example p1: answer 61 is not in the model's vocabulary"),
    "wrong answer": (dict(wrong=-1), {}, "answer -1 is not in the model's vocabulary"),
    "places": (dict(places=()), dict(positions="places"), "name different places; take positions"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_patched_is_refused_before_anything_runs(case, monkeypatch):
    changes, arguments, says = REFUSED[case]
    model, task = tiny("llama"), changed(pairs(), **changes)
    monkeypatch.setattr(model.hf_model, "forward", None)
    with pytest.raises(InterpError, match=says) as error:
        patch(model, task, **arguments)
    assert "\n" not in str(error.value)


def test_prompts_that_do_not_go_together_are_refused():
    model, task = tiny("llama"), pairs()
    with pytest.raises(InterpError, match="prompts of 6 to 8 tokens, whose positions do not line"):
        patch(model, task, positions="all")
    nowhere = Task("t", tuple(replace(e, places=()) for e in task.examples))
    with pytest.raises(InterpError, match="name no places"):
        patch(model, nowhere, positions="places")
    with pytest.raises(InterpError, match="clean prompt has 8 tokens, the corrupted one 1;"):
        replace(task.examples[0], corrupted=Prompt((3,), "c"))
    with pytest.raises(InterpError, match="task t: no examples are left"):
        Task("t", ())
    long = Example(Prompt((5,) * 65, "p"), 3, 4, corrupted=Prompt((6,) * 65, "c"))
    with pytest.raises(InterpError, match="prompt p: 65 tokens > 64"):
        patch(model, Task("t", (long,)))
    other = Example(Prompt((5, 61), "p"), 3, 4, corrupted=Prompt((6, 7), "c"))
    with pytest.raises(InterpError, match="prompt p: id 61 at position 1 is not in the model's"):
        patch(model, Task("t", (other,)))


def test_values_of_a_wrong_type_are_refused_where_no_one_checks_types():
    """As outside these tests, which check the types of all arguments."""
    code = """
from tests.pairs import *
from interp.interventions.patching import patch
from interp.interventions.paths import trace_paths
model, task = tiny("llama"), pairs()
for wrong in (
    lambda: patch(model, task, direction="both"),
    lambda: patch(model, task, positions="each"),
    lambda: patch(model, task, "w"),
    lambda: Example(task.examples[0].prompt, (5, 6), 7),
    lambda: trace_paths(model, task, "k1.0"),
):
    try:
        wrong()
    except Exception as error:
        print(type(error).__name__, str(error)[:48])
"""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == [
        "InterpError direction='both': expected denoise, noise",
        "InterpError positions='each': expected together, places, all",
        "InterpError kind='w': expected one of q, k, v, pattern, z, r",
        "InterpError example p0: answer (5, 6): expected the id of on",
        "InterpError receiver 'k': expected q, k or v and layer.head,",
    ]


def test_what_the_model_does_not_have_is_refused():
    task = pairs()
    with pytest.raises(InterpError, match="attention and MLP read the same stream"):
        patch(tiny("gpt_neox"), task, "resid_mid")
    with pytest.raises(InterpError, match="bypasses transformers' attention interface"):
        patch(tiny("bloom"), task)
    for name in ("lm_head", "model.layers.1.self_attn.v_proj"):
        model = tiny("llama")
        model.hf_model.get_submodule(name).weight.data[7] = torch.nan
        with pytest.raises(InterpError, match="NaN"):
            patch(model, task)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_narrow_numbers_large_effects_are_the_same(dtype):
    """Logits of 20 are known to an eighth there: no reason to refuse the sweep."""
    wide, narrow = load_model("default"), load_model("default", dtype=dtype)
    task = little_world(wide, n_prompts=4)
    expected, found = (patch(model, task)[0] for model in (wide, narrow))
    large = expected.effect.abs() > 2
    assert large.sum() >= 5
    np.testing.assert_allclose(found.effect[large], expected.effect[large], rtol=0.2)


# --- TransformerLens ------------------------------------------------------------------------------


def transformer_lens(model, example):
    """(the bridge, corrupted ids, clean cache, the metric) for its ``patching`` functions."""
    bridge = model.bridge()
    ids, other = (torch.tensor([p.ids]) for p in (example.prompt, example.corrupted))
    _, cache = bridge.run_with_cache(ids)

    def metric(logits):
        return logits[0, -1, example.answer] - logits[0, -1, example.wrong]

    return bridge, other, cache, metric


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_equals_transformerlens(family):
    """``get_act_patch_attn_head_out_all_pos``, ``..._q_all_pos``, ``..._k_all_pos``, ``..._v_all_pos``,
    ``get_act_patch_attn_head_out_by_pos``, ``get_act_patch_resid_pre``, ``get_act_patch_mlp_out``.

    Its q and k are those before the rotary encoding, ours those behind it: the same patch, since a
    position goes to the same position. With grouped queries it has no form for k and v.
    """
    from transformer_lens import patching as lens

    model, task = tiny(family), pairs(((8, 2),))
    theirs = transformer_lens(model, task.examples[0])
    wanted = [
        ("z", "together", lens.get_act_patch_attn_head_out_all_pos, "layer head"),
        ("q", "together", lens.get_act_patch_attn_head_q_all_pos, "layer head"),
        ("z", "all", lens.get_act_patch_attn_head_out_by_pos, "layer position head"),
        ("resid_pre", "all", lens.get_act_patch_resid_pre, "layer position"),
        ("mlp_out", "all", lens.get_act_patch_mlp_out, "layer position"),
    ]
    if model.n_kv_heads == model.n_heads:
        wanted += [
            ("k", "together", lens.get_act_patch_attn_head_k_all_pos, "layer head"),
            ("v", "together", lens.get_act_patch_attn_head_v_all_pos, "layer head"),
        ]
    for kind, positions, function, axes in wanted:
        table, _ = patch(model, task, kind, positions)
        table = table.sort_values(axes.split())
        expected = function(*theirs).flatten().numpy()
        np.testing.assert_allclose(table.effect + table.baseline, expected, atol=1e-4)
        assert table.effect.abs().max() > 1e-2
