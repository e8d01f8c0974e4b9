"""Compare runs by their heads: which heads match, how stable roles are, and what decides which head has which role.

**Which runs may be compared.** Runs are *independent* if no two share their initial weights or their data. Families of
retrained runs share one of the two: `same initialisation` (other data) and `same data` (other initial weights).
Intervals are percentile intervals of a bootstrap over runs, drawn with replacement; pairs of two copies of the same run
are left out.

**Matches.** The profile of a head is the row of its scores, one per vote and role, each clipped to [0, 1] (votes.py),
without its layer and index. The match of two runs is the assignment with the least sum of the distances |profile_a -
profile_b| (Hungarian algorithm). Heads with equal profiles can be exchanged at no cost, so a match measures how similar
the two sets of heads are, not which head corresponds to which. The distance ignores scores that are unknown in either
run.

**Stability.** For each role, over runs in one relation:

    heads        number of heads with the role
    effective    effective number of heads on its route (participation ratio), in the layer where it is strongest
    leader       the largest share of one head in that route
    present      whether any head has it
    born         the birth step of the role in its leading head (for runs measured at several steps)
    agreement    between matched heads of two runs: 2 |both have it| / (heads in one + heads in the other)
    same layer   whether the leading heads of two runs are in one layer
    same head    whether they have the same name; by chance 1 / heads of a layer, if the layer is the same

**Identifiability.** The role of each head of one run is predicted from the roles of another run, by

    index         the head of the same name
    layer         any head of the same layer, drawn at random
    appearance    the head matched by weights and attention alone; here the causal vote is predicted
    match         the head matched by all three votes: how similar the two sets of heads are

The accuracy is the share of correct predictions. The chance is the accuracy of predicting from a random head of the
other run. Both are averaged over pairs of runs, and the score is (accuracy - chance) / (1 - chance). It is 1 if one run
determines the roles in another, and 0 if it determines only the number of heads per role.

**Origins: the initial weights or the data?** With s_a(h) head h's share of a role's route in run a (roles.py), the
heads of a layer are compared by their index:

    A(a, b) = 1 - 1/2 sum_h |s_a(h) - s_b(h)|                 agreement: the overlap of the shares
    C(a, b) = mean of A over all orders of b's heads          agreement by chance
    B(a, b) = max of A over all orders of b's heads           the largest possible agreement for shares of these sizes
    score   = sum over pairs (A - C) / sum over pairs (B - C)

The score is 1 if the same heads have the same shares and 0 if the index of a head carries no information. `p` is a
permutation test: permute the heads of every run but the first; `p` is the share of permutations with at least the
measured agreement (all permutations if there are few, otherwise `DRAWS` random ones). Before training, all heads of a
layer have the same distribution, so the data alone cannot choose an index: for runs that share only their data the
expected score is 0, and the measured score is a control. For runs that share their weights, 1 - score is the part that
the data decide.

The data alone may decide how unequal the shares are, regardless of which heads have them. With x the effective number
of heads or the largest share,

    explained = 1 - mean over pairs in the relation (x_a - x_b)^2 / mean over independent pairs (x_a - x_b)^2

estimates the part of the variance of x that comes from what the runs share.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, permutations, product
from math import factorial
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from induction_memory.heads.roles import VOTES, at_last_step, carriers, listed, role_births, rows_of
from induction_memory.heads.shapley import participation
from induction_memory.heads.sharing import UNKNOWN
from induction_memory.heads.votes import ROLES, ROUTE_OF
from induction_memory.runner.components import layer_of

WITHOUT_EFFECTS = ("weights", "attention")
DECIMALS = 3  # decimals of the distances, so that rounding errors do not decide between equal heads


def profiles(votes: pd.DataFrame, given: Sequence[str] = VOTES) -> dict[str, Float[np.ndarray, "head score"]]:
    """Run -> the profiles of its heads, from the kinds of votes in `by`; the table `votes` has one step per run."""
    tables = {}
    for run in listed(votes, "run"):
        own = rows_of(votes, run=run, vote=tuple(given))
        scores = [rows_of(own, head=head)["score"].to_numpy() for head in listed(own, "head")]
        tables[run] = np.clip(np.array(scores), 0, 1)
    return tables


def match(
    a: Float[np.ndarray, "head_a score"], b: Float[np.ndarray, "head_b score"]
) -> tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"], Float[np.ndarray, " pair"]]:
    """The matched rows of a and of b, and their distances."""
    from scipy.optimize import linear_sum_assignment

    distance = np.sqrt(np.nansum(np.square(a[:, None] - b[None, :]), axis=-1))
    rows, columns = linear_sum_assignment(distance.round(DECIMALS))
    return rows, columns, distance[rows, columns]


def matches(roles: pd.DataFrame, votes: pd.DataFrame) -> pd.DataFrame:
    """One row per pair of runs and pair of matched heads: their roles, and whether role, layer and name agree."""
    table = profiles(votes)
    facts = {run: [rows_of(roles, run=run)[name].tolist() for name in ("head", "role", "layer")] for run in table}
    rows = []
    for first, second in combinations(table, 2):
        (heads_a, roles_a, layers_a), (heads_b, roles_b, layers_b) = facts[first], facts[second]
        for i, j, distance in zip(*match(table[first], table[second]), strict=True):
            alike = [
                of_a[i] == of_b[j] for of_a, of_b in ((roles_a, roles_b), (layers_a, layers_b), (heads_a, heads_b))
            ]
            pair = (heads_a[i], heads_b[j], float(distance), roles_a[i], roles_b[j])
            rows.append((first, second, *pair, *alike))
    columns = ["run_a", "run_b", "head_a", "head_b", "distance", "role_a", "role_b", "same_role", "same_layer"]
    return pd.DataFrame(rows, columns=[*columns, "same_head"])


INDEPENDENT, SAME_INITIALISATION, SAME_DATA = "independent", "same initialisation", "same data"
RESAMPLES = 1000
LEVEL = 0.95


def relations(runs: pd.DataFrame) -> dict[str, list[tuple[str, str]]]:
    """Relation -> its pairs of runs. `runs` has run, init_seed, data_seed; a nan seed equals no other seed."""
    columns = (runs[name].tolist() for name in ("run", "init_seed", "data_seed"))
    seeds = {run: (init_seed, data_seed) for run, init_seed, data_seed in zip(*columns, strict=True)}
    independent: list[str] = []
    for run, own in seeds.items():
        if not any(a == b for other in independent for a, b in zip(own, seeds[other], strict=True)):
            independent.append(run)
    found = {INDEPENDENT: list(combinations(independent, 2)), SAME_INITIALISATION: [], SAME_DATA: []}
    for a, b in combinations(seeds, 2):
        same_init, same_data = (x == y for x, y in zip(seeds[a], seeds[b], strict=True))
        if same_init and not same_data:
            found[SAME_INITIALISATION].append((a, b))
        elif same_data and not same_init:
            found[SAME_DATA].append((a, b))
    return {relation: pairs for relation, pairs in found.items() if pairs}


def interval(statistic: Callable[..., float], *sizes: int, seed: int = 0) -> tuple[float, float, float]:
    """The statistic of all runs, and its percentile interval over runs that are drawn with replacement.

    The statistic gets the indices of the drawn runs, one array per family size. The limits are nan for a single run.
    """
    rng, value = np.random.default_rng(seed), statistic(*map(np.arange, sizes))
    if min(sizes) < 2:
        return value, np.nan, np.nan
    drawn = np.array([statistic(*(rng.integers(n, size=n) for n in sizes)) for _ in range(RESAMPLES)])
    kept = drawn[np.isfinite(drawn)]
    if kept.size == 0:
        return value, np.nan, np.nan
    low, high = np.quantile(kept, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return value, float(low), float(high)


def mean_over_drawn(values: Float[np.ndarray, "*run"]) -> Callable[[Int[np.ndarray, " drawn"]], float]:
    """The mean value of the drawn runs, or, for a matrix, of the pairs of drawn runs.

    nan marks runs and pairs that do not count, such as a run paired with itself.
    """

    def statistic(drawn: np.ndarray) -> float:
        some = values[np.ix_(*[drawn] * values.ndim)]
        kept = some[np.isfinite(some)]
        return float(kept.mean()) if kept.size else np.nan

    return statistic


def quotient(above: Float[np.ndarray, "run run"], below: Float[np.ndarray, "other other"]) -> Callable[..., float]:
    """The mean of one matrix over pairs of drawn runs, divided by the mean of another; nan unless the divisor is
    positive.

    Matrices of different runs are drawn separately.
    """
    over, under = mean_over_drawn(above), mean_over_drawn(below)

    def statistic(drawn: np.ndarray, other: np.ndarray | None = None) -> float:
        divisor = under(drawn if other is None else other)
        return over(drawn) / divisor if divisor > 0 else np.nan

    return statistic


def pair_matrix(pairs: dict[tuple[str, str], float]) -> tuple[list[str], Float[np.ndarray, "run run"]]:
    """The runs of some pairs, and their values as a symmetric matrix with nan elsewhere."""
    names = list(dict.fromkeys(run for pair in pairs for run in pair))
    matrix = np.full((len(names), len(names)), np.nan)
    for (a, b), value in pairs.items():
        i, j = names.index(a), names.index(b)
        matrix[i, j] = matrix[j, i] = value
    return names, matrix


DRAWS = 5000
"""Permutations tested for `p`: all of them up to this number."""
DECIDES = 0.5
"""If the whole interval of the score is above this, the weights decide which head; if it is below, the data."""
Shares = dict[str, Float[np.ndarray, " head"]]
Pairs = list[tuple[str, str]]


def origins(runs: pd.DataFrame, carriers: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """One row per role, measure and relation: value, value_low, value_high, p, pairs, runs.

    `carriers` has one step per run. A role is left out if its route has no effect in some run, or if runs carry it in
    different layers.
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
            told = {(a, b): agreement(shares[a], shares[b]) for a, b in pairs}
            names, gained = pair_matrix({pair: measured - chance for pair, (measured, chance, _) in told.items()})
            _, room = pair_matrix({pair: most - chance for pair, (_, chance, most) in told.items()})
            which = interval(quotient(gained, room), len(names), seed=seed)
            found = {"which head": (*which, _chance(shares, pairs, names, seed))}
            if relation != INDEPENDENT and apart:
                for measure, size in (("effective number", participation), ("largest share", np.max)):
                    x = {run: float(size(values)) for run, values in shares.items()}
                    found[measure] = (*_explained(x, pairs, apart, seed), np.nan)
            rows += [(role, measure, relation, *numbers, len(pairs), len(names)) for measure, numbers in found.items()]
    columns = ["role", "measure", "relation", "value", "value_low", "value_high", "p", "pairs", "runs"]
    return pd.DataFrame(rows, columns=columns)


def agreement(a: Float[np.ndarray, " head"], b: Float[np.ndarray, " head"]) -> tuple[float, float, float]:
    """A, C and B of two runs."""
    by_chance = np.abs(a[:, None] - b[None, :]).sum() / len(a)
    least = np.abs(np.sort(a) - np.sort(b)).sum()
    measured = np.abs(a - b).sum()
    return 1 - float(measured) / 2, 1 - float(by_chance) / 2, 1 - float(least) / 2


def answer(row: Mapping[str, Any]) -> str:
    """The conclusion from the score of runs that share their initial weights, by a rule fixed before the runs."""
    if row["value_low"] >= DECIDES:
        return "the initial weights decide"
    return "the data decide" if row["value_high"] < DECIDES else "undecided"


def _shares(carriers: pd.DataFrame) -> Shares:
    """Run -> its heads' shares, if the role has the same layer in all runs."""
    heads = {run: tuple(rows_of(carriers, run=run)["head"]) for run in listed(carriers, "run")}
    if len(set(heads.values())) > 1:
        return {}
    return {run: rows_of(carriers, run=run)["share"].to_numpy(dtype=float) for run in heads}


def _explained(x: dict[str, float], pairs: Pairs, apart: Pairs, seed: int) -> tuple[float, float, float]:
    """The part of the variance of x explained by what the pairs share, and its interval."""
    (names, within), (others, between) = (
        pair_matrix({(a, b): (x[a] - x[b]) ** 2 for a, b in family}) for family in (pairs, apart)
    )
    left = quotient(within, between)
    return interval(lambda drawn, other: 1 - left(drawn, other), len(names), len(others), seed=seed)


def _chance(shares: Shares, pairs: Pairs, names: list[str], seed: int) -> float:
    """The share of permutations of the heads with at least the measured agreement."""
    heads, others = len(shares[names[0]]), names[1:]
    orders = np.array(list(permutations(range(heads))))
    if factorial(heads) ** len(others) <= DRAWS:
        choices = np.array(list(product(range(len(orders)), repeat=len(others))))
    else:
        rng = np.random.default_rng(seed)
        choices = rng.integers(len(orders), size=(DRAWS, len(others)))
        choices[0] = 0  # the measured order
    ordered = {names[0]: np.broadcast_to(shares[names[0]], (len(choices), heads))}
    ordered |= {run: shares[run][orders[choices[:, i]]] for i, run in enumerate(others)}
    apart = sum(np.abs(ordered[a] - ordered[b]).sum(1) for a, b in pairs)
    measured = sum(np.abs(shares[a] - shares[b]).sum() for a, b in pairs)
    return float(np.mean(apart <= measured + 1e-12))


Predict = Callable[[str, str], tuple[float, float]]


def identifiability(runs: pd.DataFrame, roles: pd.DataFrame, votes: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """One row per relation and predictor: accuracy, chance, score, score_low, score_high, runs. One step per run."""
    head, layer, role, caused = (
        {run: rows_of(roles, run=run)[column].to_numpy() for run in listed(roles, "run")}
        for column in ("head", "layer", "role", "causes")
    )
    apparent, whole = profiles(votes, WITHOUT_EFFECTS), profiles(votes)
    predictors: dict[str, Predict] = {
        "index": lambda a, b: (float(np.mean(role[a] == role[b])), chance_agreement(role[a], role[b])),
        "layer": lambda a, b: (_by_layer(layer[a], role[a], role[b]), chance_agreement(role[a], role[b])),
        "appearance": lambda a, b: _by_match(apparent[a], apparent[b], caused[a], caused[b]),
        "match": lambda a, b: _by_match(whole[a], whole[b], role[a], role[b]),
    }
    rows = []
    for relation, pairs in relations(runs).items():
        comparable = [(a, b) for a, b in pairs if np.array_equal(head[a], head[b])]
        for name, predict in predictors.items():
            told = {pair: predict(*pair) for pair in comparable}
            if not told:
                continue
            names, right = pair_matrix({pair: accuracy for pair, (accuracy, _) in told.items()})
            _, lucky = pair_matrix({pair: chance for pair, (_, chance) in told.items()})
            means = [mean_over_drawn(of_pairs)(np.arange(len(names))) for of_pairs in (right, lucky)]
            score = interval(quotient(right - lucky, 1 - lucky), len(names), seed=seed)
            rows.append((relation, name, *means, *score, len(names)))
    columns = ["relation", "predictor", "accuracy", "chance", "score", "score_low", "score_high", "runs"]
    return pd.DataFrame(rows, columns=columns)


def chance_agreement(a: np.ndarray, b: np.ndarray) -> float:
    """Probability that a head drawn from one run has the role of a head drawn from the other."""
    return float((a[:, None] == b[None, :]).mean())


def _by_layer(layer: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    return float(np.mean([chance_agreement(a[layer == one], b[layer == one]) for one in np.unique(layer)]))


def _by_match(
    profiles_a: Float[np.ndarray, "head score"],
    profiles_b: Float[np.ndarray, "head score"],
    a: np.ndarray,
    b: np.ndarray,
) -> tuple[float, float]:
    here, there, _ = match(profiles_a, profiles_b)
    known = (a[here] != UNKNOWN) & (b[there] != UNKNOWN)
    if not known.any():
        return np.nan, np.nan
    predicted, true = a[here][known], b[there][known]
    return float(np.mean(predicted == true)), chance_agreement(predicted, true)


def stability(
    runs: pd.DataFrame,
    roles: pd.DataFrame,
    shares: pd.DataFrame,
    totals: pd.DataFrame,
    matches: pd.DataFrame,
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per relation, role and measure: value, value_low, value_high, runs. The last step decides."""
    born = role_births(roles) if len(listed(roles, "step")) > 1 else None
    roles, shares = at_last_step(roles), at_last_step(shares)
    carried = carriers(shares, at_last_step(totals))
    rows = []
    for relation, pairs in relations(runs).items():
        names = list(dict.fromkeys(run for pair in pairs for run in pair))
        for role in ROLES:
            leaders = {run: leader(run, role, roles, shares) for run in names}
            measured = {
                **{name: mean_over_drawn(x) for name, x in _of_runs(names, role, roles, carried).items()},
                **({} if born is None else {"born": mean_over_drawn(_born(born, leaders))}),
                **{name: mean_over_drawn(x) for name, x in _of_pairs(pairs, role, leaders, matches).items()},
            }
            for measure, statistic in measured.items():
                rows.append((relation, role, measure, *interval(statistic, len(names), seed=seed), len(names)))
    return pd.DataFrame(rows, columns=["relation", "role", "measure", "value", "value_low", "value_high", "runs"])


def leader(run: str, role: str, roles: pd.DataFrame, shares: pd.DataFrame) -> str | None:
    """The head of a role with the largest effect by the role's route; None when no head has the role."""
    heads = listed(rows_of(roles, run=run, role=role), "head")
    effects = rows_of(shares, run=run, game=ROUTE_OF[role], head=heads)
    if len(effects) == 0:
        return heads[0] if heads else None
    return effects["head"].tolist()[int(np.argmax(effects["effect"].to_numpy()))]


def _of_runs(names: list[str], role: str, roles: pd.DataFrame, carried: pd.DataFrame) -> dict[str, np.ndarray]:
    heads = np.array([float(len(rows_of(roles, run=run, role=role))) for run in names])
    largest: Any = rows_of(carried, role=role).groupby("run")[["effective", "share"]].max()
    effective, leader = largest.reindex(names).to_numpy(dtype=float).T
    return {"heads": heads, "effective": effective, "leader": leader, "present": (heads > 0).astype(float)}


def _born(born: pd.DataFrame, leaders: dict[str, str | None]) -> np.ndarray:
    steps = [rows_of(born, run=run, head=head)["born"].tolist() for run, head in leaders.items()]
    return np.array([found[0] if found else np.nan for found in steps])


def _of_pairs(pairs: Pairs, role: str, leaders: dict[str, str | None], matches: pd.DataFrame) -> dict[str, np.ndarray]:
    agreement, same_layer, same_head = {}, {}, {}
    for a, b in pairs:
        own = rows_of(matches, run_a=a, run_b=b)
        here, there = (own[column].to_numpy() == role for column in ("role_a", "role_b"))
        either = int(here.sum() + there.sum())
        agreement[a, b] = 2 * float((here & there).sum()) / either if either else np.nan
        first, second = leaders[a], leaders[b]
        same_head[a, b] = same_layer[a, b] = np.nan
        if first is not None and second is not None:
            same_head[a, b], same_layer[a, b] = float(first == second), float(layer_of(first) == layer_of(second))
    tables = {"agreement": agreement, "same layer": same_layer, "same head": same_head}
    return {name: pair_matrix(values)[1] for name, values in tables.items()}
