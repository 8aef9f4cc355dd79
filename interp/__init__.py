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
    from interp.composition import composition_scores, copying_scores
    from interp.edits import Cut, Recording, Redirect, Replace, edited, knock_out
    from interp.errors import InterpError
    from interp.figures import layer_by_head
    from interp.forward import capture, logits_at
    from interp.metrics import METRICS
    from interp.model import Model, load_model
    from interp.named_pairs import named_against_others
    from interp.prompts import (
        Prompt,
        given_prompts,
        prompts_of_ids,
        python_docs,
        read_text,
        repeated_random_prompts,
        text_prompts,
    )
    from interp.reading import read_row
    from interp.roles import ROLES, Role, find_roles, role
    from interp.scores import HeadScores, score_heads
    from interp.sentences import indirect_objects, pronouns
    from interp.sites import Site
    from interp.tasks import Example, Task, copying, little_world
    from interp.weights import HeadWeights
    from interp.years import greater_than

    __version__: str

__all__ = [
    "METRICS",
    "ROLES",
    "Cut",
    "Example",
    "HeadScores",
    "HeadWeights",
    "InterpError",
    "Model",
    "Prompt",
    "Recording",
    "Redirect",
    "Replace",
    "Role",
    "Site",
    "Task",
    "__version__",
    "ablate_heads",
    "capture",
    "check_model",
    "composition_scores",
    "copying",
    "copying_scores",
    "edited",
    "find_roles",
    "given_prompts",
    "greater_than",
    "indirect_objects",
    "knock_out",
    "layer_by_head",
    "little_world",
    "load_model",
    "logits_at",
    "named_against_others",
    "prompts_of_ids",
    "pronouns",
    "python_docs",
    "read_row",
    "read_text",
    "repeated_random_prompts",
    "role",
    "score_heads",
    "text_prompts",
]

_HOME = {
    "Cut": "edits",
    "Example": "tasks",
    "HeadScores": "scores",
    "HeadWeights": "weights",
    "InterpError": "errors",
    "METRICS": "metrics",
    "Model": "model",
    "Prompt": "prompts",
    "ROLES": "roles",
    "Recording": "edits",
    "Redirect": "edits",
    "Replace": "edits",
    "Role": "roles",
    "Site": "sites",
    "Task": "tasks",
    "ablate_heads": "ablation",
    "capture": "forward",
    "check_model": "checks",
    "composition_scores": "composition",
    "copying": "tasks",
    "copying_scores": "composition",
    "edited": "edits",
    "find_roles": "roles",
    "given_prompts": "prompts",
    "greater_than": "years",
    "indirect_objects": "sentences",
    "knock_out": "edits",
    "layer_by_head": "figures",
    "little_world": "tasks",
    "load_model": "model",
    "logits_at": "forward",
    "named_against_others": "named_pairs",
    "pronouns": "sentences",
    "prompts_of_ids": "prompts",
    "python_docs": "prompts",
    "read_row": "reading",
    "read_text": "prompts",
    "repeated_random_prompts": "prompts",
    "role": "roles",
    "score_heads": "scores",
    "text_prompts": "prompts",
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
