"""What carries the answer? Activations of one prompt patched into the run of another, one place at a time.

Denoising puts the clean prompt's activations into the corrupted run and asks what is enough to bring the
answer back; noising puts the corrupted prompt's into the clean run and asks what is needed to keep it.
Layer × head, layer × head × position, or layer × position of the residual stream. Exact.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from experiments.command_line.launch import launch
from experiments.steps.effects import measure
from interp.config.effects import PatchHeadsConfig as Config
from interp.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from interp.inputs.tasks import Task
    from interp.models.model import Model


def run(config: Config, folder: RunFolder) -> None:
    """Patch, save, say, draw."""
    from interp.interventions.patching import patch, sites_of
    from interp.results import figures

    measuring = partial(
        patch,
        site=config.site,
        positions=config.positions,
        direction=config.direction,
        metric=config.metric,
    )

    def n_patches(model: Model, task: Task) -> int:
        return len(sites_of(model, config.site, task.examples[0], config.positions))

    where = "" if config.positions == "together" else " at each position"
    what = f"{config.direction} {config.site}{where}"
    measure(config, folder, measuring, figures.effects, what, n_patches)


if __name__ == "__main__":
    sys.exit(launch("patch_heads"))
