"""Sets of heads: against plain passes, random sets that are what they say, and p by hand."""

from math import comb

import numpy as np
import pandas as pd
import pytest
import torch

from interp.circuits.head_sets import heads_in
from interp.editing.edits import Replace, edited
from interp.editing.metrics import METRICS, positions
from interp.editing.sites import Site
from interp.errors import InterpError
from interp.inputs.tasks import copying
from interp.interventions.together import ablate_together, as_words, other_sets, summarise_sets
from interp.models.forward import logits_at
from interp.results import tables


@pytest.fixture(scope="module")
def task(model):
    return copying(model, n_prompts=3, period=12)


def test_against_plain_passes(model, task):
    table, difference = ablate_together(model, task, [(1, 3), (0, 5), (1, 0)], n_random=4, seed=2)
    assert difference < 1e-4 and len(table) == 5 * 3
    assert table[table.kind == "named"]["heads"].unique().tolist() == ["0.5 1.0 1.3"]
    for text, rows in table.groupby("heads"):
        example, row = task.examples[1], rows.iloc[1]
        edits = [Replace.zero(Site("z", layer, (head,))) for layer, head in heads_in(text)]
        with edited(model, edits):
            logits = logits_at(
                model, torch.tensor([example.prompt.ids]), torch.tensor([positions(example)])
            )
        loss = float(METRICS["loss"].measure(logits, logits, [example])[0])
        assert row.effect + row.baseline == pytest.approx(loss, abs=1e-4)


def test_random_sets_are_as_many_other_heads_of_the_same_layers():
    named = [(2, 1), (2, 3), (5, 0)]
    sets = other_sets(named, n_heads=6, count=20, seed=1)
    assert len(set(sets)) == 20 and sets == other_sets(named, 6, 20, seed=1)
    for one in sets:
        assert [layer for layer, _ in one] == [2, 2, 5] and not set(one) & set(named)
        assert len(set(one)) == 3
    every = other_sets(named, n_heads=6, count=1000)
    assert len(every) == len(set(every)) == comb(4, 2) * 5
    assert set(other_sets(named, 6, 30)) == set(every)
    assert other_sets(named, 6, 0) == []
    with pytest.raises(InterpError, match="layer 2: 2 of 3 heads are named, which leaves 1"):
        other_sets([(2, 1), (2, 2)], n_heads=3, count=5)


def test_the_summary(model, task, tmp_path):
    """The named set first; p counts the random sets of as large an effect, and the named one."""
    table, _ = ablate_together(model, task, [(0, 5)], n_random=5, seed=3)
    sets = summarise_sets(table)
    assert sets.kind.tolist() == ["named", *["random"] * 5] and sets["heads"][0] == "0.5"
    assert sets.effect[0] == pytest.approx(table[table["heads"] == "0.5"].effect.mean())
    assert sets.effect[0] > 5
    expected = int(
        (sets.effect[1:].abs() >= sets.effect[0]).sum()
    )  # 0.4 is as large, if it is drawn
    assert sets.n_as_large[0] == expected
    assert sets.p[0] == pytest.approx((1 + expected) / 6)
    assert sets.p[1:].isna().all() and (sets.n_random == 5).all() and (sets.n_prompts == 3).all()
    tables.write(sets, tmp_path / "sets.csv")
    pd.testing.assert_frame_equal(tables.read(tmp_path / "sets.csv"), sets)
    alone = summarise_sets(ablate_together(model, task, [(0, 5)], n_random=0)[0])
    assert len(alone) == 1 and np.isnan(alone.p[0])


def test_induction_heads_of_the_default_model_are_needed_together(model):
    """None matters by itself (test_ablation.py); all of layer 1 do, more than all of layer 2."""
    task = copying(model, n_prompts=4, period=20)
    one, two = (
        summarise_sets(
            ablate_together(model, task, [(layer, h) for h in range(8)], n_random=0)[0]
        ).effect[0]
        for layer in (1, 2)
    )
    assert one > 5 and abs(two) < 0.5


def test_names_and_refusals(model, task):
    assert as_words([(18, 10), (18, 1)]) == "18.10 18.1"
    assert heads_in("[18.10,18.1]") == ((18, 10), (18, 1))
    with pytest.raises(InterpError, match="no head 8"):
        ablate_together(model, task, [(1, 8)])
    with pytest.raises(InterpError, match="has no heads"):
        ablate_together(model, task, [])
    with pytest.raises(InterpError, match=r"head 1\.3 is there twice"):
        ablate_together(model, task, [(1, 3), (1, 3)])
