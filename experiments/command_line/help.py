"""What `--help` prints: the experiment's docstring, how to call it, and every key it takes."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Iterable, Iterator

from pydantic import BaseModel

from experiments.command_line.keys import Key, default_kinds, groups, keys_of
from interp.config.common import RunConfig

_COLUMN = 28


def help_text(name: str, docstring: str, config: type[BaseModel]) -> str:
    """The whole help of an experiment.

    Args:
        name: the experiment.
        docstring: its module's.
        config: its model.
    """
    kinds = default_kinds(config)
    keys = keys_of(config, kinds)
    shared = set(RunConfig.model_fields)
    lines = [
        inspect.cleandoc(docstring),
        "",
        "usage",
        f"  python -m experiments.{name} [--config FILE.yaml] [--multirun] [key=value ...]",
        f"  interp {name} ...     the same, also where a folder experiments/ of yours hides ours",
        "",
        "  FILE.yaml holds lines of `key: value`; what the command line says wins.",
        "  --multirun takes several values of a key, `seed=0,1,2`: a run for each, and one joined table.",
        f"  e.g. python -m experiments.{name} {_example(keys, kinds)}",
        "",
        "keys of this experiment",
        *_lines(
            key for path, key in keys.items() if path.partition(".")[0] not in {*shared, *kinds}
        ),
    ]
    for section, models in groups(config).items():
        lines += ["", *_lines([keys[section]])]
        for kind, model in models.items():
            note = " (the default)" if kind == kinds[section] else ""
            title = f"with {section}={kind}{note}: {inspect.getdoc(model)}"
            lines += ["", *textwrap.wrap(title, _width())]
            inner = keys_of(model, {}, f"{section}.", config.model_fields[section].default)
            lines += _lines(key for key in inner.values() if key.path != f"{section}.kind")
    lines += ["", "keys that every experiment has"]
    lines += _lines(keys[path] for path in RunConfig.model_fields if path in keys)
    return "\n".join(lines)


def _example(keys: dict[str, Key], kinds: dict[str, str]) -> str:
    needed = [key for key in keys.values() if key.default is None]
    # Only the default model knows the little world: another model needs something else.
    needed += [keys[section] for section, kind in kinds.items() if kind == "little_world"]
    # Training experiments make their model: another one would be refused.
    own = "until" if "until" in keys else "model" if "model" in keys else "out"
    return " ".join(f"{key.path}={key.examples[0]}" for key in [*needed, keys[own]])


def _lines(keys: Iterable[Key]) -> Iterator[str]:
    for key in keys:
        needed = "needed; " if key.default is None else ""
        text = f"{needed}{key.words}. {key.description}"
        if key.examples:
            # an example stays on one line: wrap sees no space in it
            examples = [f"{key.path}={one}".replace(" ", "\0") for one in key.examples]
            text += f" E.g. {', '.join(examples)}"
        head = f"  {key.path}={key.default or ''}"
        if len(head) > 2 * _COLUMN and head.endswith("]"):
            head = f"{head[:_COLUMN].rpartition(',')[0]},...]"
        body = textwrap.wrap(
            text, max(_width() - _COLUMN, 30), break_long_words=False, break_on_hyphens=False
        )
        if len(head) > _COLUMN - 2:
            yield head
        else:
            yield f"{head:<{_COLUMN}}{body.pop(0)}".replace("\0", " ")
        for line in body:
            yield " " * _COLUMN + line.replace("\0", " ")


def _width() -> int:
    return min(shutil.get_terminal_size((100, 24)).columns, 100)
