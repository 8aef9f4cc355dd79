"""What interventions give back: a pair, its summary, a short table and a figure that a notebook shows."""

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from interp.circuits.check import check_circuit
from interp.circuits.faithfulness import Faithfulness
from interp.circuits.head_sets import growing_sets
from interp.inputs.prompts import repeated_random_prompts
from interp.inputs.tasks import copying
from interp.interventions.ablation import ablate_heads
from interp.interventions.direct import SplitEffects, decompose
from interp.interventions.influence import weigh_heads
from interp.interventions.patching import patch
from interp.interventions.paths import trace_paths
from interp.interventions.quadrants import Influence, rank_agreement, summarise_influence
from interp.interventions.together import SetEffects, ablate_together
from interp.results import tables
from interp.results.findings import Effects
from interp.results.summaries import summarise_effects
from interp.sinks.sink_effects import SinkEffects, knock_out_sinks, text_task
from interp.sinks.sink_mass import sink_masses

HEADS = [(0, 4), (0, 5), (2, 3)]


@pytest.fixture(scope="module")
def task(model):
    return copying(model, n_prompts=3, period=12)


@pytest.fixture(scope="module")
def found(model, task):
    return ablate_heads(model, task)


def is_shown(figure: Figure) -> bool:
    picture, size = figure._repr_png_()
    inches = figure.get_size_inches()
    assert size == {"width": int(96 * inches[0]), "height": int(96 * inches[1])}
    return picture.startswith(b"\x89PNG") and len(picture) > 5_000


def test_a_pair_with_its_summary(found):
    per_prompt, difference = found
    assert per_prompt is found.per_prompt and difference == found.largest_difference < 1e-4
    pd.testing.assert_frame_equal(found.summary, summarise_effects(per_prompt))
    assert found.summary is found.summary, "it is worked out once"
    top = found.top(2)
    assert {*zip(top.layer, top["head"], strict=True)} == {(0, 4), (0, 5)}
    assert repr(found) == "Effects(default: 24 rows, 3 prompts)"


def test_every_intervention_can_be_looked_at(model, task):
    for kind, measured in (
        (Effects, patch(model, task, only=[(0,)])),
        (Effects, trace_paths(model, task)),
        (SplitEffects, decompose(model, task)),
        (Faithfulness, check_circuit(model, task, growing_sets(HEADS, [0.05, 0.1]), n_random=2)),
        (SetEffects, ablate_together(model, task, HEADS, n_random=3)),
    ):
        assert type(measured) is kind
        assert len(measured.top(1)) == 1 < len(measured.summary)
        assert measured._repr_html_().count("<tr") == 1 + min(10, len(measured.summary))
        if kind is not SetEffects:
            assert is_shown(measured.figure())


def test_influence_is_summed_up_by_the_ablation_that_judges(model, task):
    found = weigh_heads(model, task, judged_by="mean")
    assert isinstance(found, Influence) and found.judge == "total_mean"
    per_prompt, _ = found
    expected = summarise_influence(per_prompt, judged_by="total_mean")
    pd.testing.assert_frame_equal(found.summary, expected)
    assert not expected.equals(summarise_influence(per_prompt))
    pd.testing.assert_frame_equal(found.agreement, rank_agreement(per_prompt))
    assert {"total_mean", "quadrant", "share"} <= {*found.top()} and "total_zero" not in found.top()
    figure = found.figure()
    assert figure.axes[0].get_ylabel().startswith("|total mean effect|") and is_shown(figure)


def test_sinks_are_drawn_beside_where_the_mass_went(model):
    prompts = repeated_random_prompts(model, n_prompts=2, periods=[12])
    found = knock_out_sinks(model, text_task(prompts), ["mask"], [1], n_random=1)
    assert isinstance(found, SinkEffects) and len(found.summary) == 2
    assert is_shown(found.figure(sink_masses(model, prompts, ["mask"], [1])))


def test_a_table_in_a_notebook():
    """Short numbers, small p-values not rounded to 0, undefined empty, text escaped."""
    table = pd.DataFrame(
        {"key_token": ["<script>"], "mass": [1 / 3], "q_effect": [1e-7], "null": [np.nan]}
    )
    html = tables.as_html(table)
    assert "0.3333" in html and "1e-07" in html and "nan" not in html.lower()
    assert "&lt;script&gt;" in html and "<script>" not in html


def test_figures_leave_pyplot_alone():
    """A notebook's own plots go on being shown where they were."""
    code = (
        "import sys, matplotlib; from interp.results import figures; "
        "figures.Drawing(1.0, 1.0)._repr_png_(); "
        "assert 'matplotlib.pyplot' not in sys.modules; print(matplotlib.get_backend())"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"MPLBACKEND": "svg"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "svg\n"
