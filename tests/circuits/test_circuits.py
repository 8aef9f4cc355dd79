"""Circuits: against plain passes, by hand, with a planted head, and on the model that comes along."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.command_line.compose import compose
from interp.circuits import faithfulness
from interp.circuits.check import check_circuit, halves, heads_of, only, rank_heads
from interp.circuits.faithfulness_figure import growing_and_named
from interp.circuits.head_sets import (
    HeadSet,
    classes_in,
    growing_sets,
    heads_in,
    named_sets,
    relabelled,
    relabellings,
    sizes,
)
from interp.config.circuits import CheckCircuitConfig, DefaultIndirectObjects, Gpt2IndirectObjects
from interp.editing.edits import Replace, edited
from interp.editing.metrics import METRICS
from interp.editing.sites import Site
from interp.errors import InterpError
from interp.inputs.tasks import Task, copying, little_world
from interp.interventions.gradients import attribute
from interp.interventions.patching import patch
from interp.models.forward import logits_at
from interp.models.model import load_model
from interp.results import stats, summaries, tables
from interp.runs.parts import Parts
from tests.families import tiny_model

CIRCUIT = DefaultIndirectObjects().classes
EVERY = [(layer, head) for layer in range(3) for head in range(8)]


@pytest.fixture(scope="module")
def world(model):
    return little_world(model, n_prompts=6, seed=3)


@pytest.fixture(scope="module")
def measured(model):
    """The shipped circuit and the ranking of one half of the prompts, on the other half."""
    chosen_on, task = halves(little_world(model, n_prompts=64, seed=7))
    effects, _ = patch(model, chosen_on, direction="noise")
    ranking = rank_heads(model, summaries.summarise_effects(effects))
    sets = [*named_sets(CIRCUIT)[:5], *growing_sets(heads_of(ranking))]
    per_prompt, difference = check_circuit(model, task, sets)
    assert difference < 1e-4
    return ranking, per_prompt


# --- sets ----------------------------------------------------------------------------------------


def test_heads_are_two_whole_numbers():
    """9.10 is head 10, and no number: 9.1 is another head."""
    for text in ("9.9 9.10 9.1", "[9.9,9.10,9.1]", " 9.9,\n9.10 , 9.1 "):
        assert heads_in(text) == ((9, 9), (9, 10), (9, 1))
    classes = classes_in("[movers: 9.9 10.0; s-inhibition: 7.3; 0.10]")
    assert classes == {"movers": ((9, 9), (10, 0)), "s-inhibition": ((7, 3),), "heads": ((0, 10),)}
    for text, message in {
        "9": "'9' is no head: expected layer.head",
        "9.1.0": "'9.1.0' is no head",
        "9.-1": "is no head",
        "1e1": "is no head",
        " ": "names no head",
        "movers:": "names no head",
        "9.9 9.9": "head 9.9 is there twice",
        "a: 9.9; b: 9.10 9.9": "classes a, b: head 9.9 is there twice",
        "a: 9.9; a: 9.10": "class 'a' is there twice",
    }.items():
        with pytest.raises(InterpError, match=message):
            classes_in(text)


def test_sizes_are_shares_of_all_heads_and_at_least_one():
    assert sizes(270) == [1, 3, 5, 14, 27, 54, 135, 270]
    assert sizes(144) == [1, 3, 7, 14, 29, 72, 144]
    assert sizes(24) == [1, 2, 5, 12, 24] == sizes(24, [0.05, 0.1, 0.2, 0.5])
    assert sizes(1) == [1]
    for wrong in ([], [0.0], [1.5]):
        with pytest.raises(InterpError, match="expected numbers above 0"):
            sizes(24, wrong)


def test_named_sets_are_the_circuit_less_each_class_and_each_alone():
    sets = {one.name: one.heads for one in named_sets({"a": [(0, 1)], "b": [(1, 0), (2, 2)]})}
    assert sets == {
        "circuit": ((0, 1), (1, 0), (2, 2)),
        "circuit less a": ((1, 0), (2, 2)),
        "circuit less b": ((0, 1),),
        "a": ((0, 1),),
        "b": ((1, 0), (2, 2)),
    }
    assert [one.name for one in named_sets({"heads": [(0, 1)]})] == ["circuit"]
    with pytest.raises(InterpError, match="set 'x' has no heads"):
        HeadSet("x", ())
    with pytest.raises(InterpError, match=r"head 1\.1 is there twice"):
        HeadSet("x", ((1, 1), (1, 1)))


def test_random_sets_match_layers_and_grow_within_one_another():
    rng = np.random.default_rng(0)
    ranking = [EVERY[i] for i in rng.permutation(24)]
    sets = growing_sets(ranking, [0.05, 0.1, 0.25, 0.5])
    orders = relabellings(3, 8, 200, seed=1)
    for order in orders[:20]:
        before: set = set()
        for one in sets:
            image = relabelled(one.heads, order)
            assert Counter(i for i, _ in image) == Counter(i for i, _ in one.heads)
            assert len(set(image)) == len(image) and before <= set(image)
            before = set(image)
    # every head of a layer is as likely, and layers are drawn apart
    drawn = Counter(relabelled([(1, 3)], order)[0] for order in orders)
    assert drawn.keys() == {(1, head) for head in range(8)} and max(drawn.values()) < 50
    assert len({tuple(order[0]) == tuple(order[1]) for order in orders[:5]}) == 1
    np.testing.assert_array_equal(orders, relabellings(3, 8, 200, seed=1))
    assert (orders != relabellings(3, 8, 200, seed=2)).any()


def test_edits_are_views_of_the_heads_that_go():
    new = [torch.randn(5, 8, 4, 2) for _ in range(3)]
    kept = {(0, 0), (0, 3), (0, 7), (1, 4), *((2, head) for head in range(8))}
    edits = only(kept, new, "mean")
    gone = [(edit.layer, head) for edit in edits for head in edit.site.heads]
    assert sorted(gone) == sorted(set(EVERY) - kept) and len(set(gone)) == len(gone)
    assert [edit.site.heads for edit in edits] == [(1, 2), (4, 5, 6), (0, 1, 2, 3), (5, 6, 7)]
    for edit in edits:
        whole = new[edit.layer]
        assert edit.value.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
        torch.testing.assert_close(edit.value, whole[:, list(edit.site.heads)])


# --- measuring -----------------------------------------------------------------------------------


def value_by_hand(model, task, i, kept, how, together):
    """A plain pass, each head that goes given one by one what it becomes."""
    example = task.examples[i]
    donors = [example.corrupted] if how == "resample" else [e.corrupted for e in together]
    seen = []
    for donor in donors:
        z = {}
        with edited(model, look=lambda layer, _, new, z=z: z.update({layer: new.clone()})):
            logits_at(model, torch.tensor([donor.ids]), torch.tensor([[0]]))
        seen.append(z)
    edits = []
    for layer, head in sorted(set(EVERY) - set(kept)):
        value = torch.stack([z[layer][:, head : head + 1] for z in seen]).mean(0)
        value = torch.zeros(()) if how == "zero" else value
        edits.append(Replace(Site("z", layer, (head,)), value, "by hand"))
    with edited(model, edits):
        last = torch.tensor([[len(example.prompt.ids) - 1]])
        logits = logits_at(model, torch.tensor([example.prompt.ids]), last)
    return float(METRICS["logit_difference"].measure(logits, logits, [example])[0])


@pytest.mark.parametrize(
    "how, over",
    [("mean", "length"), ("mean", "template"), ("resample", "length"), ("zero", "length")],
)
def test_against_plain_passes(model, how, over):
    heads = ((0, 4), (0, 5), (1, 2), (2, 5))
    examples = little_world(model, n_prompts=12, seed=3).examples
    length = Counter(len(e.prompt.ids) for e in examples).most_common(1)[0][0]
    world = Task("world", tuple(e for e in examples if len(e.prompt.ids) == length)[:4])
    assert len({e.template for e in world.examples}) == 2
    table, difference = check_circuit(
        model, world, [HeadSet("four", heads)], how, mean_within=over, n_random=2, seed=4
    )
    assert difference < 1e-4 and len(table) == (1 + 2 * 3) * 4
    order = relabellings(3, 8, 2, seed=4)[1]
    for draw, kept, left in (
        (-1, "set", heads),
        (-1, "others", set(EVERY) - set(heads)),
        (1, "set", relabelled(heads, order)),
    ):
        for i in (0, 3):
            example = world.examples[i]
            together = [
                e for e in world.examples if over == "length" or e.template == example.template
            ]
            rows = table[(table["draw"] == draw) & (table["kept"] == kept) & (table["size"] > 0)]
            row = rows.iloc[i]
            assert row.prompt == example.prompt.name
            expected = value_by_hand(model, world, i, left, how, together)
            assert row.effect + row.baseline == pytest.approx(expected, abs=1e-4)
    none = table[table["set"] == "no heads"].iloc[0]
    expected = value_by_hand(model, world, 0, (), how, world.examples)
    if over == "length":
        assert none.effect + none.baseline == pytest.approx(expected, abs=1e-4)


def test_all_heads_are_1_and_none_are_0_exactly(model, world):
    sets = growing_sets(EVERY, [0.5])
    table, _ = check_circuit(model, world, sets, "zero", n_random=3)
    full = faithfulness.summarise(table).set_index("set").loc["top 24"]
    for column in ("faithfulness", "ci_low", "ci_high", "random", "random_low", "p"):
        assert full[column] == 1, column
    for column in ("without", "without_low", "without_high", "random_without"):
        assert full[column] == 0, column
    assert full.value == full.all_heads and full.p_without == 1


def test_a_planted_head_is_all_there_is(tokenizer):
    """Only 1.2 writes anything: kept alone it is the model, without it nothing is left."""
    hf_model = tiny_model("llama", vocab_size=64)
    with torch.no_grad():
        for layer, block in enumerate(hf_model.model.layers):
            by_head = block.self_attn.o_proj.weight.unflatten(1, (4, -1))
            by_head[:, [head for head in range(4) if (layer, head) != (1, 2)]] = 0
    model = load_model((hf_model, tokenizer))
    task = copying(model, n_prompts=4, period=7, bos="off")
    sets = [
        HeadSet("it", ((1, 2),)),
        HeadSet("another", ((1, 1),)),
        HeadSet("both", ((1, 2), (0, 0))),
    ]
    table, _ = check_circuit(model, task, sets, "zero", "kl", n_random=40)
    found = faithfulness.summarise(table).set_index("set")
    np.testing.assert_allclose(found.faithfulness, [1, 0, 1], atol=1e-5)
    np.testing.assert_allclose(found.without, [0, 1, 0], atol=1e-5)
    # of the random sets as many are as good as are the set itself
    itself = (relabellings(model.n_layers, model.n_heads, 40, 0)[:, 1, 2] == 2).sum()
    assert 2 <= itself <= 20
    assert found.p["it"] == pytest.approx((1 + itself) / 41) == found.p_without["it"]
    assert found.random["it"] == pytest.approx(itself / 40, abs=1e-5)
    assert found.p["another"] == 1 == found.p_without["another"]


def test_on_random_weights_a_ranking_is_no_better_than_chance(tokenizer):
    model = load_model((tiny_model("llama", vocab_size=64), tokenizer))
    chosen_on, task = halves(copying(model, n_prompts=24, period=7, bos="off"))
    ranking = rank_heads(
        model, summaries.summarise_effects(attribute(model, chosen_on, direction="noise"))
    )
    sets = growing_sets(heads_of(ranking), [0.1, 0.25, 0.5])
    table, _ = check_circuit(model, task, sets, n_random=20)
    areas = faithfulness.areas(table)
    assert (areas.p.isna() | (areas.p > 0.05)).all()
    assert areas.undefined_reason.notna().all() == areas.value.isna().all()


def test_what_was_measured_is_not_measured_again(model, world, tmp_path: Path):
    sets = growing_sets(EVERY, [0.1, 0.5])
    found = []
    for expected in (0, 1):
        parts = Parts(tmp_path / "parts", ["this"])
        table, _ = check_circuit(model, world, sets, n_random=2, parts=parts)
        found.append(table)
        assert (parts.n_loaded > 0) == expected
    pd.testing.assert_frame_equal(*found)


# --- the numbers, by hand ------------------------------------------------------------------------


def by_hand(f, sizes_of_sets, gaps, *, family="growing", n_heads=10):
    """A table of one prompt a template. f[set, draw]: what is left with the set; without it 1 − that."""
    rows = []
    for template, gap in enumerate(gaps):
        none = {"set": "no heads", "size": 0, "draw": -1, "kept": "set", "effect": -gap}
        rows.append(none | {"template": str(template)})
        for s, size in enumerate(sizes_of_sets):
            for draw, one in enumerate(f[s], start=-1):
                for kept, share in (("set", one), ("others", 1 - one)):
                    row = {"set": f"top {size}", "size": size, "draw": draw, "kept": kept}
                    rows.append(row | {"effect": (share - 1) * gap, "template": str(template)})
    table = pd.DataFrame(rows)
    table = table.assign(
        model="m", task="t", edit="mean", metric="loss", family=family, baseline=7.0
    )
    table["share"] = table["size"] / n_heads
    table["prompt"] = table["template"]
    return tables.HEAD_SETS_PER_PROMPT.validate(table[list(tables.HEAD_SETS_PER_PROMPT.columns)])


def test_a_perfect_curve_and_a_straight_one():
    """Perfect: CPR 1 − smallest share, CMD 0. f = k from s on: (1 − s²) / 2 and (1 − s)² / 2."""
    counts = [1, 2, 5, 10]
    k = np.array(counts) / 10
    f = np.stack([np.ones(4), k, np.zeros(4)], axis=1)  # the sets, and two random ones
    f[-1] = 1
    areas = faithfulness.areas(by_hand(f, counts, [1.0, 3.0, 2.0])).set_index("area")
    assert areas.value.tolist() == pytest.approx([0.9, 0.0]) == areas.perfect.tolist()
    assert areas.ci_low.tolist() == pytest.approx([0.9, 0]) == areas.ci_high.tolist()
    straight, last = np.array([0.99 / 2, 0.81 / 2]), np.array([0.25, 0.65])  # from 0 at .5 to 1
    assert areas.random.tolist() == pytest.approx((straight + last) / 2)
    assert areas.p.tolist() == pytest.approx([1 / 3, 1 / 3])
    # the same sets, the worst one first: both others are as good
    areas = faithfulness.areas(by_hand(f[:, ::-1], counts, [1.0, 3.0])).set_index("area")
    assert areas.value.tolist() == pytest.approx(last) and areas.p.tolist() == [1, 1]


def test_a_summary_by_hand():
    f = np.array([[0.5, 0.25, 1.75, 0.5, 0.0]])
    table = by_hand(f, [2], [1.0, -3.0, -4.0, -2.0], family="named")
    row = faithfulness.summarise(table).iloc[0]
    assert pd.isna(row.faithfulness), "means 1, −3, −4, −2: some samples are of one sign only"
    row = faithfulness.summarise(by_hand(f, [2], [1.0, 3.0, 4.0], family="named")).iloc[0]
    assert (row.faithfulness, row.ci_low, row.ci_high) == pytest.approx((0.5, 0.5, 0.5))
    assert row.without == pytest.approx(0.5) and row.random == pytest.approx(2.5 / 4)
    assert row.p == pytest.approx(2 / 5)  # only one of four is as near to 1 (itself counted)
    assert row.p_without == pytest.approx(3 / 5)  # 0.75, −0.75, 0.5, 1: two leave as little
    assert (row.all_heads, row.no_heads) == pytest.approx((7, 7 - 8 / 3))
    assert row.value == pytest.approx(7 - 4 / 3) and pd.isna(row.undefined_reason)
    assert (row.n_random, row.n_templates, row.n_prompts) == (4, 3, 3)


def test_where_no_head_does_anything_all_is_undefined():
    table = by_hand(np.full((3, 4), 0.5), [1, 5, 10], [1.0, -1.0, 2.0, -2.0])
    found, areas = faithfulness.summarise(table), faithfulness.areas(table)
    numbers = [
        "faithfulness",
        "ci_low",
        "random",
        "p",
        "without",
        "random_without_high",
        "p_without",
    ]
    assert found[numbers].isna().all(axis=None)
    assert areas[["value", "ci_low", "random", "p"]].isna().all(axis=None)
    assert set(found.undefined_reason) == set(areas.undefined_reason) == {faithfulness.UNDEFINED}
    assert "undefined" in str(
        [text.get_text() for text in growing_and_named(found, areas).axes[0].texts]
    )


def test_one_template_has_no_interval_and_one_size_no_area():
    table = by_hand(np.full((2, 3), 0.5), [1, 5], [2.0])
    found, areas = faithfulness.summarise(table), faithfulness.areas(table)
    assert (found.faithfulness == 0.5).all() and found.ci_low.isna().all()
    assert areas.value.notna().all() and areas.ci_low.isna().all()
    one = faithfulness.areas(by_hand(np.full((1, 3), 0.5), [5], [2.0, 3.0]))
    assert one.value.isna().all() and set(one.undefined_reason) == {faithfulness.ONE_SIZE}
    with pytest.raises(InterpError, match="no growing sets"):
        faithfulness.areas(by_hand(np.full((1, 3), 0.5), [5], [2.0, 3.0], family="named"))


# --- the default model ---------------------------------------------------------------------------


def test_six_heads_of_the_default_model_do_what_all_24_do(measured):
    ranking, per_prompt = measured
    found = faithfulness.summarise(per_prompt).set_index("set")
    whole = found.loc["circuit"]
    assert whole["size"] == 6 and whole.all_heads > 5 and abs(whole.no_heads) < 0.1
    assert whole.faithfulness == pytest.approx(1.0, abs=0.1) and whole.without < 0.05
    assert whole.random < 0.5 and whole.random_without > 0.4
    assert whole.p == whole.p_without == pytest.approx(1 / 21)
    less = {name: found.faithfulness[f"circuit less {name}"] for name in CIRCUIT}
    assert max(less.values()) < 0.9 and min(less, key=lambda name: less[name]) == "movers"
    assert set(heads_of(ranking)[:6]) == {head for heads in CIRCUIT.values() for head in heads}
    growing = found[found.family == "growing"]
    assert growing["size"].tolist() == [1, 2, 5, 12, 24]
    assert growing.faithfulness["top 1"] < 0.2 and growing.faithfulness["top 5"] > 0.85
    assert growing.p["top 5"] == pytest.approx(1 / 21)


def test_how_faithful_it_is_hangs_on_what_the_others_give(model):
    """Miller et al. (2407.08734): one circuit, three ablations, three answers."""
    task = little_world(model, n_prompts=48, seed=11)
    circuit = named_sets(CIRCUIT)[:1]
    f = {}
    for how in ("mean", "resample", "zero"):
        table, _ = check_circuit(model, task, circuit, how, n_random=1)
        f[how] = faithfulness.summarise(table).faithfulness[0]
    assert f["mean"] > 0.8 and 0.65 < f["resample"] < 0.95 and f["zero"] < 0.6
    assert f["mean"] > f["resample"] > f["zero"] + 0.2


def test_the_interval_of_an_area_is_that_of_the_added_up_numerators(measured):
    """CPR is linear in f, so its interval can be worked out as one ratio."""
    _, per_prompt = measured
    areas = faithfulness.areas(per_prompt).set_index("area")
    rows = per_prompt[(per_prompt["draw"] == -1) & (per_prompt["kept"] == "set")]
    value = (
        rows.assign(value=rows.baseline + rows.effect).groupby(["template", "set"])["value"].mean()
    )
    value = value.unstack()
    names = [f"top {size}" for size in (1, 2, 5, 12, 24)]
    above = value[names].to_numpy() - value[["no heads"]].to_numpy()
    area = np.trapezoid(above, np.array([1, 2, 5, 12, 24]) / 24)
    ratio, low, high = stats.ratio_interval(area[:, None], above[:, -1:])
    assert areas.value["CPR"] == pytest.approx(ratio[0])
    assert (areas.ci_low["CPR"], areas.ci_high["CPR"]) == pytest.approx((low[0], high[0]))
    assert areas.value["CPR"] == pytest.approx(0.93, abs=0.05) and areas.random["CPR"] < 0.6
    assert areas.value["CMD"] == pytest.approx(0.12, abs=0.05) and areas.random["CMD"] > 0.4
    assert areas.p.tolist() == pytest.approx([1 / 21, 1 / 21])


def test_tables_read_back_and_the_figure_shows_them(measured, tmp_path: Path):
    ranking, per_prompt = measured
    parts = {
        "heads.csv": ranking,
        "table.csv": faithfulness.summarise(per_prompt),
        "areas.csv": faithfulness.areas(per_prompt),
        "per_prompt.parquet": per_prompt,
    }
    for name, table in parts.items():
        tables.write(table, tmp_path / name)
        pd.testing.assert_frame_equal(tables.read(tmp_path / name), table)
    figure = growing_and_named(parts["table.csv"], parts["areas.csv"])
    drawn = figure.axes[0].lines[1].get_xydata()
    growing = parts["table.csv"].query("family == 'growing'")
    np.testing.assert_allclose(drawn, growing[["share", "faithfulness"]])
    labels = [text.get_text() for text in figure.axes[2].get_yticklabels()]
    assert labels[-1] == "circuit (6)" and len(labels) == 5


# --- rankings and halves -------------------------------------------------------------------------


def test_a_ranking_is_by_size_with_undefined_heads_last(model):
    table = pd.DataFrame(EVERY, columns=["layer", "head"]).assign(model="x", mass=0.0)
    table.loc[[3, 7, 9], "mass"] = [0.2, np.nan, 0.9]
    heads = heads_of(rank_heads(model, table))
    assert heads[:2] == [EVERY[9], EVERY[3]] and heads[-1] == EVERY[7] and heads[2] == (0, 0)
    effects = table.rename(columns={"mass": "effect"}).assign(effect=range(24))
    effects.loc[5, "effect"] = -100
    assert heads_of(rank_heads(model, effects))[:2] == [EVERY[5], EVERY[23]]
    for wrong, message in (
        (table.drop(columns="mass"), "needs the columns layer, head, and effect or mass"),
        (effects.assign(unit="kv_head"), "needs query heads, and this table is of kv_head"),
        (pd.concat([table.assign(role="a"), table.assign(role="b")]), r"by role \(a, b\)"),
        (table[1:], r"of 23 heads, default has 24 \(3 × 8\); 0\.0 is in one only"),
    ):
        with pytest.raises(InterpError, match=message):
            rank_heads(model, wrong)


def test_halves_share_no_template(world):
    first, second = halves(world, seed=5)
    names = [{e.template for e in half.examples} for half in (first, second)]
    assert not names[0] & names[1] and len(names[0]) == 1 and len(names[1]) == 2
    assert sorted(e.prompt.name for e in first.examples + second.examples) == sorted(
        e.prompt.name for e in world.examples
    )
    assert halves(world, seed=5) == (first, second)
    one = replace(world, examples=world.examples[:2])
    with pytest.raises(InterpError, match=r"one template \(2 prompts\)"):
        halves(one)


def test_what_is_refused(model, world):
    one = HeadSet("it", ((0, 0),))
    for sets, options, message in (
        ([], {}, "none given"),
        ([one, one], {}, "set 'it' is there twice"),
        ([HeadSet("it", ((3, 0),))], {}, r"set 'it', head 3\.0: .* has layers 0 to 2, no layer 3"),
        ([HeadSet("it", ((0, 8),))], {}, r"set 'it', head 0\.8: .* has query heads 0 to 7"),
        ([one], {"metric": "loss"}, "metric loss needs examples with 'scored'"),
    ):
        with pytest.raises(InterpError, match=message):
            check_circuit(model, world, sets, **options)
    alone = replace(world, examples=world.examples[:1])
    with pytest.raises(InterpError, match="is the only prompt of its length"):
        check_circuit(model, alone, [one])


# --- what is shipped -----------------------------------------------------------------------------


def test_the_shipped_circuits_are_the_same_in_yaml_and_in_python():
    for circuit in (DefaultIndirectObjects(), Gpt2IndirectObjects()):
        found = compose("check_circuit", CheckCircuitConfig, [f"circuit={circuit.kind}"])
        assert found == CheckCircuitConfig(circuit=circuit)
    classes = Gpt2IndirectObjects().classes
    assert len(classes) == 7 and sum(map(len, classes.values())) == 26
    assert (10, 10) in classes["backup name movers"] and (0, 10) in classes["duplicate token"]
    assert sum(map(len, CIRCUIT.values())) == 6


def test_a_head_on_the_command_line_or_in_a_file_is_never_a_decimal(tmp_path: Path):
    def circuit(*arguments, files=()):
        return compose("check_circuit", CheckCircuitConfig, arguments, files).circuit.classes

    assert circuit("circuit=given", "circuit.heads=[9.10,9.1]") == {"heads": ((9, 10), (9, 1))}
    assert circuit("circuit=given", "circuit.heads=9.10") == {"heads": ((9, 10),)}
    file = tmp_path / "mine.yaml"
    file.write_text("circuit:\n  kind: given\n  heads: 'a: 9.10'\n")
    assert circuit(files=[file]) == {"a": ((9, 10),)}
    for written in ("9.10", "[9.10, 9.1]"):
        file.write_text(f"circuit:\n  kind: given\n  heads: {written}\n")
        with pytest.raises(InterpError, match=r"mine\.yaml, line 3.* only 18\.1 would be"):
            circuit(files=[file])
    with pytest.raises(InterpError, match=r"head 0\.5 is there twice"):
        circuit("circuit=default_indirect_objects", "circuit.giver=0.5")
