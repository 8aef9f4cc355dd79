"""What callers hand over: refused in one line, also where no type checker stands before it (as here)."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from interp.arguments import check_share, whole_number, whole_numbers
from interp.errors import InterpError


def test_whole_numbers_of_any_kind_become_pythons_own():
    for values in ([1, 2], range(1, 3), np.array([1, 2]), torch.tensor([1, 2]), iter((1, 2))):
        found = whole_numbers("heads", values)
        assert found == (1, 2) and all(type(value) is int for value in found)
    assert type(whole_number("seed", np.int64(3), least=0)) is int


@pytest.mark.parametrize("value", ["1", 1.0, 1.5, True, None, (1,), np.float32(2)])
def test_what_is_no_whole_number_is_refused_not_cut(value):
    with pytest.raises(InterpError, match=r"layer=.*: expected a whole number$"):
        whole_number("layer", value)
    with pytest.raises(InterpError, match=r"heads=.*: expected a whole number"):
        whole_numbers("heads", [value])


def test_what_is_too_small_no_series_or_no_share_is_refused():
    with pytest.raises(InterpError, match="n_random=-1: expected a whole number of 0 or more"):
        whole_number("n_random", -1, least=0)
    with pytest.raises(InterpError, match=r"heads=3: expected whole numbers, such as \(0, 2\)"):
        whole_numbers("heads", 3)
    for value in (0.0, 1.0, 95.0, -0.1, float("nan")):
        with pytest.raises(InterpError, match=r"confidence=.*: expected a share between 0 and 1"):
            check_share("confidence", value)


WRONG = {
    "Site('z', 1, 3)": "heads=3: expected whole numbers",
    "Site('z', 1, ('1',))": "heads='1': expected a whole number",
    "Site('z', 1, (False, True))": "heads=False: expected a whole number",
    "Site('z', 0.5)": "layer=0.5: expected a whole number",
    "Site('mlp_out', 1, None, (1.5,))": "positions=1.5: expected a whole number",
    "Cut(1, 0)": "keys=0: expected whole numbers",
    "Redirect(1, '0')": "key='0': expected a whole number",
    "Replace(Site('z', 1), np.zeros(3), 'x')": "a number or a torch tensor as its value, got a ndarray",
    "Replace(Site('z', 1), None, 'x')": "a number or a torch tensor as its value, got a NoneType",
    "edited(model, [[ZERO]]).__enter__()": "edits: expected Replace, Cut or Redirect, got a list",
    "edited(model, [ZERO], engine='best').__enter__()": "engine='best': expected one of auto",
    "sweep(model, task, [[ZERO]], LOSS)": "examples: expected a list, got a Task",
    "sweep(model, PROMPTS, [[ZERO]], LOSS)": "examples: expected Example each, got a Prompt",
    "sweep(model, task.examples, [ZERO], LOSS)": "a cell: expected a list, got a Replace",
    "sweep(model, task.examples, [[ZERO]], ['loss'])": "metrics: expected Metric each, got a str",
    "sweep(model, task.examples, [[ZERO]], LOSS[0])": "metrics: expected a list, got a Metric",
    "sweep(model, task.examples, [[ZERO]], LOSS, seed=-1)": "seed=-1: expected a whole number",
    "sweep('default', task.examples, [[ZERO]], LOSS)": "model: expected one from load_model, got a str",
    "Example('text', 3)": "expected a Prompt, such as given_prompts makes, got a str",
    "Example(PROMPTS[0], True)": "answer True: expected the id of one token",
    "Example(PROMPTS[0], scored=(2.0,))": "scored=2.0: expected a whole number",
    "Task('t', [None])": "task t: expected an Example each, got a NoneType",
    "ablate_heads('default', task)": "model: expected one from load_model, got a str",
    "ablate_heads(model, task.examples)": "task: expected a Task, got a tuple",
    "ablate_together(model, task, '1.0')": "head='1': expected a whole number",
    "ablate_together(model, task, [1.0])": "head=1.0: expected whole numbers",
    "ablate_together(model, task, [(1, 0, 2)])": "(1, 0, 2) is no head",
    "ablate_together(model, task, [(1, 0)], n_random=-1)": "n_random=-1: expected a whole number of 0",
    "check_circuit(model, task, [[(1, 0)]])": "sets: expected a HeadSet each, got a list",
    "check_circuit(model, task, [HeadSet('a', ((1, 0),))], n_random=-1)": "n_random=-1: expected",
    "knock_out_sinks(model, task, ['mask'], [1], n_random=-1)": "n_random=-1: expected",
    "trace_paths(model, task, [3])": "receiver 3: expected q, k or v and layer.head",
    "attribute(model, task, steps=2.5)": "steps=2.5: expected a whole number of 1 or more",
    "weigh_heads(model, task, judged_by='none')": "judged_by='none': expected zero, mean or resample",
}
SCRIPT = """
import numpy as np
import torch
from interp import copying, load_model
from interp.interventions.ablation import ablate_heads
from interp.circuits.check import check_circuit
from interp.editing.edits import Cut, Redirect, Replace, edited
from interp.errors import InterpError
from interp.interventions.gradients import attribute
from interp.circuits.head_sets import HeadSet
from interp.interventions.influence import weigh_heads
from interp.editing.metrics import METRICS
from interp.interventions.paths import trace_paths
from interp.sinks.sink_effects import knock_out_sinks
from interp.editing.sites import Site
from interp.editing.sweep import sweep
from interp.inputs.tasks import Example, Task
from interp.interventions.together import ablate_together

model = load_model("default")
task = copying(model, n_prompts=2, period=4)
ZERO, LOSS, PROMPTS = Replace.zero(Site("z", 1)), [METRICS["loss"]], [e.prompt for e in task.examples]
for call, says in WRONG.items():
    try:
        eval(call)
        print(f"{call}: not refused")
    except InterpError as error:
        if says not in str(error) or "\\n" in str(error):
            print(f"{call}: {error}")
    except Exception as error:
        print(f"{call}: {error!r}")
as_lists = [Example(p, scored=np.array([3, 4])) for p in PROMPTS]
a, b = (
    sweep(model, examples, cells, metrics).values
    for examples, cells, metrics in (
        (as_lists, [[ZERO]], LOSS),
        (iter(as_lists), ((one for one in [ZERO]) for _ in range(1)), tuple(LOSS)),
    )
)
assert np.array_equal(a, b)
spoken = Example(PROMPTS[0], np.int64(3), np.int64(4))  # NumPy's ids are ids
sweep(model, [spoken], [[ZERO]], [METRICS["logit_difference"]])
one = ablate_together(model, task, ([1, h] for h in (1, 0)), n_random=1)[0]
assert one.heads.iloc[0] == "1.0 1.1"
"""


def test_without_a_type_checker_too():
    """Each is refused by one line that says what came; other kinds of series do as well as lists."""
    done = subprocess.run(
        [sys.executable, "-c", f"WRONG = {WRONG!r}\n{SCRIPT}"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("", 0), done.stdout + done.stderr
