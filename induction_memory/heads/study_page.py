"""docs/heads.md: the study of heads across seeds, beside the paper's sentence. No number is typed by hand."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from induction_memory.experiment.run_config import RunConfig
from induction_memory.heads.examination import Identification
from induction_memory.heads.roles import ROLES, VOTES
from induction_memory.tables import markdown

PAPER = (
    "In the first layer (top), the previous token mechanism is mostly achieved by one of the four heads, while the "
    "induction behavior at the second layer (bottom) is distributed across the different heads."
)
COLOURS = """
The colour is the verdict of three votes (weights, attention, causes), its depth is the confidence, the number is the
share of the layer's effect on the right output's logit.
"""
PREDICTORS = """
How well does one run predict the roles of another? A score of 0 is chance, 1 is certainty. The predictor is, by
`index`, the head of the same name; by `layer`, any head of its layer; by `appearance`, the head most similar in weights
and attention (its causal vote is predicted); by `match`, the head most similar in all three votes.
"""
STEPS = """
The figure shows the first run. The table has, for every run, the step from which a head keeps its role (born), from
which its route has half of its final effect (emerged), and from which the shares stay near the final ones (decided).
"""
MOSTLY_ONE, DISTRIBUTED = 1.5, 2.0
"""Up to the first effective number a mechanism is mostly one head's, from the second on it is distributed."""


def page(
    found: Identification,
    config: RunConfig,
    accuracies: Sequence[float],
    command: str,
    pictures: str,
    figure_11: Mapping[str, float],
) -> str:
    """The page. `figure_11` has the effective number of heads per role in the run of Figure 11 itself."""
    parts = [
        _introduction(found, config, accuracies, command),
        _paper(found, pictures, figure_11),
        _roles(found, pictures),
        _stability(found, pictures, config.model.n_heads),
        _prediction(found, pictures),
        _mediation(pictures),
        _history(found, pictures),
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(found: Identification, config: RunConfig, accuracies: Sequence[float], command: str) -> str:
    model, task, train = config.model, config.task, config.train
    return "# Which head does what\n\n" + _wrapped(
        f"""Written by `{command}` from {len(found.runs)} runs of the model with {model.n_heads} heads in each of
        {model.n_layers} layers (d = {model.d_model}, T = {task.length}, K = {task.k} {task.triggers} triggers,
        {train.steps} steps in batches of {train.batch_size}, step size {train.learning_rate:g} after a warm-up of
        {train.warmup}). In-context accuracy ends at {min(accuracies):.2f} to {max(accuracies):.2f}. Names, formulas and
        thresholds are in the docstrings of `induction_memory/heads/`. The paper's batches have 512 sequences. How a
        role is named (first 64 positions, votes that lean) was decided after a first look at these runs, in which
        position heads came out as "other". Effects and shares do not depend on it."""
    )


def _paper(found: Identification, pictures: str, figure_11: Mapping[str, float]) -> str:
    independent = found.stability.loc[(found.stability["relation"] == "independent").to_numpy()]
    value = {(row["role"], row["measure"]): row for row in independent.to_dict("records")}
    rows = []
    for name, role in (("previous token, through keys", "previous-token"), ("induction, on the output", "induction")):
        effective = value[role, "effective"]
        fits = effective["value"] <= MOSTLY_ONE if role == "previous-token" else effective["value"] >= DISTRIBUTED
        verdict = "unknown: no effect" if np.isnan(effective["value"]) else "agrees" if fits else "does not agree"
        rows.append((name, _interval(effective), _interval(value[role, "leader"]), verdict))
    columns = ["", "effective number of heads", "largest share of one head", "with the paper"]
    runs = value["previous-token", "effective"]["runs"]
    return (
        f"""The paper (Figure 11) says of one such run:

> {PAPER}

{markdown(pd.DataFrame(rows, columns=columns))}

"""
        + _wrapped(
            f"""Means over {runs} independent runs with 95 % bootstrap intervals over runs. The effective number is the
        participation ratio of exact Shapley values. A mechanism counts as mostly one head's up to {MOSTLY_ONE}, as
        distributed from {DISTRIBUTED} on. The run of Figure 11 itself (`four-heads`, batches of 512) has
        {figure_11["previous-token"]:.2f} and {figure_11["induction"]:.2f}."""
        )
        + f"""

![shares]({pictures}/shares.png)

The number of heads per run that each vote names, and the verdict (means over all runs):

{markdown(_by_vote(found.last("roles")))}"""
    )


def _roles(found: Identification, pictures: str) -> str:
    roles = found.last("roles")
    unusual = roles.loc[((roles["disagreement"] != "") | (roles["redundant_with"] != "")).to_numpy()]
    return f"""## Roles

{_wrapped(COLOURS)}

![roles]({pictures}/roles.png)

Heads whose votes disagree, and redundant heads:

{markdown(unusual[["run", "head", "role", "confidence", "disagreement", "redundant_with"]])}"""


def _stability(found: Identification, pictures: str, n_heads: int) -> str:
    return f"""## Stability

How far do the runs agree? With 95 % bootstrap intervals over runs:

![stability]({pictures}/stability.png)

{markdown(found.stability.dropna(subset="value"))}

""" + _wrapped(
        f"""`heads` is the number of heads with the role. `effective` and `leader` are the effective number of heads and
        the largest share on its route. `born` is the step from which the leading head keeps the role. `agreement` is
        that of the matched heads of two runs. `same layer` and `same head` say whether the leading heads of two runs
        are in one layer or have one name, which by chance is {1 / n_heads:.2f}."""
    )


def _prediction(found: Identification, pictures: str) -> str:
    return f"""## Identifiability

{_wrapped(PREDICTORS)}

![identifiability]({pictures}/identifiability.png)

{markdown(found.identifiability)}"""


def _mediation(pictures: str) -> str:
    return f"""## Mediation

The effect of cutting a head in the first run: directly, and through each later head's queries, keys and values.

![mediation]({pictures}/mediation.png)"""


def _history(found: Identification, pictures: str) -> str:
    births = found.births.merge(found.decisions, on=["run", "role"])
    return f"""## Over training

{_wrapped(STEPS)}

![training]({pictures}/training.png)

{markdown(births.loc[:, ["run", "head", "role", "born", "emerged", "decided"]])}

Changes of role in all runs: {len(found.changes)}, of which {
        _between_roles(found.changes)
    } from one named role to another."""


def _interval(row: Mapping[str, Any]) -> str:
    return f"{row['value']:.2f} ({row['low']:.2f} to {row['high']:.2f})"


def _by_vote(roles: pd.DataFrame) -> pd.DataFrame:
    runs = len(set(roles["run"]))
    columns = {vote: vote for vote in VOTES} | {"verdict": "role"}
    rows = [(role, *(roles[column].tolist().count(role) / runs for column in columns.values())) for role in ROLES]
    return pd.DataFrame(rows, columns=["role", *columns])


def _between_roles(changes: pd.DataFrame) -> int:
    both = zip(changes["before"], changes["after"], strict=True)
    return sum({before, after} <= set(ROLES) for before, after in both)


def _wrapped(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 120)
