"""Edits of an associative memory in the basis of its embeddings, and how much of W the ideal pairs explain.

W scores the pair (u, v) as v^T W u. Among all changes that give the pairs (u_k, v_k) the scores s_k, the smallest is a
sum of their outer products,

    W' = W + sum_k c_k v_k u_k^T,    G c = s - (v_k^T W u_k)_k,    G_kl = (v_k . v_l)(u_k . u_l).

For one pair this is the rank-one edit W + (s - v^T W u) v u^T / (|v|^2 |u|^2). Erasing is s = 0, inserting s > 0, and
swapping two associations sets four scores. If all pairs of the ideal memory are erased, W - W' = P W is the projection
of W onto the span of the v_k u_k^T: the paper's sum_k alpha_k v_k u_k^T, with alphas measured on W.
Where the ideal pairs are all pairs of some inputs with some outputs (W_F), P W = B B^T W A A^T, with A and B
orthonormal bases of the two sets.

    alignment   <W, W_*> / (|W| |W_*|), the cosine with the ideal memory
    explained   |P W|^2 / |W|^2: about n / (d_out d_in) for a random W and n pairs

Solved in float64. The edits return the association with its new matrix.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from induction_memory.errors import require
from induction_memory.memory.association import Association, store


def pair_scores(a: Association, pairs: Int[Tensor, "pair side"]) -> Float[Tensor, "*lead pair"]:
    """v_k^T W u_k of the pairs (input, output)."""
    u, v = _rows(a, pairs)
    return ((v @ a.W) * u).sum(-1)


def strength(a: Association) -> Float[Tensor, "*lead"]:
    """How strongly ideal pairs are stored: their mean score, weighted by the positive part of the ideal strength."""
    pairs = a.pairs
    weight = a.ideal[pairs[:, 1], pairs[:, 0]].clamp(min=0).to(a.W)
    return (pair_scores(a, pairs) * weight).sum(-1) / weight.sum()


def set_scores(a: Association, pairs: Int[Tensor, "pair side"], scores: Float[Tensor, "*#lead pair"]) -> Association:
    """The memory with the closest matrix, in the Frobenius norm, that gives every pair its score.

    >>> import torch
    >>> import induction_memory as im
    >>> one = torch.eye(2)
    >>> a = im.memory.Association("mine", torch.ones(2, 2), one, one, ideal=one)
    >>> im.memory.set_scores(a, torch.tensor([[0, 1]]), torch.tensor([5.0])).W
    tensor([[1., 1.],
            [5., 1.]])
    """
    W = a.W.double()
    u, v = (rows.double() for rows in _rows(a, pairs))
    missing = scores.double() - ((v @ W) * u).sum(-1)
    gram = (v @ v.mT) * (u @ u.mT)
    weights = torch.linalg.lstsq(gram.expand(*missing.shape[:-1], -1, -1), missing.unsqueeze(-1), driver="gelsd")
    return replace(a, W=(W + (weights.solution * v).mT @ u).to(a.W.dtype))


def erase_or_insert(
    a: Association, kind: str, names: Sequence[str], score: float | None = None
) -> tuple[Association, Int[Tensor, "pair side"]]:
    """The memory with the named pairs set to 0 (kind "erase") or to `score` ("insert"), and the numbers of the pairs.

    The default score is the mean score of the ideal pairs.
    """
    pairs = torch.tensor([a.number(text, kind) for text in names], device=a.W.device)
    now = strength(a).unsqueeze(-1)
    new = torch.zeros_like(now) if kind == "erase" else now if score is None else torch.full_like(now, score)
    return set_scores(a, pairs, new.expand(*now.shape[:-1], len(pairs))), pairs


def project(a: Association, *, complement: bool = False) -> Association:
    """The memory with W projected onto the span of the ideal pairs' outer products, or with that part removed.

    >>> import torch
    >>> import induction_memory as im
    >>> one, W = torch.eye(2), torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> im.memory.project(im.memory.Association("mine", W, one, one, ideal=one)).W
    tensor([[3., 0.],
            [0., 0.]])
    """
    inside = _projection(a).to(a.W.dtype)
    return replace(a, W=a.W - inside if complement else inside)


def truncate(W: Float[Tensor, "*lead d_out d_in"], rank: int) -> Float[Tensor, "*lead d_out d_in"]:
    """The closest matrix of this rank, from the largest singular values: the best that a head of this width can store.

    >>> import torch
    >>> import induction_memory as im
    >>> im.memory.truncate(torch.diag(torch.tensor([3.0, 2.0, 1.0])), 2)
    tensor([[3., 0., 0.],
            [0., 2., 0.],
            [0., 0., 0.]])
    """
    most = min(W.shape[-2:])
    whole = isinstance(rank, int) and not isinstance(rank, bool)
    require(whole and 1 <= rank <= most, "truncate", f"a rank of 1 to {most}", rank)
    U, S, Vh = torch.linalg.svd(W, full_matrices=False)
    return (U[..., :rank] * S[..., None, :rank]) @ Vh[..., :rank, :]


def alignment(a: Association) -> Float[Tensor, "*lead"]:
    """Cosine of the matrix and its ideal memory, <W, W_*> / (|W| |W_*|).

    >>> import torch
    >>> import induction_memory as im
    >>> one, half = torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    >>> im.memory.alignment(im.memory.Association("mine", half, one, one, ideal=one))
    tensor(0.7071)
    """
    return cosine(a.W, store(a.inputs, a.outputs, a.ideal))


def explained(a: Association) -> Float[Tensor, "*lead"]:
    """Share of |W|^2 in the span of the ideal pairs' outer products.

    >>> import torch
    >>> import induction_memory as im
    >>> one, W = torch.eye(2), torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> im.memory.explained(im.memory.Association("mine", W, one, one, ideal=one)).item()
    0.36
    """
    W = a.W.double()
    return (_projection(a) * W).sum((-2, -1)) / W.square().sum((-2, -1))


def cosine(A: Float[Tensor, "*#lead m n"], B: Float[Tensor, "*#lead m n"]) -> Float[Tensor, "*lead"]:
    """<A, B> / (|A| |B|)."""
    return (A * B).sum((-2, -1)) / (A.square().sum((-2, -1)) * B.square().sum((-2, -1))).sqrt()


def where_finite(function: Callable[[Tensor], Tensor], W: Float[Tensor, "*lead m n"]) -> Shaped[Tensor, "..."]:
    """`function` of each matrix; nan for a matrix that is not finite, which would make the whole batch fail."""
    finite = W.isfinite().all(-1).all(-1)
    value = function(W.masked_fill(~finite[..., None, None], 0.0))
    return value.masked_fill(~finite.reshape(finite.shape + (1,) * (value.dim() - finite.dim())), torch.nan)


def _projection(a: Association) -> Float[Tensor, "*lead d_out d_in"]:
    """P W in float64."""
    W, pairs = a.W.double(), a.pairs
    i, j = pairs[:, 0].unique(), pairs[:, 1].unique()
    if len(i) * len(j) == len(pairs) > 1:
        A, B = (torch.linalg.qr(rows.mT.double()).Q for rows in (a.inputs[..., i, :], a.outputs[..., j, :]))
        return B @ (B.mT @ W @ A) @ A.mT
    u, v = (rows.double() for rows in _rows(a, pairs))
    gram = (v @ v.mT) * (u @ u.mT)
    inverse = where_finite(lambda finite: torch.linalg.pinv(finite, hermitian=True, rtol=1e-10), gram)
    weights = inverse @ ((v @ W) * u).sum(-1, keepdim=True)
    return (weights * v).mT @ u


def _rows(a: Association, pairs: Int[Tensor, "pair side"]) -> tuple[Tensor, Tensor]:
    """The embeddings of the pairs: inputs and outputs."""
    return a.inputs[..., pairs[:, 0], :], a.outputs[..., pairs[:, 1], :]
