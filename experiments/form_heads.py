"""When does each kind of head form during training, and which comes first?

Scores every head for previous token, induction, and the sink on fresh and on repeated tokens at each
checkpoint, beside the loss on fresh and repeated random tokens, whose sudden drop marks induction
(Olsson et al., 2209.11895). By default it trains the default model again, from step 0 to `until`; with
`revisions` it reads published checkpoints instead: model=pythia-70m revisions=[step512,step1000].
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from experiments.command_line.launch import launch, progress
from experiments.steps.common import draw, make_prompts
from interp.config.training import FormHeadsConfig as Config
from interp.errors import InterpError
from interp.runs.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd

    from interp.models.model import Model

LEVELS = {"previous_token": 0.5, "induction": 0.5, "sink_fresh": 0.5}


def run(config: Config, folder: RunFolder) -> None:
    """Score each checkpoint as it comes, save what there is after each, draw and say it."""
    import pandas as pd
    import torch

    from interp.results import figures, tables
    from interp.scoring.formation import formed, heads_at, losses_at

    if config.threads is not None:
        torch.set_num_threads(config.threads)
    # By step: a run that goes on may come by its last step again.
    heads, losses = (_by_step(folder, f"{name}.csv") for name in ("heads", "losses"))
    prompts = None

    def visit(model: Model, step: int) -> None:
        nonlocal prompts
        if prompts is None:
            prompts = make_prompts(config, model, folder, templates=True)
        confidence, seed = config.confidence, config.seed
        heads[step] = heads_at(
            model, prompts, step, confidence=confidence, correction=config.correction, seed=seed
        )
        losses[step] = losses_at(model, prompts, step, confidence=confidence, seed=seed)
        for name, parts in (("heads", heads), ("losses", losses)):
            table = pd.concat([parts[step] for step in sorted(parts)], ignore_index=True)
            folder.write(f"{name}.csv", partial(tables.write, table))
        folder.log.info("step %d: %s", step, _summary(losses[step]))

    _train(config, folder, visit) if not config.revisions else _read(config, folder, visit)
    read = tables.read(folder.path("heads.csv")), tables.read(folder.path("losses.csv"))
    figure = figures.formation(*read)
    draw(folder, "formation", figure)
    repeat = read[1][read[1].tokens == "repeat"]
    print(tables.as_text(repeat[["step", "loss", "ci_low", "ci_high", "n_prompts"]]))
    for role, level in LEVELS.items():
        first, stays = formed(read[0], role, level)
        when = "at no step"
        if first is not None:
            when = f"first at step {first}, " + (
                "but not to the last step"
                if stays is None
                else "and to the last step"
                if stays == first
                else f"and from step {stays} to the last"
            )
        print(f"{role}: the best head has mass above {level:g} {when}")


def _by_step(folder: RunFolder, name: str) -> dict[int, pd.DataFrame]:
    """What an earlier start of this run has written, by step."""
    from interp.results import tables

    if not (folder.root / name).exists():
        return {}
    table = tables.read(folder.path(name))
    return {step: table[table.step == step] for step in table.step.unique().tolist()}


def _summary(losses: pd.DataFrame) -> str:
    return ", ".join(f"{row.tokens} loss {row.loss:.3f}" for row in losses.itertuples())


def _train(config: Config, folder: RunFolder, visit: Callable[[Model, int], None]) -> None:
    """Train the default model again and visit each of its checkpoints."""
    from interp.models.checks import check_model
    from interp.models.model import load_model
    from interp.pretraining.training import TrainingConfig, train, world_tokenizer

    if config.model != "default":
        raise InterpError(
            f"model={config.model} has no training of ours to repeat: give revisions=[...] of it"
        )
    training = TrainingConfig(seed=config.training_seed)
    name = f"default (training seed {config.training_seed})"
    tokenizer = world_tokenizer()
    with progress(min(config.until, training.steps), "steps") as advance:
        done = 0

        def on_record(record, hf_model) -> None:  # type: ignore[no-untyped-def]
            nonlocal done
            model = replace(load_model((hf_model, tokenizer)), name=name)
            visit(model, record.step)
            advance(record.step - done)
            done = record.step

        trained = train(training, folder.path("training"), on_record, until=config.until)
    model = replace(load_model((trained.model, trained.tokenizer)), name=name)
    folder.record(training=training.model_dump(), model=model.describe(), checks=check_model(model))


def _read(config: Config, folder: RunFolder, visit: Callable[[Model, int], None]) -> None:
    """Visit published checkpoints, by revision."""
    from interp.models.checks import check_model
    from interp.models.model import load_model

    read = []
    with progress(len(config.revisions), "checkpoints") as advance:
        for revision in config.revisions:
            found = re.search(r"(\d+)$", revision)
            if found is None:
                raise InterpError(
                    f"revisions: {revision!r} does not end in its step, as step512 does"
                )
            model = load_model(
                config.model, revision=revision, device=config.device, dtype=config.dtype
            )
            checks = check_model(model)
            visit(model, int(found[1]))
            read.append(model.describe() | {"checks": checks})
            advance(1)
    folder.record(checkpoints=read)


if __name__ == "__main__":
    sys.exit(launch("form_heads"))
