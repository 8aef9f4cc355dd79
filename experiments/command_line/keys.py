"""The keys of an experiment's config, as a user writes them: path, type in words, default, meaning.

Read from the pydantic model, so that `--help` and every message say what the model checks.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

_Textual = Literal["", "one", "many"]

_BOUNDS = {
    annotated_types.Gt: (">", "gt"),
    annotated_types.Ge: (">=", "ge"),
    annotated_types.Lt: ("<", "lt"),
    annotated_types.Le: ("<=", "le"),
}
_WORDS = {int: "integer", float: "number", str: "text", bool: "true or false"}
_PLURALS = {int: "integers", float: "numbers", str: "texts"}


@dataclass(frozen=True)
class Key:
    """One key as it is written: `prompts.length=512`.

    Attributes:
        path: dotted path.
        words: the type, in words.
        default: as it would be written; None where a value is needed.
        description: what it means, with its unit.
        examples: values, as they would be written.
        choices: the values there are, if they are few.
        also: names that others give to it, for the nearest key to a wrong one.
        textual: "one" for a text, "many" for a list of texts, "" for anything else.
        optional: whether null may be given.
    """

    path: str
    words: str
    default: str | None
    description: str
    examples: tuple[str, ...]
    choices: tuple[str, ...]
    also: tuple[str, ...]
    textual: _Textual
    optional: bool


def written(value: object) -> str:
    """A value as YAML and the command line write it, on one line."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(written(item) for item in value) + "]"
    if isinstance(value, str) and value.isprintable() and not set(value) & set(" ,[]{}:'\"#"):
        return value or '""'
    return json.dumps(value, ensure_ascii=False, default=str)


def groups(config: type[BaseModel]) -> dict[str, dict[str, type[BaseModel]]]:
    """The sections of which there are kinds: section → kind → model."""
    found = {}
    for name, field in config.model_fields.items():
        if isinstance(field.discriminator, str):
            models = get_args(_unwrap(field.annotation)[0])
            found[name] = {
                model.model_fields[field.discriminator].default: model for model in models
            }
    return found


def keys_of(
    config: type[BaseModel],
    kinds: Mapping[str, str],
    prefix: str = "",
    defaults: BaseModel | None = None,
) -> dict[str, Key]:
    """All keys by path, sections included; a section with kinds has the keys of the kind given.

    ``defaults`` are the values of a section that an experiment has other defaults for.
    """
    found: dict[str, Key] = {}
    sections = groups(config)
    for name, field in config.model_fields.items():
        path = prefix + name
        section = sections.get(name)
        found[path] = _key(path, field, tuple(section or ()))
        if isinstance(defaults, config) and not section:
            found[path] = replace(found[path], default=written(getattr(defaults, name)))
        core = section[kinds[path]] if section else _unwrap(field.annotation)[0]
        if isinstance(core, type) and issubclass(core, BaseModel):
            found |= keys_of(core, kinds, f"{path}.", field.default)
    return found


def default_kinds(config: type[BaseModel]) -> dict[str, str]:
    """The kind that each section with kinds has by default."""
    return {name: config.model_fields[name].default.kind for name in groups(config)}


def _unwrap(annotation: Any) -> tuple[Any, list[Any], bool]:
    """The type without Annotated and None: (type, its constraints, whether None is allowed)."""
    constraints: list[Any] = []
    optional = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            constraints += _flat(more)
        elif get_origin(annotation) in (Union, types.UnionType):
            some = [part for part in get_args(annotation) if part is not type(None)]
            optional = optional or len(some) < len(get_args(annotation))
            if len(some) > 1:
                return annotation, constraints, optional
            annotation = some[0]
        else:
            return annotation, constraints, optional


def _flat(metadata: Sequence[Any]) -> Iterator[Any]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from item.metadata
        else:
            yield item


def _also(field: FieldInfo) -> Sequence[Any]:
    extra = field.json_schema_extra
    also = extra.get("also", ()) if isinstance(extra, dict) else ()
    return also if isinstance(also, list | tuple) else ()


def _key(path: str, field: FieldInfo, kinds: tuple[str, ...]) -> Key:
    core, constraints, optional = _unwrap(field.annotation)
    if kinds:
        core = Literal[kinds]
    words, choices, textual = _describe(core, [*field.metadata, *constraints])
    default = field.default
    if isinstance(default, BaseModel):
        default = getattr(default, "kind", default)
    return Key(
        path=path,
        words=words + (" or null" if optional else ""),
        default=None if field.is_required() else written(default),
        description=field.description or "",
        examples=tuple(field.examples or ()),
        choices=choices,
        also=tuple(_also(field)),
        textual=textual,
        optional=optional,
    )


def _describe(core: Any, constraints: Sequence[Any]) -> tuple[str, tuple[str, ...], _Textual]:
    """(the type in words, its choices, whether it is text)."""
    if get_origin(core) is Literal:
        choices = tuple(map(str, get_args(core)))
        return ("one of " if len(choices) > 1 else "") + ", ".join(choices), choices, ""
    if get_origin(core) is tuple:
        item, item_constraints, _ = _unwrap(get_args(core)[0])
        words, choices, textual = _describe(item, item_constraints)
        if get_origin(item) is tuple:
            return f"list of lists{words.removeprefix('list')}", (), ""
        if choices:
            return f"list out of {', '.join(choices)}", choices, ""
        words = _PLURALS[item] + words.removeprefix(_WORDS[item])
        return f"list of {words}", (), "many" if textual else ""
    if core in _WORDS:
        limits = [
            f"{sign} {getattr(item, name)}"
            for item in constraints
            for bound, (sign, name) in _BOUNDS.items()
            if isinstance(item, bound)
        ]
        words = f"{_WORDS[core]} {' and '.join(limits)}".rstrip()
        return words, ("true", "false") if core is bool else (), "one" if core is str else ""
    return f"section of {', '.join(core.model_fields)}", (), ""
