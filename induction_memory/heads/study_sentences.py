"""Sentences of docs/heads.md that read its tables out. Every number in them comes from the tables."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from induction_memory.heads.origins import answer
from induction_memory.heads.roles import ROLES

MOSTLY_ONE, DISTRIBUTED = 1.5, 2.0
"""Up to the first effective number a mechanism is mostly one head's, from the second on it is distributed."""


def verdict(role: str, effective: Mapping[str, Any]) -> str:
    """Whether the effective number of heads agrees with the paper: its whole interval, only its mean, or neither."""
    mean, low, high = effective["value"], effective["low"], effective["high"]
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
    inside = "contains 0, as it should" if row["low"] <= 0 <= row["high"] else "does not contain 0, which is chance"
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
        f"In independent runs {looks:.1f} heads look back and {shares:.1f} share the induction, on average. The "
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
        f"{total['effect']:.1f} logits. If it is cut at one input of one later head at a time, the losses add up to "
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
    return f"{row['value']:.2f} ({row['low']:.2f} to {row['high']:.2f})"


def between_roles(changes: pd.DataFrame) -> int:
    """How many changes lead from one named role to another."""
    both = zip(changes["before"], changes["after"], strict=True)
    return sum({before, after} <= set(ROLES) for before, after in both)
