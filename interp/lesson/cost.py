"""What attention costs: time, memory and arithmetic against the number of tokens n, in four ways.

    eager    scores, mask, softmax, weighted sum in turn, and the n × n weights are given back
    fused    torch's operator, which never writes them
    ours     the same operator with its log-sum-exp, and two questions put to the weights, which are not
             written: the mass of every query on key 0, and on the token before it
    online   :mod:`interp.lesson.online_softmax`, tile by tile in plain torch

    FLOPs = 4·n²·d·H for H heads of width d: two matrix products of 2·n²·d a head; half of that if what the
    causal mask hides is not computed (Dao, 2307.08691, section 4.1). Counted by torch where it sees them.

Each number is measured in a fresh process, since the peak of a process can't be set back: ``memory`` is by
how much the first call raised the peak above that with the inputs in place; ``seconds`` is the median of the
calls after it. One layer, one sequence, float32, random numbers, causal, on the CPU. The mask that ours reads
is shared by the layers of a model: the first call makes it, the timed ones have it.

    exponent b of quantity ∝ n^b: least squares in logarithms, with its standard error over the lengths
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.context import BaseContext

import numpy as np
import pandas as pd
from scipy import stats as scipy_stats

from interp.errors import InterpError
from interp.lesson.attention_ways import WAYS, Measured, count_flops, measure
from interp.lesson.tables import ATTENTION_COST, COST_EXPONENTS
from interp.runs.environment import available_memory


def measure_costs(
    lengths: Sequence[int],
    *,
    n_heads: int = 8,
    d_head: int = 64,
    repeats: int = 3,
    threads: int | None = 1,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """Time, memory, FLOPs and output of each way at each length, as ``tables.ATTENTION_COST`` describes.

    Args:
        threads: of torch in each process; None: as many as it takes by itself.
        progress: called after each process.

    Raises:
        InterpError: a length below 2, or memory that would not suffice for the weights written out.
    """
    if min(lengths, default=0) < 2:
        raise InterpError(f"lengths={list(lengths)}: expected lengths of 2 tokens or more")
    check_memory(max(lengths), n_heads, d_head)
    rows = []
    for n in lengths:
        reference: np.ndarray | None = None
        for way in WAYS:
            found = _in_a_fresh_process(
                partial(measure, way, n, n_heads, d_head, repeats, threads, seed)
            )
            reference = found.output if reference is None else reference
            rows.append(
                {
                    "way": way,
                    "length": n,
                    "seconds": statistics.median(found.seconds),
                    "fastest": min(found.seconds),
                    "slowest": max(found.seconds),
                    "memory": found.memory,
                    "flops": count_flops(way, n, n_heads, d_head),
                    "formula": 4 * n**2 * d_head * n_heads,
                    "difference": float(np.abs(found.output - reference).max()),
                    "n_heads": n_heads,
                    "d_head": d_head,
                    "n_repeats": repeats,
                }
            )
            if progress is not None:
                progress(1)
    return ATTENTION_COST.validate(pd.DataFrame(rows))


def check_memory(length: int, n_heads: int, d_head: int) -> None:
    """Refuse what eager attention would not have the memory for.

    Scores, masked scores and weights, (query, key) each; query, key, value and output, (query, d_head) each.
    """
    needed, there = 4 * n_heads * length * (3 * length + 4 * d_head), available_memory()
    if there is not None and needed > there:
        raise InterpError(
            f"length {length}: {n_heads} heads of width {d_head} with their weights written out take about "
            f"{needed / 1e9:.1f} GB, and {there / 1e9:.1f} GB are free; take shorter lengths, fewer or "
            "narrower heads"
        )


def exponents(costs: pd.DataFrame) -> pd.DataFrame:
    """How each quantity grows with n, as ``tables.COST_EXPONENTS`` describes.

    Undefined where fewer than three lengths have a value above 0.
    """
    rows = []
    for way, of_way in costs.groupby("way", sort=False):
        for quantity in ("seconds", "memory", "flops"):
            known = of_way[of_way[quantity] > 0]
            exponent, error = float("nan"), float("nan")
            if len(known) >= 3:
                fit = scipy_stats.linregress(np.log(known.length), np.log(known[quantity]))
                exponent, error = float(fit.slope), float(fit.stderr)
            rows.append(
                {
                    "way": way,
                    "quantity": quantity,
                    "exponent": exponent,
                    "standard_error": error,
                    "n_lengths": len(known),
                }
            )
    return COST_EXPONENTS.validate(pd.DataFrame(rows))


def _processes() -> BaseContext:
    """Each process begins as a copy of one that imported torch and did nothing; Windows imports anew."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([measure.__module__])
    return context


def _in_a_fresh_process(measuring: partial[Measured]) -> Measured:
    with ProcessPoolExecutor(1, _processes()) as pool:
        try:
            return pool.submit(measuring).result()
        except BrokenProcessPool as error:
            way, n = measuring.args[:2]
            raise InterpError(
                f"{way} attention over {n} tokens: its process was killed, as happens when memory runs out; "
                "take shorter lengths or fewer heads"
            ) from error
