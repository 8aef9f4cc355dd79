"""Which metrics a config lets through: those a task has something for, and no other."""

from contextlib import suppress

import pytest

from experiments.command_line.keys import default_kinds, groups, keys_of
from interp.config.effects import (
    METRICS_OF,
    AblateHeadsConfig,
    AttributeHeadsConfig,
    WeightVsInfluenceConfig,
)
from interp.editing.metrics import METRICS
from interp.errors import InterpError
from interp.inputs import sentences, tasks, years
from interp.models.model import load_model

TASKS = {
    "copying": lambda model: tasks.copying(model, n_prompts=1, period=5),
    "indirect_objects": lambda model: sentences.indirect_objects(model, n_prompts=1),
    "greater_than": lambda model: years.greater_than(model, n_prompts=1),
    "pronouns": lambda model: sentences.pronouns(model, n_prompts=2),
    "little_world": lambda model: tasks.little_world(model, n_prompts=2),
}


@pytest.mark.parametrize(
    "kinds, which",
    [
        pytest.param(["copying", "little_world"], "default", id="default"),
        pytest.param(
            ["indirect_objects", "greater_than", "pronouns"],
            "smollm2_model",
            id="smollm2",
            marks=pytest.mark.smollm2,
        ),
    ],
)
def test_the_metrics_of_a_task_are_those_its_prompts_have_something_for(kinds, which, request):
    model = load_model("default") if which == "default" else request.getfixturevalue(which)
    for kind in kinds:
        fits, examples = [], TASKS[kind](model).examples
        for metric in METRICS.values():
            with suppress(InterpError):
                metric.check(examples)
                fits.append(metric.name)
        assert set(fits) == set(METRICS_OF[kind]), kind
    assert METRICS_OF.keys() == TASKS.keys() == groups(AblateHeadsConfig)["task"].keys()


def test_the_metrics_offered_are_those_accepted():
    """By --help: weight_vs_influence takes a gradient at the clean prompt, which two metrics don't have."""
    for config, without in (
        (AblateHeadsConfig, set()),
        (AttributeHeadsConfig, {"flips"}),
        (WeightVsInfluenceConfig, {"flips", "kl"}),
    ):
        offered = keys_of(config, default_kinds(config))["metric"].choices
        assert set(offered) == METRICS.keys() - without
        for metric in offered:
            kinds = [kind for kind, known in METRICS_OF.items() if metric in known]
            for kind in kinds:
                task = groups(config)["task"][kind]()
                assert config(metric=metric, task=task).metric == metric
