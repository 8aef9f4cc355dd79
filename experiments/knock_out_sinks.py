"""What happens when the attention sink is taken away, and where does its mass go?

The first keys are knocked out for all heads at once, in five ways that ask different things: hidden (the mass
must go elsewhere), their weight taken out (the mass is lost), their value zeroed or made the mean one (does
what is found there matter?), their weight sent to the query's own position. Beside each goes the same at as
many random keys. Prints the change of the loss, and where the attention rests once the sink is hidden.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from experiments.command_line.launch import launch, progress
from experiments.steps.common import draw, load, make_prompts
from experiments.steps.effects import swept
from experiments.steps.evidence import say_too_few
from interp.config.effects import KnockOutSinksConfig as Config
from interp.runs.run_folder import RunFolder
from interp.words import counted

if TYPE_CHECKING:
    import pandas as pd


def run(config: Config, folder: RunFolder) -> None:
    """Knock out, look, save, say, draw."""
    from interp.results import tables
    from interp.sinks import sink_figure
    from interp.sinks.sink_effects import control_keys, knock_out_sinks, summarise_sinks, text_task
    from interp.sinks.sink_mass import check_lengths, check_windows, sink_masses

    model = load(config, folder)
    prompts = make_prompts(config, model, folder, templates=True)
    check_lengths(prompts, config.first_keys)  # refused before anything is measured
    check_windows(model, prompts, config.first_keys, config.engine)
    control = control_keys(prompts, config.first_keys, config.n_random, config.seed)
    folder.record(control_keys={str(n): drawn for n, drawn in control.items()})
    knocking = partial(
        knock_out_sinks,
        hows=config.knock_outs,
        first_keys=config.first_keys,
        by_layer=config.by_layer,
        n_random=config.n_random,
    )
    n_layers = 1 + model.n_layers * config.by_layer
    n_effects = len(config.knock_outs) * len(config.first_keys) * n_layers
    say_too_few(config, folder, prompts, n_effects, sides=2)
    per_prompt, difference = swept(config, folder, model, text_task(prompts), knocking)
    folder.record(measured={"kind": "sinks"}, largest_difference_from_plain_passes=difference)
    summary = summarise_sinks(
        per_prompt, confidence=config.confidence, correction=config.correction, seed=config.seed
    )
    n_passes = 1 + len(config.knock_outs) * len(config.first_keys)
    with progress(n_passes * len(prompts), "looking, prompts") as advance:
        masses = sink_masses(
            model,
            prompts,
            config.knock_outs,
            config.first_keys,
            engine=config.engine,
            confidence=config.confidence,
            seed=config.seed,
            progress=advance,
        )
    for name, table in (
        ("per_prompt.parquet", per_prompt),
        ("table.csv", summary),
        ("mass.csv", masses),
    ):
        folder.write(name, partial(tables.write, table))
    say(config, summary, masses)
    sys.stdout.flush()
    saved, rests = (tables.read(folder.path(name)) for name in ("table.csv", "mass.csv"))
    draw(folder, "sinks", sink_figure.sinks(saved, rests))
    folder.remove("parts")


def say(config: Config, summary: pd.DataFrame, masses: pd.DataFrame) -> None:
    """Print what each knock-out of all layers does, the control beside it, and where the sink went."""
    from interp.results import tables

    whole = summary[summary.layer.isna()]
    loss, kl = (whole[whole.metric == metric].reset_index(drop=True) for metric in ("loss", "kl"))
    one = loss.iloc[0]
    print(
        f"the first keys taken away in all heads and layers: change of the loss (before: {one.baseline:.3f} "
        f"nats a token; {counted(one.n_prompts, 'prompt')})"
        f"{', the same at as many random keys' if config.n_random else ''}, KL to the clean run"
    )
    effects = ["knock_out", "n_keys", "effect", "ci_low", "ci_high", "p"]
    controls = ["control", "control_low", "control_high", "p_control"]
    print(tables.as_text(loss[[*effects, *controls]].assign(kl=kl.effect)))
    print(where_it_went(masses, "mask" if "mask" in config.knock_outs else config.knock_outs[0]))


def where_it_went(masses: pd.DataFrame, how: str) -> str:
    """Which of the first keys has most attention, clean and after each knock-out that leaves one of them."""
    keys = masses[masses.key.str.isdigit() & masses.knock_out.isin(["none", how])]
    keys = keys[keys.n_keys < keys.key.nunique()]
    most = keys.loc[keys.groupby("n_keys").mass.idxmax()]
    parts = []
    for row in most.to_dict("records"):
        n = int(row["n_keys"])
        before = "clean" if n == 0 else "without key 0" if n == 1 else f"without keys 0–{n - 1}"
        interval = f" [{row['ci_low']:.2f}, {row['ci_high']:.2f}]" if row["n_prompts"] > 1 else ""
        parts.append(f"{before}: key {row['key']}, {row['mass']:.2f}{interval}")
    return f"where the sink went ({how}; mass of the largest of keys 0–7): " + "; ".join(parts)


if __name__ == "__main__":
    sys.exit(launch("knock_out_sinks"))
