"""The associations of a memory: how strongly each is stored, and its birth step.

The score matrix of a memory holds all v_j^T W u_i (Appendix E, figure of the weights as memories). The birth step is
the first step from which an association stays recalled (`first_lasting`). Birth step and final margin (score of the
target minus the best rival's) are correlated with the token's frequency, or with the position, by Spearman's rank
correlation. An association that was never born ranks last.
"""

from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor

from induction_memory.errors import require, require_known
from induction_memory.memory.association import Association
from induction_memory.memory.recall import first_lasting, hits, margin, target_scores
from induction_memory.model.associations import token_names
from induction_memory.probes.tables import chunk_of
from induction_memory.source.sources import Selection, Stack, select
from induction_memory.task.protocol import Task, offered
from induction_memory.trajectory.search import Steps


def score_matrix(
    source: Any, memory: str, *, step: "Steps" = None, head: str | None = None, task: Task | None = None
) -> pd.DataFrame:
    """All scores v_j^T W u_i of a memory, by default at the last step: one row per input i, one column per output j.

    So `scores.loc[a, b]` is the score of the pair that surgery calls `a->b`. The inputs of W_K1 and W_K2 are the keys,
    the outputs the queries. Labels are tokens, or positions counted from 1. `head` is as in the tables: `L1H2`, or
    `L1H1>L2H2` for a pair; a model with one head per layer needs none.

    >>> scores = score_matrix("induction-small", "W_O2", step=600)
    >>> bool(scores.loc["a", "a"] > scores.loc["a", "b"])
    True
    """
    a = _single(select(source, step=step, task=task).only.stack, memory)
    if head is None and len(a.heads) == 1:
        head = a.heads[0]
    require_known(head, a.heads, "head")
    given, candidates = _labels(a)
    chosen = a.table.flatten(0, -3)[a.heads.index(str(head))].double().cpu().numpy()
    sides = ("output", "input") if a.given == "output" else ("input", "output")
    table = pd.DataFrame(chosen, pd.Index(given, name=sides[0]), pd.Index(candidates, name=sides[1]))
    return table.T if a.given == "output" else table


def recalled(source: Selection, memory: str) -> Bool[Tensor, "step head item"]:
    """Whether each association is recalled at each step."""
    require(isinstance(memory, str), "memory", "the name of a memory", repr(memory))
    parts = []
    for at in source.in_turn(size=chunk_of(source)):
        found = hits(_single(at.stack, memory))
        parts.append(found.expand(len(at.steps), *found.shape[1:]))
    return torch.cat(parts).reshape(len(source.steps), -1, parts[0].shape[-1])


def births(source: Any, memory: str, *, step: "Steps" = "all", task: Task | None = None) -> pd.DataFrame:
    """One row per association: its birth step, its final margin, its token's frequency or its position.

    Columns: memory, head, association (token or query position), birth (nan: not recalled at the end), margin, score,
    and `frequency` (pi_u of the token; nan without a task) or `position`.

    >>> births("induction-small", "W_K2").set_index("association")["birth"].loc[["e", "t"]].to_dict()
    {'e': 100.0, 't': 100.0}
    """
    chosen = select(source, step=step, task=task)
    born = first_lasting(recalled(chosen, memory), chosen.steps)
    last = chosen.at().stack
    a = _single(last, memory)
    labels, _ = _labels(a)
    if memory.startswith("W_K1"):
        against = {"position": labels}
    else:
        often = None if last.task is None else offered(last.task, "unigram")
        frequency = {} if often is None else dict(zip(token_names(last.require_task())[0], often, strict=True))
        against = {"frequency": [frequency.get(token, np.nan) for token in labels]}
    parts = []
    for h, name in enumerate(a.heads):
        numbers = {"birth": born[h]}
        for column, found in (("margin", margin(a)), ("score", target_scores(a))):
            numbers[column] = found[0].reshape(len(a.heads), -1)[h].double().cpu().numpy()
        parts.append(pd.DataFrame({"memory": memory, "head": name, "association": labels} | numbers | against))
    return pd.concat(parts, ignore_index=True)


def trends(table: pd.DataFrame) -> pd.DataFrame:
    """Rank correlation of birth and margin with frequency or position, per head, from a table of births.

    Columns: memory, head, of, against, rho, p_value, n, born. rho is nan where one side does not vary.

    >>> import induction_memory as im
    >>> births = im.probes.births("induction-small", "W_K2")
    >>> im.probes.trends(births)[["of", "against", "rho", "n"]].round(2)
           of    against   rho   n
    0   birth  frequency -0.72  65
    1  margin  frequency  0.90  65
    """
    from scipy.stats import spearmanr

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


def _single(stack: Stack, memory: str) -> Association:
    """The memory of this name, without a suffix such as `_margin`; each of its items has one target."""
    require(memory != "W_F", "memory", "W_K1, W_K2 or W_O2 with its variants", repr(memory))
    return stack.association(memory)


def _labels(a: Association) -> tuple[list[Any], list[Any]]:
    """The names of the items and of the candidates: tokens, or positions counted from 1."""
    inputs = list(a.input_names) or list(range(a.inputs.shape[-2]))
    outputs = list(a.output_names) or list(range(a.outputs.shape[-2]))
    given, candidates = (outputs, inputs) if a.given == "output" else (inputs, outputs)
    return [given[item] for item in a.items.tolist()], candidates
