"""What a paper takes from a run: methods.txt, a paragraph made from the manifest, and table.tex."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.command_line.listing import experiments
from interp.errors import InterpError
from interp.runs.methods import methods
from interp.runs.run_folder import RunFolder


def write_for_paper(folder: RunFolder, config: Any) -> None:
    """Write both beside the run's other files; no table.tex where there is no table.csv."""
    asked, mark, _ = experiments().get(folder.name, "").partition("?")
    question = asked + mark
    folder.write("methods.txt", methods(folder.manifest, question) + "\n")
    if not folder.path("table.csv").exists():
        return
    from interp.results import tables
    from interp.results.latex import as_latex

    try:
        table = tables.read(folder.path("table.csv"))
    except InterpError as error:  # a table of somebody's own experiment
        folder.log.warning("no table.tex: %s", error)
        return
    source = as_latex(
        table,
        top=getattr(config, "top", 10),
        caption=folder.name.replace("_", " "),
        label=f"tab:{Path(folder.name).name}",
    )
    folder.write("table.tex", source)
