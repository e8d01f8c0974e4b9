"""Shared work in tables: each head's share, redundant pairs, and takeovers.

    share          Shapley value divided by the total effect of its game, by default on the right output's logit
    effect         Shapley value divided by the total effect of all heads together
    effective      number of heads that share a game: participation ratio, (sum s)^2 / sum s^2, and exp(entropy)
    redundancy     of a pair, 1 - (single_a + single_b) / joint: 1 when either is enough, 0 when they add up
    strength       of a pair, I_ab / G_ab (shapley.py), from -1 (either is enough) to 1 (both are needed). Redundancy
                   compares cuts in the full model, strength averages over all coalitions of the other heads
    takeover       the cost of cutting `other` without `cut`, minus its cost in the full model: the work that `other`
                   takes over (the hydra effect)

A game has shares only if its total is clearly above zero: by three standard errors, and by at least LEAST of the effect
of all heads. If all heads together have no clear effect, there are two cases. If the total plus three standard errors
is below LEAST_TOTAL, the heads were measured to do nothing. Otherwise their effect is unknown: more sequences would
decide it.
"""

from itertools import combinations

import numpy as np
import pandas as pd
from torch import Tensor

from induction_memory.heads.games import Game
from induction_memory.heads.metric_positions import Questions
from induction_memory.heads.shapley import entropy_number, participation

LEAST = 0.05
"""An effect below this share of the effect of all heads counts as none."""
LEAST_TOTAL = 0.1
"""The least effect of all heads together, in units of the metric (logits)."""
CLEARLY = 3.0
"""An effect is clear if it is this many standard errors from zero."""
PARTLY, MOSTLY, FULLY = 0.1, 0.5, 0.9
"""The strength from which a pair is called partly, mostly and fully redundant."""
UNKNOWN = "unknown"


def shares(games: list[Game], questions: Questions) -> pd.DataFrame:
    """One row per game and head: shapley, its standard errors, share, effect, and what cutting it alone costs."""
    whole = whole_effect(games, questions)
    rows = []
    for game in games:
        solved = game.solution
        (values, errors), (single, single_se) = questions.mean(solved.values), questions.mean(solved.single)
        alone, _ = questions.mean(solved.alone)
        total = total_effect(game, questions, whole)
        sampling = _sampling_error(game, questions)
        for i, head in enumerate(game.players):
            value = float(values[i])
            rows.append(
                {
                    "game": game.name,
                    "layer": game.layer,
                    "head": head,
                    "shapley": value,
                    "shapley_se": float(errors[i]),
                    "sampling_se": sampling[i],
                    "share": value / total,
                    "effect": value / whole,
                    "effect_se": float(errors[i]) / whole,
                    "single": float(single[i]),
                    "single_se": float(single_se[i]),
                    "alone": float(alone[i]),
                }
            )
    return pd.DataFrame(rows)


def totals(games: list[Game], questions: Questions) -> pd.DataFrame:
    """One row per game: its total effect, the sum of single cuts against it, and the effective number of heads."""
    whole = whole_effect(games, questions)
    rows = []
    for game in games:
        solved = game.solution
        total, error = (float(x) for x in questions.mean(solved.total))
        single = float(questions.mean(solved.single)[0].sum())
        values = questions.mean(solved.values)[0].numpy()
        shared = np.isfinite(total_effect(game, questions, whole))
        rows.append(
            {
                "game": game.name,
                "layer": game.layer,
                "total": total,
                "total_se": error,
                "effect": total / whole,
                "sum_of_single": single,
                "redundancy": 1 - single / total if shared else np.nan,
                "effective": participation(values) if shared else np.nan,
                "effective_entropy": entropy_number(values) if shared else np.nan,
                "method": "exact" if solved.exact else f"{2 * len(_drawn(game))} orders",
            }
        )
    return pd.DataFrame(rows)


def pairs(games: list[Game], questions: Questions) -> pd.DataFrame:
    """One row per pair of heads in the game of all: interaction, single against joint cuts, and the relation's name."""
    game, whole, known = games[0], whole_effect(games, questions), is_known(games, questions)
    solved = game.solution
    assert solved.joint is not None
    values, single, joint = (questions.mean(x)[0].numpy() for x in (solved.values, solved.single, solved.joint))
    rows = []
    for i, j in combinations(range(len(game.players)), 2):
        redundancy = 1 - (single[i] + single[j]) / joint[i, j] if joint[i, j] > LEAST * whole else np.nan
        interaction, error, strength = np.nan, np.nan, -redundancy
        if solved.interaction is not None and solved.together is not None:
            interaction, error = (float(x) for x in questions.mean(solved.interaction[i, j]))
            together = float(questions.mean(solved.together[i, j])[0])
            strength = interaction / together if together > LEAST * whole else np.nan
        small = not min(abs(values[i]), abs(values[j])) > LEAST / 2 * whole
        name = UNKNOWN if not known else "idle" if small else relation(strength)
        rows.append(
            {
                "a": game.players[i],
                "b": game.players[j],
                "interaction": interaction,
                "interaction_se": error,
                "strength": strength,
                "single_a": single[i],
                "single_b": single[j],
                "joint": joint[i, j],
                "redundancy": redundancy,
                "relation": name,
            }
        )
    columns = ["a", "b", "interaction", "interaction_se", "strength", "single_a", "single_b", "joint", "redundancy"]
    return pd.DataFrame(rows, columns=[*columns, "relation"])


def relation(strength: float) -> str:
    """The name of a pair's relation, by the strength of its interaction."""
    if not abs(strength) >= PARTLY:
        return "independent"
    if strength > 0:
        return "synergistic"
    return f"{'fully' if strength <= -FULLY else 'mostly' if strength <= -MOSTLY else 'partly'} redundant"


def hydra(games: list[Game], questions: Questions) -> pd.DataFrame:
    """One row per ordered pair: the cost of cutting `other` before and after `cut` is gone, and what it takes over."""
    game, whole = games[0], whole_effect(games, questions)
    solved = game.solution
    assert solved.joint is not None
    n = len(game.players)
    after = solved.joint - solved.single.unsqueeze(1)  # [cut, other]
    takeover, error = questions.mean(after - solved.single.unsqueeze(0))
    before, after = questions.mean(solved.single)[0], questions.mean(after)[0]
    rows = [
        {
            "cut": game.players[i],
            "other": game.players[j],
            "before": float(before[j]),
            "after": float(after[i, j]),
            "takeover": float(takeover[i, j]),
            "takeover_se": float(error[i, j]),
            "takeover_effect": float(takeover[i, j]) / whole,
        }
        for i in range(n)
        for j in range(n)
        if i != j
    ]
    columns = ["cut", "other", "before", "after", "takeover", "takeover_se", "takeover_effect"]
    return pd.DataFrame(rows, columns=columns)


def whole_effect(games: list[Game], questions: Questions) -> float:
    """The effect of all heads together; nan unless it is clear."""
    total, error = (float(x) for x in questions.mean(games[0].solution.total))
    return total if total > LEAST_TOTAL and total >= CLEARLY * error else np.nan


def is_known(games: list[Game], questions: Questions) -> bool:
    """Whether the sequences decide if the heads together have an effect: a clear one, or clearly none."""
    total, error = (float(x) for x in questions.mean(games[0].solution.total))
    return bool(np.isfinite(whole_effect(games, questions)) or total + CLEARLY * error < LEAST_TOTAL)


def total_effect(game: Game, questions: Questions, whole: float) -> float:
    """The effect that the heads of a game share; nan unless it is clear."""
    total, error = (float(x) for x in questions.mean(game.solution.total))
    return total if total > LEAST * whole and total >= CLEARLY * error else np.nan


def _drawn(game: Game) -> Tensor:
    assert game.solution.drawn is not None
    return game.solution.drawn


def _sampling_error(game: Game, questions: Questions) -> list[float]:
    """Standard error of each value over the drawn orders; 0 where none were drawn."""
    if game.solution.exact:
        return [0.0] * len(game.players)
    means = questions.mean(_drawn(game))[0]
    return (means.std(0) / len(means) ** 0.5).tolist()
