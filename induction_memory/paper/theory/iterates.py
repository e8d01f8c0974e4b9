"""The form of gradient descent's iterates (Lemma 1): W_t = alpha_0 W_0 + sum_ij alpha_ij w_U(j) w_E(i)^T.

With step size eta and weight decay lambda the coefficients obey their own recursion,

    alpha_0 <- (1 - eta lambda) alpha_0,    alpha_ij <- (1 - eta lambda) alpha_ij - eta p(i) (p_hat(j | i) - p(j | i)),

started from alpha_0 = 1, alpha_ij = 0. If N <= d, the outer products are independent and least squares on W_t recovers
the coefficients.
"""

from collections.abc import Callable

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.memory import gradients
from induction_memory.memory.random_embeddings import gaussian_embeddings, random_remapping
from induction_memory.paper.theory.checks import Result, column
from induction_memory.paper.theory.lemmas import autograd
from induction_memory.paper.verdicts import at_least, at_most, within

N, D, STEPS, ETA, DECAY = 12, 48, 100, 2.0, 0.02

Recursion = Callable[[float, Tensor, Tensor, Tensor, float, float], tuple[float, Tensor]]


def recursion(
    alpha_0: float,
    alpha: Float[Tensor, "i j"],
    p_hat: Float[Tensor, "i j"],
    joint: Float[Tensor, "i j"],
    eta: float,
    decay: float,
) -> tuple[float, Float[Tensor, "i j"]]:
    """One step of the coefficients alone."""
    error = joint.sum(-1, keepdim=True) * p_hat - joint
    return (1 - eta * decay) * alpha_0, (1 - eta * decay) * alpha - eta * error


def fit(
    W: Float[Tensor, "d d"], W_0: Float[Tensor, "d d"], w_E: Float[Tensor, "i d"], w_U: Float[Tensor, "j d"]
) -> tuple[float, Float[Tensor, "i j"], float]:
    """alpha_0, alpha_ij and the share of W outside the span, by least squares on all entries of W."""
    products = torch.einsum("jd,ie->ijde", w_U, w_E).reshape(-1, W.numel())
    basis = torch.cat([W_0.reshape(1, -1), products]).mT
    solution = torch.linalg.lstsq(basis, W.reshape(-1, 1)).solution
    outside = (basis @ solution - W.reshape(-1, 1)).norm() / W.norm()
    return solution[0].item(), solution[1:].reshape(len(w_E), len(w_U)), outside.item()


def iterates(update: Recursion = recursion) -> Result:
    r"""Lemma 1 says that gradient descent stays in the span of the outer products and the initial matrix:

    $$W_t = \alpha_0 W_0 + \sum_{i,j} \alpha_{ij} \, w_U(j) w_E(i)^\top$$

    100 steps of real gradient descent (autograd on $W$ itself) start from a random $W_0$, with and without weight
    decay, $N = 12$, $d = 48$. The rows have the share of $W_t$ outside the span, the $\alpha_{ij}$ recovered by least
    squares against their recursion, and $\alpha_0 = (1 - \eta\lambda)^t$. Heavy-ball momentum keeps the form. Adam,
    which divides entry by entry, does not. At the end of a longer run $\hat p \approx p$, since the problem is convex.
    """
    generator = torch.Generator().manual_seed(5)
    w_E, w_U = gaussian_embeddings(N, D, generator), gaussian_embeddings(N, D, generator)
    joint = torch.rand(N * N, generator=generator, dtype=torch.float64)
    joint = (joint / joint.sum()).reshape(N, N)
    W_0 = random_remapping(D, generator)

    def slope(W: Tensor) -> Tensor:
        return autograd(lambda W: gradients.token_loss(W, w_E, w_U, joint), W)

    rows, records = [], []
    for name, decay in (("without weight decay", 0.0), ("with weight decay", DECAY)):
        W, alpha_0, alpha = W_0, 1.0, torch.zeros(N, N, dtype=torch.float64)
        for step in range(1, STEPS + 1):
            p_hat = (w_E @ W.mT @ w_U.mT).softmax(-1)
            alpha_0, alpha = update(alpha_0, alpha, p_hat, joint, ETA, decay)
            W = (1 - ETA * decay) * W - ETA * slope(W)
            if step % 20 == 0:
                fitted_0, fitted, outside = fit(W, W_0, w_E, w_U)
                error = (fitted - alpha).norm() / fitted.norm()
                records.append(
                    {
                        "descent": name,
                        "step": step,
                        "outside": outside,
                        "alpha_0": fitted_0,
                        "predicted alpha_0": (1 - ETA * decay) ** step,
                        "alpha error": error.item(),
                    }
                )
        table = pd.DataFrame(records)
        outside, error = (float(column(table, kind, descent=name).max()) for kind in ("outside", "alpha error"))
        rows += [
            at_most(f"share outside the span, {name}: largest over steps", 1e-8, outside),
            at_most(f"alpha_ij against their recursion, {name}: largest relative error", 1e-6, error),
            within(f"alpha_0 after {STEPS} steps, {name}", alpha_0, column(table, "alpha_0", descent=name)[-1], 1e-6),
        ]
    rows.append(at_most("share outside the span with momentum 0.9", 1e-8, fit(_momentum(W_0, slope), W_0, w_E, w_U)[2]))
    rows.append(
        at_least("share outside the span with Adam (it must leave)", 0.01, fit(_adam(W_0, slope), W_0, w_E, w_U)[2])
    )
    W = _momentum(W_0, slope, 600)
    gap = ((w_E @ W.mT @ w_U.mT).softmax(-1) - joint / joint.sum(-1, keepdim=True)).abs().max().item()
    rows.append(at_most("largest |p_hat - p| after 600 steps with momentum", 0.01, gap))
    return Result(tuple(rows), {"iterates": pd.DataFrame(records)})


def _momentum(W: Float[Tensor, "d d"], slope: Callable[[Tensor], Tensor], steps: int = 50) -> Float[Tensor, "d d"]:
    velocity = torch.zeros_like(W)
    for _ in range(steps):
        velocity = 0.9 * velocity + slope(W)
        W = W - ETA * velocity
    return W


def _adam(W: Float[Tensor, "d d"], slope: Callable[[Tensor], Tensor], steps: int = 50) -> Float[Tensor, "d d"]:
    W = W.clone()
    optimiser = torch.optim.Adam([W], lr=0.01)
    for _ in range(steps):
        W.grad = slope(W)
        optimiser.step()
    return W
