"""What the experiments that look for heads share: scores of all heads, nulls; saved, drawn and said."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command_line.launch import progress
from experiments.steps.common import draw, keeping, load, make_prompts, write_tables
from experiments.steps.evidence import save_stability, say_too_few
from interp.words import counted

if TYPE_CHECKING:
    import pandas as pd

    from interp.config.scoring import FindConfig
    from interp.inputs.prompts import Prompt
    from interp.models.model import Model
    from interp.runs.run_folder import RunFolder
    from interp.scoring.roles import AnySink, Role
    from interp.scoring.scores import HeadScores


def score_and_save(
    config: FindConfig,
    folder: RunFolder,
    roles: Sequence[Role | AnySink],
    rate: tuple[float, int] | None = None,
) -> None:
    """The whole experiment: scores of all heads for these roles, saved, drawn and printed.

    Args:
        rate: (epsilon, tokens) of the sink rate of Gu et al., if it is wanted.
    """
    from interp.results import figures, tables
    from interp.scoring.scores import score_heads

    model = load(config, folder)
    prompts = make_prompts(config, model, folder, templates=True)
    rates = None if rate is None else save_sink_rate(config, folder, model, prompts, *rate)
    say_too_few(config, folder, prompts, model.n_layers * model.n_heads, sides=1)
    of = [folder.manifest["prompts"]["sha256"], *role_files(config)]
    with (
        keeping(config, folder, model, "scores", *of) as kept,
        progress(len(prompts), "prompts") as advance,
    ):
        scores = score_heads(
            model,
            prompts,
            roles,
            batch_size=config.batch_size,
            engine=config.engine,
            confidence=config.confidence,
            correction=config.correction,
            seed=config.seed,
            parts=kept,
            progress=advance,
        )
    folder.record(
        attention_paths=sorted(scores.summary.attention_path.unique()),
        measured={"kind": "scores", "roles": [*scores.summary.role.unique()]},
    )
    folder.write("per_prompt.parquet", lambda path: tables.write(scores.per_prompt, path))
    folder.write("table.csv", lambda path: tables.write(scores.summary, path))
    say(config, scores.summary)
    if config.nulls:
        save_nulls(config, folder, model, prompts, roles, scores)
    if rates is not None:
        say_sink_rate(rates)
    save_stability(config, folder, scores.per_prompt)
    sys.stdout.flush()
    draw(folder, "heads", figures.layer_by_head(tables.read(folder.path("table.csv"))))
    folder.remove("parts")


def role_files(config: FindConfig) -> list[str]:
    """Hashes of the files that the user's own roles are in."""
    from interp.runs.files import sha256

    files = (name.rpartition(":")[0] for name in getattr(config, "roles", ()))
    return [sha256(Path(file)) for file in files if file]


def say(config: FindConfig, summary: pd.DataFrame) -> None:
    """Print the heads with most mass for each role."""
    from interp.results import tables

    for role, rows in summary.groupby("role", sort=False):
        print(f"\n{role}: {counted(len(rows), 'head')}")
        defined = rows[rows.mass.notna()]
        if defined.empty:
            print(f"  undefined: {rows.undefined_reason.iloc[0]}")
        else:
            print(tables.as_text(defined.head(config.top)))


def save_nulls(
    config: FindConfig,
    folder: RunFolder,
    model: Model,
    prompts: Sequence[Prompt],
    roles: Sequence[Role | AnySink],
    scores: HeadScores,
) -> None:
    """Score the nulls asked for, write them, and print the best head of each role beside them."""
    from interp.results import tables
    from interp.scoring.nulls import score_nulls

    with progress(len(config.nulls) * len(prompts), "nulls, prompts") as advance:
        table = score_nulls(
            model,
            prompts,
            roles,
            scores,
            config.nulls,
            batch_size=config.batch_size,
            engine=config.engine,
            confidence=config.confidence,
            seed=config.seed,
            progress=advance,
        )
    folder.write("nulls.csv", partial(tables.write, table))
    best = table[table.mass.notna()].groupby(["null", "role"], sort=False).head(1)
    for null, rows in best.groupby("null", sort=False):
        print(
            f"\n{null}: for each role the head of most mass beside itself and all heads under this null"
        )
        defined, rest = (rows[rows.null_mass.notna() == known] for known in (True, False))
        if len(defined):
            print(
                tables.as_text(
                    defined.drop(columns=["null", "n_prompts"]).rename(columns={"role": "for"})
                )
            )
        for reason, undefined in rest.groupby("undefined_reason", sort=False):
            print(f"  undefined for {', '.join(undefined.role)}: {reason}")


def save_sink_rate(
    config: FindConfig,
    folder: RunFolder,
    model: Model,
    prompts: Sequence[Prompt],
    epsilon: float,
    tokens: int,
) -> pd.DataFrame:
    """Write the sink rate of Gu et al., which takes a short pass of its own."""
    from interp.scoring.sink_rate import sink_rate

    with progress(len(prompts), "sink rate, prompts") as advance:
        table = sink_rate(
            model,
            prompts,
            epsilon=epsilon,
            tokens=tokens,
            engine=config.engine,
            confidence=config.confidence,
            seed=config.seed,
            progress=advance,
        )
    write_tables(folder, {"sink_rate.csv": table})
    return table


def say_sink_rate(table: pd.DataFrame) -> None:
    """Print the rate of the whole model."""
    whole = table.iloc[-1]
    interval = f"[{whole.ci_low:.1%}, {whole.ci_high:.1%}], " if whole.n_prompts > 1 else ""
    print(
        f"\nsink rate (Gu et al.): {whole.sink_rate:.1%} of {whole.n_heads} heads have more than "
        f"{whole.epsilon:g} on the first of {whole.tokens} tokens "
        f"{interval}{whole.n_prompts} prompts"
    )
