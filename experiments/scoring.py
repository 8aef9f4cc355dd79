"""What the experiments that score heads share: load, prompts, measure, table and figure, save."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from experiments.launch import progress

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from interp.config.common import AnyRun, Given, Prompts, RepeatedRandom, RunConfig, Text
    from interp.config.scoring import ScoreConfig
    from interp.inputs.prompts import Prompt
    from interp.models.model import Model
    from interp.runs.run_folder import RunFolder
    from interp.scoring.roles import AnySink, Role
    from interp.scoring.sink_rate import SinkRate


class HasPrompts(Protocol):
    """A config that says where prompts come from."""

    @property
    def prompts(self) -> Prompts: ...  # noqa: D102
    @property
    def bos(self) -> Literal["on", "off", "tokenizer"]: ...  # noqa: D102
    @property
    def seed(self) -> int: ...  # noqa: D102


def set_threads(config: AnyRun, folder: RunFolder) -> None:
    """Set the CPU threads of torch, and record them."""
    import torch

    if config.threads is not None:
        torch.set_num_threads(config.threads)
    folder.record(threads=torch.get_num_threads())


def load(config: RunConfig, folder: RunFolder) -> Model:
    """Load the model, doubt it, and record both."""
    from interp.models.checks import check_model
    from interp.models.model import load_model

    set_threads(config, folder)
    model = load_model(
        config.model,
        device=config.device,
        dtype=config.dtype,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
    )
    folder.log.info("loaded %r", model)
    checks = check_model(model)
    folder.record(model=model.describe(), checks=checks)
    return model


def make_prompts(config: HasPrompts, model: Model, folder: RunFolder) -> list[Prompt]:
    """Prompts as the config asks for them; what they are goes into the manifest."""
    from interp.inputs import prompts as make

    source: RepeatedRandom | Text | Given = config.prompts
    record: dict[str, object] = {}
    if source.kind == "repeated_random":
        found = make.repeated_random_prompts(
            model,
            n_prompts=source.n_prompts,
            periods=source.periods,
            repeats=source.repeats,
            bos=config.bos,
            seed=config.seed,
        )
    elif source.kind == "given":
        found = make.given_prompts(model, source.texts, bos=config.bos, truncate=source.truncate)
    else:
        name, text = make.source_text(source)
        record = {"source": name, "source_sha256": make.text_hash(text)}
        found = make.text_prompts(
            model,
            text,
            n_prompts=source.n_prompts,
            length=source.length,
            name=Path(name).stem if source.source == "file" else name,
            bos=config.bos,
            seed=config.seed,
        )
    folder.record(prompts=record | {"bos": config.bos} | make.describe_prompts(found))
    folder.log.info("%d prompts", len(found))
    return found


def score_and_save(
    config: ScoreConfig,
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
    from interp.scoring.sink_rate import SinkRate

    model = load(config, folder)
    prompts = make_prompts(config, model, folder)
    sinks = None if rate is None else SinkRate(prompts, *rate)
    with progress(len(prompts), "prompts") as advance:
        scores = score_heads(
            model,
            prompts,
            roles,
            batch_size=config.batch_size,
            engine=config.engine,
            confidence=config.confidence,
            seed=config.seed,
            also=[] if sinks is None else [sinks.look],
            progress=advance,
        )
    folder.record(attention_paths=sorted(scores.summary.attention_path.unique()))
    folder.write("per_prompt.parquet", lambda path: tables.write(scores.per_prompt, path))
    folder.write("table.csv", lambda path: tables.write(scores.summary, path))
    say(config, scores.summary, len(prompts))
    if sinks is not None:
        save_sink_rate(config, folder, sinks)
    sys.stdout.flush()
    draw(folder, "heads", figures.layer_by_head(tables.read(folder.path("table.csv"))))


def write_tables(folder: RunFolder, written: Mapping[str, pd.DataFrame]) -> None:
    """Write tables by their file names; each must keep its contract."""
    from interp.results import tables

    for name, table in written.items():
        folder.write(name, partial(tables.write, table))


def draw(folder: RunFolder, name: str, figure: Figure) -> None:
    """Write a figure, as PNG and PDF."""
    from interp.results import figures

    for ending in ("png", "pdf"):
        folder.write(f"{name}.{ending}", lambda path: figures.save_figure(figure, path))


def say(config: ScoreConfig, summary: pd.DataFrame, n_prompts: int) -> None:
    """Print the heads with most mass for each role, and what a reader must know beside."""
    from interp.results import stats, tables

    for role, rows in summary.groupby("role", sort=False):
        print(f"\n{role}: {len(rows)} heads")
        defined = rows[rows.mass.notna()]
        if defined.empty:
            print(f"  undefined: {rows.undefined_reason.iloc[0]}")
        else:
            print(tables.as_text(defined.head(config.top)))
    heads = len(summary[["layer", "head"]].drop_duplicates())
    if stats.smallest_p(n_prompts) > 0.05 / heads:
        print(
            f"\nnote: with {n_prompts} prompt{'s' * (n_prompts != 1)} no p is below "
            f"{stats.smallest_p(n_prompts):.2g}; over "
            f"{heads} heads a single head can reach q < 0.05 only below {0.05 / heads:.2g}: "
            "take more prompts"
        )


def save_sink_rate(config: ScoreConfig, folder: RunFolder, sinks: SinkRate) -> None:
    """Write the sink rate of Gu et al. and print that of the whole model."""
    table = sinks.table(confidence=config.confidence, seed=config.seed)
    folder.write("sink_rate.csv", lambda path: table.to_csv(path, index=False))
    whole = table.iloc[-1]
    interval = f"[{whole.ci_low:.1%}, {whole.ci_high:.1%}], " if whole.n_prompts > 1 else ""
    print(
        f"\nsink rate (Gu et al.): {whole.sink_rate:.1%} of {whole.n_heads} heads have more than "
        f"{sinks.epsilon:g} on the first of {sinks.tokens} tokens "
        f"{interval}{whole.n_prompts} prompts"
    )
