"""The memory atlas: every association of a memory, how strongly it is stored and when it was born.

The score matrix of a memory holds all v_j^T W u_i (Appendix E, figure of the weights as memories). An association is
born at the first step from which on it stays recalled: recalled at that step and at every later one that is stored.
The birth and the final strength (margin: score of the target minus the best rival's) are set against the frequency of
the token, or the position, by Spearman's rank correlation; what was never born ranks last.
"""

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from scipy.stats import spearmanr
from torch import Tensor

from induction_memory.errors import require
from induction_memory.probes.memory_recall import PATTERN, association, at_target, hits, margins
from induction_memory.probes.source import Source, Steps, read
from induction_memory.probes.stack import Stack, UnsupportedError, head_labels, over_chunks
from induction_memory.task.bigrams import BigramTask

CHUNK = 32  # steps whose score tables are held at once


def birth_steps(recalled: Bool[Tensor, "step *rest"], steps: Int[np.ndarray, " step"]) -> Float[np.ndarray, "*rest"]:
    """First step from which each association stays recalled; nan for one that is not recalled at the end."""
    stays = recalled.flip(0).cummin(0).values.flip(0)
    first = stays.int().argmax(0).numpy()
    return np.where(stays[-1].numpy(), np.asarray(steps, float)[first], np.nan)


def score_matrix(
    source: Any, memory: str, *, step: int | None = None, head: str = "", task: BigramTask | None = None
) -> pd.DataFrame:
    """All scores of a memory at a step (the last when not given): a row an input, a column a candidate output.

    Rows and columns are labelled by tokens or positions. `head` is as in the tables: "1", or "0>1" for a pair.
    """
    opened = read(source, steps="all" if step is None else [step], task=task)
    stack = opened.stack.at(slice(opened.stack.n_steps - 1, opened.stack.n_steps))
    table, _, _ = association(stack, memory)
    heads = head_labels(stack.n_heads, table.dim() - 3)
    chosen = table.flatten(0, -3)[_index(heads, head)]
    rows, columns = _labels(stack, memory, *chosen.shape)
    return pd.DataFrame(
        chosen.double().numpy(), index=pd.Index(rows, name="input"), columns=pd.Index(columns, name="output")
    )


def recalled(source: Source, memory: str) -> Bool[Tensor, "step *head i"]:
    """Which association is recalled at which step."""
    found, skipped = over_chunks(source.stack, [memory], lambda s, n: hits(*association(s, n)), CHUNK)
    for reason in skipped.values():
        raise UnsupportedError(f"{memory}: {reason}")
    return found[memory].bool()


def births(source: Any, memory: str, *, steps: Steps = "all", task: BigramTask | None = None) -> pd.DataFrame:
    """One row an association: its birth step, its strength at the last step, its token's frequency or its position.

    Columns: memory, head, association (token or query position), birth (nan: not recalled at the end), margin, score,
    and `frequency` (pi_u of the token; nan without a task) or `position`.
    """
    opened = read(source, steps=steps, task=task)
    born = birth_steps(recalled(opened, memory), opened.steps)
    last = opened.stack.at(slice(opened.stack.n_steps - 1, opened.stack.n_steps))
    table, targets, allowed = association(last, memory)
    labels, _ = _labels(last, memory, *table.shape[-2:])
    heads = head_labels(last.n_heads, table.dim() - 3)
    margin = margins(table, targets, allowed)[0].reshape(len(heads), -1)
    score = at_target(table, targets)[0].reshape(len(heads), -1)
    property_name, values = _property(last, memory, labels)
    parts = [
        pd.DataFrame(
            {
                "memory": memory,
                "head": name,
                "association": labels,
                "birth": born.reshape(len(heads), -1)[h],
                "margin": margin[h].double().numpy(),
                "score": score[h].double().numpy(),
                property_name: values,
            }
        )
        for h, name in enumerate(heads)
    ]
    return pd.concat(parts, ignore_index=True)


def trends(table: pd.DataFrame) -> pd.DataFrame:
    """Of a table of births: rank correlation of birth and margin with frequency or position, a head each.

    Columns: memory, head, of, against, rho, p_value, n, born. rho is nan where one side does not vary.
    """
    against = "position" if "position" in table else "frequency"
    rows = []
    for _, group in table.groupby(["memory", "head"], sort=False):
        which = {"memory": group["memory"].iloc[0], "head": group["head"].iloc[0]}
        counts = {"n": len(group), "born": int(np.isfinite(group["birth"].to_numpy()).sum())}
        for of in ("birth", "margin"):
            values = group[of].fillna(np.inf) if of == "birth" else group[of]
            varies = np.ptp(values.rank()) > 0 and np.ptp(group[against].rank()) > 0
            rho, p = spearmanr(values.rank(), group[against].rank()) if varies else (np.nan, np.nan)
            rows.append(which | {"of": of, "against": against, "rho": rho, "p_value": p} | counts)
    return pd.DataFrame(rows)


def _labels(stack: Stack, memory: str, n_inputs: int, n_outputs: int) -> tuple[list[Any], list[Any]]:
    """What the rows and columns of a memory's table stand for."""
    match = PATTERN.fullmatch(memory)
    assert match is not None
    if match["memory"] == "W_K1":
        start = int(match["start"] or 0)
        return list(range(start + 1, start + 1 + n_inputs)), list(range(start, start + n_outputs))
    tokens: list[Any] = list(range(stack.vocab_size))
    if stack.task is not None:
        tokens = list(stack.task.vocabulary)
        if match["part"] == "_triggers" and stack.task.fixed_triggers is not None:
            tokens = [tokens[q] for q in stack.task.fixed_triggers]
    return tokens, tokens


def _property(stack: Stack, memory: str, labels: list[Any]) -> tuple[str, Any]:
    if memory.startswith("W_K1"):
        return "position", labels
    if stack.task is None:
        return "frequency", np.nan
    frequency = dict(zip(stack.task.vocabulary, stack.task.unigram, strict=True))
    return "frequency", [frequency[token] for token in labels]


def _index(heads: list[str], head: str) -> int:
    require(head in heads, "head", f"one of {', '.join(map(repr, heads))}", repr(head))
    return heads.index(head)
