"""How far a model is from each candidate predictor.

Over some positions M of a batch, for a predictor p and a model q = softmax(logits),

    KL(p) = 1/|M| sum over t in M, sum over outputs j, of p_t(j) log( p_t(j) / q_t(j) ).

The predictor stands first, so that predictors which exclude outputs have a finite distance. The distance of a predictor
that excludes nothing has no upper bound when the model is confident: cap the axis of a figure.

A model that mixes algorithms is described by weights w on the simplex that minimise

    sum over t in M of KL( q_t || sum_k w_k p_{k,t} ),

a convex problem, solved by expectation maximisation from equal weights.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.task.protocol import Predictor

SMALLEST = 1e-12  # added to every predictor of a mixture, so that one which excludes an output has a finite divergence


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
    """What each predictor says, checked: probabilities of the right shape."""
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
