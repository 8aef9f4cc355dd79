"""Several values of some keys in one command: a run for each combination, and one joined table.

    python -m experiments.find_heads --multirun model=default,gpt2 seed=0,1,2 out=runs/many

Values are those of Hydra's sweeps: `a,b`, `[a,b],[c]`, `range(0,5)`. All combinations are checked before
the first runs. Each has a folder of its own in `out`, as if it had been run alone; the CSV tables that
all runs have, with the same columns, are joined in `out`, with the columns `run` (the folder) and
`config.KEY` for each key that was given several values. A run that is refused does not stop the others:
what is missing is said in the end, and the same command then goes on with it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel

from experiments.command_line.compose import compose
from experiments.command_line.launch import one_run
from experiments.steps.common import write_tables
from interp.config.common import Strict
from interp.errors import IncompleteError, InterpError
from interp.words import counted

if TYPE_CHECKING:
    import pandas as pd

    from interp.runs.run_folder import RunFolder


MULTIRUN = "_multirun"  # ends the name of the whole, where a run has its experiment's


class Sweep(Strict):
    """What the whole is made of, for its manifest: what all runs share, and what differs."""

    experiment: str
    files: tuple[str, ...]
    settings: tuple[str, ...]
    swept: dict[str, tuple[str, ...]]


class Job(NamedTuple):
    """One run of it: the swept values, as they were written, and the whole config."""

    name: str
    values: dict[str, str]
    config: Any


def run_many(
    name: str, module: ModuleType, files: Sequence[Path], assignments: Sequence[str]
) -> Path:
    """Run every combination and join their tables.

    Args:
        name, module: the experiment.
        files: of `--config`.
        assignments: `key=value` each, some with several values.

    Returns:
        The folder of the whole.

    Raises:
        InterpError: nothing is given several values, a combination is refused; a run was (what the
            others have made stays, and the same command goes on).
    """
    from interp.runs.run_folder import open_run

    out, overwrite, rest = _own(assignments)
    whole, jobs = planned(name, module, files, rest)
    command = ["python", "-m", f"experiments.{name}", "--multirun", *assignments]
    title = f"{name}{MULTIRUN}"
    with open_run(out, title, whole, overwrite=overwrite, resume=True, command=command) as folder:
        refused = {}
        for number, job in enumerate(jobs, 1):
            print(f"\n=== {number} of {len(jobs)}: {job.name}", flush=True)
            try:
                _run(name, module, folder, job)
            except InterpError as error:
                print(f"refused: {error}", flush=True)
                folder.log.warning("%s was refused: %s", job.name, error)
                refused[job.name] = str(error)
        done = [job for job in jobs if job.name not in refused]
        for table, joined in _joined(folder, done):
            write_tables(folder, {table: joined})
            print(
                f"\n{table}: {counted(len(joined), 'row')} of {counted(joined.run.nunique(), 'run')}"
            )
        if refused:
            first, why = next(iter(refused.items()))
            what = f"{len(refused)} of {len(jobs)} runs were refused ({first}: {why})"
            if not done:
                raise InterpError(what)
            raise IncompleteError(f"{what}; the others and their joined table are in {folder.root}")
    return folder.root


def planned(
    name: str, module: ModuleType, files: Sequence[Path], assignments: Sequence[str]
) -> tuple[Sweep, list[Job]]:
    """The whole, and its runs in order; every config is checked.

    Raises:
        InterpError: nothing is given several values, or a combination is refused.
    """
    settings, swept = _several(assignments)
    whole = Sweep(
        experiment=name,
        files=tuple(map(str, files)),
        settings=tuple(settings),
        swept={key: tuple(values) for key, values in swept.items()},
    )
    return whole, list(_jobs(name, module, files, settings, swept))


def _own(assignments: Sequence[str]) -> tuple[str | None, bool, list[str]]:
    """(`out`, `overwrite`, the other assignments): these two are of the whole, not of each run."""
    own = {"out": None, "overwrite": "false"}
    rest = []
    for assignment in assignments:
        key, _, value = assignment.partition("=")
        if key in own:
            own[key] = value
        else:
            rest.append(assignment)
    if own["overwrite"] not in ("true", "false"):
        raise InterpError(f"command line: overwrite={own['overwrite']}: expected true or false")
    return own["out"], own["overwrite"] == "true", rest


def _several(assignments: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """(the assignments of one value, key → values of those with several)."""
    one, several = [], {}
    for assignment in assignments:
        key = assignment.partition("=")[0]
        values = values_of(assignment)
        if values is None:
            one.append(assignment)
            continue
        if key in several:
            raise InterpError(f"command line: {key} is given several values twice")
        if len(set(values)) < len(values):
            raise InterpError(f"command line: {assignment}: a value is there twice")
        several[key] = values
    if not several:
        raise InterpError(
            "command line: --multirun: expected a key with several values, such as seed=0,1,2"
        )
    return one, several


def values_of(assignment: str) -> list[str] | None:
    """The values that a key is given, each as it would be written alone; None if it is but one."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(assignment)
    except HydraException:  # text, which compose takes as it is, or says what is wrong with it
        return None
    if not override.is_sweep_override():
        return None
    parts = _split(assignment.partition("=")[2])
    if len(parts) > 1:  # not Hydra's reading of them: 1.10, the name of a revision, would be 1.1
        return parts
    try:
        found = [*override.sweep_string_iterator()]
    except HydraException as error:  # interval(0,1), glob(*)
        raise InterpError(
            f"command line: {assignment}: expected values that can be listed, such as 0,1,2 or range(0,3)"
        ) from error
    return [text if text[0] in "[{" else re.sub(r"\\(.)", r"\1", text) for text in found]


def _split(text: str) -> list[str]:
    """What stands between commas, those in quotes or brackets and those behind a backslash aside."""
    parts = [""]
    open_, quote = 0, ""
    for piece in re.findall(r"\\.|.", text, re.DOTALL):
        if piece == "," and not open_ and not quote:
            parts.append("")
            continue
        if quote:
            quote = "" if piece == quote else quote
        elif piece in ("'", '"'):
            quote = piece
        else:
            open_ += (piece in "[{(") - (piece in "]})")
        parts[-1] += "," if piece == "\\," and not open_ and not quote else piece
    return [part.strip() for part in parts]


def _jobs(
    name: str,
    module: ModuleType,
    files: Sequence[Path],
    settings: Sequence[str],
    swept: dict[str, list[str]],
) -> Iterator[Job]:
    for number, values in enumerate(itertools.product(*swept.values())):
        given = dict(zip(swept, values, strict=True))
        words = [f"{key}={value}" for key, value in given.items()]
        config = compose(name, module.Config, [*settings, *words], files)
        slug = re.sub(r"[^\w.=+-]+", "_", "_".join(words))[:100]
        yield Job(f"{number}_{slug}", given, config)


def _run(name: str, module: ModuleType, folder: RunFolder, job: Job) -> None:
    """One run in its own folder; nothing where it is done already."""
    root = folder.path(job.name)
    if _is_done(root, job.config):
        print("done before")
        return
    config = job.config.model_copy(update={"out": str(root)})
    command = ["python", "-m", f"experiments.{name}", "--config", f"{root}/config.yaml"]
    one_run(name, module, config, overwrite=False, command=command)


def _is_done(root: Path, config: BaseModel) -> bool:
    """Whether this very run is there, finished, and its tables are as it wrote them."""
    from interp.runs.rerun import finished_run
    from interp.runs.run_folder import unlike

    try:
        before = finished_run(root)["config"]
    except InterpError:
        return False
    return not unlike(before, config.model_dump(mode="json"))


def _joined(folder: RunFolder, jobs: Sequence[Job]) -> Iterator[tuple[str, pd.DataFrame]]:
    """The CSV tables that all runs have, each with a column for the run and for what was swept."""
    import pandas as pd

    from interp.runs.rerun import finished_run

    manifests = [finished_run(folder.root / job.name) for job in jobs]
    names = {file for one in manifests for file in one["files"] if file.endswith(".csv")}
    for name in sorted(names):
        try:
            parts = [_part(folder.root / job.name, name, job) for job in jobs]
            unlike = sorted({column for one in parts for column in {*one} ^ {*parts[0]}})
            if unlike:
                raise InterpError(f"not all runs have the column {', '.join(unlike)} in it")
        except InterpError as error:  # also a table that is none of ours
            print(f"\n{name} is not joined: {error}")
            folder.log.warning("%s is not joined: %s", name, error)
        else:
            yield name, pd.concat(parts, ignore_index=True)


def _part(root: Path, name: str, job: Job) -> pd.DataFrame:
    """A table of one run, with columns for the run and for what was swept before its own."""
    from interp.results import tables

    part = tables.read(root / name)
    columns = {"run": job.name} | {f"config.{key}": value for key, value in job.values.items()}
    for place, (column, value) in enumerate(columns.items()):
        part.insert(place, column, value)
    return part
