"""Shared work in tables: each head's share, redundant pairs, and takeovers.

    share          Shapley value divided by the total effect of its game, by default on the right output's logit
    effect         Shapley value divided by the total effect of all heads together
    effective      number of heads that share a game: participation ratio, (sum s)^2 / sum s^2, and exp(entropy)
    redundancy     of a pair, 1 - (single_a + single_b) / joint: 1 if either is enough, 0 if they add up
    strength       of a pair, I_ab / G_ab (shapley.py), from -1 (either is enough) to 1 (both are needed). Redundancy
                   compares ablations in the full model, strength averages over all coalitions of other heads
    takeover       the cost of ablating `other` if `cut` is absent, minus its cost in the full model: the work that
                   `other` takes over (the hydra effect)

A game has shares only if its total is clearly above zero: by three standard errors, and by at least LEAST of the effect
of all heads. If all heads together have no clear effect, there are two cases. If the total plus three standard errors
is below LEAST_TOTAL, the heads have no effect. Otherwise their effect is unknown, and more sequences would decide.
"""

from itertools import combinations, permutations

import numpy as np
import pandas as pd
import torch

from induction_memory.heads.games import Game, Questions
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


def whole_effect(games: list[Game], questions: Questions) -> tuple[float, bool]:
    """The effect of all heads together, nan unless it is clear; and whether there are enough sequences to know it."""
    total, error, whole = total_effect(games[0], questions, LEAST_TOTAL)
    return whole, bool(np.isfinite(whole)) or total + CLEARLY * error < LEAST_TOTAL


def total_effect(game: Game, questions: Questions, least: float) -> tuple[float, float, float]:
    """The total of a game, its standard error, and the total that its heads share (nan unless it is clear)."""
    mean, standard_error = questions.mean(game.solution.total)
    total, error = float(mean), float(standard_error)
    return total, error, total if total > least and total >= CLEARLY * error else np.nan


def shares_and_totals(games: list[Game], questions: Questions, whole: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """How the heads share each game.

    The first table has one row per game and head: shapley, its standard errors, share, effect, and the cost of ablating
    it alone. The second has one row per game: its total effect, the sum of the single ablations relative to it, and the
    effective number of heads.
    """
    parts, rows = [], []
    for game in games:
        solved = game.solution
        total, error, shared = total_effect(game, questions, LEAST * whole)
        (values, errors), (single, single_se) = questions.mean(solved.values), questions.mean(solved.single)
        sampling = torch.zeros_like(values)  # the standard error over the sampled orders, if any
        if solved.drawn is not None:
            means = questions.mean(solved.drawn)[0]
            sampling = means.std(0) / len(means) ** 0.5
        columns = {
            "shapley": values,
            "shapley_se": errors,
            "sampling_se": sampling,
            "share": values / shared,
            "effect": values / whole,
            "effect_se": errors / whole,
            "single": single,
            "single_se": single_se,
            "alone": questions.mean(solved.alone)[0],
        }
        numbers = pd.DataFrame(torch.stack(list(columns.values()), -1).numpy(), columns=list(columns))
        parts.append(pd.DataFrame({"game": game.name, "layer": game.layer, "head": game.players}).join(numbers))
        known, sum_of_single = np.isfinite(shared), float(single.sum())
        rows.append(
            {
                "game": game.name,
                "layer": game.layer,
                "total": total,
                "total_se": error,
                "effect": total / whole,
                "sum_of_single": sum_of_single,
                "redundancy": 1 - sum_of_single / shared,
                "effective": participation(values.numpy()) if known else np.nan,
                "effective_entropy": entropy_number(values.numpy()) if known else np.nan,
                "method": "exact" if solved.drawn is None else f"{2 * len(solved.drawn)} orders",
            }
        )
    return pd.concat(parts, ignore_index=True), pd.DataFrame(rows)


def pairs(game: Game, questions: Questions, whole: float, known: bool) -> pd.DataFrame:
    """One row per pair of heads in the game of all heads: interaction, single and joint ablations, name of the
    relation.

    `known`: there are enough sequences to know whether the heads have an effect.
    """
    solved = game.solution
    assert solved.joint is not None
    values, single = questions.mean(solved.values)[0].numpy(), questions.mean(solved.single)[0].numpy()
    joint, rows = questions.mean(solved.joint)[0].numpy(), []
    for i, j in combinations(range(len(game.players)), 2):
        redundancy = 1 - (single[i] + single[j]) / joint[i, j] if joint[i, j] > LEAST * whole else np.nan
        interaction, error, strength = np.nan, np.nan, -redundancy
        if solved.interaction is not None and solved.together is not None:
            interaction, error = torch.stack(questions.mean(solved.interaction[i, j])).tolist()
            together = float(questions.mean(solved.together[i, j])[0])
            strength = interaction / together if together > LEAST * whole else np.nan
        small = not min(abs(values[i]), abs(values[j])) > LEAST / 2 * whole
        name = UNKNOWN if not known else "idle" if small else relation(strength)
        numbers = (interaction, error, strength, single[i], single[j], joint[i, j], redundancy)
        rows.append((game.players[i], game.players[j], *numbers, name))
    columns = ["a", "b", "interaction", "interaction_se", "strength", "single_a", "single_b", "joint", "redundancy"]
    return pd.DataFrame(rows, columns=[*columns, "relation"])


def relation(strength: float) -> str:
    """The name of a pair's relation, from the strength of its interaction."""
    if not abs(strength) >= PARTLY:
        return "independent"
    if strength > 0:
        return "synergistic"
    return f"{'fully' if strength <= -FULLY else 'mostly' if strength <= -MOSTLY else 'partly'} redundant"


def hydra(game: Game, questions: Questions, whole: float) -> pd.DataFrame:
    """One row per ordered pair: the cost of ablating `other` with and without `cut`, and what it takes over."""
    solved = game.solution
    assert solved.joint is not None
    after = solved.joint - solved.single.unsqueeze(1)  # [cut, other]
    takeover, error = questions.mean(after - solved.single.unsqueeze(0))
    before, after = questions.mean(solved.single)[0], questions.mean(after)[0]
    rows = []
    for i, j in permutations(range(len(game.players)), 2):
        taken = float(takeover[i, j])
        costs = (float(before[j]), float(after[i, j]), taken, float(error[i, j]), taken / whole)
        rows.append((game.players[i], game.players[j], *costs))
    columns = ["cut", "other", "before", "after", "takeover", "takeover_se", "takeover_effect"]
    return pd.DataFrame(rows, columns=columns)
