"""Which heads complete repeats, by looking at what followed the last time?

Scores every head's attention from a token to the token after its earlier copies (all of them, and
the last one only), beside attention to the copies themselves, which is the duplicate-token role. Give
several periods (prompts.periods=[20,35,50]) to tell induction from a fixed distance.
"""

import sys

from experiments.command_line.launch import launch
from experiments.steps.finding import score_and_save
from interp.config.scoring import FindInductionConfig as Config
from interp.runs.run_folder import RunFolder


def run(config: Config, folder: RunFolder) -> None:
    """Score both induction roles and the duplicate-token role."""
    from interp.scoring.roles import find_roles

    names = ["induction", "induction_last", "duplicate_token"]
    score_and_save(config, folder, find_roles(names))


if __name__ == "__main__":
    sys.exit(launch("find_induction"))
