"""What a finished run has to show: its tables and figures as it wrote them, its checks, and what it was.

A run may hold others (`--multirun`, `reproduce`): each shows what is its own, one after the other.
"""

from __future__ import annotations

import base64
import io
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pandas as pd
from PIL import Image

from interp.errors import InterpError
from interp.runs import files
from interp.runs.finished import Run, read_run
from interp.runs.rerun import ABSENT, differences
from interp.runs.run_folder import MANIFEST
from interp.words import counted

METHODS = "methods.txt"


class Picture(NamedTuple):
    """A figure for a page: PNG as base64, what it shows in words, its size in pixels of a page."""

    data: str
    alt: str
    width: int
    height: int


class Check(NamedTuple):
    """One check of a run: what was found, and the most that was allowed; texts or numbers, or None."""

    name: str
    found: Any
    allowed: Any
    passed: bool


@dataclass(frozen=True, eq=False)
class Contents:
    """One run.

    Attributes:
        run: its folder and manifest.
        facts: (what, text): the little that a reader asks first; the manifest has the rest.
        checks: those that the run made, and that its files are those it wrote.
        tables: by file name; `table.csv` first.
        figures: by file name.
        methods: what was done, as a paragraph; empty where the run left none.
        depth: 0, or how many runs it is inside of.
    """

    run: Run
    facts: Sequence[tuple[str, str]]
    checks: Sequence[Check]
    tables: Mapping[str, pd.DataFrame]
    figures: Mapping[str, Picture]
    methods: str = ""
    depth: int = 0

    @property
    def name(self) -> str:
        """The experiment."""
        return self.run.experiment

    @property
    def folder(self) -> Path:
        """Its folder."""
        return self.run.folder

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What manifest.json holds."""
        return self.run.manifest


def read_runs(folder: Path, depth: int = 0) -> list[Contents]:
    """A finished run, and behind it those inside it.

    Raises:
        InterpError: no run of ours, one that is not done, or a table or figure that was changed since.
    """
    try:
        found, inner = _read_run(folder, depth)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InterpError(
            f"{folder}: its manifest.json is not as a run writes it ({type(error).__name__}: {error})"
        ) from error
    return [found, *(one for run in inner for one in read_runs(folder / run, depth + 1))]


def _read_run(folder: Path, depth: int) -> tuple[Contents, list[PurePosixPath]]:
    """(the run, the folders of the runs in it)."""
    run = read_run(folder)
    names = map(PurePosixPath, run.manifest["files"])
    inner = [name.parent for name in names if name.name == MANIFEST]
    tables = {name: run.table(name) for name in _own(run.tables, inner)}
    figures = {name: _picture(run, name) for name in _own(run.figures, inner)}
    checks = [
        Check(one["name"], one["difference"], one["allowed"], one["passed"])
        for one in run.manifest.get("checks", ())
    ]
    n = len(tables) + len(figures)
    checks.append(Check("tables and figures as the run wrote them", f"{n} of {n}", None, True))
    there = METHODS in run.manifest["files"]
    methods = _as_written(run, METHODS).decode("utf-8") if there else ""
    contents = Contents(run, [*_facts(run.manifest)], checks, tables, figures, methods, depth)
    return contents, [one for one in inner if not any(other in one.parents for other in inner)]


def _own(names: Sequence[str], inner: Sequence[PurePosixPath]) -> list[str]:
    """Those not of a run inside, the summary first, rows of single prompts last."""
    order = {"table.csv": -1, "per_prompt.parquet": 1}
    own = [n for n in names if not any(PurePosixPath(n).is_relative_to(one) for one in inner)]
    return sorted(own, key=lambda name: (order.get(name, 0), name))


def _as_written(run: Run, name: str) -> bytes:
    """A file of the run, if it is what the run wrote."""
    try:
        same = files.sha256(run.folder / name) == run.manifest["files"][name]["sha256"]
        content = (run.folder / name).read_bytes()
    except OSError as error:
        raise InterpError(f"{run.folder}: {name} can't be read: {error.strerror}") from error
    if not same:
        raise InterpError(
            f"{run.folder}: {name} is not what the run wrote (its hash differs from the manifest's)"
        )
    return content


def _picture(run: Run, name: str) -> Picture:
    content = _as_written(run, name)
    with Image.open(io.BytesIO(content)) as image:
        said = getattr(image, "text", {}).get("Description")
    _, size = run.figure(name)._repr_png_()
    alt = said or f"{Path(name).stem.replace('_', ' ')}, a figure of {run.experiment}"
    return Picture(base64.b64encode(content).decode("ascii"), alt, size["width"], size["height"])


def _facts(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    environment = manifest["environment"]
    model, prompts, task = (manifest.get(name) for name in ("model", "prompts", "task"))
    if model:
        yield (
            "model",
            f"{model['name']}: {model['architecture']}, {counted(model['n_layers'], 'layer')} of "
            f"{counted(model['n_heads'], 'head')}, {model['dtype']} on {model['device']}; weights "
            f"{model['weight_hash'][:12]}",
        )
    if prompts:
        lengths = f"{prompts['shortest']} to {prompts['longest']}"
        if prompts["shortest"] == prompts["longest"]:
            lengths = str(prompts["longest"])
        yield "prompts", f"{prompts['n_prompts']} of {lengths} tokens"
    if task:
        words = str(task["name"]).replace("_", " ")
        yield (
            "task",
            f"{words}: {counted(task['n_examples'], 'prompt')} of {counted(task['n_templates'], 'template')}",
        )
    if manifest["seed"] is not None:  # a --multirun has none of its own
        yield "seed", str(manifest["seed"])
    begun, ended = (datetime.fromisoformat(manifest[end]) for end in ("started", "finished"))
    seconds = f"{(ended - begun).total_seconds():.0f} s"
    threads = manifest["threads"]
    on = "" if threads is None else f", {counted(threads, 'thread')}"
    yield "run", f"{begun:%Y-%m-%d %H:%M} UTC, {seconds}{on}"
    source = environment["source"] or {}
    commit = f", commit {source['commit'][:10]}" if source.get("commit") else ""
    changed = " with changes" if source.get("dirty") else ""
    packages = environment["packages"]
    yield (
        "code",
        f"interp {packages['interp']}{commit}{changed}; Python {environment['python']}, "
        f"torch {packages['torch']}, transformers {packages['transformers']}",
    )
    yield "command", shlex.join(manifest["command"])


def unlike(runs: Sequence[Contents]) -> list[tuple[str, list[Any]]]:
    """What the configs of several runs do not share: (key, its value in each run, ABSENT where it has none).

    Only keys that two of them have: what an experiment alone is asked is no difference.
    """
    first, *others = ({"config": run.manifest["config"]} for run in runs)
    found = [differences(first, other) for other in others]
    before = {place: values[0] for one in found for place, values in one.items()}
    rows = [
        (place, [value, *(one[place][1] if place in one else value for one in found)])
        for place, value in sorted(before.items())
    ]
    return [
        (place.removeprefix("config."), values)
        for place, values in rows
        if any(value != other for value, other in pairwise(v for v in values if v != ABSENT))
    ]
