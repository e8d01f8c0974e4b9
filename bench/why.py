"""Why: one prediction taken apart against one forward with its cache, and all in-context positions of 64 sequences."""

from functools import partial

import induction_memory as im
from bench.sampler import median_seconds
from induction_memory.probes.activations import Activations
from induction_memory.probes.why import explain
from induction_memory.source.sources import select


def rows(repeats: int = 5) -> list[dict]:
    """The rows of the benchmark table on explanations."""
    result = []
    for name in ("random-triggers", "four-heads"):
        run = im.load(name)
        batch = run.task.sample(64, im.task.step_rng(0, 0))
        chosen, names = select(run, batch=batch[:1]), run.task.labels()[0]
        model, position = run.model(step=-1), int(batch.group()[0].nonzero()[-1]) + 1
        words = [names[token] for token in batch.tokens[0].tolist()], names
        forward = median_seconds(partial(model.run_with_cache, batch.tokens[:1]), repeats)
        one = median_seconds(lambda: explain(Activations(chosen.at()), words, position=position), repeats)  # noqa: B023
        work = f"why: one prediction of {name} (one forward with cache beside it)"
        result.append({"work": work, "baseline_seconds": forward, "seconds": one})
        every = median_seconds(partial(im.probes.reasons, run, batch, step="last"), min(repeats, 3))
        count = int(batch.group().sum())
        aim = "2 s" if name == "random-triggers" else ""
        work = f"why: all {count} in-context positions of 64 sequences of {name}"
        result.append({"work": work, "seconds": every, "aim": aim})
    return result
