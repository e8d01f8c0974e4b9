"""Lemmas 1, 2, 4, 5 and the illustrative example: closed forms against autograd on the same finite distribution."""

from collections.abc import Callable

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.memory import gradients
from induction_memory.memory.association import matching
from induction_memory.memory.random_embeddings import gaussian_embeddings, random_remapping
from induction_memory.memory.recall import recall
from induction_memory.paper.theory.checks import Result, column, slope
from induction_memory.paper.theory.circuit import enumerate_all
from induction_memory.paper.verdicts import Measurement, at_least, at_most, near

TOLERANCE = 1e-5

ClosedForm = Callable[..., Float[Tensor, "d_out d_in"]]
Loss = Callable[[Tensor], Tensor]


def lemma_1(closed_form: ClosedForm = gradients.token_gradient) -> Result:
    r"""With fixed embeddings, every gradient of a classifier is a sum of outer products, so descent writes an
    associative memory. For the loss $L(W) = E[\ell(y, W_U W w_E(z))]$ the lemma says

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
        rows.append(_agreement(f"gradient at {name}", closed_form(W, w_E, w_U, joint), expected))
    return Result(tuple(rows))


def lemma_2(closed_form: ClosedForm = gradients.noisy_gradient) -> Result:
    r"""If inputs are superpositions, the gradient depends on them only through weighted means of them, so that noise
    which averages out is not stored. The lemma says

    $$
    \nabla_W L(W) = \sum_k p(y = k) \, w_U(k) (\hat\mu_k - \mu_k)^\top, \quad \mu_k = E[x \mid y = k], \quad
    \hat\mu_k = E_x\Big[\frac{\hat p_W(k \mid x)}{p(y = k)} x\Big]
    $$

    Here $x$ is the average of the token and position embeddings of a sequence, and the distribution is the theorem's
    with $N = 4$, $T = 5$, enumerated. For a class without mass $\hat\mu_k$ is undefined but $p(y = k) \hat\mu_k$ is
    not, and that is what is used."""
    generator = torch.Generator().manual_seed(1)
    data, _ = _sequences(generator)
    x, w_U = data.X.mean(1), gaussian_embeddings(4, 24, generator)
    rows = []
    for name, W in {
        "W = 0": torch.zeros(24, 24, dtype=torch.float64),
        "W random": 5 * random_remapping(24, generator),
    }.items():
        expected = autograd(lambda W: gradients.noisy_loss(W, x, data.labels, data.weights, w_U), W)
        rows.append(_agreement(f"gradient at {name}", closed_form(W, x, data.labels, data.weights, w_U), expected))
    return Result(tuple(rows))


def example_step(w_E: Float[Tensor, "i d"], w_U: Float[Tensor, "i d"], eta: float) -> Float[Tensor, "d d"]:
    """W_1 = eta/N sum_k w_U(k) (w_E(k) - w_E_bar)^T: the positions have cancelled."""
    return eta / len(w_E) * w_U.mT @ (w_E - w_E.mean(0))


def example(closed_form: Callable[..., Float[Tensor, "d d"]] = example_step) -> Result:
    r"""One gradient step can already ignore noise: predict $y$ from $x = w_E(y) + p_t$. One step from zero gives $W_1 =
    \frac{\eta}{N} \sum_k w_U(k) (w_E(k) - \bar w_E)^\top$ and scores $\frac{\eta}{N} 1\{k = y\} + O(1/N^2)$: the
    positions cancel exactly for any $T$. With orthonormal embeddings the error is $\eta/N^2$, on every entry. With
    random ones the classifier is near-perfect once $d$ is large against $\log N$."""
    generator = torch.Generator().manual_seed(2)
    w_E, p, w_U = (gaussian_embeddings(n, 64, generator) for n in (30, 12, 30))
    x = (w_E.unsqueeze(1) + p).reshape(-1, 64)
    labels = torch.arange(30).repeat_interleave(12)
    weights = torch.full((360,), 1 / 360, dtype=torch.float64)
    step = -autograd(
        lambda W: gradients.noisy_loss(W, x, labels, weights, w_U), torch.zeros(64, 64, dtype=torch.float64)
    )
    rows = [_agreement("W_1 against autograd over all (y, t)", closed_form(w_E, w_U, 1.0), step)]

    errors = []
    for N in (8, 16, 32, 64, 128):
        basis = torch.eye(2 * N, dtype=torch.float64)
        table = matching(closed_form(basis[:N], basis[N:], 1.0), basis[:N], basis[N:]).scores
        errors.append({"N": N, "error": (table - torch.eye(N) / N).abs().max().item()})
    table = pd.DataFrame(errors)
    rows.append(
        near(
            "error of the scores against eta/N 1{k = y}: log-log slope in N",
            -2.0,
            slope(column(table, "N"), column(table, "error")),
            0.02,
        )
    )
    rows.append(
        near("N^2 times that error, in eta", 1.0, float((column(table, "error") * column(table, "N") ** 2).max()), 0.02)
    )

    accuracies = [
        {"d": d, "accuracy": _example_accuracy(closed_form, d, generator)} for d in (16, 32, 64, 128, 256, 512)
    ]
    rows.append(at_least("accuracy with random embeddings, N = 64, T = 32, d = 512", 0.999, accuracies[-1]["accuracy"]))
    return Result(tuple(rows), {"errors": table, "accuracy": pd.DataFrame(accuracies)})


def lemma_4(closed_form: ClosedForm = gradients.key_query_gradient) -> Result:
    r"""The gradient of $W_K^2$ at zero, where attention is uniform, compares each position with the mean over
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
    rows = []
    for name, Z in {"keys X": data.X, "keys of their own": keys}.items():
        expected = autograd(lambda W, Z=Z: gradients.attention_loss(W, data, Phi_2, w_U, Z), zero)
        rows.append(_agreement(f"gradient at W = 0, {name}", closed_form(data, Phi_2, w_U, Z), expected))
        if name == "keys of their own":
            found = ((closed_form(data, Phi_2, w_U, Z).mT - expected).norm() / expected.norm()).item()
            rows.append(
                at_most("gradient of W_K2 read in Section 4's orientation: relative error", TOLERANCE, found, slip=True)
            )
    return Result(tuple(rows))


def lemma_5(closed_form: ClosedForm = gradients.first_layer_gradient) -> Result:
    r"""The gradient of $W_K^1$ at zero has four terms if the second softmax is replaced by its linearisation around
    zero. They are compared with autograd on the theorem's distribution with $N = 4$, $T = 5$, enumerated. The last row
    has the cost of the linearisation: the gradient through the real softmax differs by a relative error that is
    proportional to the size of $W_2$."""
    generator = torch.Generator().manual_seed(4)
    data, p = _sequences(generator)
    Phi_1, Phi_2, W_2 = (random_remapping(24, generator) for _ in range(3))
    w_U = gaussian_embeddings(4, 24, generator)
    zero = torch.zeros(24, 24, dtype=torch.float64)
    arguments = (data, p, 5 * W_2, Phi_1, 5 * Phi_2, w_U)
    expected = autograd(lambda W: gradients.stacked_attention_loss(W, *arguments), zero)
    rows = [_agreement("gradient at W = 0", closed_form(*arguments), expected)]
    records = []
    for size in (1.0, 0.3, 0.1, 0.03, 0.01):
        real = autograd(lambda W, size=size: _two_softmaxes(W, data, p, size * W_2, Phi_1, Phi_2, w_U), zero)
        linear = closed_form(data, p, size * W_2, Phi_1, Phi_2, w_U)
        records.append({"size": size, "error": ((linear - real).norm() / real.norm()).item()})
    table = pd.DataFrame(records)
    rows.append(
        near(
            "cost of the linearisation: log-log slope in the size of W_2",
            1.0,
            slope(column(table, "size"), column(table, "error")),
            0.1,
        )
    )
    return Result(tuple(rows), {"linearisation": table})


def autograd(loss: Loss, W: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "d_out d_in"]:
    """The gradient of a loss at W."""
    W = W.clone().requires_grad_()
    return torch.autograd.grad(loss(W), W)[0]


def _agreement(statement: str, closed: Float[Tensor, "a b"], expected: Float[Tensor, "a b"]) -> Measurement:
    distance = ((closed - expected).norm() / expected.norm()).item()
    return at_most(f"{statement}: relative error", TOLERANCE, distance)


def _sequences(generator: torch.Generator) -> tuple[gradients.Sequences, Float[Tensor, "pos d"]]:
    """The theorem's distribution as embeddings w_E(z_t) + p_t, and the p_t."""
    data = enumerate_all(4, 5)
    w_E, p = gaussian_embeddings(4, 24, generator), gaussian_embeddings(5, 24, generator)
    return gradients.Sequences(w_E[data.tokens] + p, data.labels, data.weights), p


def _example_accuracy(closed_form: Callable[..., Tensor], d: int, generator: torch.Generator) -> float:
    """Share of all (y, t) with N = 64, T = 32 that the one-step classifier gets right."""
    w_E, p, w_U = (gaussian_embeddings(n, d, generator) for n in (64, 32, 64))
    inputs = (w_E.unsqueeze(1) + p).reshape(-1, d)
    return recall(matching(closed_form(w_E, w_U, 1.0), inputs, w_U, torch.arange(64).repeat_interleave(32))).item()


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
