"""What does every head look at? All roles in one pass.

Scores every head for every built-in role, or for those in `roles`; FILE.py:NAME is a role of your
own (see interp/scoring/roles.py).
"""

import sys

from experiments.command_line.launch import launch
from experiments.steps.finding import score_and_save
from interp.config.scoring import FindHeadsConfig as Config
from interp.runs.run_folder import RunFolder


def run(config: Config, folder: RunFolder) -> None:
    """Score the roles asked for."""
    from interp.scoring.roles import find_roles

    score_and_save(config, folder, find_roles(config.roles, config.first_k))


if __name__ == "__main__":
    sys.exit(launch("find_heads"))
