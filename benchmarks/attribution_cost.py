"""What attribution patching costs: every head at every position, beside one plain forward pass.

    python benchmarks/attribution_cost.py MODEL [--prompts 8] [--repeats 5] [--threads 2]

On prompts of one length (indirect objects, 14 tokens if there are enough), estimates of a patch of z at
every head and position, from gradients. Printed are the best of several times, their ratio to the best of
as many plain forward passes over the same prompts (which need the logits of the last token only, too),
how far the largest estimates are from numerical derivatives, and how they rank beside exact patches.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from interp.editing.edits import Recording, Replace, edited
from interp.editing.metrics import METRICS
from interp.editing.sites import Site
from interp.inputs.sentences import indirect_objects
from interp.inputs.tasks import Task
from interp.interventions.gradients import attribute, audit
from interp.models.forward import logits_at
from interp.models.model import Model, load_model

SHARE = 0.05  # of a patch, for a derivative: less, and float32 rounds it away


def task_of_one_length(model: Model, n_prompts: int) -> Task:
    task = indirect_objects(model, n_prompts=400)
    lengths = [len(example.prompt.ids) for example in task.examples]
    usual = 14 if lengths.count(14) >= n_prompts else max(set(lengths), key=lengths.count)
    same = [e for e, n in zip(task.examples, lengths, strict=True) if n == usual]
    return Task(task.name, tuple(same[:n_prompts]))


def best(repeats: int, way: Callable[[], object]) -> float:
    """Seconds of the fastest of several."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        way()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = load_model(options.model)
    task = task_of_one_length(model, options.prompts)
    clean, corrupted = (
        torch.tensor([prompt.ids for prompt in prompts])
        for prompts in zip(*((e.prompt, e.corrupted) for e in task.examples), strict=True)
    )
    last = torch.full((len(clean), 1), clean.shape[1] - 1)

    def plain() -> None:
        with edited(model):
            logits_at(model, clean, last)

    plain()  # what a first pass sets up is no measure of the others
    passes = best(options.repeats, plain)
    estimating = best(options.repeats, lambda: attribute(model, task, "z", "all"))
    estimates = attribute(model, task)
    print(
        f"{model.name}: {model.n_layers} × {model.n_heads} heads × {clean.shape[1]} positions, "
        f"{len(clean)} prompts: {estimating:.2f} s, one plain forward pass {passes:.2f} s, ratio "
        f"{estimating / passes:.2f}"
    )

    there, new = (Recording(Site("z", layer) for layer in range(model.n_layers)) for _ in range(2))
    for ids, recording in ((corrupted, there), (clean, new)):
        with edited(model, recording=recording):
            logits_at(model, ids, last)

    def metric(site: Site, share: float) -> np.ndarray:
        value = there[site] + share * (new[site] - there[site])
        with edited(model, Replace(site, value, "a little")):
            logits = logits_at(model, corrupted, last)
        return METRICS["logit_difference"].measure(logits, logits, task.examples).numpy()

    mean = estimates.groupby(["layer", "head"]).effect.mean()
    missed = []
    for layer, head in mean.abs().sort_values().index[-5:]:
        site = Site("z", layer, (head,))
        slope = (metric(site, SHARE) - metric(site, -SHARE)) / (2 * SHARE)
        missed.append(abs(slope.mean() - mean[layer, head]))
    print(
        f"the five largest estimates, {mean.abs().nlargest(5).min():.2f} to {mean.abs().max():.2f}, differ "
        f"from numerical derivatives by at most {max(missed):.1e}"
    )
    print(audit(model, task, estimates))


if __name__ == "__main__":
    main()
