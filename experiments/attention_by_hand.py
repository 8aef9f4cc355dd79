"""What does attention compute? Scores, scaling, softmax and weighted sum, in numbers to check on paper.

Three small examples: vectors of your own from score to output; rows of scores under the causal mask, of which
the first always gives its only key all the weight; and h heads of width d/h beside one of width d, which take
as many FLOPs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from experiments.command_line.launch import launch
from experiments.steps.common import draw, set_threads, write_tables
from interp.lesson.config import AttentionByHandConfig as Config
from interp.runs.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd


def run(config: Config, folder: RunFolder) -> None:
    """Compute, save, say, draw."""
    import pandas as pd

    from interp.lesson import by_hand, figures
    from interp.lesson.multi_head import count_flops
    from interp.results import tables

    set_threads(config, folder)
    steps = by_hand.attend(config.queries, config.keys, config.values, causal=config.causal)
    vectors = by_hand.steps_table("vectors", steps, config.tokens)
    masked = by_hand.masked_table("masked scores", config.masked_scores)
    outputs = by_hand.outputs_table(steps, config.tokens)
    flops = count_flops(config.length, config.d_model, config.n_heads)
    both = pd.concat([vectors, masked], ignore_index=True)
    write_tables(folder, {"table.csv": both, "outputs.csv": outputs, "flops.csv": flops})
    say(config, vectors, outputs, masked, flops)
    sys.stdout.flush()
    saved = [tables.read(folder.path(f"{name}.csv")) for name in ("table", "flops")]
    draw(folder, "steps", figures.by_hand(*saved))


def say(
    config: Config,
    vectors: pd.DataFrame,
    outputs: pd.DataFrame,
    masked: pd.DataFrame,
    flops: pd.DataFrame,
) -> None:
    """Print every step of each query, the masked rows, and the FLOPs."""
    for (query, token), rows in vectors.groupby(["query", "query_token"]):
        print(f"query {query} ({token!r}), d_k = {len(config.keys[0])}")
        shown = rows[["key_token", "score", "scaled", "weight", "chance"]]
        print(shown.where(rows.visible, "").to_string(index=False, float_format="{:.3f}".format))
        one = outputs[outputs["query"] == query]
        print(f"output {_numbers(one.output)}, with uniform weights {_numbers(one.uniform)}\n")
    print("rows of scores under the causal mask: weights")
    for _, rows in masked.groupby("query"):
        print(f"  {_numbers(rows.score)} → {_numbers(rows.weight)}")
    print(f"\n{config.length} tokens, width {config.d_model}: counted FLOPs of one attention layer")
    print(flops.to_string(index=False))


def _numbers(values: pd.Series) -> str:
    return f"({', '.join(f'{value:.3f}' for value in values)})"


if __name__ == "__main__":
    sys.exit(launch("attention_by_hand"))
