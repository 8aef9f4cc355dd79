"""From what the user wrote to a checked config: defaults, then `--config` files, then `key=value`.

The defaults are `configs/NAME.yaml` and the groups it chooses from, composed by Hydra; nothing else
of Hydra is used: no working directory is changed, no folder written, no logging set up. Every value
a user gives remembers where it came from, so that an error names the file and line, or the command
line, beside the key and the nearest right one. In a notebook:
`compose("find_sinks", FindSinksConfig, ["model=gpt2", "prompts.length=512"])`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from experiments.command_line.explain import explain, unknown_key
from experiments.command_line.keys import Key, default_kinds, groups, keys_of
from interp.errors import InterpError
from interp.runs import strict_yaml

CONFIGS = Path(__file__).parent.parent / "configs"
COMMAND_LINE = "command line"

Config = TypeVar("Config", bound=BaseModel)


@dataclass(frozen=True)
class Assignment:
    """One value that the user gave: a key's dotted path, the value, and where it was written."""

    path: str
    value: Any
    source: str


def compose(
    name: str,
    config: type[Config],
    arguments: Sequence[str] = (),
    files: Sequence[Path] = (),
) -> Config:
    """Build the config of an experiment.

    Args:
        name: the experiment; its defaults are configs/NAME.yaml.
        config: its pydantic model.
        arguments: `key=value` each; they win over the files.
        files: YAML files of keys; a later one wins.

    Raises:
        InterpError: anything wrong with what the user wrote, in one line.
    """
    kinds = default_kinds(config)
    sources = [_from_file(file) for file in files]
    sources.append(_from_arguments(arguments, config))
    assignments = _choose(sources, config, kinds)
    keys = keys_of(config, kinds)
    for assignment in assignments:
        if assignment.path not in keys:
            raise InterpError(unknown_key(assignment.path, assignment.source, name, config, kinds))
    data = _defaults(name, kinds)
    for assignment in assignments:
        _assign(data, assignment.path, assignment.value)
    try:
        return config.model_validate(data)
    except ValidationError as error:
        written = {assignment.path: assignment.source for assignment in assignments}
        raise InterpError(explain(error, keys, written, name)) from error


# --- what the user wrote -------------------------------------------------------------------------


def _from_file(file: Path) -> list[Assignment]:
    data, lines = strict_yaml.load(file)
    found: dict[str, Assignment] = {}
    for path, value in _leaves("", data):
        source = f"{file}, line {lines[path]}"
        if path in found:
            raise InterpError(f"{source}: the key '{path}' is there twice")
        found[path] = Assignment(path, value, source)
    return list(found.values())


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values of nested mappings, by dotted path; an empty mapping is a value."""
    if isinstance(value, Mapping) and (value or not prefix):
        for key, inner in value.items():
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), inner)
    else:
        yield prefix, value


def _from_arguments(arguments: Iterable[str], config: type[BaseModel]) -> list[Assignment]:
    known: dict[str, Key] = keys_of(config, default_kinds(config))
    for section, kinds in groups(config).items():
        for kind in kinds:
            known = keys_of(config, {**default_kinds(config), section: kind}) | known
    found = []
    for argument in arguments:
        path, equals, text = argument.partition("=")
        if not equals or not re.fullmatch(r"\w[\w.]*", path):
            bare = argument.lstrip("-+~")
            advice = f"; write {bare}" if equals and bare != argument else ""
            raise InterpError(f"{COMMAND_LINE}: '{argument}' is not of the form key=value{advice}")
        value = _value(argument, text, known.get(path))
        found += [Assignment(leaf, item, COMMAND_LINE) for leaf, item in _leaves(path, value)]
    return found


def _value(argument: str, text: str, key: Key | None) -> Any:
    """Text is taken as it is written; anything else is read by Hydra's grammar."""
    if key is not None and key.textual and key.optional and text == "null":
        return None
    if key is not None and key.textual == "one":
        return _unquoted(text)
    if key is not None and key.textual == "many" and not text.startswith("["):
        return [_unquoted(text)]
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    expected = f"; expected {key.words}" if key is not None else ""
    try:
        override = OverridesParser.create().parse_override(argument)
    except HydraException as error:
        reason = str(error).splitlines()[0]
        raise InterpError(
            f"{COMMAND_LINE}: cannot read '{argument}' ({reason}){expected}"
        ) from error
    if override.is_sweep_override():
        point = ", with a decimal point" if re.fullmatch(r"[-+]?\d+,\d+", text) else ""
        raise InterpError(f"{COMMAND_LINE}: '{argument}' gives several values{expected}{point}")
    return override.value()


def _unquoted(text: str) -> str:
    """What is in quotes, if all of it is: 'it\\'s' says it's."""
    quoted = re.fullmatch(r"""(['"])((?:\\.|(?!\1).)*)\1""", text, re.DOTALL)
    return text if quoted is None else quoted[2].replace("\\" + quoted[1], quoted[1])


def _choose(
    sources: Iterable[Sequence[Assignment]], config: type[BaseModel], kinds: dict[str, str]
) -> list[Assignment]:
    """Take out the choices of a section's kind, into `kinds`; give back the other assignments.

    `prompts=text` and `prompts.kind=text` say the same. A choice replaces the whole section of an
    earlier source that had chosen another kind.
    """
    kept: list[Assignment] = []
    chosen: dict[str, str] = {}
    for source in sources:
        rest = list(source)
        for section, models in groups(config).items():
            for item in source:
                if item.path == section and item.value == {}:
                    rest.remove(item)
                if item.path not in (section, f"{section}.kind") or item.value not in [*models]:
                    continue
                rest.remove(item)
                if chosen.get(section, item.value) != item.value:
                    kept = [one for one in kept if not one.path.startswith(f"{section}.")]
                chosen[section] = item.value
        kept += rest
    kinds.update(chosen)
    return kept


# --- the defaults --------------------------------------------------------------------------------


@contextmanager
def _hydra() -> Iterator[None]:
    """Hydra over our configs; a Hydra that the caller has set up is put back afterwards."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    held = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIGS.resolve()), version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = held


def _defaults(name: str, kinds: Mapping[str, str]) -> dict[str, Any]:
    from hydra import compose as hydra_compose
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    choices = [f"{section}={kind}" for section, kind in kinds.items()]
    try:
        with _hydra():
            composed = hydra_compose(name, overrides=choices)
        data = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        reason = str(error).splitlines()[0]
        raise InterpError(f"{CONFIGS / name}.yaml: {reason}") from error
    assert isinstance(data, dict)
    return _without_missing({str(key): value for key, value in data.items()})


def _without_missing(data: dict[str, Any]) -> dict[str, Any]:
    """Leave out what YAML marks as to be given (`???`): pydantic then says that it is missing."""
    return {
        key: _without_missing(value) if isinstance(value, dict) else value
        for key, value in data.items()
        if value != "???"
    }


def _assign(data: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for section in sections:
        if not isinstance(data.get(section), dict):
            data[section] = {}
        data = data[section]
    data[last] = value
