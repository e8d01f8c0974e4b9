"""How well one run predicts the roles of another run: a score for a family of models.

The role of each head of one run is predicted from the roles of another run, by

    index         the head of the same name
    layer         any head of the same layer, drawn at random
    appearance    the head matched to it by weights and attention alone; its causal vote is predicted
    match         the head matched to it by all three votes: how similar the two sets of heads are

The accuracy is the share of correct predictions, and the chance is the accuracy of a head drawn from the whole other
run. Both are averaged over pairs of runs, and the score is (accuracy - chance) / (1 - chance). It is 1 if one run gives
the roles of another, and 0 if it tells only how many heads of each role to expect. The interval is a bootstrap over
runs.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from jaxtyping import Float

from induction_memory.heads.matching import WITHOUT_EFFECTS, match, profiles
from induction_memory.heads.resampling import interval, mean_over_pairs, pair_matrix, relations
from induction_memory.heads.selection import listed, rows_of
from induction_memory.heads.sharing import UNKNOWN

Predict = Callable[[str, str], tuple[float, float]]


def identifiability(runs: pd.DataFrame, roles: pd.DataFrame, votes: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """One row per relation and predictor: accuracy, chance, score, low, high, runs. One step per run."""
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
            accuracy, chance = mean_over_pairs(right), mean_over_pairs(lucky)
            all_runs = np.arange(len(names))

            def score(drawn: np.ndarray, accuracy=accuracy, chance=chance) -> float:
                level = chance(drawn)
                return (accuracy(drawn) - level) / (1 - level) if level < 1 else np.nan

            value, low, high = interval(score, len(names), np.random.default_rng(seed))
            rows.append((relation, name, accuracy(all_runs), chance(all_runs), value, low, high, len(names)))
    columns = ["relation", "predictor", "accuracy", "chance", "score", "low", "high", "runs"]
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
