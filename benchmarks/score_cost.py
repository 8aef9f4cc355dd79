"""What scoring every head costs: a plain fused forward pass against ours with all roles, and peak memory.

    python benchmarks/score_cost.py MODEL [--tokens 1024 4096 8192] [--repeats 3]

Both run in this process, in turn, on the same repeated random tokens (batch 1). "plain" is the
model with transformers' sdpa attention; "scored" goes through the door and scores all built-in roles
(targets, null, chance, sink found from column totals); tables and statistics are not in it, since they
do not grow with the prompt. Processor time is the steadier figure on a shared machine; the smallest of
the repeats counts.
"""

import argparse
import resource
import time

import torch

from interp.attention import implementation
from interp.forward import capture, last_logits
from interp.model import load_model
from interp.prompts import repeated_random_prompts
from interp.roles import ROLES, find_roles
from interp.scores import BatchScorer


def clocked(run) -> tuple[float, float]:
    """(wall, processor) seconds of one call."""
    wall, processor = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096, 8192])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = load_model(options.model)
    roles = find_roles([*ROLES, "sink_first_k"])
    print(f"{model.name}: {model.n_layers} × {model.n_heads} heads, {len(roles)} roles")
    print("tokens  plain wall/cpu s  scored wall/cpu s  ratio wall  ratio cpu  peak GB")
    for n in options.tokens:
        batch = repeated_random_prompts(model, n_prompts=1, periods=[n // 2], bos="off")

        def plain() -> None:
            with implementation(model.hf_model, "sdpa"):
                last_logits(model, batch)

        def scored() -> None:
            scorer = BatchScorer(batch, roles, seed=0)
            capture(model, batch, lambda layer, pattern, z: scorer.look(layer, pattern))

        if n == options.tokens[0]:
            plain(), scored()
        times = [(clocked(plain), clocked(scored)) for _ in range(options.repeats)]
        (plain_wall, plain_cpu), (wall, cpu) = (
            [min(time[side][clock] for time in times) for clock in (0, 1)] for side in (0, 1)
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(
            f"{n:6d}  {plain_wall:8.2f} {plain_cpu:7.2f}  {wall:9.2f} {cpu:7.2f}"
            f"  {wall / plain_wall:10.3f} {cpu / plain_cpu:10.3f}  {peak:7.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
