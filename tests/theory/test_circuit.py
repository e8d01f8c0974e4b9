"""The theorem's data and circuit against slow twins, and the steps of small examples."""

import numpy as np
import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.paper.theory import circuit, first_step_recall, lemmas, theorem
from induction_memory.paper.theory.circuit import enumerate_all, sample
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.sampler import sample as sample_task


def small(seed: int = 0, N: int = 5, T: int = 6, d: int = 12):
    generator = torch.Generator().manual_seed(seed)
    e = circuit.gaussian(N, T, d, generator)
    draw = [torch.randn(d, d, generator=generator, dtype=torch.float64) for _ in range(3)]
    return e, circuit.Circuit(*draw), sample(N, T, 7, generator)


def softmax_over(scores):
    return torch.softmax(torch.stack(scores), 0)


def slow_split(e, c, tokens, positions, both_streams):
    T = len(tokens)
    own = [e.w_E[z] + (e.p[t] if positions != "none" else 0) for t, z in enumerate(tokens)]
    keys = []
    for t in range(T):
        attention = softmax_over([e.p[s] @ c.W_K1 @ e.p[t] for s in range(t + 1)])
        keys.append(sum(a * (e.Phi_1 @ own[s]) for s, a in enumerate(attention)))
    query = e.w_E[tokens[-1]] + (e.p[-1] if positions == "everywhere" else 0)
    attention = softmax_over([k @ c.W_K2 @ query for k in keys])
    values = [x + k for x, k in zip(own, keys, strict=True)] if both_streams else own
    return e.w_U @ c.W_O2 @ e.W_V2 @ sum(a * x for a, x in zip(attention, values, strict=True))


def slow_residual(e, c, tokens):
    x = [e.w_E[z] + e.p[t] for t, z in enumerate(tokens)]
    out = []
    for t in range(len(tokens)):
        attention = softmax_over([x[s] @ c.W_K1 @ x[t] for s in range(t + 1)])
        out.append(x[t] + e.Phi_1 @ sum(a * x[s] for s, a in enumerate(attention)))
    attention = softmax_over([k @ c.W_K2 @ out[-1] for k in out])
    mixed = sum(a * k for a, k in zip(attention, out, strict=True))
    return e.w_U @ (out[-1] + c.W_O2 @ e.W_V2 @ mixed)


@pytest.mark.parametrize("positions", ["none", "keys and values", "everywhere"])
@pytest.mark.parametrize("both_streams", [False, True])
def test_split_circuit_equals_the_equations_written_out(positions, both_streams):
    e, c, data = small()
    fast = circuit.logits(e, c, data.tokens, positions, both_streams)
    slow = torch.stack([slow_split(e, c, z, positions, both_streams) for z in data.tokens])
    torch.testing.assert_close(fast, slow)


def test_superposed_circuit_equals_the_equations_written_out():
    e, c, data = small(1)
    torch.testing.assert_close(
        circuit.residual_logits(e, c, data.tokens), torch.stack([slow_residual(e, c, z) for z in data.tokens])
    )


def test_orthonormal_embeddings_and_their_remapped_versions_are_orthonormal():
    e = circuit.orthonormal(4, 3)
    everything = torch.cat([e.w_E, e.p, e.w_E @ e.Phi_1.mT, e.p @ e.Phi_1.mT, e.w_U])
    assert torch.equal(everything @ everything.mT, torch.eye(len(everything), dtype=torch.float64))


def test_sampled_sequences_end_in_the_second_occurrence_of_their_trigger():
    data = sample(6, 8, 500, torch.Generator().manual_seed(0))
    for z, y, t_q in zip(data.tokens.tolist(), data.labels.tolist(), data.first.tolist(), strict=True):
        q = z[-1]
        assert z.count(q) == 2
        assert z.index(q) + 1 == t_q
        assert z[t_q] == y  # position t_q + 1, counted from 1


def test_sampling_follows_the_enumerated_law():
    N, T, draws = 3, 4, 40_000
    exact, drawn = enumerate_all(N, T), sample(N, T, draws, torch.Generator().manual_seed(1))
    atoms = zip(exact.tokens.tolist(), exact.labels.tolist(), exact.weights.tolist(), strict=True)
    names = {(*z, y): w for z, y, w in atoms}
    counted = dict.fromkeys(names, 0)
    for z, y in zip(drawn.tokens.tolist(), drawn.labels.tolist(), strict=True):
        counted[(*z, y)] += 1  # a sequence outside the event would be a KeyError
    chi_square = sum((counted[k] - draws * w) ** 2 / (draws * w) for k, w in names.items())
    assert chi_square < len(names) + 5 * (2 * len(names)) ** 0.5


def test_label_law_is_that_of_the_enumerated_sequences():
    N, T = 3, 5
    data = enumerate_all(N, T)
    for t_q in range(1, T):
        rows = data.first == t_q
        weights = data.weights[rows] / data.weights[rows].sum()
        is_label = (data.tokens[rows] == data.labels[rows].unsqueeze(-1)).double()
        is_trigger = (data.tokens[rows] == data.triggers[rows].unsqueeze(-1)).double()
        torch.testing.assert_close(weights @ is_label, theorem.label_law(N, T)[t_q - 1])
        torch.testing.assert_close(weights @ is_trigger, theorem.trigger_places(T)[t_q - 1])


def test_tau_and_gamma_are_the_means_that_define_them():
    T = 7
    outputs = range(2, T + 1)
    tail = {t: sum(1 / s for s in range(t, T + 1)) for t in range(1, T + 1)}
    assert theorem.tau(T) == pytest.approx(sum(tail[o] for o in outputs) / (T - 1))
    gamma = sum(1 / o - tail[o - 1] / T for o in outputs) / (T - 1) - 1 / T**2
    assert theorem.gamma(T) == pytest.approx(gamma)


def test_too_many_cases_and_too_short_sequences_are_refused():
    with pytest.raises(InputError, match="at most 300000 cases"):
        enumerate_all(10, 10)
    with pytest.raises(InputError, match="at least 2 tokens and 3 positions"):
        sample(5, 2, 3, torch.Generator())


def test_without_the_memories_above_the_gradients_are_exactly_zero():
    e, generator = circuit.orthonormal(5, 6), torch.Generator().manual_seed(0)
    first, second = circuit.take_steps(e, 100.0, generator, ("W_K2", "W_K1"), chunk=64)
    assert not second.W_K1.any()
    assert not first.W_K2.any()


def test_contrast_and_recalls_by_hand():
    table = torch.tensor([[3.0, 1.0], [0.0, 4.0]])
    assert circuit.contrast(table) == 3.0
    e = circuit.orthonormal(4, 3)
    d = e.shape[-1]
    assert circuit.recalls(e, circuit.zeros(d)) == {"W_O2": 0.0, "W_K2": 0.0, "W_K1": 0.0}
    perfect = circuit.Circuit(e.w_U.mT @ e.w_E, e.Phi_1 @ e.w_E.mT @ e.w_E, e.p[:-1].mT @ e.p[1:])
    assert circuit.recalls(e, perfect) == {"W_O2": 1.0, "W_K2": 1.0, "W_K1": 1.0}
    generator = torch.Generator().manual_seed(0)
    strong = circuit.Circuit(*(50 * W for W in (perfect.W_O2, perfect.W_K2, perfect.W_K1)))
    data = sample(4, 3, 200, generator)
    right = circuit.correct(e, strong, data)
    assert right[data.first > 1].all()  # when t_q = 1 the first position matches as well


def test_frequencies_and_one_step_recall_equal_the_loops():
    task = BigramTask(length=40, k=3)
    batch = sample_task(task, 6, np.random.default_rng(0))
    N = task.vocab_size
    stats = first_step_recall.frequencies(batch, N)
    sums, seen = torch.zeros(N, N, dtype=torch.float64), [0] * N
    everything = []
    for b in range(6):
        for t in range(40):
            if batch.in_context[b, t]:
                frequency = torch.bincount(batch.tokens[b, : t + 1], minlength=N).double() / (t + 1)
                label = int(batch.targets[b, t])
                sums[label] += frequency
                seen[label] += 1
                everything.append(frequency)
    torch.testing.assert_close(stats.by_label, sums)
    assert stats.positions.tolist() == seen
    V = torch.randn(N, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mu = V.T @ torch.stack(everything).mean(0)
    hits = 0
    for k in range(N):
        if seen[k]:
            mu_k = V.T @ (sums[k] / seen[k])
            hits += int((V @ (mu_k - mu)).argmax()) == k
    assert first_step_recall.one_step_recall(stats.contrasts, V) == pytest.approx(hits / N)


def test_least_squares_recovers_the_coefficients_it_was_given():
    generator = torch.Generator().manual_seed(0)
    w_E, w_U, W_0, alpha = (
        torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((3, 5), (4, 5), (5, 5), (3, 4))
    )
    W = 0.5 * W_0 + w_U.mT @ alpha.mT @ w_E
    alpha_0, fitted, outside = lemmas.fit(W, W_0, w_E, w_U)
    assert alpha_0 == pytest.approx(0.5)
    torch.testing.assert_close(fitted, alpha)
    assert outside < 1e-12
