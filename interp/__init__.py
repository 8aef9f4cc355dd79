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
    from interp.checks import check_model
    from interp.errors import InterpError
    from interp.figures import layer_by_head
    from interp.forward import capture
    from interp.model import Model, load_model
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

    __version__: str

__all__ = [
    "ROLES",
    "HeadScores",
    "InterpError",
    "Model",
    "Prompt",
    "Role",
    "__version__",
    "capture",
    "check_model",
    "find_roles",
    "given_prompts",
    "layer_by_head",
    "load_model",
    "prompts_of_ids",
    "python_docs",
    "read_row",
    "read_text",
    "repeated_random_prompts",
    "role",
    "score_heads",
    "text_prompts",
]

_HOME = {
    "HeadScores": "scores",
    "InterpError": "errors",
    "Model": "model",
    "Prompt": "prompts",
    "ROLES": "roles",
    "Role": "roles",
    "capture": "forward",
    "check_model": "checks",
    "find_roles": "roles",
    "given_prompts": "prompts",
    "layer_by_head": "figures",
    "load_model": "model",
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
