"""Does it matter? Each head's output taken away in turn, and what that does to a task.

A weight says where a head looked; this says what the rest of the model loses without it (total effect:
everything after the head is recomputed). Exact, and several times as fast as one pass per head.
"""

from __future__ import annotations

import sys
from functools import partial

from experiments.effects import measure
from experiments.launch import launch
from interp.config import AblateHeadsConfig as Config
from interp.runs import RunFolder

RESUMES = True


def run(config: Config, folder: RunFolder) -> None:
    """Ablate, save, say, draw."""
    from interp import figures
    from interp.ablation import ablate_heads

    measuring = partial(ablate_heads, how=config.ablation, metric=config.metric)
    measure(config, folder, measuring, figures.effects, f"{config.ablation} ablation of each head")


if __name__ == "__main__":
    sys.exit(launch("ablate_heads"))
