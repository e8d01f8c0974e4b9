"""Lemmas 1, 2, 4, 5 and the illustrative example: closed forms against autograd on the same finite distribution.

Lemma 1 also gives the form of gradient descent's iterates (`iterates`): W_t = alpha_0 W_0 + sum_ij alpha_ij w_U(j)
w_E(i)^T. With step size eta and weight decay lambda the coefficients obey their own recursion,

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
from induction_memory.memory.association import matching
from induction_memory.memory.random_embeddings import gaussian_embeddings, random_remapping
from induction_memory.memory.recall import recall
from induction_memory.paper.theory.checks import Result, agree, column, relative_error, slope
from induction_memory.paper.theory.circuit import enumerate_all
from induction_memory.paper.verdicts import at_least, at_most, known_slip, near, within

Loss = Callable[[Tensor], Tensor]
N, D, STEPS, ETA, DECAY = 12, 48, 100, 2.0, 0.02
"""Settings of the descent in `iterates`."""


def lemma_1() -> Result:
    r"""Lemma 1: with fixed embeddings, every gradient of a classifier is a sum of outer products, so descent writes an
    associative memory. For the loss $L(W) = E[\ell(y, W_U W w_E(z))]$,

    $$\nabla_W L(W) = \sum_k E_z[(\hat p_W(y = k \mid z) - p(y = k \mid z)) \, w_U(k) w_E(z)^\top]$$

    The formula is compared with autograd on a random joint distribution of 20 inputs and 20 outputs, $d = 32$, at zero,
    at a random and at a large matrix."""
    generator = torch.Generator().manual_seed(0)
    w_E, w_U = gaussian_embeddings(20, 32, generator), gaussian_embeddings(20, 32, generator)
    joint = torch.rand(400, generator=generator, dtype=torch.float64).square()
    joint = (joint / joint.sum()).reshape(20, 20)
    random = random_remapping(32, generator)
    points = {"W = 0": torch.zeros_like(random), "W random": random, "W random, 30 times larger": 30 * random}
    rows = []
    for name, W in points.items():
        expected = autograd(lambda W: gradients.token_loss(W, w_E, w_U, joint), W)
        rows.append(agree(f"gradient at {name}", gradients.token_gradient(W, w_E, w_U, joint), expected))
    return Result(tuple(rows))


def recursion(
    alpha_0: float, alpha: Float[Tensor, "i j"], p_hat: Float[Tensor, "i j"], joint: Float[Tensor, "i j"], decay: float
) -> tuple[float, Float[Tensor, "i j"]]:
    """One step of the coefficients alone."""
    error = joint.sum(-1, keepdim=True) * p_hat - joint
    return (1 - ETA * decay) * alpha_0, (1 - ETA * decay) * alpha - ETA * error


def fit(
    W: Float[Tensor, "d d"], W_0: Float[Tensor, "d d"], w_E: Float[Tensor, "i d"], w_U: Float[Tensor, "j d"]
) -> tuple[float, Float[Tensor, "i j"], float]:
    """alpha_0, alpha_ij and the share of W outside the span, by least squares on all entries of W."""
    products = torch.einsum("jd,ie->ijde", w_U, w_E).reshape(-1, W.numel())
    basis = torch.cat([W_0.reshape(1, -1), products]).mT
    solution = torch.linalg.lstsq(basis, W.reshape(-1, 1)).solution
    outside = (basis @ solution - W.reshape(-1, 1)).norm() / W.norm()
    return solution[0].item(), solution[1:].reshape(len(w_E), len(w_U)), outside.item()


def iterates() -> Result:
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

    def grad(W: Tensor) -> Tensor:
        return autograd(lambda W: gradients.token_loss(W, w_E, w_U, joint), W)

    rows, records = [], []
    for name, decay in (("without weight decay", 0.0), ("with weight decay", DECAY)):
        W, alpha_0, alpha = W_0, 1.0, torch.zeros(N, N, dtype=torch.float64)
        for step in range(1, STEPS + 1):
            p_hat = (w_E @ W.mT @ w_U.mT).softmax(-1)
            alpha_0, alpha = recursion(alpha_0, alpha, p_hat, joint, decay)
            W = (1 - ETA * decay) * W - ETA * grad(W)
            if step % 20 == 0:
                fitted_0, fitted, outside = fit(W, W_0, w_E, w_U)
                error = (fitted - alpha).norm() / fitted.norm()
                records.append((name, step, outside, fitted_0, (1 - ETA * decay) ** step, error.item()))
        columns = ["descent", "step", "outside", "alpha_0", "predicted alpha_0", "alpha error"]
        table = pd.DataFrame(records, columns=columns)
        outside, error = (float(column(table, kind, descent=name).max()) for kind in ("outside", "alpha error"))
        rows += [
            at_most(f"share outside the span, {name}: largest over steps", 1e-8, outside),
            at_most(f"alpha_ij against their recursion, {name}: largest relative error", 1e-6, error),
            within(f"alpha_0 after {STEPS} steps, {name}", alpha_0, column(table, "alpha_0", descent=name)[-1], 1e-6),
        ]
    outside = [fit(after(W_0, grad), W_0, w_E, w_U)[2] for after in (_momentum, _adam)]
    W = _momentum(W_0, grad, 600)
    gap = ((w_E @ W.mT @ w_U.mT).softmax(-1) - joint / joint.sum(-1, keepdim=True)).abs().max().item()
    rows += [
        at_most("share outside the span with momentum 0.9", 1e-8, outside[0]),
        at_least("share outside the span with Adam (it must leave)", 0.01, outside[1]),
        at_most("largest |p_hat - p| after 600 steps with momentum", 0.01, gap),
    ]
    return Result(tuple(rows), {"iterates": table})


def lemma_2() -> Result:
    r"""Lemma 2: if inputs are superpositions, the gradient depends on them only through weighted means of them, so that
    noise which averages out is not stored:

    $$
    \nabla_W L(W) = \sum_k p(y = k) \, w_U(k) (\hat\mu_k - \mu_k)^\top, \quad \mu_k = E[x \mid y = k], \quad
    \hat\mu_k = E_x\Big[\frac{\hat p_W(k \mid x)}{p(y = k)} x\Big]
    $$

    Here $x$ is the average of the token and position embeddings of a sequence, and the distribution is the theorem's
    with $N = 4$, $T = 5$, enumerated. For a class without mass $\hat\mu_k$ is undefined, so $p(y = k) \hat\mu_k$ is
    computed, which is always defined."""
    generator = torch.Generator().manual_seed(1)
    data, _ = _sequences(generator)
    x, w_U = data.X.mean(1), gaussian_embeddings(4, 24, generator)
    zero, random = torch.zeros(24, 24, dtype=torch.float64), 5 * random_remapping(24, generator)
    rows = []
    for name, W in {"W = 0": zero, "W random": random}.items():
        expected = autograd(lambda W: gradients.noisy_loss(W, x, data.labels, data.weights, w_U), W)
        closed = gradients.noisy_gradient(W, x, data.labels, data.weights, w_U)
        rows.append(agree(f"gradient at {name}", closed, expected))
    return Result(tuple(rows))


def example_step(w_E: Float[Tensor, "i d"], w_U: Float[Tensor, "i d"], eta: float) -> Float[Tensor, "d d"]:
    """W_1 = eta/N sum_k w_U(k) (w_E(k) - w_E_bar)^T: the positions have cancelled."""
    return eta / len(w_E) * w_U.mT @ (w_E - w_E.mean(0))


def example() -> Result:
    r"""The example of Section 6: one gradient step can already ignore noise. Predict $y$ from $x = w_E(y) + p_t$. One
    step from zero gives $W_1 = \frac{\eta}{N} \sum_k w_U(k) (w_E(k) - \bar w_E)^\top$ and scores $\frac{\eta}{N} 1\{k =
    y\} + O(1/N^2)$: the positions cancel exactly for any $T$. With orthonormal embeddings the error is $\eta/N^2$, on
    every entry. With random ones the classifier is near-perfect once $d$ is large against $\log N$."""
    generator = torch.Generator().manual_seed(2)
    w_E, p, w_U = (gaussian_embeddings(n, 64, generator) for n in (30, 12, 30))
    x = (w_E.unsqueeze(1) + p).reshape(-1, 64)
    labels = torch.arange(30).repeat_interleave(12)
    weights = torch.full((360,), 1 / 360, dtype=torch.float64)
    zero = torch.zeros(64, 64, dtype=torch.float64)
    step = -autograd(lambda W: gradients.noisy_loss(W, x, labels, weights, w_U), zero)
    exactly = agree("W_1 against autograd over all (y, t)", example_step(w_E, w_U, 1.0), step)

    errors = []
    for N in (8, 16, 32, 64, 128):
        basis = torch.eye(2 * N, dtype=torch.float64)
        table = matching(example_step(basis[:N], basis[N:], 1.0), basis[:N], basis[N:]).scores
        errors.append({"N": N, "error": (table - torch.eye(N) / N).abs().max().item()})
    table = pd.DataFrame(errors)
    N, error = column(table, "N"), column(table, "error")
    accuracies = [{"d": d, "accuracy": _example_accuracy(d, generator)} for d in (16, 32, 64, 128, 256, 512)]
    rows = (
        exactly,
        near("error of the scores against eta/N 1{k = y}: log-log slope in N", -2.0, slope(N, error), 0.02),
        near("N^2 times that error, in eta", 1.0, float((error * N**2).max()), 0.02),
        at_least("accuracy with random embeddings, N = 64, T = 32, d = 512", 0.999, accuracies[-1]["accuracy"]),
    )
    return Result(rows, {"errors": table, "accuracy": pd.DataFrame(accuracies)})


def lemma_4() -> Result:
    r"""Lemma 4: the gradient of $W_K^2$ at zero, where attention is uniform, compares each position with the mean over
    positions:

    $$
    \nabla_W L(0) = \sum_k E\Big[(\hat p(k \mid X) - 1\{y = k\}) \, \frac1T \sum_t w_U(k)^\top \Phi_2 x_t \cdot
    (x_t - \bar x) x_T^\top\Big]
    $$

    It is compared with autograd on the theorem's distribution with $N = 4$, $T = 5$, enumerated, also with separate
    keys, as in the proof. The lemma's $W$ multiplies keys from the left ($X^\top W x_T$): it is the transpose of the
    $W_K$ of Section 4 ($x_q^\top W_K x_k$), so the memory it writes is $\Phi_1 w_E(k) \, w_E(k)^\top$ and not $w_E(k)
    (\Phi_1 w_E(k))^\top$."""
    generator = torch.Generator().manual_seed(3)
    data, _ = _sequences(generator)
    Phi_2, w_U = 5 * random_remapping(24, generator), gaussian_embeddings(4, 24, generator)
    keys = data.X @ random_remapping(24, generator)
    zero = torch.zeros(24, 24, dtype=torch.float64)
    pairs = [
        (
            gradients.key_query_gradient(data, Phi_2, w_U, Z),
            autograd(lambda W, Z=Z: gradients.attention_loss(W, data, Phi_2, w_U, Z), zero),
        )
        for Z in (data.X, keys)
    ]
    rows = (
        agree("gradient at W = 0, keys X", *pairs[0]),
        agree("gradient at W = 0, keys of their own", *pairs[1]),
        known_slip(agree("gradient of W_K2 read in Section 4's orientation", pairs[1][0].mT, pairs[1][1])),
    )
    return Result(rows)


def lemma_5() -> Result:
    r"""Lemma 5: the gradient of $W_K^1$ at zero has four terms if the second softmax is replaced by its linearisation
    around zero. They are compared with autograd on the theorem's distribution with $N = 4$, $T = 5$, enumerated. The
    last row has the cost of the linearisation: the gradient through the real softmax differs by a relative error that
    is proportional to the size of $W_2$."""
    generator = torch.Generator().manual_seed(4)
    data, p = _sequences(generator)
    Phi_1, Phi_2, W_2 = (random_remapping(24, generator) for _ in range(3))
    w_U = gaussian_embeddings(4, 24, generator)
    zero = torch.zeros(24, 24, dtype=torch.float64)
    arguments = (data, p, 5 * W_2, Phi_1, 5 * Phi_2, w_U)
    expected = autograd(lambda W: gradients.stacked_attention_loss(W, *arguments), zero)
    exactly = agree("gradient at W = 0", gradients.first_layer_gradient(*arguments), expected)
    records = []
    for size in (1.0, 0.3, 0.1, 0.03, 0.01):
        real = autograd(lambda W, size=size: _two_softmaxes(W, data, p, size * W_2, Phi_1, Phi_2, w_U), zero)
        linear = gradients.first_layer_gradient(data, p, size * W_2, Phi_1, Phi_2, w_U)
        records.append({"size": size, "error": relative_error(linear, real)})
    table = pd.DataFrame(records)
    power = slope(column(table, "size"), column(table, "error"))
    cost = near("cost of the linearisation: log-log slope in the size of W_2", 1.0, power, 0.1)
    return Result((exactly, cost), {"linearisation": table})


def autograd(loss: Loss, W: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "d_out d_in"]:
    """The gradient of a loss at W."""
    W = W.clone().requires_grad_()
    return torch.autograd.grad(loss(W), W)[0]


def _sequences(generator: torch.Generator) -> tuple[gradients.Sequences, Float[Tensor, "pos d"]]:
    """The theorem's distribution as embeddings w_E(z_t) + p_t, and the p_t."""
    data = enumerate_all(4, 5)
    w_E, p = gaussian_embeddings(4, 24, generator), gaussian_embeddings(5, 24, generator)
    return gradients.Sequences(w_E[data.tokens] + p, data.labels, data.weights), p


def _example_accuracy(d: int, generator: torch.Generator) -> float:
    """Share of all (y, t) with N = 64, T = 32 that the one-step classifier gets right."""
    w_E, p, w_U = (gaussian_embeddings(n, d, generator) for n in (64, 32, 64))
    inputs = (w_E.unsqueeze(1) + p).reshape(-1, d)
    return recall(matching(example_step(w_E, w_U, 1.0), inputs, w_U, torch.arange(64).repeat_interleave(32))).item()


def _two_softmaxes(
    W: Float[Tensor, "d d"],
    data: gradients.Sequences,
    p: Float[Tensor, "pos d"],
    W_2: Float[Tensor, "d d"],
    Phi_1: Float[Tensor, "d d"],
    Phi_2: Float[Tensor, "d d"],
    w_U: Float[Tensor, "j d"],
) -> Float[Tensor, ""]:
    """The loss of Lemma 5 with the real softmax in the second layer too."""
    causal = torch.ones(len(p), len(p), dtype=torch.bool).tril()
    first = (p @ W.mT @ p.mT).masked_fill(~causal, -torch.inf).softmax(-1)
    return gradients.attention_loss(W_2, data, Phi_2, w_U, first @ data.X @ Phi_1.mT)


def _momentum(W: Float[Tensor, "d d"], grad: Callable[[Tensor], Tensor], steps: int = 50) -> Float[Tensor, "d d"]:
    velocity = torch.zeros_like(W)
    for _ in range(steps):
        velocity = 0.9 * velocity + grad(W)
        W = W - ETA * velocity
    return W


def _adam(W: Float[Tensor, "d d"], grad: Callable[[Tensor], Tensor], steps: int = 50) -> Float[Tensor, "d d"]:
    W = W.clone()
    optimiser = torch.optim.Adam([W], lr=0.01)
    for _ in range(steps):
        W.grad = grad(W)
        optimiser.step()
    return W
