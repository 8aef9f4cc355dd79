"""How was the default model made? Trains it from nothing: little world, tokenizer, weights.

The run folder gets model/ (what `model=FOLDER` loads; the same files as interp/default_model),
training.csv (held-out losses and accuracies along the way) and a figure. Deterministic by steps: the
same seed gives the same weights on one machine. Stopped, it goes on where it was with the same `out`.
About 25 minutes on one core; recipe.steps=300 is enough to see it move.
"""

from __future__ import annotations

import sys
from dataclasses import asdict

from experiments.command_line.launch import launch, progress
from experiments.steps.common import draw, set_threads
from interp.config.training import TrainDefaultModelConfig as Config
from interp.runs.run_folder import RunFolder


def run(config: Config, folder: RunFolder) -> None:
    """Train, save, and compare with the model that is shipped."""
    import pandas as pd

    from interp.config.training import TrainingConfig
    from interp.models.model import load_model
    from interp.pretraining.training import Record, save_model, train
    from interp.results import figures, tables

    set_threads(config, folder)
    training = TrainingConfig(seed=config.seed, **config.recipe.model_dump())
    with progress(training.steps, "steps") as advance:
        done = 0

        def on_record(record: Record, model: object) -> None:
            nonlocal done
            advance(record.step - done)
            done = record.step
            folder.log.info("%s", record)

        trained = train(training, folder.path("training"), on_record)
    save_model(trained.model, trained.tokenizer, folder.path("model"))
    table = pd.DataFrame([asdict(record) for record in trained.records])
    folder.write("training.csv", lambda path: tables.write(table, path))
    figure = figures.training(tables.read(folder.path("training.csv")))
    draw(folder, "training", figure)
    model = load_model(folder.path("model"))
    folder.record(model=model.describe())
    print(tables.as_text(table.tail(5)))
    print(f"weights: sha256 {model.weight_hash}")
    shipped = load_model("default").weight_hash
    if shipped == model.weight_hash:
        print("these are the weights of the shipped default model, bit for bit")
    else:
        print(
            "these are not the weights of the shipped default model (seed 0, 1 thread, all steps)"
        )


if __name__ == "__main__":
    sys.exit(launch("train_default_model"))
