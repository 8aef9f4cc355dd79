"""Where does each attention head look, and does it matter?

    import interp

    model = interp.load_model("gpt2")
    scores = interp.score_heads(model, interp.repeated_random_prompts(model))

Names are imported when they are first used, so `import interp` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interp.ablation import ablate_heads
    from interp.checks import check_model
    from interp.circuits import check_circuit, halves, rank_heads
    from interp.composition import composition_scores, copying_scores
    from interp.direct import decompose
    from interp.edits import Cut, Recording, Redirect, Replace, edited, knock_out
    from interp.errors import InterpError
    from interp.figures import layer_by_head
    from interp.forward import capture, logits_at
    from interp.gradients import attribute, audit
    from interp.head_sets import HeadSet, growing_sets, named_sets
    from interp.influence import weigh_heads
    from interp.metrics import METRICS
    from interp.model import Model, load_model
    from interp.named_pairs import named_against_others
    from interp.patching import patch
    from interp.paths import Receiver, trace_paths
    from interp.prompts import (
        Prompt,
        given_prompts,
        prompts_of_ids,
        python_docs,
        read_text,
        repeated_random_prompts,
        text_prompts,
    )
    from interp.quadrants import rank_agreement, summarise_influence
    from interp.reading import read_row
    from interp.roles import ROLES, Role, find_roles, role
    from interp.scores import HeadScores, score_heads
    from interp.sentences import indirect_objects, pronouns
    from interp.sink_effects import knock_out_sinks, summarise_sinks, text_task
    from interp.sink_mass import sink_masses
    from interp.sites import Site
    from interp.tables import summarise_effects
    from interp.tasks import Example, Task, copying, little_world
    from interp.together import ablate_together, summarise_sets
    from interp.weights import HeadWeights
    from interp.years import greater_than

    __version__: str

__all__ = [
    "METRICS",
    "ROLES",
    "Cut",
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
    "read_text",
    "repeated_random_prompts",
    "role",
    "score_heads",
    "sink_masses",
    "summarise_effects",
    "summarise_influence",
    "summarise_sets",
    "summarise_sinks",
    "text_prompts",
    "text_task",
    "trace_paths",
    "weigh_heads",
]

_HOME = {
    "ablate_heads": "ablation",
    "ablate_together": "together",
    "attribute": "gradients",
    "audit": "gradients",
    "capture": "forward",
    "check_circuit": "circuits",
    "check_model": "checks",
    "composition_scores": "composition",
    "copying": "tasks",
    "copying_scores": "composition",
    "Cut": "edits",
    "decompose": "direct",
    "edited": "edits",
    "Example": "tasks",
    "find_roles": "roles",
    "given_prompts": "prompts",
    "greater_than": "years",
    "growing_sets": "head_sets",
    "halves": "circuits",
    "HeadScores": "scores",
    "HeadSet": "head_sets",
    "HeadWeights": "weights",
    "indirect_objects": "sentences",
    "InterpError": "errors",
    "knock_out": "edits",
    "knock_out_sinks": "sink_effects",
    "layer_by_head": "figures",
    "little_world": "tasks",
    "load_model": "model",
    "logits_at": "forward",
    "METRICS": "metrics",
    "Model": "model",
    "named_against_others": "named_pairs",
    "named_sets": "head_sets",
    "patch": "patching",
    "Prompt": "prompts",
    "prompts_of_ids": "prompts",
    "pronouns": "sentences",
    "python_docs": "prompts",
    "rank_agreement": "quadrants",
    "rank_heads": "circuits",
    "read_row": "reading",
    "read_text": "prompts",
    "Receiver": "paths",
    "Recording": "edits",
    "Redirect": "edits",
    "repeated_random_prompts": "prompts",
    "Replace": "edits",
    "Role": "roles",
    "role": "roles",
    "ROLES": "roles",
    "score_heads": "scores",
    "sink_masses": "sink_mass",
    "Site": "sites",
    "summarise_effects": "tables",
    "summarise_influence": "quadrants",
    "summarise_sets": "together",
    "summarise_sinks": "sink_effects",
    "Task": "tasks",
    "text_prompts": "prompts",
    "text_task": "sink_effects",
    "trace_paths": "paths",
    "weigh_heads": "influence",
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
