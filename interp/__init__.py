"""Where does each attention head look, and does it matter?

    import interp

    model = interp.load_model("gpt2")
    scores = interp.score_heads(model, interp.repeated_random_prompts(model))

Names are imported when they are first used, so `import interp` costs nothing.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

# Of tqdm, as soon as transformers is imported in a notebook that has no ipywidgets: there is no bar of ours.
warnings.filterwarnings("ignore", "IProgress not found")

if TYPE_CHECKING:
    from interp.circuits.check import check_circuit, halves, rank_heads
    from interp.circuits.head_sets import HeadSet, growing_sets, named_sets
    from interp.editing.edits import Cut, Recording, Redirect, Replace, edited, knock_out
    from interp.editing.metrics import METRICS
    from interp.editing.sites import Site
    from interp.editing.sweep import sweep
    from interp.errors import InterpError
    from interp.inputs.prompts import (
        Prompt,
        given_prompts,
        prompts_of_ids,
        python_docs,
        read_text,
        repeated_random_prompts,
        text_prompts,
    )
    from interp.inputs.sentences import indirect_objects, pronouns
    from interp.inputs.tasks import Example, Task, copying, little_world
    from interp.inputs.years import greater_than
    from interp.interventions.ablation import ablate_heads
    from interp.interventions.direct import decompose
    from interp.interventions.gradients import attribute, audit
    from interp.interventions.influence import weigh_heads
    from interp.interventions.patching import patch
    from interp.interventions.paths import Receiver, trace_paths
    from interp.interventions.quadrants import rank_agreement, summarise_influence
    from interp.interventions.together import ablate_together, summarise_sets
    from interp.models.checks import check_model
    from interp.models.forward import capture, logits_at
    from interp.models.model import Model, load_model
    from interp.results.figures import layer_by_head, row_bars
    from interp.results.findings import Effects
    from interp.results.stability import stability
    from interp.results.stability_figure import stability_card
    from interp.results.summaries import summarise_effects
    from interp.runs.finished import Run, read_run
    from interp.scoring.nulls import score_nulls
    from interp.scoring.reading import read_row
    from interp.scoring.roles import ROLES, Role, find_roles, role
    from interp.scoring.scores import HeadScores, score_heads
    from interp.sinks.sink_effects import knock_out_sinks, summarise_sinks, text_task
    from interp.sinks.sink_mass import sink_masses
    from interp.weights.composition import composition_scores, copying_scores
    from interp.weights.head_weights import HeadWeights
    from interp.weights.named_pairs import named_against_others

    __version__: str

__all__ = [
    "METRICS",
    "ROLES",
    "Cut",
    "Effects",
    "Example",
    "HeadScores",
    "HeadSet",
    "HeadWeights",
    "InterpError",
    "Model",
    "Prompt",
    "Receiver",
    "Recording",
    "Redirect",
    "Replace",
    "Role",
    "Run",
    "Site",
    "Task",
    "__version__",
    "ablate_heads",
    "ablate_together",
    "attribute",
    "audit",
    "capture",
    "check_circuit",
    "check_model",
    "composition_scores",
    "copying",
    "copying_scores",
    "decompose",
    "edited",
    "find_roles",
    "given_prompts",
    "greater_than",
    "growing_sets",
    "halves",
    "indirect_objects",
    "knock_out",
    "knock_out_sinks",
    "layer_by_head",
    "little_world",
    "load_model",
    "logits_at",
    "named_against_others",
    "named_sets",
    "patch",
    "prompts_of_ids",
    "pronouns",
    "python_docs",
    "rank_agreement",
    "rank_heads",
    "read_row",
    "read_run",
    "read_text",
    "repeated_random_prompts",
    "role",
    "row_bars",
    "score_heads",
    "score_nulls",
    "sink_masses",
    "stability",
    "stability_card",
    "summarise_effects",
    "summarise_influence",
    "summarise_sets",
    "summarise_sinks",
    "sweep",
    "text_prompts",
    "text_task",
    "trace_paths",
    "weigh_heads",
]

_HOME = {
    "ablate_heads": "interventions.ablation",
    "ablate_together": "interventions.together",
    "attribute": "interventions.gradients",
    "audit": "interventions.gradients",
    "capture": "models.forward",
    "check_circuit": "circuits.check",
    "check_model": "models.checks",
    "composition_scores": "weights.composition",
    "copying": "inputs.tasks",
    "copying_scores": "weights.composition",
    "Cut": "editing.edits",
    "decompose": "interventions.direct",
    "edited": "editing.edits",
    "Effects": "results.findings",
    "Example": "inputs.tasks",
    "find_roles": "scoring.roles",
    "given_prompts": "inputs.prompts",
    "greater_than": "inputs.years",
    "growing_sets": "circuits.head_sets",
    "halves": "circuits.check",
    "HeadScores": "scoring.scores",
    "HeadSet": "circuits.head_sets",
    "HeadWeights": "weights.head_weights",
    "indirect_objects": "inputs.sentences",
    "InterpError": "errors",
    "knock_out": "editing.edits",
    "knock_out_sinks": "sinks.sink_effects",
    "layer_by_head": "results.figures",
    "little_world": "inputs.tasks",
    "load_model": "models.model",
    "logits_at": "models.forward",
    "METRICS": "editing.metrics",
    "Model": "models.model",
    "named_against_others": "weights.named_pairs",
    "named_sets": "circuits.head_sets",
    "patch": "interventions.patching",
    "Prompt": "inputs.prompts",
    "prompts_of_ids": "inputs.prompts",
    "pronouns": "inputs.sentences",
    "python_docs": "inputs.prompts",
    "rank_agreement": "interventions.quadrants",
    "rank_heads": "circuits.check",
    "read_row": "scoring.reading",
    "read_run": "runs.finished",
    "read_text": "inputs.prompts",
    "Receiver": "interventions.paths",
    "Recording": "editing.edits",
    "Redirect": "editing.edits",
    "repeated_random_prompts": "inputs.prompts",
    "Replace": "editing.edits",
    "Role": "scoring.roles",
    "Run": "runs.finished",
    "role": "scoring.roles",
    "ROLES": "scoring.roles",
    "row_bars": "results.figures",
    "score_heads": "scoring.scores",
    "score_nulls": "scoring.nulls",
    "sink_masses": "sinks.sink_mass",
    "Site": "editing.sites",
    "stability": "results.stability",
    "stability_card": "results.stability_figure",
    "summarise_effects": "results.summaries",
    "summarise_influence": "interventions.quadrants",
    "summarise_sets": "interventions.together",
    "summarise_sinks": "sinks.sink_effects",
    "sweep": "editing.sweep",
    "Task": "inputs.tasks",
    "text_prompts": "inputs.prompts",
    "text_task": "sinks.sink_effects",
    "trace_paths": "interventions.paths",
    "weigh_heads": "interventions.influence",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name in _HOME:
        value = getattr(importlib.import_module(f"interp.{_HOME[name]}"), name)
    else:
        raise AttributeError(f"module 'interp' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("interp")
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return "0+unknown"
