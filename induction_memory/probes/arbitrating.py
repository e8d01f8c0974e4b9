"""Arbitration: does a model follow its context or its global bigrams where they differ (Sections 3 and 4.2)?

The paper says that the model uses the retrieved token when the global bigrams find it unlikely, and prefers the global
bigrams when the retrieved token is among their top predictions. Three questions, each split by the rank of a token in
pi_b( . | z_t), where 0 is the likeliest:

    in-context accuracy    at second and later occurrences of a trigger: share of argmax q = o, by the rank of the
                           output o
    copying                at tokens that are not triggers and have had only one successor so far: share of
                           argmax q = that successor, by its rank. The context cannot tell them from triggers
    copying, ambiguous     at tokens that have had different successors, so they cannot be triggers: share of
                           argmax q = the last successor, by its rank

Both sources predict a retrieved token of rank 0, so rows of rank 0 do not tell them apart. `by_bigrams` is the share of
hits of a model that always predicts the likeliest global bigram.

Standard errors are over sequences (`task/batch.ratio`), since positions of one sequence are not independent.
"""

from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.probes.prediction import VISIBLE, visible_kind
from induction_memory.source.measuring import over_steps
from induction_memory.source.sources import At, Sequences, select
from induction_memory.task.batch import Batch, ratio
from induction_memory.task.protocol import offered
from induction_memory.terminal import Progress
from induction_memory.trajectory.search import Steps

AT_TRIGGERS = ("in-context accuracy", "second occurrence", "later occurrences")
QUESTIONS = (*AT_TRIGGERS, "copying", "copying, ambiguous")
RANKS = {"0": (0, 0), "1 to 2": (1, 2), "3 or more": (3, None), "0 to 2": (0, 2)}
"""Ranges of ranks, with the last rank included. The last range is the top three, the union of the first two."""
SEQUENCES = 128
COLUMNS = ["step", "question", "rank", "value", "value_se", "positions", "by_bigrams"]


def arbitration(
    source: Any,
    *,
    step: "Steps" = None,
    batch: "Sequences" = None,
    task: Any = None,
    sequences: int = SEQUENCES,
    progress: "Progress" = None,
) -> pd.DataFrame:
    """How often a model follows its context, at the last step or at others, by the rank of the retrieved token in pi_b.

    One row per step, question and range of ranks: value, its standard error, the number of positions, and `by_bigrams`,
    the value for the likeliest global bigram. A range without positions has value nan.

    >>> import induction_memory as im
    >>> found = im.probes.arbitration("induction-small", sequences=4)
    >>> found["question"].unique().tolist()
    ['in-context accuracy', 'second occurrence', 'later occurrences', 'copying', 'copying, ambiguous']
    """
    chosen = select(source, step=step, batch=batch, task=task, sequences=sequences, progress=progress)
    bigram, drawn = torch.tensor(_bigram_table(chosen.require_task())), chosen.batch
    asked = {name: retrieved(drawn, name) for name in QUESTIONS}
    ranks = {name: rank(bigram, drawn.tokens, tokens) for name, (tokens, _) in asked.items()}
    likeliest = bigram.argmax(-1)[drawn.tokens]

    def measure(at: At) -> dict[str, pd.DataFrame]:
        rows = []
        predicted = torch.cat([_likeliest(at.runner, part) for part in drawn.tokens.split(16)])
        for name, (tokens, where) in asked.items():
            for label, (low, high) in RANKS.items():
                here = where & (ranks[name] >= low)
                here = here if high is None else here & (ranks[name] <= high)
                value, error = share(predicted == tokens, here)
                by_bigrams, _ = share(likeliest == tokens, here)
                rows.append((at.step, name, label, value, error, int(here.sum()), by_bigrams))
        return {"table": pd.DataFrame(rows, columns=COLUMNS)}

    return over_steps(chosen, measure, settings={"arbitration": drawn})["table"]


def retrieved(batch: Batch, question: str) -> tuple[Int[Tensor, "batch pos"], Bool[Tensor, "batch pos"]]:
    """The token that an induction head retrieves at each position, and the positions that the question is about."""
    if question in AT_TRIGGERS:
        require(not batch.soft, "batch", "hard targets", "soft ones")
        second = (batch.tokens[:, :, None] == batch.tokens[:, None, :]).tril(-1).sum(-1) == 1
        some = {
            "in-context accuracy": torch.ones_like(second),
            "second occurrence": second,
            "later occurrences": ~second,
        }
        return batch.targets, batch.group("in_context") & some[question]
    kind = VISIBLE.index("one_successor" if question == "copying" else "many_successors")
    return last_successor(batch.tokens), (visible_kind(batch.tokens) == kind) & batch.group("global")


def last_successor(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """The token after the last earlier occurrence of each token; 0 if there is none."""
    n = tokens.shape[1]
    earlier = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)
    last = torch.where(earlier, torch.arange(n), -1).amax(-1)
    followed = tokens.gather(1, (last + 1).clamp(max=n - 1))
    return torch.where(last >= 0, followed, 0)


def rank(
    bigram: Float[Tensor, "vocab vocab"], given: Int[Tensor, "batch pos"], tokens: Int[Tensor, "batch pos"]
) -> Int[Tensor, "batch pos"]:
    """The rank of `tokens` after the token `given`: how many tokens are likelier by the global bigrams."""
    rows = bigram[given]
    return (rows > rows.gather(-1, tokens.unsqueeze(-1))).sum(-1)


def share(hits: Bool[Tensor, "batch pos"], where: Bool[Tensor, "batch pos"]) -> tuple[float, float]:
    """The share of hits among the positions, and its standard error over sequences; nan without positions."""
    mean, error = ratio((hits & where).sum(-1).double(), where.sum(-1).double())
    return mean.item(), error.item()


def _bigram_table(task: Any) -> np.ndarray:
    table = offered(task, "bigram")
    require(table is not None, "task", "a task with a table of global bigrams, as `bigrams` has", type(task).__name__)
    return np.asarray(table)


def _likeliest(runner: Any, tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """The model's prediction; -1, which is never right, where a logit is nan."""
    logits = runner.record(tokens).logits
    return torch.where(logits.isnan().any(-1), -1, logits.argmax(-1))
