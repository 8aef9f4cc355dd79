"""Which heads look one token back?

Scores every head's attention from each token to the one before it, beside its attention to the token
itself, which a head that attends nearby in general would share.
"""

import sys

from experiments.command_line.launch import launch
from experiments.steps.finding import score_and_save
from interp.config.scoring import FindPreviousTokenConfig as Config
from interp.runs.run_folder import RunFolder


def run(config: Config, folder: RunFolder) -> None:
    """Score the previous-token role and its neighbour."""
    from interp.scoring.roles import find_roles

    score_and_save(config, folder, find_roles(["previous_token", "current_token"]))


if __name__ == "__main__":
    sys.exit(launch("find_previous_token"))
