"""docs/heads.md: the study of heads across seeds, beside the paper's sentence.

Every number on the page, also in the sentences that read the tables out, comes from the tables.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from induction_memory.experiment.run_config import RunConfig
from induction_memory.heads.across_runs import DECIDES, SAME_DATA, SAME_INITIALISATION, answer
from induction_memory.heads.identification import Identification
from induction_memory.heads.roles import ROLES, VOTES
from induction_memory.terminal import markdown

MOSTLY_ONE, DISTRIBUTED = 1.5, 2.0
"""Up to the first effective number a mechanism is mostly one head's, from the second on it is distributed."""


def verdict(role: str, effective: Mapping[str, Any]) -> str:
    """Whether the effective number of heads agrees with the paper: its whole interval, only its mean, or neither."""
    mean, low, high = effective["value"], effective["value_low"], effective["value_high"]
    if np.isnan(mean):
        return "unknown: no effect"
    if role == "previous-token":
        fits, surely = mean <= MOSTLY_ONE, high <= MOSTLY_ONE
    else:
        fits, surely = mean >= DISTRIBUTED, low >= DISTRIBUTED
    return "agrees" if surely else "agrees on average" if fits else "does not agree"


def which_head(row: Mapping[str, Any]) -> str:
    """Whether the initial weights decide which head has a role."""
    sure = "an influence of the initial weights is seen" if row["p"] < 0.05 else "no influence of the weights is seen"
    return (
        f"Which head has the role {row['role']}: {answer(row)} (score {interval(row)} in {row['pairs']} pairs with "
        f"the same initial weights; {sure}, p = {row['p']:.3f}). The initial weights account for "
        f"{_percent(row['value'])} of the choice between heads in these runs."
    )


def control(row: Mapping[str, Any]) -> str:
    """Whether runs that share only their data agree no better than by chance."""
    inside = (
        "contains 0, as it should"
        if row["value_low"] <= 0 <= row["value_high"]
        else "does not contain 0, which is chance"
    )
    return f"Control for {row['role']}: the interval of runs with the same data {inside} ({interval(row)})."


def _percent(score: float) -> str:
    return f"{100 * min(max(score, 0.0), 1.0):.0f} %"


def agreement(stability: pd.DataFrame, n_heads: int) -> str:
    """What the table of stability says about independent runs."""
    rows = stability.loc[(stability["relation"] == "independent").to_numpy()].to_dict("records")
    value = {(row["role"], row["measure"]): row["value"] for row in rows}
    keys = (("previous-token", "heads"), ("induction", "heads"), ("previous-token", "same head"))
    looks, shares, same = (value.get(key, np.nan) for key in keys)
    if np.isnan([looks, shares, same]).any():
        return "There are too few independent runs to compare."
    return (
        f"In independent runs {looks:.1f} heads have the previous-token role and {shares:.1f} "
        f"share the induction, on average. The "
        f"leading previous-token heads of two runs have the same name in {100 * same:.0f} % of the pairs, where "
        f"chance gives {100 / n_heads:.0f} %."
    )


def largest_paths(mediation: pd.DataFrame) -> str:
    """Which paths the strongest head of the first run takes, among those that have later heads to go through."""
    first = mediation.loc[(mediation["run"] == mediation["run"].iloc[0]).to_numpy()]
    early = set(first.loc[(first["path"] == "indirect").to_numpy(), "source"])
    rows = [row for row in first.to_dict("records") if row["source"] in early]
    total = max((row for row in rows if row["path"] == "total"), key=lambda row: row["effect"], default=None)
    if total is None:
        return ""
    own = [row for row in rows if row["source"] == total["source"]]
    direct = sum(row["effect"] for row in own if row["path"] == "direct")
    through = {name: sum(row["effect"] for row in own if row["input"] == name) for name in "qkv"}
    return (
        f"Of the heads that later heads read, {total['source']} has the largest effect, "
        f"{total['effect']:.1f} logits. If it is ablated at one input of one later head at a time, the "
        "effects add up to "
        f"{through['k']:.1f} through keys, {through['q']:.1f} through queries and {through['v']:.1f} through values. "
        f"The direct effect is {direct:.1f}."
    ).replace("-0.0", "0.0")


def born(stability: pd.DataFrame) -> str:
    """When the leading heads of independent runs get their roles."""
    rows = stability.loc[(stability["relation"] == "independent").to_numpy()].to_dict("records")
    steps = {row["role"]: row["value"] for row in rows if row["measure"] == "born" and not np.isnan(row["value"])}
    told = " and ".join(f"the leading {role} head has its role from step {step:.0f} on" for role, step in steps.items())
    return f"On average over independent runs, {told}." if told else ""


def best_predictor(table: pd.DataFrame) -> str:
    """What the table of identifiability says about independent runs."""
    rows = table.loc[(table["relation"] == "independent").to_numpy()].to_dict("records")
    score = {row["predictor"]: row["score"] for row in rows}
    told = ", ".join(f"{score[name]:.2f} by its {name}" for name in ("index", "layer", "appearance") if name in score)
    return f"Between independent runs, the role of a head is predicted with a score of {told}." if told else ""


def interval(row: Mapping[str, Any]) -> str:
    """A value with its interval."""
    return f"{row['value']:.2f} ({row['value_low']:.2f} to {row['value_high']:.2f})"


def between_roles(changes: pd.DataFrame) -> int:
    """How many changes lead from one named role to another."""
    both = zip(changes["before"], changes["after"], strict=True)
    return sum({before, after} <= set(ROLES) for before, after in both)


PAPER = (
    "In the first layer (top), the previous token mechanism is mostly achieved by one of the four heads, while the "
    "induction behavior at the second layer (bottom) is distributed across the different heads."
)
COLOURS = """
Each cell is one head. Its colour is the role that the three votes (weights, attention, causes) agree on. A darker
colour is a surer verdict. The number is the head's share of its layer's effect on the logit of the right output.
"""
WRITTEN_BEFORE = f"""
How much of a head's role is decided by the initial weights, and how much by the data? Some runs share their initial
weights and differ in their data. Others share their data and differ in their initial weights. The rules below were
written before the heads of these siblings were examined.

**Which head has the role?** The score compares the shares of heads with the same index in two runs. It is 0 at chance,
and 1 if the shares agree as well as in the best order of the heads (formulas in
`induction_memory/heads/across_runs.py`). The initial weights decide if the whole 95 % interval of runs with the same
initial weights is above {DECIDES:g}. The data decide if it is below. Otherwise the question is undecided. `p` is the
share of orders of the heads that agree at least as well. If it is below 0.05, the initial weights have some influence.
Runs that share only their data are a control: the order of the heads means nothing before training, so the data alone
cannot choose an index, and their interval should contain 0.

**How unequally do heads share the work?** The initial weights and the data may both decide this. For the effective
number of heads and for the largest share, `value` is the part of the variance between independent runs that disappears
when the initial weights, or the data, are the same. It is negative if the variance does not become smaller. With three
runs in each family, only large effects can be seen.
"""
LIMITS = """
What this does not show: all runs with the same initial weights start from the weights of seed 0, so the interval covers
other data but no other initial weights. How unequally the work is shared stays undecided: the parts of the variance
have intervals from below zero to nearly one, or depend on this one family. A lower limit far below zero means that some
draws of independent runs hardly differ.
"""
PREDICTORS = """
How well does one run predict the roles of another? A score of 0 is chance, 1 is certainty. The predictor `index` takes
the role of the head with the same name, and `layer` the role of any head of the same layer. The predictor `appearance`
takes the head that is most similar in weights and attention, and predicts its causal vote. The predictor `match` takes
the head that is most similar in all three votes.
"""
STEPS = """
The figure shows the Shapley values of the heads in the first run. The table has one row per head with a role. `born` is
the step from which the head keeps its role. `emerged` is the step from which the route of the role has half of its
final effect. `decided` is the step from which the shares stay close to their final values.
"""


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
        _introduction(found, config),
        _paper(found, pictures, figure_11),
        _origins(found, pictures),
        _roles(found, pictures),
        _stability(found, pictures, config.model.n_heads),
        _prediction(found, pictures),
        _mediation(found, pictures),
        _history(found, pictures),
        _provenance(config, accuracies, command),
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(found: Identification, config: RunConfig) -> str:
    model = config.model
    return "# Heads of several seeds\n\n" + _wrapped(
        f"""**Is there one previous-token head, do several heads share the induction, as the paper says, and would other
        seeds agree?** This page compares {len(found.runs)} runs of the model with {model.n_heads} heads in
        each of {model.n_layers} layers. [Which head does what](guides/heads.md) explains roles, votes and
        shares on one run."""
    )


def _provenance(config: RunConfig, accuracies: Sequence[float], command: str) -> str:
    model, task, train = config.model, config.task, config.train
    return "## How it was made\n\n" + _wrapped(
        f"""The runs have d = {model.d_model}, T = {task.length}, K = {task.k} {task.triggers} triggers, and
        {train.steps} steps in batches of {train.batch_size} with step size {train.learning_rate:g} after a warm-up of
        {train.warmup}. The paper's batches have 512 sequences. In-context accuracy ends at {min(accuracies):.2f} to
        {max(accuracies):.2f}. Two rules of naming roles (only the first 64 positions count, and votes below
        their thresholds count too) were chosen after a first look at these runs, in which position heads came out as
        "other". Effects and shares do not depend on them. Names, formulas and thresholds are in the docstrings of
        `induction_memory/heads/`. This page is written by `{command}`."""
    )


def _paper(found: Identification, pictures: str, figure_11: Mapping[str, float]) -> str:
    independent = found.stability.loc[(found.stability["relation"] == "independent").to_numpy()]
    value = {(row["role"], row["measure"]): row for row in independent.to_dict("records")}
    rows = []
    for name, role in (("previous token, through keys", "previous-token"), ("induction, on the output", "induction")):
        effective = value[role, "effective"]
        rows.append((name, interval(effective), interval(value[role, "leader"]), verdict(role, effective)))
    columns = ["", "effective number of heads", "largest share of one head", "with the paper"]
    runs = value["previous-token", "effective"]["runs"]
    return (
        f"""The paper (Figure 11) says of one such run:

> {PAPER}

{markdown(pd.DataFrame(rows, columns=columns))}

"""
        + _wrapped(
            f"""The numbers are means over {runs} independent runs, with 95 % bootstrap intervals over runs. The
        effective number is the participation ratio of exact Shapley values. A mechanism counts as mostly in one head up
        to {MOSTLY_ONE}, as distributed from {DISTRIBUTED} on. It agrees with the paper *on average* if the mean
        is on the paper's side and the interval is not. The run of Figure 11 itself (`four-heads`, batches of
        512) has {figure_11["previous-token"]:.2f} and {figure_11["induction"]:.2f}."""
        )
        + f"""

![shares]({pictures}/shares.png)

How many heads per run does each vote assign to a role, and how many have it by the verdict? The table has means over
all runs:

{markdown(_by_vote(found.last("roles")))}"""
    )


def _origins(found: Identification, pictures: str) -> str:
    table = found.origins
    which = table.loc[(table["measure"] == "which head").to_numpy()]
    verdicts = [which_head(row) for row in which.to_dict("records") if row["relation"] == SAME_INITIALISATION]
    controls = [control(row) for row in which.to_dict("records") if row["relation"] == SAME_DATA]
    none = ["No two runs share their initial weights, so that the question is open."]
    return f"""## Weights or data

{_wrapped(WRITTEN_BEFORE)}

![weights or data]({pictures}/origins.png)

{markdown(table)}

{_wrapped(" ".join((verdicts or none) + controls))}

{_wrapped(LIMITS)}"""


def _roles(found: Identification, pictures: str) -> str:
    roles = found.last("roles")
    unusual = roles.loc[((roles["disagreement"] != "") | (roles["redundant_with"] != "")).to_numpy()]
    return f"""## Roles

{_wrapped(COLOURS)}

![roles]({pictures}/roles.png)

The three votes do not always name the same role. The table lists the heads on which they disagree, and heads that are
redundant with another:

{_folded(unusual[["run", "head", "role", "agreement", "disagreement", "redundant_with"]])}"""


def _stability(found: Identification, pictures: str, n_heads: int) -> str:
    return f"""## Stability

How much do the runs agree with each other? The table has means with 95 % bootstrap intervals over runs. The figure
shows the independent runs:

![stability]({pictures}/stability.png)

{_wrapped(agreement(found.stability, n_heads))}

{_folded(found.stability.dropna(subset="value"))}

""" + _wrapped(
        f"""`heads` is the number of heads with the role, and `present` is 1 if there is any. `effective` and `leader`
        are the effective number of heads on the role's route and the largest share of one head. `born` is the step from
        which the leading head keeps the role. `agreement` compares the matched heads of two runs. `same layer` and
        `same head` are 1 if the leading heads of two runs are in the same layer, or have the same name. By chance,
        `same head` is {1 / n_heads:.2f}."""
    )


def _prediction(found: Identification, pictures: str) -> str:
    return f"""## Identifiability

{_wrapped(PREDICTORS)}

![identifiability]({pictures}/identifiability.png)

{_wrapped(best_predictor(found.identifiability))}

{markdown(found.identifiability)}"""


def _mediation(found: Identification, pictures: str) -> str:
    return f"""## Mediation

Which path does a head's effect take? The figure shows the first run. Each row is an ablated head. The columns are the
direct effect on the output and the effects through the queries, keys and values of each later head.

![mediation]({pictures}/mediation.png)

{_wrapped(largest_paths(found.mediation))}"""


def _history(found: Identification, pictures: str) -> str:
    births = found.births.merge(found.decisions, on=["run", "role"])
    return f"""## Over training

{_wrapped(STEPS)}

![training]({pictures}/training.png)

{_wrapped(born(found.stability))}

{_folded(births.loc[:, ["run", "head", "role", "born", "emerged", "decided"]])}

Changes of role in all runs: {len(found.changes)}, of which {
        between_roles(found.changes)
    } from one named role to another."""


def _folded(table: pd.DataFrame) -> str:
    """A long table, opened with a click."""
    return f"<details><summary>Table ({len(table)} rows)</summary>\n\n{markdown(table)}\n\n</details>"


def _by_vote(roles: pd.DataFrame) -> pd.DataFrame:
    runs = len(set(roles["run"]))
    columns = {vote: vote for vote in VOTES} | {"verdict": "role"}
    rows = [(role, *(roles[column].tolist().count(role) / runs for column in columns.values())) for role in ROLES]
    return pd.DataFrame(rows, columns=["role", *columns])


def _wrapped(text: str) -> str:
    paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
    return "\n\n".join(textwrap.fill(part, 120, break_on_hyphens=False) for part in paragraphs)
