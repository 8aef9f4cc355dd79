"""Estimates against numerical derivatives, exact patches where all is linear, and the audit by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

from interp.editing.edits import Recording, Replace, edited
from interp.editing.sites import HEAD_KINDS, Site, adders
from interp.errors import InterpError
from interp.inputs.tasks import Task, little_world
from interp.interventions.gradients import attribute, audit
from interp.interventions.patching import patch
from interp.models.forward import logits_at
from interp.models.model import load_model
from interp.results import summaries, tables
from tests.families import N_HEADS, N_LAYERS
from tests.pairs import pairs, recorded_alone, tiny, value

# Grouped queries, plain, parallel, norms behind and soft cap, factor, window, learned sink, latent.
FAMILIES = [
    "llama", "gpt2", "gpt_neox", "gemma2", "olmo2", "granite", "mistral", "gpt_oss", "deepseek_v3",
]  # fmt: skip
KINDS = ("q", "k", "v", "z", "resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")


def site_of(row):
    heads = (row.head,) if row.site in HEAD_KINDS else None
    return Site(row.site, row.layer, heads, (row.position,) if "position" in row._fields else None)


def by_hand(model, example, row, direction, before=(), metric=None):
    """The derivative of the metric as a little of the row's patch is made, behind other edits."""
    run, donor = example.prompt, example.corrupted
    if direction == "denoise":
        run, donor = donor, run
    site = site_of(row)
    there, new = (recorded_alone(model, p, row.site)[site] for p in (run, donor))
    here = there
    if before:
        recording = Recording([site])
        with edited(model, before, recording=recording):
            logits_at(model, torch.tensor([run.ids]), torch.tensor([[0]]))
        here = recording[site]

    def patched(share):
        edits = [*before, Replace(site, here + share * (new - there), "a little")]
        return value(model, example, edits, run=run, metric=metric)

    return (patched(1e-3) - patched(-1e-3)) / 2e-3


def assert_derivatives(model, task, table, direction, **options):
    some = table.sample(min(4, len(table)), random_state=len(table))
    example = {e.prompt.name: e for e in task.examples}
    expected = [
        by_hand(model, example[row.prompt], row, direction, **options) for row in some.itertuples()
    ]
    size = table.effect.abs().max()
    np.testing.assert_allclose(some.effect, expected, rtol=0.01, atol=3e-3 * size + 5e-4)
    assert size > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_an_estimate_is_a_derivative(family):
    """At every kind of site, of heads and layers, all positions together and one at a time."""
    model, task = tiny(family), pairs(((7, 1), (7, 3)))
    for number, kind in enumerate(KINDS):
        if kind == "resid_mid" and not adders(model, 0).sequential:
            continue
        positions = ("together", "all", "places")[number % 3]
        direction = ("denoise", "noise")[number % 2]
        table = attribute(model, task, kind, positions, direction)
        assert_derivatives(model, task, table, direction)
        assert set(table.edit) == {f"{direction}: attribution"}


@pytest.mark.parametrize("metric", ["loss", "log_probability", "kl"])
def test_of_every_metric_with_a_gradient(metric):
    model, task = tiny("llama"), pairs()
    scored = [(4, 6), (2,), (3, 5)]
    examples = [
        replace(example, scored=some if metric == "loss" else ())
        for example, some in zip(task.examples, scored, strict=True)
    ]
    task = Task("t", tuple(examples))
    table = attribute(model, task, "z", metric=metric)
    assert_derivatives(model, task, table, "denoise", metric=metric)


def test_the_same_rows_as_patch():
    """Names, order, baselines: only the effect and what the edit is called differ."""
    model, task = tiny("llama"), pairs()
    for kind, positions, direction in (
        ("z", "places", "denoise"),
        ("k", "together", "noise"),
        ("mlp_out", "places", "noise"),
    ):
        exact, _ = patch(model, task, kind, positions, direction)
        estimate = attribute(model, task, kind, positions, direction)
        same = [name for name in exact if name not in ("effect", "edit")]
        pd.testing.assert_frame_equal(estimate[same], exact[same], atol=1e-5)
        assert (estimate.effect != exact.effect).any()


def test_how_it_is_batched_makes_no_difference():
    """Examples of one length may read different positions."""
    model, task = tiny("gemma2"), pairs(((8, 1), (8, 3), (8, 2), (6, 2)))
    scored = [(3, 4, 5), (6,), (2, 3, 4), (5,)]
    mixed = tuple(
        replace(e, scored=some, answer=None, wrong=None)
        for e, some in zip(task.examples, scored, strict=True)
    )
    for one in (task, Task("scored", mixed)):
        whole = attribute(model, one, "k")
        small = attribute(model, one, "k", batch_tokens=1)
        np.testing.assert_allclose(small.effect, whole.effect, rtol=1e-3, atol=1e-4)
        alone = pd.concat(attribute(model, Task("one", (e,)), "k") for e in one.examples)
        alone = alone.sort_values(["layer", "head", "prompt"])
        np.testing.assert_allclose(alone.effect, whole.effect, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gpt2", "deepseek_v3"])
def test_both_ways_to_compute_attention_have_the_same_gradients(family):
    model, task = tiny(family), pairs()
    for kind in ("q", "k", "v", "resid_pre"):
        fused, tiled = (
            attribute(model, task, kind, engine=engine) for engine in ("fused", "tiled")
        )
        size = fused.effect.abs().max()
        np.testing.assert_allclose(fused.effect, tiled.effect, rtol=1e-3, atol=1e-4 * size)


@pytest.mark.parametrize("positions", ["together", "all"])
def test_it_takes_two_passes_however_many_rows(positions):
    """And one more for each step; the exact patches take one for each row, or a share of one."""
    model, task = tiny("llama"), pairs(((8, 1), (8, 3)))
    passes = []
    embed = model.hf_model.get_input_embeddings()
    embed.register_forward_hook(lambda *_: passes.append(1))
    for steps, expected in ((None, 2), (3, 5)):
        for options in (dict(site="z"), dict(site="k", correct_qk=True), dict(site="resid_pre")):
            passes.clear()
            attribute(model, task, positions=positions, steps=steps, **options)
            assert len(passes) == expected


def test_the_model_is_left_as_it_was():
    """No gradient stays at a weight, no flag is changed; frozen weights give the same estimates."""
    model, task = tiny("llama"), pairs()
    weights = [*model.hf_model.parameters()]
    expected = attribute(model, task, "z", steps=2)
    assert all(weight.grad is None and weight.requires_grad for weight in weights)
    for weight in weights[1::2]:
        weight.requires_grad_(False)
    some = attribute(model, task, "z", steps=2)
    assert [weight.requires_grad for weight in weights] == [i % 2 == 0 for i in range(len(weights))]
    model.hf_model.requires_grad_(False).train()
    none = attribute(model, task, "z", steps=2)
    assert model.hf_model.training and not any(weight.requires_grad for weight in weights)
    for table in (some, none):
        np.testing.assert_allclose(table.effect, expected.effect, rtol=1e-4, atol=1e-5)
    hooks = [len(module._forward_hooks) for module in model.hf_model.modules()]
    assert sum(hooks) == 0
    for setting in (torch.no_grad, torch.inference_mode):  # a caller's own
        with setting():
            pd.testing.assert_frame_equal(attribute(model, task, "z", steps=2), none)


# --- the correction of queries and keys -----------------------------------------------------------


def pull_on_z(model, example):
    """∂ metric / ∂ z of each layer at the corrupted prompt, by hooks and autograd alone."""
    seen, handles = {}, []
    for layer in range(N_LAYERS):

        def keep(_, args, layer=layer):
            seen[layer] = args[0]

        projection = model.component(f"blocks.{layer}.attn.o")
        handles.append(projection.register_forward_pre_hook(keep))
    try:
        logits = model.hf_model(torch.tensor([example.corrupted.ids])).logits[0, -1]
    finally:
        for handle in handles:
            handle.remove()
    metric = logits[example.answer] - logits[example.wrong]
    grads = torch.autograd.grad(metric, [seen[layer] for layer in range(N_LAYERS)])
    return [g.unflatten(-1, (N_HEADS, -1)).transpose(1, 2) for g in grads]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "gpt_oss"])
def test_the_correction_is_exact_through_the_softmax(family):
    """Σ (change of z by the patch, measured) · ∂ metric / ∂ z, for queries and for keys."""
    model, task = tiny(family), pairs(((8, 1),))
    example = task.examples[0]
    run = torch.tensor([example.corrupted.ids])
    pull = pull_on_z(model, example)
    for kind, positions in (("q", "together"), ("q", "all"), ("k", "together"), ("k", "all")):
        table = attribute(model, task, kind, positions, correct_qk=True)
        assert set(table.edit) == {"denoise: attribution, QK corrected"}
        before = recorded_alone(model, example.corrupted, "z")
        donor = recorded_alone(model, example.prompt, kind)
        some = table.sample(min(len(table), 20), random_state=1)
        expected = []
        for row in some.itertuples():
            site, z = site_of(row), Site("z", row.layer)
            recording = Recording([z])
            with edited(model, Replace(site, donor[site], "donor"), recording=recording):
                logits_at(model, run, torch.tensor([[7]]))
            expected.append(float(((recording[z] - before[z]) * pull[row.layer]).sum()))
        np.testing.assert_allclose(some.effect, expected, rtol=2e-3, atol=2e-4)
        plain = attribute(model, task, kind, positions)
        assert (plain.effect - table.effect).abs().max() > 0.02 * table.effect.abs().max()


@pytest.mark.parametrize("grown", [1, 12])
def test_with_nothing_but_attention_left_the_correction_is_exact(grown):
    """Also where scores differ by hundreds, weights are 0 or 1, and plain gradients see nothing."""
    model, task = tiny("llama"), pairs()
    last = model.hf_model.model.layers[-1]
    last.mlp.down_proj.weight.data.zero_()
    last.self_attn.q_proj.weight.data *= grown
    last.self_attn.k_proj.weight.data *= grown
    model.hf_model.model.norm = nn.Identity()
    for kind in ("q", "k"):
        for positions in ("together", "places"):
            exact, _ = patch(model, task, kind, positions)
            corrected = attribute(model, task, kind, positions, correct_qk=True)
            of_last = exact.layer == N_LAYERS - 1
            size = exact[of_last].effect.abs().max()
            np.testing.assert_allclose(
                corrected[of_last].effect, exact[of_last].effect, rtol=2e-3, atol=2e-3 * size
            )
            plain = attribute(model, task, kind, positions)[of_last]
            assert (plain.effect - exact[of_last].effect).abs().max() > 0.2 * size > 0.02


def test_a_run_patched_with_itself_is_estimated_to_be_as_it_was():
    model, task = tiny("gemma2"), pairs()
    same = Task("same", tuple(replace(e, corrupted=e.prompt) for e in task.examples))
    for options in (
        dict(site="resid_mid"), dict(site="k", correct_qk=True, positions="places"), dict(steps=3),
    ):  # fmt: skip
        table = attribute(model, same, **options)
        assert (table.effect == 0).all()
        assert summaries.summarise_effects(table).normalised.isna().all()
    for kind in "qk":  # the softmax is computed again, which rounds
        table = attribute(model, same, kind, correct_qk=True)
        assert table.effect.abs().max() < 1e-5


# --- integrated gradients -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "family, direction", [("gpt2", "denoise"), ("llama", "noise"), ("gemma2", "denoise")]
)
def test_integrated_gradients_are_complete(family, direction):
    """Over all inputs they add up to what the metric changes between the prompts; one gradient does not."""
    model, task = tiny(family), pairs(((8, 1), (8, 3)))

    def missed(steps):
        table = attribute(model, task, "resid_pre", direction=direction, steps=steps)
        inputs = table[table.layer == 0].set_index("prompt")
        gap = (inputs.clean - inputs.corrupted) * (1 if direction == "denoise" else -1)
        return ((inputs.effect - gap).abs() / gap.abs()).max()

    assert missed(40) < 0.01 and missed(None) > 1


def test_integrated_gradients_are_means_over_the_way():
    """With two steps: derivatives at a quarter and at three quarters of the way between the inputs."""
    model, task = tiny("llama"), pairs(((8, 1),))
    (example,) = task.examples
    inputs = Site("resid_pre", 0)
    start, end = (
        recorded_alone(model, p, "resid_pre")[inputs] for p in (example.corrupted, example.prompt)
    )
    ways = [
        [Replace(inputs, start + share * (end - start), "on the way")] for share in (0.25, 0.75)
    ]
    for kind in ("z", "v", "mlp_out"):
        table = attribute(model, task, kind, steps=2)
        assert set(table.edit) == {"denoise: attribution, 2 steps"}
        some = table.sample(min(6, len(table)), random_state=0)
        expected = [
            np.mean([by_hand(model, example, row, "denoise", way) for way in ways])
            for row in some.itertuples()
        ]
        size = table.effect.abs().max()
        np.testing.assert_allclose(some.effect, expected, rtol=0.01, atol=3e-3 * size)


# --- the audit ------------------------------------------------------------------------------------


def test_the_audit_by_hand():
    """Which rows, their exact effects, the agreements over the random ones, the worst miss."""
    model, task = tiny("llama"), pairs()
    # Two prompts of one template: means are over templates.
    task = Task("t", tuple(replace(e, template=f"t{i // 2}") for i, e in enumerate(task.examples)))
    for kind, positions, keys in (
        ("z", "together", ["layer", "head"]),
        ("k", "places", ["layer", "head", "place"]),
        ("mlp_out", "places", ["layer", "place"]),
    ):
        estimates = attribute(model, task, kind, positions, "noise")
        found = audit(model, task, estimates, n_top=2, n_random=5, seed=4)
        tables.AUDIT.validate(found.table)
        exact, _ = patch(model, task, kind, positions, "noise")
        both = [
            table.groupby([*keys, "template"]).effect.mean().groupby(keys).mean()
            for table in (estimates, exact)
        ]
        table = found.table.set_index(keys)
        for column, means in zip(("estimate", "exact"), both, strict=True):
            np.testing.assert_allclose(table[column], means[table.index], atol=2e-5)
        largest = both[0].abs().sort_values(ascending=False).index[:2]
        assert set(table.index[table.in_top]) == set(largest)
        assert table.in_random.sum() == 5 and (table.in_top | table.in_random).all()
        drawn = table[table.in_random]
        assert found.rank_agreement == pytest.approx(
            spearmanr(drawn.estimate.abs(), drawn.exact.abs()).statistic
        )
        assert found.sign_agreement == ((drawn.estimate > 0) == (drawn.exact > 0)).mean()
        miss = (table.estimate - table.exact).abs()
        assert found.worst_miss[1] == miss.max()
        where = miss.idxmax()
        name = f"layer {where[0]}" if kind == "mlp_out" else f"{where[0]}.{where[1]}"
        assert name in found.worst_miss[0] and str(where[-1]) in found.worst_miss[0]
    estimates = attribute(model, task)
    drawn = [audit(model, task, estimates, n_top=0, n_random=5, seed=seed) for seed in (4, 5)]
    assert not drawn[0].table.equals(drawn[1].table)
    single = pairs(((6, 1), (6, 2)))
    at_all = audit(model, single, attribute(model, single, "v", "all"), n_top=3, n_random=1000)
    assert set(at_all.table.place) == set(
        "12345"
    )  # at 0 the prompts do not differ: nothing to audit


def test_every_row_can_be_audited():
    model, task = tiny("gpt2"), pairs()
    found = audit(model, task, attribute(model, task), n_top=3, n_random=1000)
    assert len(found.table) == N_LAYERS * N_HEADS and found.table.in_random.all()
    assert "12 rows patched exactly; over 12 of them drawn at random: rank" in str(found)
    for n_top, n_random in ((0, 0), (-1, 3), (3, -1)):
        with pytest.raises(
            InterpError, match=r"expected (at least one row|a whole number of 0 or more)"
        ):
            audit(model, task, attribute(model, task), n_top=n_top, n_random=n_random)


def test_how_far_estimates_can_be_trusted_on_the_default_model():
    """Measured, not hoped for: ranks of the heads, by patch and by estimate, on the little world."""
    model = load_model("default")
    task = little_world(model, n_prompts=8)
    for direction in ("denoise", "noise"):
        for steps, share in ((None, (-0.1, 0.2)), (5, (0.6, 1.2))):
            estimates = attribute(model, task, direction=direction, steps=steps)
            found = audit(model, task, estimates, n_top=5, n_random=24)
            assert len(found.table) == 24
            assert 0.65 < found.rank_agreement < 0.97 and found.sign_agreement > 0.7
            # The previous-token head is needed, and the plain gradient does not see it.
            row = found.table.set_index(["layer", "head"]).loc[0, 5]
            assert abs(row.exact) > 4 and share[0] < row.estimate / row.exact < share[1]
            assert (found.worst_miss[0] == "head 0.5") == (steps is None)


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, says",
    [
        (dict(site="pattern"), "site=pattern: gradients of weights are not taken; expected q, k"),
        (dict(site="v", correct_qk=True), "correct_qk: site=v: expected q or k"),
        (dict(steps=0), "steps=0: expected a whole number of 1 or more"),
        (dict(metric="flips"), "metric=flips has no gradient; take the logit difference or the"),
        (dict(metric="kl", direction="noise"), "metric=kl: its gradient at the clean prompt is 0"),
        (dict(metric="loss"), "needs examples with 'scored'"),
        (dict(positions="all"), "prompts of 6 to 8 tokens, whose positions do not line up"),
    ],
)
def test_what_has_no_estimate_is_refused(arguments, says):
    with pytest.raises(InterpError, match=says) as error:
        attribute(tiny("llama"), pairs(), **arguments)
    assert "\n" not in str(error.value)


def test_what_cannot_be_run_is_refused():
    model, task = tiny("llama"), pairs()
    with pytest.raises(InterpError, match="example p1 has no corrupted prompt"):
        attribute(model, Task("t", (replace(task.examples[1], corrupted=None),)))
    with pytest.raises(InterpError, match="answer 61 is not in the model's vocabulary"):
        attribute(model, Task("t", (replace(task.examples[1], answer=61),)))
    with pytest.raises(InterpError, match="read the same stream"):
        attribute(tiny("gpt_neox"), task, "resid_mid")
    model.hf_model.lm_head.weight.data[7] = torch.nan
    with pytest.raises(InterpError, match="NaN"):
        attribute(model, task)
