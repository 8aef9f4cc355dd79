"""YAML without surprises, read and written.

Plain YAML readers take `on` and `no` for booleans, `10:30` for 630, `010` for 8 and `1e-4` for
text, and keep the last of two equal keys. Here only `true`/`false` are booleans, numbers are
decimal with a point, a key given twice is refused, and what `dump` writes `load` gives back.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import yaml

from interp.errors import InterpError

_SCALARS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+\.?[0-9]*)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
}


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars above and no key twice."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (as PyYAML declares it)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not read here", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is no word", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is there twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper; quotes what this reader or a plain one would not take for text."""


def _decimal(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(node.value)


_Loader.add_constructor("tag:yaml.org,2002:int", _decimal)
for _tag, (_pattern, _first) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first)
        )


def load(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Read a file that holds one mapping.

    Returns:
        The mapping (empty for an empty file), and the line of each key, counted from 1, by the
        key's dotted path.

    Raises:
        InterpError: the file can't be read, or is no such YAML; names the file and the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InterpError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InterpError(f"cannot read {path}: it is no UTF-8 text") from error
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return {}, {}
        data = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InterpError(f"{path}{where}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise InterpError(f"{path}: no YAML: {error}") from error
    if not isinstance(data, dict):
        raise InterpError(f"{path}: expected lines of `key: value`, found {type(data).__name__}")
    return data, dict(_lines(node, ""))


def _lines(node: yaml.Node, prefix: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path = f"{prefix}{key.value}"
            yield path, key.start_mark.line + 1
            yield from _lines(value, f"{path}.")


def dump(data: dict[str, Any]) -> str:
    """A mapping of plain values as YAML, keys in their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
