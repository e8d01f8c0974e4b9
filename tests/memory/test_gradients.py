"""Closed-form gradients against autograd and against sums written term by term, as the paper prints them."""

import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.memory import gradients

N, D, T, ATOMS = 5, 7, 4, 9


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sequences(seed: int = 0) -> gradients.Sequences:
    labels = torch.randint(0, N, (ATOMS,), generator=torch.Generator().manual_seed(seed))
    return gradients.Sequences(draw(ATOMS, T, D, seed=seed), labels, draw(ATOMS, seed=seed + 1).softmax(0))


def autograd(loss, W):
    W = W.clone().requires_grad_()
    return torch.autograd.grad(loss(W), W)[0]


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_lemma_1_equals_autograd_and_the_printed_sum(seed):
    W, w_E, w_U = draw(D, D, seed=seed), draw(N, D, seed=seed + 1), draw(N, D, seed=seed + 2)
    joint = draw(N, N, seed=seed + 3).flatten().softmax(0).reshape(N, N)
    found = gradients.token_gradient(W, w_E, w_U, joint)
    close(found, autograd(lambda W: gradients.token_loss(W, w_E, w_U, joint), W))
    printed = torch.zeros(D, D, dtype=torch.float64)
    for z in range(N):
        p_z = joint[z].sum()
        p_hat = torch.softmax(w_U @ W @ w_E[z], 0)
        for k in range(N):
            printed += p_z * (p_hat[k] - joint[z, k] / p_z) * torch.outer(w_U[k], w_E[z])
    close(found, printed)


def test_lemma_2_equals_autograd_and_the_printed_sum():
    data, W, w_U = sequences(), draw(D, D, seed=5), draw(N, D, seed=6)
    x = data.X.mean(1)
    found = gradients.noisy_gradient(W, x, data.labels, data.weights, w_U)
    close(found, autograd(lambda W: gradients.noisy_loss(W, x, data.labels, data.weights, w_U), W))
    printed = torch.zeros(D, D, dtype=torch.float64)
    p_hat = torch.softmax(x @ W.T @ w_U.T, -1)
    for k in data.labels.unique().tolist():
        inside = data.labels == k
        p_k = data.weights[inside].sum()
        mu = (data.weights[inside, None] * x[inside]).sum(0) / p_k
        mu_hat = (data.weights[:, None] * p_hat[:, k : k + 1] / p_k * x).sum(0)
        printed += p_k * torch.outer(w_U[k], mu_hat - mu)
    for k in set(range(N)) - set(data.labels.tolist()):  # classes without mass: only the pull of p_hat
        printed += torch.outer(w_U[k], (data.weights[:, None] * p_hat[:, k : k + 1] * x).sum(0))
    close(found, printed)


def test_class_means_by_hand():
    x = torch.tensor([[1.0], [3.0], [5.0]])
    mass, mu = gradients.class_means(x, torch.tensor([0, 0, 2]), torch.tensor([0.25, 0.25, 0.5]), 3)
    assert mass.tolist() == [0.5, 0.0, 0.5]
    assert mu.flatten().tolist() == [2.0, 0.0, 5.0]


def test_layer_norm_gradient_equals_autograd_and_is_orthogonal_to_the_output():
    x, W, w_U = draw(ATOMS, D), draw(D, D, seed=1), draw(N, D, seed=2)
    table, weights = draw(ATOMS, N, seed=3).softmax(-1), draw(ATOMS, seed=4).softmax(0)
    found = gradients.normalised_gradient(W, x, table, weights, w_U)
    close(found, autograd(lambda W: gradients.normalised_loss(W, x, table, weights, w_U), W))
    one = gradients.normalised_gradient(W, x[:1], table[:1], torch.ones(1, dtype=torch.float64), w_U)
    assert (W @ x[0]) @ one @ x[0] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("own_keys", [False, True])
def test_lemma_4_equals_autograd_and_the_printed_sum(own_keys):
    data, Phi_2, w_U = sequences(), draw(D, D, seed=5), draw(N, D, seed=6)
    keys = draw(ATOMS, T, D, seed=7) if own_keys else data.X
    found = gradients.key_query_gradient(data, Phi_2, w_U, keys if own_keys else None)
    zero = torch.zeros(D, D, dtype=torch.float64)
    close(found, autograd(lambda W: gradients.attention_loss(W, data, Phi_2, w_U, keys), zero))
    printed = torch.zeros(D, D, dtype=torch.float64)
    for b in range(ATOMS):
        X, Z = data.X[b], keys[b]
        p_hat = torch.softmax(w_U @ Phi_2 @ X.mean(0), 0)
        for k in range(N):
            for t in range(T):
                error = p_hat[k] - float(data.labels[b] == k)
                value = w_U[k] @ Phi_2 @ X[t]
                printed += data.weights[b] * error / T * value * torch.outer(Z[t] - Z.mean(0), X[-1])
    close(found, printed)


def test_lemma_5_equals_autograd_and_the_four_printed_terms():
    data, p, W_2 = sequences(), draw(T, D, seed=4), draw(D, D, seed=5)
    Phi_1, Phi_2, w_U = draw(D, D, seed=6), draw(D, D, seed=7), draw(N, D, seed=8)
    found = gradients.first_layer_gradient(data, p, W_2, Phi_1, Phi_2, w_U)
    zero = torch.zeros(D, D, dtype=torch.float64)
    close(found, autograd(lambda W: gradients.stacked_attention_loss(W, data, p, W_2, Phi_1, Phi_2, w_U), zero))
    printed = torch.zeros(D, D, dtype=torch.float64)
    for b in range(ATOMS):
        X = data.X[b]
        z = torch.stack([Phi_1 @ X[: t + 1].mean(0) for t in range(T)])
        u = torch.stack([z_t @ W_2 @ X[-1] for z_t in z])
        p_hat = torch.softmax(w_U @ Phi_2 @ (X.T @ ((1 + u - u.mean()) / T)), 0)
        for k in range(N):
            error = p_hat[k] - float(data.labels[b] == k)
            for t in range(T):
                p_bar = p[: t + 1].mean(0)
                inner = sum((Phi_1 @ X[s]) @ W_2 @ X[-1] * torch.outer(p[s] - p_bar, p[t]) for s in range(t + 1)) / (
                    t + 1
                )
                own = w_U[k] @ Phi_2 @ X[t]
                average = w_U[k] @ Phi_2 @ X.mean(0)
                printed += data.weights[b] * error / T * (own - average) * inner
    close(found, printed)


def test_atoms_that_do_not_sum_to_one_are_refused():
    with pytest.raises(InputError, match="weights: expected probabilities that sum to one"):
        gradients.Sequences(draw(2, T, D), torch.tensor([0, 1]), torch.ones(2, dtype=torch.float64))
