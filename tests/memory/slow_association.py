"""The readings of an association by loops over single items: slow, obvious, and without the package's tensor code."""

import math

import torch

from induction_memory.memory import Association


def scores(a: Association) -> list[list[float]]:
    """One row per output j, one column per input i."""
    return [[float(v @ a.W @ u) for u in a.inputs] for v in a.outputs]


def questions(a: Association) -> list[tuple[float, list[float]]]:
    """Per item that is asked: the score of its partner, and those of its rivals."""
    s, asked = scores(a), (a.ideal != 0 if a.asked is None else a.asked).tolist()
    n_outputs, n_inputs = len(a.outputs), len(a.inputs)
    found = []
    for item in range(n_inputs if a.given == "input" else n_outputs):
        places = [(j, item) for j in range(n_outputs)] if a.given == "input" else [(item, i) for i in range(n_inputs)]
        partner = [place for place in places if asked[place[0]][place[1]]]
        if not partner:
            continue
        assert len(partner) == 1
        rivals = [p for p in places if p != partner[0] and (a.allowed is None or bool(a.allowed[p[0], p[1]]))]
        found.append((s[partner[0][0]][partner[0][1]], [s[j][i] for j, i in rivals]))
    return found


def hits(a: Association) -> list[bool]:
    return [all(target > rival for rival in rivals) for target, rivals in questions(a)]


def margins(a: Association) -> list[float]:
    return [target - max(rivals) if rivals else math.inf for target, rivals in questions(a)]


def ranks(a: Association) -> list[int]:
    return [1 + sum(not rival < target for rival in rivals) for target, rivals in questions(a)]


def soft_recall(a: Association) -> float:
    shares = [math.exp(t) / (math.exp(t) + sum(map(math.exp, rivals))) for t, rivals in questions(a)]
    return sum(shares) / len(shares)


def signal_to_interference(a: Association) -> float:
    asked = questions(a)
    others = [rival for _, rivals in asked for rival in rivals]
    signal = sum(target for target, _ in asked) / len(asked)
    return signal / math.sqrt(sum(x * x for x in others) / len(others))


def ideal_memory(a: Association) -> torch.Tensor:
    W = torch.zeros_like(a.W)
    for j, v in enumerate(a.outputs):
        for i, u in enumerate(a.inputs):
            W += a.ideal[j, i] * torch.outer(v, u)
    return W


def projection(a: Association) -> torch.Tensor:
    """W on the span of the ideal pairs' outer products, by least squares over their entries."""
    pairs = [(j, i) for j in range(len(a.outputs)) for i in range(len(a.inputs)) if a.ideal[j, i] != 0]
    products = torch.stack([torch.outer(a.outputs[j], a.inputs[i]).flatten() for j, i in pairs], dim=1)
    return (products @ torch.linalg.lstsq(products, a.W.flatten()[:, None], driver="gelsd").solution).reshape(a.W.shape)
