"""Where does one query of one head look? Prints the tokens and their weights.

The well-known ten lines with output_attentions, but exact for any length: only the row asked for is
ever computed.
"""

import sys

from experiments.command_line.launch import launch
from experiments.steps.common import draw, load
from interp.config.scoring import ReadAttentionConfig as Config
from interp.runs.run_folder import RunFolder


def run(config: Config, folder: RunFolder) -> None:
    """Read one row of attention weights."""
    from interp.inputs import prompts as make
    from interp.results import figures, tables
    from interp.scoring.reading import find_query, read_row

    model = load(config, folder)
    prompt = make.given_prompts(model, [config.prompt], bos=config.bos)[0]
    folder.record(prompts={"bos": config.bos} | make.describe_prompts([prompt]))
    query = find_query(model, prompt, config.query, config.query_token)
    table = read_row(model, prompt, config.layer, config.head, query, engine=config.engine)
    for name in ("table.csv", "table.parquet"):
        folder.write(name, lambda path: tables.write(table, path))
    figure = figures.row_bars(tables.read(folder.path("table.csv")), config.k)
    draw(folder, "row", figure)
    shown = table.head(config.k)
    print(
        f"layer {config.layer}, head {config.head}: query {query} "
        f"({table.query_token.iloc[0]!r}) of {len(prompt.ids)} tokens looks at"
    )
    print(tables.as_text(shown[["key", "key_token", "weight"]]))
    rest = max(0.0, 1 - shown.weight.sum())
    print(
        f"the rest of its attention, on {len(table) - len(shown)} other keys or a learned sink: {rest:.4f}"
    )


if __name__ == "__main__":
    sys.exit(launch("read_attention"))
