"""One file a question: `python -m experiments` lists them, and in Python `experiments.run` runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interp.runs.finished import Run


def run(name: str, *arguments: str) -> Run:
    """Run an experiment, as in a notebook, and open what it left.

        run = experiments.run("find_induction", "prompts.periods=[20,35,50]", "out=runs/first")
        run.table()

    Its results are printed and in the run folder; torch has as many threads afterwards as before.

    Args:
        name: as on the command line, and so are
        arguments: `key=value` each, or what else is allowed there.

    Raises:
        InterpError: whatever the command line would refuse.
    """
    import importlib

    import torch

    from experiments.command_line.launch import carry_out, no_such
    from experiments.command_line.listing import experiments
    from interp.errors import InterpError
    from interp.runs.finished import read_run

    if name not in experiments():
        raise InterpError(no_such(name))
    module = importlib.import_module(f"experiments.{name}")
    if hasattr(module, "WRITES"):
        raise InterpError(f"{name} makes a file and no run: use the command line")
    threads = torch.get_num_threads()
    try:
        folder, _ = carry_out(name, arguments, module)
    finally:
        torch.set_num_threads(threads)
    return read_run(folder)
