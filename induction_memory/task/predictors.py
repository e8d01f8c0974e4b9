"""How far a model is from each candidate predictor.

Over some positions M of a batch, for a predictor p and a model q = softmax(logits),

    KL(p) = 1/|M| sum over t in M, sum over outputs j, of p_t(j) log( p_t(j) / q_t(j) ).

The predictor comes first in the KL, so predictors that exclude outputs have a finite distance. If the model is
confident, the distance of a predictor that excludes nothing has no upper bound: cap the axis of a figure.

A model that mixes algorithms is described by weights w on the simplex that minimise

    sum over t in M of KL( q_t || sum_k w_k p_{k,t} ),

a convex problem, solved by expectation maximisation from equal weights.

The phases of a training run are the stretches in which one predictor is the closest. The closest predictor flickers
where two curves cross. A phase therefore ends only when another predictor has been clearly closer at several steps in a
row: nearer than (1 - margin) times the distance of the phase's own predictor. The new phase begins at the first of
these steps. If too few steps are left for that, the new predictor must be at less than half the distance. Of two
equally close predictors the simpler one, listed first, counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.task.protocol import Predictor

SMALLEST = 1e-12  # added to every predictor of a mixture, so that excluded outputs give a finite divergence


def kl_to_predictor(
    logits: Float[Tensor, "*step batch pos output"],
    probabilities: Float[Tensor, "batch pos output"],
    where: Bool[Tensor, "batch pos"],
) -> Float[Tensor, "*step"]:
    """Mean over `where` of KL(predictor || model), in nats."""
    require(bool(where.any()), "where", "at least one position", "none")
    p = probabilities[where]
    log_q = logits[..., where, :].to(p.dtype).log_softmax(-1)
    return (torch.xlogy(p, p) - p * log_q).sum(-1).mean(-1)


def predictions(
    predictors: Mapping[str, Predictor], tokens: Int[Tensor, "batch pos"], n_outputs: int
) -> dict[str, Float[Tensor, "batch pos output"]]:
    """Each predictor's probabilities, checked for shape and sum."""
    found = {}
    for name, predictor in predictors.items():
        p = predictor(tokens)
        shape = (*tokens.shape, n_outputs)
        require(tuple(p.shape) == shape, f"predictor {name!r}", f"probabilities of shape {shape}", tuple(p.shape))
        p = p.to(torch.float64)
        sums = p.sum(-1)
        good = bool((p >= 0).all()) and bool(((sums - 1).abs() < 1e-6).all())
        got = f"sums of {sums.min():.6g} to {sums.max():.6g}"
        require(good, f"predictor {name!r}", "probabilities that sum to 1", got)
        found[name] = p
    return found


def distances(
    logits: Float[Tensor, "*step batch pos output"],
    predicted: Mapping[str, Float[Tensor, "batch pos output"]],
    where: Bool[Tensor, "batch pos"],
) -> dict[str, Float[Tensor, "*step"]]:
    """KL to each predictor, by name."""
    return {name: kl_to_predictor(logits, p, where) for name, p in predicted.items()}


def mixture_weights(
    logits: Float[Tensor, "batch pos output"],
    predicted: Mapping[str, Float[Tensor, "batch pos output"]],
    where: Bool[Tensor, "batch pos"],
    *,
    tolerance: float = 1e-8,
    most_rounds: int = 10_000,
) -> dict[str, float]:
    """The weights of the mixture of predictors that is nearest to the model."""
    require(len(predicted) > 0, "predicted", "at least one predictor", "none")
    q = logits[where].double().softmax(-1)
    p = torch.stack([values[where] for values in predicted.values()]) + SMALLEST
    weights = torch.full((len(p),), 1 / len(p), dtype=torch.float64)
    for _ in range(most_rounds):
        mixed = torch.einsum("k,kmj->mj", weights, p)
        updated = weights * torch.einsum("mj,kmj->k", q / mixed, p) / len(q)
        updated = updated / updated.sum()
        moved = (updated - weights).abs().max().item()
        weights = updated
        if moved < tolerance:
            break
    return dict(zip(predicted, weights.tolist(), strict=True))


MARGIN = 0.1
"""How much closer another predictor must be to start a phase, as a share of the distance."""
PATIENCE = 2
"""At how many steps in a row it must be closer."""

AT_THE_END = 0.5
"""If fewer than `PATIENCE` steps are left, another predictor must be below this share of the distance."""


@field_docs
@dataclass(frozen=True)
class Phase:
    """A stretch of training in which one predictor is the closest."""

    predictor: str
    first: int
    """The step at which it begins."""
    last: int
    """The last step that belongs to it."""


def phases(
    steps: Sequence[int] | np.ndarray,
    distances: Mapping[str, Sequence[int | float] | np.ndarray],
    *,
    margin: int | float = MARGIN,
    patience: int = PATIENCE,
) -> list[Phase]:
    """The phases of training, from the distances to the predictors (simplest first)."""
    require(len(distances) > 0, "distances", "at least one predictor", "none")
    require(len(steps) > 0, "steps", "at least one", "none")
    require(0 <= margin < 1, "margin", "0 or more, below 1", margin)
    require(patience >= 1, "patience", "1 or more steps", patience)
    table = np.array([list(curve) for curve in distances.values()], dtype=np.float64)
    require(table.shape[1] == len(steps), "distances", f"one per step ({len(steps)})", table.shape[1])
    require(not np.isnan(table).any(), "distances", "numbers", "nan")
    names, numbers = list(distances), [int(step) for step in steps]

    here = int(table[:, 0].argmin())
    begins = [(0, here)]
    place = 1
    while place < len(numbers):
        rival = int(table[:, place].argmin())
        window = table[:, place : place + patience]
        share = 1 - margin if window.shape[1] == patience else min(1 - margin, AT_THE_END)
        if rival != here and (window[rival] < share * window[here]).all():
            here = rival
            begins.append((place, here))
        place += 1
    ends = [place - 1 for place, _ in begins[1:]] + [len(numbers) - 1]
    return [
        Phase(names[which], numbers[first], numbers[last]) for (first, which), last in zip(begins, ends, strict=True)
    ]


def describe(found: Sequence[Phase]) -> str:
    """The phases in a sentence.

    >>> describe([Phase("unigram", 0, 40), Phase("bayes", 50, 600)])
    'closest to the unigram predictor until step 40, to the bayes predictor from step 50 to the end'
    >>> describe([Phase("1-gram", 0, 40), Phase("2-gram", 50, 50), Phase("3-gram", 60, 600)]).split(", ")[1]
    'to the 2-gram predictor at step 50'
    """
    if len(found) == 1:
        return f"closest to the {found[0].predictor} predictor throughout"
    first, *between, last = found
    parts = [f"closest to the {first.predictor} predictor until step {first.last}"]
    for phase in between:
        when = f"at step {phase.first}" if phase.first == phase.last else f"from step {phase.first} to {phase.last}"
        parts.append(f"to the {phase.predictor} predictor {when}")
    return ", ".join([*parts, f"to the {last.predictor} predictor from step {last.first} to the end"])
