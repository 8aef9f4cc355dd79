"""What do runs show? One HTML page that needs no network: tables, figures, checks, and where heads look.

    python -m experiments.report RUN... [--to FILE.html]

Each RUN is a run folder of any experiment; one that holds others (--multirun, reproduce) is shown with
these. Tables can be sorted and filtered. Pointing at a token of a prompt shows where chosen heads look from
there, by weight and by the length of what is fetched: for that the model is loaded as the run's config says,
and its weights and prompts are held against the run's manifest; viewer=false leaves it out.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from experiments.command_line.launch import launch, progress
from experiments.command_line.listing import experiments
from interp.circuits.head_sets import Head, heads_in
from interp.config.common import RunConfig
from interp.config.reruns import ReportConfig as Config
from interp.errors import InterpError
from interp.words import counted

if TYPE_CHECKING:
    import pandas as pd

    from interp.inputs.prompts import Prompt
    from interp.models.model import Model
    from interp.report.contents import Contents
    from interp.report.page import Section, Viewer

POSITIONAL = "runs"
WRITES, MARK = ".html", "interp report"
USUAL_PROMPTS = 2
MEASURES = ("mass", "effect")
"""Columns by which a table ranks heads; the first that it has is said of each."""
NO_HEADS = "This run ranks no query heads; heads=[LAYER.HEAD,...] chooses some."


def run(config: Config, path: Path) -> None:
    """Read the runs, look where their heads look, write the page, say."""
    import interp
    from interp.report.contents import read_runs
    from interp.report.page import page
    from interp.runs import files

    folders = [Path(folder).expanduser() for folder in config.runs]
    for number, folder in enumerate(folders):
        if folder.resolve() in (other.resolve() for other in folders[:number]):
            raise InterpError(f"runs: {folder} is given twice")
    found = [one for folder in folders for one in read_runs(folder)]
    load = lru_cache(maxsize=1)(_load)  # several runs of one model load it once
    chosen = [_heads(config, one) for one in found]  # refused, if at all, before a model is loaded
    with progress(len(found), "runs") as advance:
        sections = []
        for one, heads in zip(found, chosen, strict=True):
            sections.append(_section(config, one, heads, load))
            advance()
    made = f"by interp {interp.__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    files.atomic_write(path, page(sections, made, config.most_rows).encode("utf-8", "replace"))
    counts = {
        "run": len(found),
        "figure": sum(len(one.figures) for one in found),
        "table": sum(len(one.tables) for one in found),
        "attention viewer": sum(section.viewer is not None for section in sections),
    }
    said = ", ".join(counted(count, what) for what, count in counts.items())
    print(f"{said}; {path.stat().st_size / 1e6:.1f} MB")


def _section(
    config: Config, run: Contents, heads: dict[Head, str] | None, load: Callable[..., Model]
) -> Section:
    from interp.report.page import Section

    question = experiments().get(run.name, "")
    if heads is None:
        return Section(run, question)
    if not heads:
        return Section(run, question, no_viewer=NO_HEADS)
    try:
        return Section(run, question, _viewer(config, run, heads, load))
    except InterpError as error:
        raise InterpError(f"{run.folder}: {error}; viewer=false leaves the viewer out") from error


# --- which heads ---------------------------------------------------------------------------------


def _heads(config: Config, run: Contents) -> dict[Head, str] | None:
    """The heads to show, and why; none if the run ranks none, None if there is no model to look into."""
    from interp.report.views import check_heads

    model = run.manifest.get("model")
    # A model that the run trained itself has another name, and can't be loaded.
    if not config.viewer or model is None or model["name"] != run.manifest["config"].get("model"):
        return None
    if config.heads is None:
        return dict(_best(run.tables, config.n_heads))
    heads = heads_in(config.heads)
    check_heads(heads, model["n_layers"], model["n_heads"], f"{run.folder}: {model['name']}")
    return dict.fromkeys(heads, "")


def _best(tables: Mapping[str, pd.DataFrame], n: int) -> Iterator[tuple[Head, str]]:
    """The first heads of the first table that ranks query heads; of several roles, the best of each first."""
    table = next((table for table in tables.values() if _ranks_heads(table)), None)
    if table is None:
        return
    measure = next((name for name in MEASURES if name in table), None)
    if measure is not None:
        table = table[table[measure].notna()]  # undefined is not best
    groups = [rows for _, rows in table.groupby("role", sort=False)] if "role" in table else [table]
    ranked = zip_longest(*(rows.to_dict("records") for rows in groups))
    seen: set[Head] = set()
    for row in (row for tier in ranked for row in tier if row is not None):
        head = row["layer"], row["head"]
        if head not in seen and len(seen) < n:
            seen.add(head)
            yield head, _why(row, measure)


def _ranks_heads(table: pd.DataFrame) -> bool:
    return {"layer", "head"} <= {*table} and ("unit" not in table or {*table.unit} == {"head"})


def _why(row: Mapping[Any, Any], measure: str | None) -> str:
    """What the table says of a head, in a word."""
    word = str(row.get("role") or measure or "").replace("_", " ")
    return word if measure is None else f"{word} {row[measure]:.2f}"


# --- where they look -----------------------------------------------------------------------------


def _viewer(
    config: Config, run: Contents, heads: dict[Head, str], load: Callable[..., Model]
) -> Viewer:
    import torch

    from interp.inputs.prompts import prompt_hash
    from interp.models.tokens import token_strings
    from interp.report.contents import Check
    from interp.report.page import ShownPrompt, Viewer
    from interp.report.views import view_heads

    if config.threads is not None:
        torch.set_num_threads(config.threads)
    module = importlib.import_module(f"experiments.{run.name}")
    its = _config_of(run, module)
    model = load(its.model, its.revision, its.trust_remote_code, its.device, its.dtype)
    checks = [_same("weights", model.weight_hash, run.manifest["model"]["weight_hash"])]
    prompts = _prompts(run, its, module, model)
    if "prompts" in run.manifest:
        checks.append(_same("prompts", prompt_hash(prompts), run.manifest["prompts"]["sha256"]))
    shown = _chosen(config.prompts, prompts)
    special = set(model.tokenizer.all_special_ids) if model.tokenizer else set()
    return Viewer(
        [
            ShownPrompt(
                prompt.name,
                tuple(token_strings(model.tokenizer, prompt.ids)),
                tuple(i for i, token in enumerate(prompt.ids) if token in special),
            )
            for prompt in shown
        ],
        [f"{layer}.{head} {why}".strip() for (layer, head), why in heads.items()],
        [
            view_heads(
                model,
                prompt,
                [*heads],
                longest=config.longest,
                k=config.k,
                engine=its.engine,
            )
            for prompt in shown
        ],
        config.k,
        [
            Check(f"{what} of the viewer are those of the run", "same hash", None, True)
            for what in checks
        ],
    )


def _config_of(run: Contents, module: ModuleType) -> Any:
    from experiments.command_line.compose import compose

    config = compose(run.name, module.Config, files=[run.folder / "config.yaml"])
    assert isinstance(config, RunConfig)  # it has a model
    return config


def _load(name: str, revision: str | None, remote_code: bool, device: str, dtype: str) -> Model:
    from interp.models.model import load_model

    return load_model(
        name, device=device, dtype=dtype, revision=revision, trust_remote_code=remote_code
    )


def _same(what: str, now: str, before: str) -> str:
    if now != before:
        raise InterpError(
            f"the {what} are not those of the run (sha256 {now[:12]}, in its manifest {before[:12]})"
        )
    return what


def _prompts(run: Contents, config: Any, module: ModuleType, model: Model) -> Sequence[Prompt]:
    """The prompts of a run, made again as it made them."""
    from experiments.steps.common import prompts_for
    from experiments.steps.effects import make_task
    from interp.inputs.prompts import given_prompts

    if hasattr(config, "prompts"):
        return prompts_for(config, model)[0]
    if hasattr(config, "prompt"):
        return given_prompts(model, [config.prompt], bos=config.bos)
    measured = run.tables.get("per_prompt.parquet")
    names = set() if measured is None else {*measured.prompt}
    task = (
        make_task(config, model) if hasattr(config, "task") else module.make_tasks(config, model)[0]
    )
    found = [example.prompt for example in task.examples if example.prompt.name in names]
    if not found:
        raise InterpError("none of its prompts could be made again")
    return found


def _chosen(names: Sequence[str] | None, prompts: Sequence[Prompt]) -> list[Prompt]:
    """Prompts by name or number."""
    if names is None:
        return [*prompts[:USUAL_PROMPTS]]
    known = {str(number): prompt for number, prompt in enumerate(prompts)}
    known |= {prompt.name: prompt for prompt in prompts}
    wrong = [name for name in names if name not in known]
    if wrong:
        raise InterpError(
            f"prompts: there is no {wrong[0]!r}; expected 0 to {len(prompts) - 1}, or a name such as "
            f"{prompts[0].name}"
        )
    return [known[name] for name in names]


if __name__ == "__main__":
    sys.exit(launch("report"))
