"""Who tells whom? The path from each head to the logits, or to the query, key or value of later heads.

Path patching: only the sender's output is that of the corrupted prompt, all other heads are held at the
clean prompt's, and what this alone makes of the receiver's input is put into a clean run. Exact.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from experiments.command_line.launch import launch
from experiments.steps.effects import measure
from interp.config.effects import TracePathsConfig as Config
from interp.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from interp.inputs.tasks import Task
    from interp.models.model import Model


def run(config: Config, folder: RunFolder) -> None:
    """Trace, save, say, draw."""
    from interp.interventions.paths import Receiver, n_paths, trace_paths
    from interp.results import figures

    inputs = [Receiver.parsed(text) for text in config.receivers if text != "logits"]
    measuring = partial(
        trace_paths,
        receivers=inputs or "logits",
        metric=config.metric,
        together=config.together,
    )

    def n_tests(model: Model, task: Task) -> int:
        return n_paths(model, inputs, config.together)

    what = f"paths to {', '.join(config.receivers)}"
    measure(config, folder, measuring, figures.effects, what, n_tests)


if __name__ == "__main__":
    sys.exit(launch("trace_paths"))
