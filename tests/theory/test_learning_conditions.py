"""Conditions of learning and attention at initialisation: fast forms against slow, obvious ones."""

import numpy as np
import pytest
import torch

from induction_memory.memory.random_embeddings import gaussian_embeddings
from induction_memory.paper.theory import learning_conditions
from induction_memory.paper.theory.learning_conditions import _condition, effective_share, starved_outputs
from induction_memory.task.bigrams import BigramTask


def test_effective_tokens_are_all_of_them_if_uniform_and_one_on_one_key():
    uniform = torch.ones(1, 1, 4, 4).tril()
    uniform = uniform / uniform.sum(-1, keepdim=True)
    assert torch.allclose(effective_share(uniform), torch.ones(1, 1, 4))
    one = torch.zeros(1, 1, 4, 4)
    one[..., 0] = 1
    assert torch.allclose(effective_share(one), 1 / torch.arange(1.0, 5))


def test_the_condition_number_is_that_of_the_whole_hessian():
    generator = torch.Generator().manual_seed(0)
    n, d = 4, 6
    w_U, V = gaussian_embeddings(n, d, generator), gaussian_embeddings(n, d, generator)
    f = torch.rand(50, n, generator=generator, dtype=torch.float64)
    second = f.mT @ f / 50

    def loss(W):
        return -(f @ V @ W.reshape(d, d).mT @ w_U.mT).log_softmax(-1).mean(-1).mean()

    hessian = torch.autograd.functional.hessian(loss, torch.zeros(d * d, dtype=torch.float64))
    eigenvalues = torch.linalg.eigvalsh(hessian).flip(0)[: (n - 1) * n]
    assert _condition(w_U, second, V) == pytest.approx((eigenvalues[0] / eigenvalues[-1]).item(), rel=1e-6)


def test_the_errors_of_outputs_are_sums_over_all_pairs():
    task = BigramTask()
    table = starved_outputs().tables["errors"].set_index("outputs")
    for name in ("uniform", "bigram"):
        error = missed = 0.0
        for q, p_q in enumerate(task.unigram):
            for o in range(task.vocab_size):
                weight = p_q * (1 / task.vocab_size if name == "uniform" else task.bigram[q][o])
                wrong = np.array(task.bigram[q])
                wrong[o] -= 1
                error += weight * np.sqrt((wrong**2).sum())
                missed += weight * (1 - task.bigram[q][o])
        assert table.loc[name, "error"] == pytest.approx(error)
        assert table.loc[name, "missed"] == pytest.approx(missed)


def test_descent_is_that_of_a_loop_over_tokens():
    generator = torch.Generator().manual_seed(1)
    w_E, w_U = gaussian_embeddings(3, 5, generator), gaussian_embeddings(3, 5, generator)
    weight = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    for normed in (False, True):
        W = torch.eye(5, dtype=torch.float64)
        for _ in range(3):
            W = W.detach().requires_grad_()
            loss = torch.zeros((), dtype=torch.float64)
            for i in range(3):
                written = W @ w_E[i]
                written = 8 * written / written.norm() if normed else written
                loss = loss - weight[i] * (w_U @ written).log_softmax(-1)[i]
            W = W - 2.0 * torch.autograd.grad(loss, W)[0]
        start = torch.eye(5, dtype=torch.float64)
        fast = learning_conditions._descend(start, w_E, w_U, weight, normed=normed, steps=3, eta=2.0)
        assert torch.allclose(fast, W.detach())
