"""Which heads park their attention on a sink?

Scores every head for the first position, the first k positions, BOS by its token id, and whichever
single position draws most attention, on plain text: there a head that has nothing to do shows where
it rests. sink_fresh and sink_repeat split the first by whether the query's token is new: a head that
rests on fresh tokens and leaves the sink on repeats is dormant, not idle (prompts=repeated_random).
sink_rate={} adds the share of sink heads as Gu et al. (2410.10781) count it.
"""

import sys

from experiments.command_line.launch import launch
from experiments.steps.finding import score_and_save
from interp.config.scoring import FindSinksConfig as Config
from interp.runs.run_folder import RunFolder


def run(config: Config, folder: RunFolder) -> None:
    """Score the sink roles."""
    from interp.scoring.roles import find_roles

    names = ["sink_first", "sink_first_k", "sink_bos", "sink_fresh", "sink_repeat", "sink_any"]
    rate = config.sink_rate
    score_and_save(
        config,
        folder,
        find_roles(names, config.first_k),
        None if rate is None else (rate.epsilon, rate.tokens),
    )


if __name__ == "__main__":
    sys.exit(launch("find_sinks"))
