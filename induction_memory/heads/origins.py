"""What decides which head gets a role: the initial weights or the data?

Runs that share their initial weights, runs that share their data and independent runs (resampling.py) are compared head
by head. For a role, s_a(h) is head h's share of the role's route in run a (carriers.py). The heads of a layer are
compared by their index:

    A(a, b) = 1 - 1/2 sum_h |s_a(h) - s_b(h)|                 agreement: the overlap of the shares
    C(a, b) = mean of A over all orders of b's heads          agreement by chance
    B(a, b) = max of A over all orders of b's heads           the largest possible one, given the sizes of the shares
    score   = sum over pairs (A - C) / sum over pairs (B - C)

The score is 1 if the same heads have the same shares and 0 if the index of a head says nothing. Its interval is a
bootstrap over runs. `p` is the share of orders of the heads, drawn for every run but the first, with at least the
agreement that was measured (all orders if there are few, `DRAWS` random ones otherwise).

Before training, all heads of a layer have the same distribution, and their order means nothing. So the data alone
cannot choose an index. For runs that share only their data the expected score is 0, as for independent runs, and the
measured score is a control. For runs that share their weights, 1 - score is the part that the data decide.

The data alone may decide how unequal the shares are, regardless of which heads have them. With x the effective number
of heads or the largest share,

    explained = 1 - mean over pairs in the relation (x_a - x_b)^2 / mean over independent pairs (x_a - x_b)^2

estimates the part of the variance of x that comes from what the runs share.
"""

from collections.abc import Mapping
from itertools import permutations, product
from math import factorial
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from induction_memory.heads.resampling import INDEPENDENT, LEVEL, RESAMPLES, relations
from induction_memory.heads.selection import listed, rows_of
from induction_memory.heads.shapley import participation

DRAWS = 5000
"""Orders of heads that are tried for `p`: all of them up to this number."""
DECIDES = 0.5
"""The weights decide which head if the whole interval of the score is above this, the data if it is below."""
Shares = dict[str, Float[np.ndarray, " head"]]


def origins(runs: pd.DataFrame, carriers: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """One row per role, measure and relation: value, low, high, p, pairs, runs. `carriers` has one step per run.

    A role that has no route with an effect in some run, or that is carried by different layers, is left out.
    """
    rows = []
    for role in listed(carriers, "role"):
        shares = _shares(rows_of(carriers, role=role))
        pairs_by_relation = {
            relation: [(a, b) for a, b in pairs if a in shares and b in shares]
            for relation, pairs in relations(runs).items()
        }
        apart = pairs_by_relation.get(INDEPENDENT, [])
        for relation, pairs in pairs_by_relation.items():
            if len(pairs) == 0:
                continue
            names = list(dict.fromkeys(run for pair in pairs for run in pair))
            found = {"which head": (*_score_interval(shares, pairs, names, seed), _chance(shares, pairs, names, seed))}
            if relation != INDEPENDENT and apart:
                for measure, size in (("effective number", participation), ("largest share", np.max)):
                    x = {run: float(size(values)) for run, values in shares.items()}
                    found[measure] = (*_explained_interval(x, pairs, apart, seed), np.nan)
            rows += [(role, measure, relation, *numbers, len(pairs), len(names)) for measure, numbers in found.items()]
    columns = ["role", "measure", "relation", "value", "low", "high", "p", "pairs", "runs"]
    return pd.DataFrame(rows, columns=columns)


def agreement(a: Float[np.ndarray, " head"], b: Float[np.ndarray, " head"]) -> tuple[float, float, float]:
    """A, C and B of two runs."""
    by_chance = np.abs(a[:, None] - b[None, :]).sum() / len(a)
    least = np.abs(np.sort(a) - np.sort(b)).sum()
    measured = np.abs(a - b).sum()
    return 1 - float(measured) / 2, 1 - float(by_chance) / 2, 1 - float(least) / 2


def answer(row: Mapping[str, Any]) -> str:
    """What the score of runs that share their initial weights says, by the rule that was fixed before the runs."""
    if row["low"] >= DECIDES:
        return "the initial weights decide"
    return "the data decide" if row["high"] < DECIDES else "undecided"


def _shares(carriers: pd.DataFrame) -> Shares:
    """Run -> its heads' shares, if the same heads carry the role in all runs."""
    heads = {run: tuple(rows_of(carriers, run=run)["head"]) for run in listed(carriers, "run")}
    if len(set(heads.values())) > 1:
        return {}
    return {run: rows_of(carriers, run=run)["share"].to_numpy(dtype=float) for run in heads}


def _score(shares: Shares, pairs: list[tuple[str, str]]) -> float:
    told = np.array([agreement(shares[a], shares[b]) for a, b in pairs])
    room = (told[:, 2] - told[:, 1]).sum()
    return float((told[:, 0] - told[:, 1]).sum() / room) if room > 0 else np.nan


def _score_interval(
    shares: Shares, pairs: list[tuple[str, str]], names: list[str], seed: int
) -> tuple[float, float, float]:
    there, rng, drawn = set(pairs), np.random.default_rng(seed), []
    for _ in range(RESAMPLES):
        again = _drawn_pairs(names, there, rng)
        if again:
            drawn.append(_score(shares, again))
    return _score(shares, pairs), *_limits(drawn)


def _explained_interval(
    x: dict[str, float], pairs: list[tuple[str, str]], apart: list[tuple[str, str]], seed: int
) -> tuple[float, float, float]:
    rng, drawn = np.random.default_rng(seed), []
    families = [(list(dict.fromkeys(run for pair in some for run in pair)), set(some)) for some in (pairs, apart)]
    for _ in range(RESAMPLES):
        again = [_drawn_pairs(names, there, rng) for names, there in families]
        if all(again):
            drawn.append(_explained(x, *again))
    return _explained(x, pairs, apart), *_limits(drawn)


def _explained(x: dict[str, float], pairs: list[tuple[str, str]], apart: list[tuple[str, str]]) -> float:
    within, between = (np.mean([(x[a] - x[b]) ** 2 for a, b in some]) for some in (pairs, apart))
    return float(1 - within / between) if between > 0 else np.nan


def _drawn_pairs(names: list[str], there: set[tuple[str, str]], rng: np.random.Generator) -> list[tuple[str, str]]:
    """Pairs among runs that are drawn with replacement, without pairs of a run and its own copy."""
    again = [names[i] for i in rng.integers(len(names), size=len(names))]
    return [(a, b) for a in again for b in again if (a, b) in there]


def _limits(drawn: list[float]) -> tuple[float, float]:
    kept = np.array(drawn)[np.isfinite(drawn)] if drawn else np.array([])
    if kept.size == 0:
        return np.nan, np.nan
    low, high = np.quantile(kept, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _chance(shares: Shares, pairs: list[tuple[str, str]], names: list[str], seed: int) -> float:
    """The share of orders of the heads with at least the measured agreement."""
    heads, others = len(shares[names[0]]), names[1:]
    orders = np.array(list(permutations(range(heads))))
    if factorial(heads) ** len(others) <= DRAWS:
        choices = np.array(list(product(range(len(orders)), repeat=len(others))))
    else:
        rng = np.random.default_rng(seed)
        choices = rng.integers(len(orders), size=(DRAWS, len(others)))
        choices[0] = 0  # the order that was measured
    ordered = {names[0]: np.broadcast_to(shares[names[0]], (len(choices), heads))}
    ordered |= {run: shares[run][orders[choices[:, i]]] for i, run in enumerate(others)}
    apart = sum(np.abs(ordered[a] - ordered[b]).sum(1) for a, b in pairs)
    measured = sum(np.abs(shares[a] - shares[b]).sum() for a, b in pairs)
    return float(np.mean(apart <= measured + 1e-12))
