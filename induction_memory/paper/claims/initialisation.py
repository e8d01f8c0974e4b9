"""Section 4.1: what holds before any training. It takes no run."""

from collections.abc import Iterator

import pandas as pd

from induction_memory.paper.claims.claim import claim, later, ours
from induction_memory.paper.claims.estimate import over_draws
from induction_memory.paper.records import Records
from induction_memory.paper.theory.initial_attention import PRESETS, measured
from induction_memory.paper.verdicts import Measurement, at_least, at_most

MODELS = {"text": "the text's parametrisation", "code": "the parametrisation of the authors' code"}


def _norms(records: Records) -> str:
    del records  # no run is needed
    means, parts = {column: _by(column, "layer", "mean") for column in ("share", "largest")}, []
    for name in PRESETS:
        share, largest = (" and ".join(f"{x:.2g}" for x in table[name].to_numpy()) for table in means.values())
        parts.append(
            f"With {MODELS[name]}, layers 1 and 2 have {share} of t effective tokens, and the largest weights are "
            f"{largest} times the uniform one."
        )
    return f"{' '.join(parts)} The text has embeddings and maps of unit norm, the code embeddings of variance 1."


@claim(
    3,
    "attention over t keys has 1 / sum a^2 effective tokens; 'near-uniform' is read as nine tenths of t, and as a "
    "largest weight of at most twice the uniform one; mean over the queries of Figure 3's task, in the layer that is "
    "further from uniform",
    _norms,
)
def starts_uniform(records: Records) -> Iterator[Measurement]:
    """attention scores at initialization are near-uniform"""
    del records
    share, largest = _by("share", "seed", "min"), _by("largest", "seed", "max")
    for name in PRESETS:
        yield later(at_least(f"effective tokens over t, {MODELS[name]}", 0.9, over_draws(share[name].to_numpy())))
    for name in PRESETS:
        measure = f"largest weight of the last query over 1/T, {MODELS[name]}"
        yield ours(later(at_most(measure, 2.0, over_draws(largest[name].to_numpy()))))


def _by(column: str, rows: str, how: str) -> pd.DataFrame:
    """One measure of the attention before training: a row per layer or seed, a column per parametrisation."""
    return measured().pivot_table(index=rows, columns="model", values=column, aggfunc=how)
