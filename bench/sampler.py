"""Sampling a batch of the task: the vectorised sampler against a per-token loop.

The loop draws every token with `rng.choice`, in the plainest way the task's definition allows. It is timed on a few
sequences and scaled to the batch, since its cost is the same for each; both sides use one core and the same task.

The sampler is timed twice. In a fresh process the C library gives the memory of each batch back to the system, and the
next batch pays for it in page faults (about 1,500 a batch). Once a process has freed a larger array the library keeps
the memory: the second row brings that about on purpose, as a model of a process that trains, where 51 faults a batch
were counted after one step at the paper's scale. The first row is the one to quote for a sampler on its own.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np

from induction_memory import BigramTask, sample
from induction_memory.task import step_rng

BATCH = 512
LOOP_SEQUENCES = 8


def sample_by_token(task: BigramTask, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """One sequence of T + 1 tokens with the occurrence counts of its first T, a token at a time."""
    n = task.vocab_size
    if task.fixed_triggers is None:
        triggers = rng.choice(n, size=task.k, replace=False, p=task.trigger_probabilities)
    else:
        triggers = task.fixed_triggers
    output = {int(q): int(rng.choice(n, p=task.output_probabilities[q])) for q in triggers}
    tokens, counts, seen = [int(rng.choice(n, p=task.unigram))], [], dict.fromkeys(output, 0)
    for _ in range(task.length):
        current = tokens[-1]
        if current in output:
            seen[current] += 1
            counts.append(seen[current])
            tokens.append(output[current])
        else:
            counts.append(0)
            tokens.append(int(rng.choice(n, p=task.bigram[current])))
    return tokens, counts


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """Median time of `work` over `repeats` calls after one that is not counted."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def rows(repeats: int = 5) -> list[dict]:
    """The benchmark table's rows on sampling."""
    task, rng = BigramTask(k=5, length=256), step_rng(0, 0)
    loop = median_seconds(lambda: [sample_by_token(task, rng) for _ in range(LOOP_SEQUENCES)], repeats)
    baseline = loop * BATCH / LOOP_SEQUENCES
    fresh = median_seconds(lambda: sample(task, BATCH, rng), 10 * repeats)
    np.empty(2**24 - 4096, dtype=np.uint8)  # made and freed at once
    trained = median_seconds(lambda: sample(task, BATCH, rng), 10 * repeats)
    size = f"sampling {BATCH} x {task.length + 1} tokens, K = {task.k} (loop: {LOOP_SEQUENCES} sequences, scaled)"
    return [
        {
            "work": f"{size}, {where}",
            "baseline_seconds": baseline,
            "seconds": seconds,
            "ratio": baseline / seconds,
            "at_least": 100,
            "aim": 300,
        }
        for where, seconds in (("fresh process", fresh), ("process that has freed 16 MB", trained))
    ]
