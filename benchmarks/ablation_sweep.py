"""Zero ablation of every head: one TransformerLens forward pass per head against our sweep.

    python benchmarks/ablation_sweep.py MODEL [--prompts 8] [--repeats 1] [--threads 2] [--batch-tokens 1024]

Both run in this process on the same prompts (indirect objects of one length) and measure the logit
difference; printed are seconds, their ratio, and the largest difference between the two tables.
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
    parser.add_argument("--repeats", type=int, default=1)
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

    def theirs() -> np.ndarray:
        found = np.empty((model.n_layers * model.n_heads, len(examples)))
        for cell in range(len(found)):
            layer, head = divmod(cell, model.n_heads)

            def zero(z, hook, head=head):
                z[:, :, head] = 0
                return z

            hooks = [(f"blocks.{layer}.attn.hook_z", zero)]
            with torch.no_grad():
                logits = bridge.run_with_hooks(ids, fwd_hooks=hooks)[:, -1]
            row = torch.arange(len(examples))
            found[cell] = (logits[row, answer] - logits[row, wrong]).numpy()
        return found

    def ours() -> np.ndarray:
        cells = [
            [Replace.zero(Site("z", layer, (head,)))]
            for layer in range(model.n_layers)
            for head in range(model.n_heads)
        ]
        return sweep(
            model, examples, cells, [METRICS["logit_difference"]], batch_tokens=options.batch_tokens
        ).values[0]

    print(
        f"{model.name}: {model.n_layers} × {model.n_heads} heads, {len(examples)} × {usual} tokens"
    )
    for _ in range(options.repeats):
        tables, seconds = [], []
        for way in (theirs, ours):
            start = time.perf_counter()
            tables.append(way())
            seconds.append(time.perf_counter() - start)
        difference = np.abs(tables[0] - tables[1]).max()
        print(
            f"TransformerLens {seconds[0]:.1f} s, sweep {seconds[1]:.1f} s, ratio "
            f"{seconds[0] / seconds[1]:.2f}, largest difference {difference:.1e}"
        )


if __name__ == "__main__":
    main()
