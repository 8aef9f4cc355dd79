"""Runs as one HTML page that needs nothing else: no network, no other file, a few kilobytes of script.

    Contents, Viewer → page(...) → text of the page

What a page says comes from runs that others made, and from tokens, which may be "<script>": text is
escaped by jinja2, data by its `tojson` (no <, >, & or line separator is left as it is), and the script
writes text, never markup. A content security policy lets nothing be fetched, and nothing run or styled
but the page's own script and style, which it names by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from interp.report.cells import packed, table_data
from interp.report.contents import Check, Contents, unlike
from interp.report.views import View
from interp.runs import files
from interp.runs.rerun import ABSENT

MARK = "interp report"
"""What the page says of its maker: by it a later report knows which file it may replace."""
STYLES, SCRIPTS = ("page.css",), ("grid.js", "viewer.js")


@dataclass(frozen=True)
class ShownPrompt:
    """One prompt in the viewer.

    Attributes:
        name: of the prompt.
        tokens: the text of each.
        special: positions of tokens such as BOS.
    """

    name: str
    tokens: tuple[str, ...]
    special: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Viewer:
    """The attention viewer of one run.

    Attributes:
        prompts: those shown.
        heads: what is said of each head: layer.head, and why it is shown.
        views: (prompt, head) what it looks at there.
        k: largest weights and lengths kept of each query of a long prompt.
        checks: what was held against the run's manifest before.
    """

    prompts: Sequence[ShownPrompt]
    heads: Sequence[str]
    views: Sequence[Sequence[View]]
    k: int
    checks: Sequence[Check]


@dataclass(frozen=True, eq=False)
class Section:
    """One run on the page.

    Attributes:
        run: its contents.
        question: what the experiment asks.
        viewer: where chosen heads look, or None.
        no_viewer: why there is none, where a reader would ask.
    """

    run: Contents
    question: str
    viewer: Viewer | None = None
    no_viewer: str = ""


def page(sections: Sequence[Section], made: str, most_rows: int) -> str:
    """The whole page.

    Args:
        sections: the runs, those inside another behind it.
        made: by what and when, in words.
        most_rows: rows of a table that go into the page, from the first.
    """
    style, script = (_inlined(names) for names in (STYLES, SCRIPTS))
    runs = [section.run for section in sections]
    leaves = [
        run for run, after in zip(runs, [*runs[1:], None], strict=True) if _is_leaf(run, after)
    ]
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=_title(runs),
            made=made,
            mark=MARK,
            sections=[_section(number, one, most_rows) for number, one in enumerate(sections, 1)],
            leaves=leaves,
            unlike=unlike(leaves) if len(leaves) > 1 else [],
            absent=ABSENT,
            style=Markup(style),
            script=Markup(script),
            style_hash=_hash(style),
            script_hash=_hash(script),
        )
    )


def _is_leaf(run: Contents, after: Contents | None) -> bool:
    """Whether it holds no other run: the next one is not inside it."""
    return after is None or after.depth <= run.depth


def _title(runs: Sequence[Contents]) -> str:
    return runs[0].name if len(runs) == 1 else f"{runs[0].name} and {len(runs) - 1} more"


def _section(number: int, section: Section, most_rows: int) -> dict[str, Any]:
    run, viewer = section.run, section.viewer
    return {
        "id": f"run-{number}",
        "run": run,
        "question": section.question,
        "checks": [*run.checks, *(viewer.checks if viewer else ())],
        "tables": {name: table_data(table, most_rows) for name, table in run.tables.items()},
        "viewer": None if viewer is None else _viewer_data(viewer),
        "no_viewer": section.no_viewer,
        "manifest": files.strict_json(run.manifest),
    }


def _viewer_data(viewer: Viewer) -> dict[str, Any]:
    return {
        "prompts": [
            {"name": one.name, "tokens": one.tokens, "special": one.special}
            for one in viewer.prompts
        ],
        "heads": viewer.heads,
        "k": viewer.k,
        "views": [[_view_data(view) for view in views] for views in viewer.views],
    }


def _view_data(view: View) -> dict[str, Any]:
    floats = ("weights", "lengths", "scales", "learned_sink", "others", "others_fetched")
    in_query = np.arange(len(view.keys)) - np.repeat(view.starts[:-1], np.diff(view.starts))
    return {
        "starts": packed(view.starts, "<i4"),
        # Null where each query's keys are 0, 1, 2, …: they are half of what there is to keep.
        "keys": None if np.array_equal(view.keys, in_query) else packed(view.keys, "<i4"),
        "undefined": view.undefined_reason,
    } | {name: packed(getattr(view, name), "<f4") for name in floats}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("interp", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _inlined(names: Sequence[str]) -> str:
    """Files of this package, one after the other."""
    package = resources.files("interp.report")
    return "\n".join((package / name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    """As a content security policy names an inline script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
