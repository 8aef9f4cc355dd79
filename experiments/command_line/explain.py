"""One line for whatever is wrong with a config: where, which key, what came, what was expected.

Raises nothing; gives the line. A key or choice that is not there comes with the nearest that is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from experiments.command_line.keys import Key, groups, keys_of

_ALSO_CALLED = {
    "gpu": "cuda",
    "fp32": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "yes": "true",
    "no": "false",
}


def nearest(word: str, candidates: Iterable[str], least: float = 0.6) -> str | None:
    """The candidate most like the word, as a whole or in its last part; None if none is like it."""
    best = max(candidates, key=lambda candidate: _likeness(word, candidate), default=None)
    return best if best is not None and _likeness(word, best) >= least else None


def _likeness(word: str, candidate: str) -> float:
    pairs = ((word, candidate), (word.rpartition(".")[2], candidate.rpartition(".")[2]))
    return max(SequenceMatcher(None, a.lower(), b.lower()).ratio() for a, b in pairs)


def unknown_key(
    path: str, source: str, name: str, config: type[BaseModel], kinds: Mapping[str, str]
) -> str:
    """The line for a key that is not there, or belongs to a kind that was not chosen."""
    for section, models in groups(config).items():
        for kind in models:
            if kind != kinds[section] and path in keys_of(config, {**kinds, section: kind}):
                return (
                    f"{source}: '{path}' is a key of {section}={kind}, "
                    f"but {section} is {kinds[section]}; add {section}={kind}, or leave it out"
                )
    names = {
        name: key.path for key in keys_of(config, kinds).values() for name in (key.path, *key.also)
    }
    near = names.get(nearest(path, names) or "")
    advice = f"did you mean '{near}'?" if near else f"{name} --help lists the keys"
    return f"{source}: unknown key '{path}'; {advice}"


def explain(
    error: ValidationError, keys: Mapping[str, Key], sources: Mapping[str, str], name: str
) -> str:
    """The line for the first thing that is wrong, and how many more there are.

    Args:
        error: from pydantic.
        keys: all keys, by path.
        sources: path of each key that the user gave → where it was written.
        name: the experiment.
    """
    problems = error.errors(include_url=False)
    missing = [keys[_path(item["loc"], keys)] for item in problems if item["type"] == "missing"]
    if len(missing) == len(problems):
        examples = " ".join(f"{key.path}={key.examples[0]}" for key in missing if key.examples)
        paths = ", ".join(key.path for key in missing)
        return f"{paths} must be given{f', such as {examples}' if examples else ''}"
    first, *others = [item for item in problems if item["type"] != "missing"]
    line = _explain_one(first, keys, sources, name)
    # A list without its wrong items may also be called too short: that is the same key again.
    more = {_path(item["loc"], keys) for item in others} - {_path(first["loc"], keys)}
    return f"{line} (and {len(more)} more)" if more else line


def _explain_one(
    problem: ErrorDetails, keys: Mapping[str, Key], sources: Mapping[str, str], name: str
) -> str:
    path = _path(problem["loc"], keys)
    if problem["type"] == "value_error":
        message = problem["msg"].removeprefix("Value error, ")
        source = _source_of_words(message, path, sources) or f"defaults of {name}"
        return f"{source}: {f'{path}: ' if path else ''}{message}"
    source = sources.get(path) or _source_under(path, sources) or f"defaults of {name}"
    value = problem["input"]
    if problem["type"] == "union_tag_invalid":
        value = value["kind"]
    shown = json.dumps(_plain(value), ensure_ascii=False)
    words = keys[path].words
    if problem["type"] == "tuple_type" and value is not None:
        inside = sum(isinstance(part, int) for part in problem["loc"])
        depth = max(1, len(re.findall(r"\blists?\b", words)) - inside)
        hint = f"; write {'[' * depth}{value}{']' * depth}"
    elif problem["type"] == "too_short" and value:
        hint = f", {problem['ctx']['min_length']} or more of them"
    else:
        hint = _hint(value, keys[path])
    return f"{source}: {path} = {shown}: expected {words}{hint}"


def _path(location: Iterable[int | str], keys: Mapping[str, Key]) -> str:
    """The key's path: pydantic's location without list indices and the names of kinds."""
    path = ""
    for part in location:
        longer = f"{path}.{part}" if path else str(part)
        path = longer if longer in keys else path
    return path


def _source_under(path: str, sources: Mapping[str, str]) -> str | None:
    found = [source for key, source in sources.items() if key.startswith(f"{path}.")]
    return found[-1] if found else None


def _source_of_words(message: str, path: str, sources: Mapping[str, str]) -> str | None:
    """Where the key was written that the message of a validator speaks of."""
    words = set(re.findall(r"\w+(?:\.\w+)*", message))
    prefix = f"{path}." if path else ""
    found = [
        source
        for key, source in sources.items()
        if key == path or (key.startswith(prefix) and key.removeprefix(prefix) in words)
    ]
    return found[-1] if found else None


def _hint(value: Any, key: Key) -> str:
    if value in ("", [], ()):
        return "; it is empty"
    if key.choices:
        word = str(value).lower()
        near = _ALSO_CALLED.get(word) or nearest(word, key.choices, least=0.5)
        return f"; did you mean {near}?" if near in key.choices else ""
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+,\d+", value):
        return f"; write {value.replace(',', '.')}, with a decimal point"
    if isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+", value) and not key.textual:
        return "; write it without quotes"
    if key.textual == "one" and isinstance(value, bool | int | float):
        return "; put it in quotes"
    return ""


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
