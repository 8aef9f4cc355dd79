"""Zero ablation of every head: one TransformerLens forward pass per head against our sweep.

    python benchmarks/ablation_sweep.py MODEL [--prompts 8] [--parts 5] [--threads 2] [--batch-tokens 1024]

Both run in this process on the same prompts (indirect objects of one length) and measure the logit
difference. A shared machine is faster in one minute than in the next: TransformerLens' passes are made
in ``parts``, each of every so-many-th layer and scaled to all heads, with a whole sweep after each, so
that both see the same machine. Printed are seconds, their ratio, and the largest difference between the
two tables.
"""

import argparse
import time

import numpy as np
import torch

from interp.editing.edits import Replace
from interp.editing.metrics import METRICS
from interp.editing.sites import Site
from interp.editing.sweep import sweep
from interp.inputs.sentences import indirect_objects
from interp.models.forward import BATCH_TOKENS
from interp.models.model import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--parts", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, default=BATCH_TOKENS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = load_model(options.model)
    task = indirect_objects(model, n_prompts=400)
    lengths = [len(example.prompt.ids) for example in task.examples]
    usual = max(set(lengths), key=lengths.count)
    examples = [e for e, n in zip(task.examples, lengths, strict=True) if n == usual]
    examples = examples[: options.prompts]
    ids = torch.tensor([example.prompt.ids for example in examples])
    bridge = model.bridge()
    answer, wrong = (
        torch.tensor([getattr(example, name) for example in examples])
        for name in ("answer", "wrong")
    )

    def theirs(layer: int, head: int) -> np.ndarray:
        def zero(z, hook):
            z[:, :, head] = 0
            return z

        hooks = [(f"blocks.{layer}.attn.hook_z", zero)]
        with torch.no_grad():
            logits = bridge.run_with_hooks(ids, fwd_hooks=hooks)[:, -1]
        row = torch.arange(len(examples))
        return (logits[row, answer] - logits[row, wrong]).numpy()

    heads = [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
    cells = [[Replace.zero(Site("z", layer, (head,)))] for layer, head in heads]

    def ours() -> np.ndarray:
        difference = METRICS["logit_difference"]
        return sweep(
            model, examples, cells, [difference], batch_tokens=options.batch_tokens
        ).values[0]

    print(
        f"{model.name}: {model.n_layers} × {model.n_heads} heads, {len(examples)} × {usual} tokens"
    )
    theirs(0, 0)  # what a first pass sets up is no measure of the others
    table = np.full((len(heads), len(examples)), np.nan)
    seconds = np.zeros((2, options.parts))
    largest = 0.0
    for part in range(options.parts):
        mine = [i for i, (layer, _) in enumerate(heads) if layer % options.parts == part]
        start = time.perf_counter()
        for i in mine:
            table[i] = theirs(*heads[i])
        middle = time.perf_counter()
        found = ours()
        seconds[:, part] = (
            (middle - start) * len(heads) / len(mine),
            time.perf_counter() - middle,
        )
        largest = max(largest, float(np.abs(table[mine] - found[mine]).max()))
        print(f"part {part + 1} of {options.parts}: {said(seconds[:, part])}", flush=True)
    print(f"{said(seconds.mean(1))}, largest difference {largest:.1e}")


def said(seconds: np.ndarray) -> str:
    """Seconds of all heads, both ways, and their ratio."""
    theirs, ours = seconds
    return f"TransformerLens {theirs:.1f} s, sweep {ours:.1f} s, ratio {theirs / ours:.2f}"


if __name__ == "__main__":
    main()
