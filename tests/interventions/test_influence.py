"""Weight beside influence: each quantity by hand, the verdicts, and rank agreement on planted tables."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text

from interp.editing.edits import Recording, edited
from interp.editing.sites import Site
from interp.errors import InterpError
from interp.inputs.tasks import copying, little_world
from interp.interventions.influence import target_role, weigh_heads
from interp.interventions.influence_figure import _name, direct_and_total, weight_and_influence
from interp.interventions.quadrants import (
    EFFECTS,
    QUADRANTS,
    WEIGHTS,
    rank_agreement,
    summarise_influence,
)
from interp.models.forward import logits_at
from interp.models.model import load_model
from interp.results import tables
from interp.results.influence_tables import INFLUENCE_PER_PROMPT, QUANTITIES


@pytest.fixture(scope="module")
def copied(model):
    task = copying(model, n_prompts=6, period=20)
    return task, *weigh_heads(model, task)


def one(table, layer, head, prompt):
    rows = table[(table.layer == layer) & (table["head"] == head) & (table.prompt == prompt)]
    return rows.iloc[0]


def test_weights_by_hand(model, copied):
    """Head 1.3 on one prompt: its pattern, its values through its columns of W_O, the unembedding."""
    task, table, difference = copied
    assert difference < 1e-4 and len(table) == 24 * 6
    example = task.examples[2]
    n, layer, head, d = len(example.prompt.ids), 1, 3, model.d_head
    ids = torch.tensor([example.prompt.ids])
    sites = [Site("pattern", layer), Site("v", layer), Site("z", layer), Site("resid_post", 2)]
    recording = Recording(sites)
    with edited(model, recording=recording):
        logits_at(model, ids, torch.tensor([[n - 1]]))
    pattern, v, z, stream = (recording[site][0] for site in sites)
    weight = model.hf_model.model.layers[layer].self_attn.o_proj.weight.detach()
    weight = weight[:, head * d : (head + 1) * d]
    lengths = (v[head // 2] @ weight.T).norm(dim=-1)
    masses, fetched, added = [], [], []
    norm, unembed = model.hf_model.model.norm, model.hf_model.lm_head.weight.detach()
    for position in example.scored:
        query, key = position - 1, position - 20  # the token after the earlier copy
        masses.append(float(pattern[head, query, key]))
        fetched.append(float(pattern[head, query, key] * lengths[key]))
        scale = (stream[query].square().mean() + norm.variance_epsilon).sqrt()
        written = (z[head, query] @ weight.T) / scale * norm.weight.detach()
        logits = unembed @ written
        added.append((logits[example.prompt.ids[position]] - logits.mean()).item())
    row = one(table, layer, head, example.prompt.name)
    assert row.mass == pytest.approx(np.mean(masses), abs=1e-5)
    assert row.value_weighted == pytest.approx(np.mean(fetched), rel=1e-4)
    assert row.direct_logit == pytest.approx(np.mean(added), abs=1e-4)
    assert row.n_queries == 19


def test_looking_is_not_using_on_the_default_model(copied):
    """Eight heads look at the token to copy and none is needed; the head that looks one back is."""
    _, table, _ = copied
    summary = summarise_influence(table)
    quadrant = summary.set_index(["layer", "head"]).quadrant
    assert (quadrant[1] == QUADRANTS[1]).all()  # looked at, unused
    assert quadrant[0, 5] == QUADRANTS[2]  # used, hardly looked at
    first = summary.iloc[0]
    assert (first.layer, first["head"]) == (0, 5) and first.share > 0.9
    assert first.total_resample_low < first.total_resample < first.total_resample_high
    agreement = rank_agreement(table, n_top=8)
    by_mass = agreement[agreement.weight == "mass"].set_index("influence")
    assert by_mass.spearman["direct"] > 0.6 and by_mass.spearman["total_resample"] < 0.2
    assert by_mass.p["direct"] <= 1 and (by_mass.n_templates == 6).all()
    figure = weight_and_influence(summary, agreement, "total_resample")
    assert len(figure.axes) == 2


def test_names_of_heads_near_each_other_do_not_cover_each_other():
    figure = Figure()
    axis = figure.subplots()
    axis.set(xlim=(0, 1), ylim=(0, 1))
    _name(axis, [(f"2.{i}", 0.5 + i / 500, 0.5) for i in range(5)])
    boxes = [Text.get_window_extent(label) for label in axis.texts]
    assert [label.get_text() for label in axis.texts] == [f"2.{i}" for i in range(5)]
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    axis.clear()
    axis.set(xlim=(0, 1), ylim=(0, 1))
    axis.plot([1.0] * 5, [0.5 + i / 500 for i in range(5)], "o")
    _name(axis, [(f"2.{i}", 1.0, 0.5 + i / 500) for i in range(5)])  # at the right edge
    boxes = [Text.get_window_extent(label) for label in axis.texts]
    dots = axis.transData.transform(axis.lines[0].get_xydata())
    assert not any(box.contains(*dot) for box in boxes for dot in dots)
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    assert all(box.x1 <= axis.get_window_extent().x1 for box in boxes)


def test_a_name_is_not_tied_to_its_dot_across_another_dot_or_name():
    """In the run that comes along, 2.7 was tied to its dot across 2.2 and 2.3."""
    results = Path(__file__).parents[2] / "results" / "weight_vs_influence"
    table, agreement = (tables.read(results / f"{name}.csv") for name in ("table", "agreement"))
    axis = weight_and_influence(table, agreement, "total_resample").axes[0]
    names = [f"{layer}.{head}" for layer, head in zip(table.layer, table["head"], strict=True)]
    dots = axis.transData.transform(np.stack([table.mass, table.total_resample.abs()], axis=1))
    places = dict(zip(names, dots, strict=True))
    radius = axis.lines[0].get_markersize() / 2 * axis.figure.dpi / 72  # pixels
    boxes = {label.get_text(): Text.get_window_extent(label) for label in axis.texts}
    assert {"0.5", "1.3", "2.7"} <= set(boxes) <= set(places)
    for name, box in boxes.items():
        along = np.linspace(places[name], box.corners().mean(axis=0), 200)
        apart = [dot for dot in dots if np.abs(dot - places[name]).max() > radius]
        assert all(np.abs(along - dot).max(axis=1).min() > radius for dot in apart), name
        names = [other for other, b in boxes.items() if any(b.contains(*at) for at in along)]
        assert names == [name]


def test_where_heads_should_look(model):
    task = little_world(model, n_prompts=4)
    example = task.examples[0]
    last = len(example.prompt.ids) - 1
    places = dict(example.places)
    assert target_role(task, None).targets(example.prompt) == [(last, places["answer"])]
    assert target_role(task, "wrong 2").targets(example.prompt) == [(last, places["wrong 2"])]
    assert target_role(task, "previous_token").targets(example.prompt) == [(last, last - 1)]
    with pytest.raises(
        InterpError, match="target='S2': expected one of answer, END, wrong, wrong 2, current_token"
    ):
        target_role(task, "S2")
    with pytest.raises(InterpError, match="expected one of current_token, duplicate_token"):
        target_role(copying(model, n_prompts=2, period=5), "answer")
    with pytest.raises(InterpError, match="target='sink_any': expected one of"):
        target_role(task, "sink_any")  # found in each pattern: no fixed place
    nowhere = replace(task, examples=tuple(replace(e, answer=5) for e in task.examples))
    with pytest.raises(InterpError, match="no example of task"):
        weigh_heads(model, nowhere)


def planted(n_heads=40, n_prompts=12, seed=0, follows=True):
    """Heads whose every effect follows their mass (or not), in a table as if measured."""
    rng = np.random.default_rng(seed)
    mass = rng.uniform(0, 1, n_heads)
    effect = mass if follows else rng.permutation(mass)
    rows = []
    for head in range(n_heads):
        for prompt in range(n_prompts):
            noise = rng.normal(0, 0.01)
            row = dict.fromkeys(QUANTITIES, effect[head] + noise) | {
                "mass": np.clip(mass[head] + noise, 0, 1),
                "value_weighted": mass[head],
                "direct_logit": -mass[head],
            }
            row |= {"layer": head // 8, "head": head % 8, "prompt": f"p{prompt}"}
            row |= {"template": f"t{prompt}", "null": 0.01, "chance": 0.05, "n_queries": 3}
            rows.append(row | {"baseline": 2.0, "clean": 2.0, "corrupted": 0.0})
    table = pd.DataFrame(rows).assign(model="m", task="t", target="answer", metric="loss")
    return INFLUENCE_PER_PROMPT.validate(table[list(INFLUENCE_PER_PROMPT.columns)])


def test_rank_agreement_of_what_was_planted():
    found = rank_agreement(planted(), n_top=8)
    assert len(found) == len(WEIGHTS) * len(EFFECTS)
    assert (found.spearman > 0.98).all()  # by size: direct_logit is negative throughout
    assert (found.p < 0.01).all() and (found.top_effect > found.random_high).all()
    apart = rank_agreement(planted(follows=False), n_top=8)
    assert (apart.spearman.abs() < 0.4).all()
    assert (apart.ci_low <= apart.spearman).all() and (apart.spearman <= apart.ci_high).all()
    assert (apart.p > 0.01).all()


def test_verdicts_need_size_and_certainty():
    table = planted()
    summary = summarise_influence(table)
    looked = summary.quadrant.isin(QUADRANTS[:2])
    assert (looked == (summary.mass >= 0.1)).all()
    used = summary.quadrant.isin([QUADRANTS[0], QUADRANTS[2]])
    assert (used == (summary.total_resample.abs() >= 0.05 * 2)).all()
    few = table[table.template.isin(["t0", "t1"])]
    assert (
        summarise_influence(few).quadrant == "neither"
    ).all()  # two templates: nothing is certain
    nowhere = table.assign(mass=np.nan, value_weighted=np.nan)
    undefined = summarise_influence(nowhere)
    assert undefined.mass.isna().all() and (undefined.n_undefined == 12).all()
    assert not undefined.quadrant.isin(QUADRANTS[:2]).any()
    assert rank_agreement(nowhere).spearman.isna().sum() == 2 * len(EFFECTS)


def test_the_figure_of_direct_and_total_effects(model):
    from interp.interventions.direct import decompose
    from interp.results.summaries import summarise_effects

    per_prompt, _ = decompose(model, little_world(model, n_prompts=4), "zero")
    figure = direct_and_total(summarise_effects(per_prompt))
    assert figure.axes[0].get_xlabel() == "direct effect on logit difference (logits)"


def test_a_metric_without_a_gradient_is_refused_before_anything_is_measured():
    model = load_model("default")
    done = []
    for metric in ("flips", "kl"):
        with pytest.raises(InterpError, match=f"metric={metric}"):
            weigh_heads(model, copying(model, n_prompts=2), metric=metric, progress=done.append)
    assert not done
