"""Appendix D: factorised memories, layer normalisation, MLP memories and associations of sets."""

from itertools import combinations

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.memory import gradients, nonlinear
from induction_memory.memory.association import matching, store
from induction_memory.memory.edits import truncate
from induction_memory.memory.random_embeddings import gaussian_embeddings, random_remapping
from induction_memory.memory.recall import recall
from induction_memory.paper.theory.checks import Result, agree, column
from induction_memory.paper.theory.lemmas import autograd
from induction_memory.paper.verdicts import at_least, at_most, known_slip, near, within

Product = Float[Tensor, "d_out d_in"]


def expanded(initial: nonlinear.Factors, inputs: Float[Tensor, "i d"], outputs: Float[Tensor, "i d"]) -> Product:
    """U V multiplied out, with the U_0 that the paper's third term lacks."""
    U_0, V_0 = initial
    first = U_0 @ V_0 + outputs.mT @ (inputs @ V_0.mT) @ V_0
    return first + U_0 @ (outputs @ U_0).mT @ inputs + outputs.mT @ (inputs @ V_0.mT) @ (outputs @ U_0).mT @ inputs


def printed_product(initial: nonlinear.Factors, inputs: Float[Tensor, "i d"], outputs: Float[Tensor, "i d"]) -> Product:
    """U V as the paper prints it: the third term is sum_i (U_0^T y_i) x_i^T, whose shape fits only if d' = d."""
    U_0, V_0 = initial
    first = U_0 @ V_0 + outputs.mT @ (inputs @ V_0.mT) @ V_0
    return first + (outputs @ U_0).mT @ inputs + outputs.mT @ (inputs @ V_0.mT) @ (outputs @ U_0).mT @ inputs


def factorised_noise(n: int, d: int, rank: int) -> float:
    """Root mean square of y_k^T W x_l for k != l. Each of the four terms of U V is a product of overlaps.

    The second and third terms share y_k^T y_l, x_k^T x_l and the n products of both, which add up coherently to the
    interference 2/d + n/d^2 of the unfactorised memory. The bottleneck d' adds the other terms.
    """
    bottleneck = 4 / rank + 4 * n / (d * rank) + n**2 / (d**2 * rank)
    return (2 / d + n / d**2 + bottleneck / 4) ** 0.5


def factorisation() -> Result:
    r"""Appendix D: a product of two matrices can store the same pairs as one, as in the $W_K^\top W_Q$ of a head. $W =
    \frac{d}{2d'} U V$ with $U = U_0 + \sum_i y_i (V_0 x_i)^\top$ and $V = V_0 + \sum_i (U_0^\top y_i) x_i^\top$ stores
    the pairs of $\sum_i y_i x_i^\top$: scores near $1\{k = l\}$, with noise of order $d'^{-1/2}$ that low rank makes
    large. The factors are what one gradient step on each gives: $\nabla_U L = \nabla_W L \, V^\top$, up to the centring
    of the softmax. In the paper's expansion of $UV$ the third term lacks $U_0$: it reads $\sum_i (U_0^\top y_i)
    x_i^\top$, which has $d'$ rows."""
    d, n = 256, 64
    generator = torch.Generator().manual_seed(8)
    x, y = gaussian_embeddings(n, d, generator), gaussian_embeddings(n, d, generator)
    square = nonlinear.random_factors(d, d, generator)
    U, V = nonlinear.factorised(square, x, y)
    printed = agree("U V against the printed expansion, d' = d", printed_product(square, x, y), U @ V)
    corrected = agree("U V against the expansion with U_0", expanded(square, x, y), U @ V)
    records = []
    for rank in (4, 8, 16, 32, 64, 128, 256):
        factors = nonlinear.factorised(nonlinear.random_factors(d, rank, generator), x, y)
        W = nonlinear.product(factors)
        stored = matching(W, x, y)
        table = stored.scores
        off = table - torch.diag(table.diagonal())
        noise = (off.square().sum() / (n * (n - 1))).sqrt().item()
        best = recall(matching(truncate(store(x, y), rank), x, y)).item()
        predicted = factorised_noise(n, d, rank)
        records.append((rank, table.diagonal().mean().item(), noise, predicted, recall(stored).item(), best))
    columns = ["rank", "diagonal", "noise", "predicted noise", "recall", "recall of the best matrix of that rank"]
    table = pd.DataFrame(records, columns=columns)
    diagonal = float(column(table, "diagonal")[column(table, "rank") >= 32].mean())
    ratio = float((column(table, "noise") / column(table, "predicted noise")).mean())
    alignment = _step_alignment(generator)
    rows = (
        known_slip(printed),
        corrected,
        near("diagonal scores, mean over d' >= 32", 1.0, diagonal, 0.1),
        within("off-diagonal noise over its prediction, mean over d'", 1.0, ratio, 0.1),
        at_least(f"recall of {n} pairs at d' = d/4", 0.95, column(table, "recall", rank=d // 4)[0]),
        at_least("alignment of one gradient step on U with sum_i y_i (V_0 x_i)^T: cosine", 0.9, alignment),
    )
    return Result(rows, {"ranks": table})


def layer_norm() -> Result:
    r"""Appendix D: with a normalisation $LN(x) = x / \|x\|$ after $W$ the gradient is projected:

    $$
    \nabla_W L = \sum_k E_x\Big[\frac{\hat p_W(k \mid x) - p(k \mid x)}{\|Wx\|} \Big(I - \frac{(Wx)
    (Wx)^\top}{\|Wx\|^2}\Big) w_U(k) x^\top\Big]
    $$

    It is compared with autograd on random inputs with random conditional distributions. Once $Wx$ points at $w_U(y)$
    that association gets no further update, exactly. At a random $W$ the projection takes away a share $1/d$ of
    $\|w_U(k)\|^2$ only."""
    d, n = 64, 20
    generator = torch.Generator().manual_seed(9)
    x, w_U = gaussian_embeddings(n, d, generator), gaussian_embeddings(n, d, generator)
    W = random_remapping(d, generator)
    table = torch.rand(n, n, generator=generator, dtype=torch.float64).softmax(-1)
    weights = torch.rand(n, generator=generator, dtype=torch.float64).softmax(-1)
    expected = autograd(lambda W: gradients.normalised_loss(W, x, table, weights, w_U), W)
    stored = 3 * w_U[:1].mT @ x[:1]
    one, sure = torch.ones(1, dtype=torch.float64), torch.eye(n, dtype=torch.float64)[:1]
    update = gradients.normalised_gradient(stored, x[:1], sure, one, w_U)
    along = (w_U[0] @ update @ x[0] / (update.norm() * w_U[0].norm() * x[0].norm())).abs().item()
    h = torch.nn.functional.normalize(x @ W.mT, dim=-1)
    lost = ((h @ w_U.mT).square() / w_U.square().sum(-1)).mean().item()
    rows = (
        agree("gradient against autograd", gradients.normalised_gradient(W, x, table, weights, w_U), expected),
        at_most("update along an association that is stored already: cosine", 1e-9, along),
        within("share of w_U(k) that the projection removes at random W: 1/d", 1 / d, lost, 0.25),
    )
    return Result(rows)


def mlp_memory() -> Result:
    r"""Appendix D: an MLP can hold more pairs than a linear map, because its threshold removes interference: $F(x) =
    \sum_{(i,j)} v_j \, \sigma(u_i^\top x - b)$ with $\sigma$ the ReLU. Where $u_i^\top u_j \le b$ for all $i \ne j$
    only the right neuron fires. The linear memory, $\sigma$ the identity and $b = 0$, sums all interference. With $d =
    32$ and $b = 1/2$ on vectors of norm one, recall is measured against the number of pairs. The gain is the ratio of
    the numbers of pairs at which recall is still 0.9. The MLP pays for it with $2nd$ parameters instead of $d^2$."""
    d, bias = 32, 0.5
    generator = torch.Generator().manual_seed(10)
    records = []
    for n in (8, 16, 32, 64, 128, 256, 512, 1024, 2048):
        u, v = (torch.nn.functional.normalize(gaussian_embeddings(n, d, generator), dim=-1) for _ in range(2))
        pairs = torch.arange(n)
        overlap = (u @ u.mT - torch.eye(n)).amax().item()
        linear = recall(matching(store(u, v), u, v)).item()
        records.append((n, overlap, linear, nonlinear.mlp_recall(u, v, pairs, bias).item()))
    table = pd.DataFrame(records, columns=["n", "overlap", "linear", "mlp"])
    n, overlap, linear, mlp = (column(table, name) for name in ("n", "overlap", "linear", "mlp"))
    separated = overlap <= bias
    ratio = n[mlp >= 0.9].max() / n[linear >= 0.9].max()
    below = f"recall of the MLP while all overlaps stay below b (n up to {n[separated].max():.0f})"
    rows = (
        at_least(below, 1.0, mlp[separated].min()),
        at_least("pairs held (recall 0.9) by the MLP over those held by the linear memory", 5.0, ratio),
    )
    return Result(rows, {"capacity": table})


def shared_elements(size: int) -> float:
    """1 - delta: the overlap of two sets of equal size that share all but one element."""
    return (size - 1) / size


def set_memory() -> Result:
    r"""Appendix D: an MLP can also give a set of embeddings an output of its own, which a linear map cannot. A set is
    embedded as $u_I = |I|^{-1/2} \sum_{i \in I} u_i$. Then $u_I^\top u_I \approx 1$ and $u_I^\top u_{I'} \lesssim 1 -
    \delta$ for $I \ne I'$ (the paper prints $I = I'$), with $\delta = 1/m$ for sets of size $m$ that share all but one
    element. With $b$ between $1 - \delta$ and 1 the MLP sends every pair out of 20 elements to its own output. The
    values of a linear map on 190 pairs are fixed by those on 20 elements, so even the best least-squares fit leaves a
    share $1 - 20/190$ of the targets' squared norm. (Its argmax can still be right: the failure is in what is written
    to the residual stream.)"""
    d, elements = 4096, 20
    generator = torch.Generator().manual_seed(11)
    u = gaussian_embeddings(elements, d, generator)
    pairs = torch.tensor(list(combinations(range(elements), 2)))
    U, v = nonlinear.set_embeddings(u, pairs), gaussian_embeddings(len(pairs), d, generator)
    gram = U @ U.mT
    shared = (pairs.unsqueeze(1).unsqueeze(-1) == pairs.unsqueeze(1)).any(-1).sum(-1)
    triples = nonlinear.set_embeddings(u, torch.tensor([[0, 1, 2], [0, 1, 3]]))
    targets, bias = torch.arange(len(pairs)), 0.75
    written = nonlinear.mlp_memory(U, U, v, targets, bias) / (1 - bias)
    members = torch.nn.functional.one_hot(pairs, elements).sum(1).double()
    fitted = members @ torch.linalg.lstsq(members, v).solution
    norm, overlap, of_three = gram.diagonal().mean().item(), gram[shared == 1].mean().item(), triples[0] @ triples[1]
    best = 1 - elements / len(pairs)
    rows = (
        near("u_I^T u_I, mean over pairs", 1.0, norm, 0.05),
        known_slip(at_most("u_I^T u_I' at most 1 - delta as printed (I = I'), m = 2", shared_elements(2) + 0.1, norm)),
        near("u_I^T u_I' for I != I' sharing one of two", shared_elements(2), overlap, 0.05),
        near("u_I^T u_I' for I != I' sharing two of three", shared_elements(3), of_three.item(), 0.05),
        at_least("recall of 190 pairs of elements by the MLP", 1.0, nonlinear.mlp_recall(U, v, targets, bias).item()),
        at_most("share of the targets that the MLP misses", 0.1, _missed(written, v)),
        within("share of the targets that the best linear map misses: 1 - 20/190", best, _missed(fitted, v), 0.05),
    )
    return Result(rows)


def _missed(written: Float[Tensor, "i d"], wanted: Float[Tensor, "i d"]) -> float:
    """Squared norm of the difference, divided by the target's."""
    return ((written - wanted).square().sum() / wanted.square().sum()).item()


def _step_alignment(generator: torch.Generator) -> float:
    """Cosine between minus the gradient in U at (U_0, V_0) and sum_i y_i (V_0 x_i)^T, for y = i given z = i."""
    d, rank, n = 256, 64, 64
    x, y = gaussian_embeddings(n, d, generator), gaussian_embeddings(n, d, generator)
    U_0, V_0 = nonlinear.random_factors(d, rank, generator)
    joint = torch.eye(n, dtype=torch.float64) / n
    step = -autograd(lambda U: gradients.token_loss(U @ V_0, x, y, joint), U_0)
    wanted = y.mT @ (x @ V_0.mT)
    return ((step * wanted).sum() / (step.norm() * wanted.norm())).item()
