"""A multi-head model whose circuit is known: the paper's construction, written head by head.

Two layers with W_Q = I and heads as wide as the model. In layer 1

    previous-token head     W_K1 = sum_t p_t p_{t-1}^T,   writes R_P w_E(z_{t-1})
    two current-token heads W_K1 = sum_t p_t p_t^T,       both write R_C w_E(z_t): either is enough

R_P and R_C are rotations. In layer 2 three heads match a query with what followed it before,
W_K2 = sum_k (R_C w_E(k)) (R_P w_E(k))^T, so that the previous-token head acts through their keys and the current-token
pair through their queries. If one of the pair is cut, the match is half as strong but still saturates the softmax, so
the two are fully redundant. Two of the three copy the attended token to the output,

    W_O2[h] = share_h * scale * sum_k w_U(k) w_E(k)^T  (W_V2 = I),     shares 0.7 and 0.3 unless others are asked for,

and the third, the distractor, has the same attention but writes where no output embedding reads. Further heads are
idle: uniform attention over values that nothing reads.

With orthonormal embeddings (d >= 5 N + 4 T) the outputs of any two parts are orthogonal and the circuit is exact. With
random embeddings, as in the paper, the associations interfere a little, as in any trained model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.memory.association import store
from induction_memory.model.building import HookedTransformer, build
from induction_memory.model.config import ModelConfig
from induction_memory.model.memories import embedding, set_matrix
from induction_memory.task.bigrams import BigramTask

KEYS = 50.0  # logits of a stored pair of positions
MATCH = 25.0  # logits of a match through one of the current-token heads
OUTPUT = 15.0  # logits of the right output, all heads together


@field_docs
@dataclass(frozen=True, eq=False)
class Planted:
    """The model and what is true of it. Heads are named as in `interventions.components`.

    >>> import induction_memory as im
    >>> planted = im.heads.plant(im.BigramTask(k=3, length=16), d_model=400)
    >>> planted.distractor, planted.redundant
    ('L2H3', ('L1H2', 'L1H3'))
    """

    model: HookedTransformer
    roles: Mapping[str, str]
    """Head -> previous-token, current-token, induction or none."""
    shares: Mapping[str, float]
    """Head of layer 2 -> its share of the right output's logit."""
    distractor: str
    """The head that attends like an induction head and has no effect."""
    redundant: tuple[str, str]
    """Two heads that can replace each other."""


def plant(
    task: BigramTask,
    *,
    d_model: int = 256,
    n_heads: int = 4,
    shares: Sequence[float] = (0.7, 0.3),
    embeddings: Literal["orthonormal", "random"] = "orthonormal",
    seed: int = 0,
) -> Planted:
    """The model with the planted circuit, for sequences of `task`.

    >>> import induction_memory as im
    >>> planted = im.heads.plant(im.BigramTask(k=3, length=16), d_model=400)
    >>> [head for head, role in planted.roles.items() if role == "induction"]
    ['L2H1', 'L2H2']
    """
    require(n_heads >= 3, "n_heads", "3 or more for the circuit", n_heads)
    require(len(shares) == 2, "shares", "two numbers, one per induction head", tuple(shares))
    config = ModelConfig(
        d_model=d_model,
        n_ctx=task.length,
        d_vocab=task.vocab_size,
        n_heads=n_heads,
        d_head=d_model,
        feed_forward="none",
        parametrisation="unit-embeddings",
    )
    model = build(config, seed)
    generator = torch.Generator().manual_seed(seed)
    N, T = task.vocab_size, task.length
    basis = torch.linalg.qr(torch.randn(d_model, d_model, generator=generator)).Q
    if embeddings == "orthonormal":
        require(d_model >= 5 * N + 4 * T, "d_model", f"at least {5 * N + 4 * T} for orthonormal embeddings", d_model)
        _write_embeddings(model, basis[:N], basis[N : N + T], basis[4 * (N + T) : 5 * N + 4 * T])
    R_P, R_C, R_idle = (basis.T @ basis.roll(-block * (N + T), 0) for block in (1, 2, 3))
    p, w_E, w_U = (embedding(model, name) for name in ("p", "w_E", "w_U"))
    undo_scaling = d_model**0.5

    before = KEYS * undo_scaling * store(_dual(p)[:-1], _dual(p)[1:])
    itself = KEYS * undo_scaling * store(_dual(p), _dual(p))
    match = MATCH * undo_scaling * store(_dual(w_E @ R_P.T), _dual(w_E @ R_C.T))
    copy = OUTPUT * store(_dual(w_E), _dual(w_U))
    unread = _outside(w_U, generator)
    nothing, eye, idle = torch.zeros_like(match), torch.eye(d_model), [R_idle] * (n_heads - 3)

    set_matrix(model, "W_K1", torch.stack([before, itself, itself, *[nothing] * len(idle)]))
    set_matrix(model, "W_V1", torch.stack([R_P, R_C, R_C, *idle]))
    set_matrix(model, "W_O1", torch.stack([eye] * n_heads))
    set_matrix(model, "W_K2", torch.stack([match] * 3 + [nothing] * len(idle)))
    set_matrix(model, "W_V2", torch.stack([eye] * n_heads))
    set_matrix(model, "W_O2", torch.stack([shares[0] * copy, shares[1] * copy, *[unread] * (n_heads - 2)]))
    return Planted(model, _roles(n_heads), _shares(n_heads, shares), "L2H3", ("L1H2", "L1H3"))


def permuted(model: HookedTransformer, orders: Mapping[int, Sequence[int]]) -> HookedTransformer:
    """The same function with the heads of a layer (from 1) in another order: new head i is old head `order[i]`.

    >>> import induction_memory as im
    >>> model = im.heads.plant(im.BigramTask(k=3, length=16), d_model=400).model
    >>> turned = im.heads.permuted(model, {1: [1, 0, 2, 3]})
    >>> bool((turned.W_Q[0, 0] == model.W_Q[0, 1]).all())
    True
    """
    config = model.model_config
    assert isinstance(config, ModelConfig)
    other = build(config)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for layer, order in orders.items():
        require(sorted(order) == list(range(config.n_heads)), "order", f"each of {config.n_heads} heads once", order)
        for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"):
            key = f"blocks.{layer - 1}.attn.{name}"
            state[key] = state[key][list(order)]
    other.load_state_dict(state)
    return other


def _roles(n_heads: int) -> dict[str, str]:
    first = ["previous-token", "current-token", "current-token"] + ["none"] * (n_heads - 3)
    second = ["induction", "induction", "none"] + ["none"] * (n_heads - 3)
    named = (
        (f"L{layer}H{h}", role) for layer, roles in ((1, first), (2, second)) for h, role in enumerate(roles, start=1)
    )
    return dict(named)


def _shares(n_heads: int, shares: Sequence[float]) -> dict[str, float]:
    written = [share / sum(shares) for share in shares] + [0.0] * (n_heads - 2)
    return {f"L2H{h}": share for h, share in enumerate(written, start=1)}


def _dual(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """The rows divided by their mean squared norm, so that a stored pair scores 1 with the rows themselves."""
    return rows / rows.square().sum(-1).mean()


def _write_embeddings(
    model: HookedTransformer, w_E: Float[Tensor, "n d"], p: Float[Tensor, "t d"], w_U: Float[Tensor, "n d"]
) -> None:
    with torch.no_grad():
        model.embed.W_E.copy_(w_E)
        model.pos_embed.W_pos.copy_(p)
        model.unembed.W_U.copy_(w_U.T)


def _outside(w_U: Float[Tensor, "n d"], generator: torch.Generator) -> Float[Tensor, "d d"]:
    """A random matrix that writes with norm about OUTPUT, orthogonally to every output embedding."""
    W = torch.randn(w_U.shape[1], w_U.shape[1], generator=generator) * OUTPUT / w_U.shape[1] ** 0.5
    return W - torch.linalg.pinv(w_U) @ (w_U @ W)
