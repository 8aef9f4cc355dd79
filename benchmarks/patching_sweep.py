"""Patching every head at every position: TransformerLens' own sweep against ours.

    python benchmarks/patching_sweep.py MODEL [--prompts 8] [--layers 3] [--threads 2]

Both run in this process on the same prompts (indirect objects of one length, 14 tokens if there are
enough) and measure the mean logit difference. TransformerLens' ``get_act_patch_attn_head_out_by_pos`` is its
generic sweep over layer, position and head; here it goes over some layers only (``--layers``, evenly
spread), since all 30 of SmolLM2 take it an hour, and ours goes over the same cells. Printed are seconds,
their ratio, and the largest difference between the two tables.
"""

import argparse
import time

import numpy as np
import pandas as pd
import torch

from interp.inputs.sentences import indirect_objects
from interp.inputs.tasks import Task
from interp.interventions.patching import patch
from interp.models.model import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    from transformer_lens import patching

    model = load_model(options.model)
    task = indirect_objects(model, n_prompts=400)
    lengths = [len(example.prompt.ids) for example in task.examples]
    usual = 14 if lengths.count(14) >= options.prompts else max(set(lengths), key=lengths.count)
    same = [e for e, n in zip(task.examples, lengths, strict=True) if n == usual]
    task = Task(task.name, tuple(same[: options.prompts]))
    layers = np.linspace(0, model.n_layers - 1, options.layers).round().astype(int).tolist()
    clean, corrupted = (
        torch.tensor([prompt.ids for prompt in prompts])
        for prompts in (
            [example.prompt for example in task.examples],
            [example.corrupted for example in task.examples],
        )
    )
    answer, wrong = (
        torch.tensor([getattr(example, name) for example in task.examples])
        for name in ("answer", "wrong")
    )
    bridge = model.bridge()
    with torch.no_grad():
        _, cache = bridge.run_with_cache(clean)
    row = torch.arange(len(clean))
    cells = [
        (layer, position, head)
        for layer in layers
        for position in range(usual)
        for head in range(model.n_heads)
    ]

    def metric(logits: torch.Tensor) -> torch.Tensor:
        return (logits[row, -1, answer] - logits[row, -1, wrong]).mean()

    def theirs() -> np.ndarray:
        found = patching.generic_activation_patch(
            model=bridge,
            corrupted_tokens=corrupted,
            clean_cache=cache,
            patching_metric=metric,
            patch_setter=patching.layer_pos_head_vector_patch_setter,
            activation_name="z",
            index_df=pd.DataFrame(cells, columns=["layer", "pos", "head"]),
        )
        return np.asarray(found)

    def ours() -> np.ndarray:
        only = [(layer, head) for layer in layers for head in range(model.n_heads)]
        table, _ = patch(model, task, "z", "all", only=only)
        value = (table.baseline + table.effect).groupby(
            [table.layer, table.position, table["head"]]
        )
        return value.mean().loc[cells].to_numpy()

    print(
        f"{model.name}: layers {layers}, {model.n_heads} heads, {usual} positions: {len(cells)} cells × "
        f"{len(task.examples)} prompts"
    )
    tables, seconds = [], []
    for way in (theirs, ours):
        start = time.perf_counter()
        tables.append(way())
        seconds.append(time.perf_counter() - start)
    difference = np.abs(tables[0] - tables[1]).max()
    print(
        f"TransformerLens {seconds[0]:.1f} s, ours {seconds[1]:.1f} s, ratio "
        f"{seconds[0] / seconds[1]:.2f}, largest difference {difference:.1e}"
    )


if __name__ == "__main__":
    main()
