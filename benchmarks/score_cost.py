"""What scoring every head costs: a plain fused forward pass against ours with all roles, and peak memory.

    python benchmarks/score_cost.py MODEL [--tokens 1024 4096 8192] [--repeats 9]

Both run in this process, in turn, on the same repeated random tokens (batch 1). "plain" is the
model with transformers' sdpa attention; "scored" goes through the door and scores all built-in roles
(targets, null, chance, sink found from column totals); tables and statistics are not in it, since they
do not grow with the prompt. A shared machine's clock drifts by more than the difference asked for, so
each repeat gives one ratio of two neighbouring runs, and their median counts, with its 95 % interval
(order statistics). Processor time is beside it.
"""

import argparse
import resource
import time

import numpy as np
import torch
from scipy.stats import binom

from interp.attention.door import implementation
from interp.inputs.prompts import repeated_random_prompts
from interp.models.forward import last_logits
from interp.models.model import load_model
from interp.scoring.roles import ROLES, find_roles
from interp.scoring.scores import score_batch


def clocked(run) -> tuple[float, float]:
    """(wall, processor) seconds of one call."""
    wall, processor = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096, 8192])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = load_model(options.model)
    roles = find_roles([*ROLES, "sink_first_k"])
    print(f"{model.name}: {model.n_layers} × {model.n_heads} heads, {len(roles)} roles")
    print("tokens  plain s  scored s             ratio wall              ratio cpu  peak GB")
    for n in options.tokens:
        batch = repeated_random_prompts(model, n_prompts=1, periods=[n // 2], bos="off")

        def plain() -> None:
            with implementation(model.hf_model, "sdpa"):
                last_logits(model, batch)

        def scored() -> None:
            score_batch(model, batch, roles)

        if n == options.tokens[0]:
            plain(), scored()
        times = [(clocked(plain), clocked(scored)) for _ in range(options.repeats)]
        ratios = [[mine / theirs for theirs, mine in zip(*pair, strict=True)] for pair in times]
        wall, cpu = (np.array(column) for column in zip(*ratios, strict=True))
        seconds = np.median([[side[0] for side in pair] for pair in times], axis=0)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(
            f"{n:6d}  {seconds[0]:7.2f}  {seconds[1]:8.2f}  {median(wall):>21}  {median(cpu):>21}"
            f"  {peak:7.2f}",
            flush=True,
        )


def median(values: np.ndarray) -> str:
    """The median and its interval from order statistics, at 95 % or as near as so few allow."""
    n, ordered = len(values), np.sort(values)
    k = int(max(binom.ppf(0.025, n, 0.5), 1))
    return f"{np.median(values):.3f} [{ordered[k - 1]:.3f}, {ordered[n - k]:.3f}]"


if __name__ == "__main__":
    main()
