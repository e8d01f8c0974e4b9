"""Hand-built induction heads, whose circuit is known: `construct` is the paper's (Section 4.2, equations 7 and 8).

    W_K1 = sum_t p_t p_{t-1}^T                          previous-token head
    W_K2 = sum_{k in Q} w_E(k) (Phi_1 w_E(k))^T         induction head: match the trigger with its remapped embedding
    W_O2 = sum_k w_U(k) (W_V2 w_E(k))^T                 copy the attended token to the output
    W_F  = sum_{i not in Q} sum_j log pi_b(j|i) w_U(j) w_E(i)^T   global bigrams, fixed triggers taken out

`model/associations.py` defines the pairs: Q is the set of fixed triggers, or the support of pi_q if triggers are
random. Each sum is divided by the mean squared norms of its two sets of embeddings and multiplied by its scale. So a
stored pair (i, j) has v_j^T W u_i near the scale for any variance of the embeddings, in units of the softmax's logits
(the division by sqrt(d_head) is undone too).

The rows of W_F are log(pi_b + smoothing), centred: log pi_b is not finite where a bigram never occurs, and the mean
over j only shifts the logits. The cross-talk of W_F with what W_O2 writes falls slowly with d: docs/construction.md.

The frozen maps W_V1, W_O1, W_V2 are Gaussian with variance 1/d, as in Section 4.1, so that a remapped embedding keeps
its norm. Everything else is as `build` initialises it.

`plant` writes the construction head by head into two layers with W_Q = I and heads as wide as the model. In layer 1

    previous-token head     W_K1 = sum_t p_t p_{t-1}^T,   writes R_P w_E(z_{t-1})
    two current-token heads W_K1 = sum_t p_t p_t^T,       both write R_C w_E(z_t): either is enough

R_P and R_C are rotations. In layer 2 three heads match a query with what followed it before,
W_K2 = sum_k (R_C w_E(k)) (R_P w_E(k))^T, so that the previous-token head acts through their keys and the current-token
pair through their queries. If one of the pair is ablated, the match is half as strong but still saturates the softmax,
so the two are fully redundant. Two of the three copy the attended token to the output,

    W_O2[h] = share_h * scale * sum_k w_U(k) w_E(k)^T  (W_V2 = I),     shares 0.7 and 0.3 by default,

The third, the distractor, has the same attention but writes orthogonally to all output embeddings. All other heads are
idle: uniform attention over values that nothing reads.

With orthonormal embeddings (d >= 5 N + 4 T) the outputs of any two parts are orthogonal and the circuit is exact. With
random embeddings, as in the paper, the associations interfere a little, as in any trained model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.fields import require_texts
from induction_memory.memory.association import Association, store
from induction_memory.model.associations import associate, written
from induction_memory.model.building import HookedTransformer, build, remap
from induction_memory.model.config import ModelConfig
from induction_memory.model.memories import embedding, head_names, set_matrix, weights_of
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.ideals import bigram_logits
from induction_memory.task.protocol import Task

Memory = Literal["W_K1", "W_K2", "W_O2", "W_F"]


@field_docs
@dataclass(frozen=True)
class Scales:
    """The scale of each memory of the construction: the score of a stored pair, in logits."""

    W_K1: float = 50.0
    W_K2: float = 25.0
    W_O2: float = 15.0
    W_F: float = 2.0
    smoothing: float = 0.01
    """Added to pi_b before the logarithm."""


def is_constructible(task: Task) -> bool:
    """Whether the paper's construction applies to this task."""
    return isinstance(task, BigramTask)


def construct(
    task: BigramTask,
    config: ModelConfig | None = None,
    *,
    scales: Scales | None = None,
    seed: int = 0,
    leave_out: "Sequence[Memory]" = (),
    shuffle: "Sequence[Memory]" = (),
) -> HookedTransformer:
    """The simplified model with the paper's memories written into it.

    Negative controls: a memory in `leave_out` is all zeros. A memory in `shuffle` stores each input with a wrong
    output, by one random cycle over the outputs.

    >>> import induction_memory as im
    >>> task = im.BigramTask(k=3, length=32)
    >>> model = im.construct(task, im.ModelConfig(d_model=256, n_ctx=32))
    >>> im.probes.recall(model, ["W_O2", "W_K2"], task=task).iloc[-1].to_dict()
    {'W_O2': 1.0, 'W_K2': 1.0}
    """
    require(isinstance(task, BigramTask), "task", "a BigramTask", repr(task))
    require(config is None or isinstance(config, ModelConfig), "config", "a ModelConfig", repr(config))
    config = config or ModelConfig.simplified(d_vocab=task.vocab_size, n_ctx=task.length)
    scales = Scales() if scales is None else scales
    require(isinstance(scales, Scales), "scales", "Scales", repr(scales))
    require(
        config.identity_queries and config.n_layers == 2 and config.n_heads == 1 and not config.layer_norm,
        "model",
        "the simplified architecture (two layers of one head, W_Q = I, no LayerNorm)",
        config,
    )
    require(config.feed_forward != "relu", "model.feed_forward", "linear or none", "'relu'")
    require(config.d_vocab == task.vocab_size, "model.d_vocab", f"{task.vocab_size} (the task's)", config.d_vocab)
    has_feed_forward = config.has_feed_forward(2)
    negatives = [*require_texts(leave_out, "leave_out", "a list of memories")]
    for name in (*negatives, *require_texts(shuffle, "shuffle", "a list of memories")):
        known = ["W_K1", "W_K2", "W_O2"] + ["W_F"] * has_feed_forward
        require(name in known, "construct", f"memories out of {', '.join(known)}", repr(name))

    model = build(config, seed)
    for name in ("blocks.0.attn.W_V", "blocks.0.attn.W_O", "blocks.1.attn.W_V"):
        remap(model, name, seed)
    generator = torch.Generator().manual_seed(seed)
    for name in ("W_K1", "W_K2", "W_O2", *(("W_F",) if has_feed_forward else ())):
        a, ideal = associate(model, name, task=task, bare=True), None
        if name in shuffle:
            ideal = _shuffled(_ideal(a, task, scales), generator)
        W = torch.zeros_like(a.W) if name in leave_out else memory(a, task, config, scales, ideal)
        weights = weights_of(model)
        with torch.no_grad():
            for parameter, value in written(replace(a, W=W), weights).items():
                weights[parameter].copy_(value)
    return model


def memory(
    a: Association,
    task: BigramTask,
    config: ModelConfig,
    scales: Scales | None = None,
    ideal: Float[Tensor, "j i"] | None = None,
) -> Float[Tensor, "*lead d_out d_in"]:
    """The matrix that stores an association's ideal pairs, or `ideal`, at the scale of the construction."""
    scales = scales or Scales()
    undo_scaling = config.head_dimension**0.5 if config.scale_scores and a.name in ("W_K1", "W_K2") else 1.0
    ideal = _ideal(a, task, scales) if ideal is None else ideal
    return getattr(scales, a.name) * undo_scaling * store(_unit(a.inputs), _unit(a.outputs), ideal)


def _ideal(a: Association, task: BigramTask, scales: Scales) -> Float[Tensor, "j i"]:
    if a.name != "W_F":
        return a.ideal
    return torch.from_numpy(bigram_logits(task.bigram, task.fixed_triggers, scales.smoothing)).float().mT


def _unit(rows: Float[Tensor, "*lead n d"]) -> Float[Tensor, "*lead n d"]:
    """The rows divided by their mean squared norm, so that a stored pair scores about 1."""
    return rows / rows.square().sum(-1).mean()


def _shuffled(ideal: Float[Tensor, "j i"], generator: torch.Generator) -> Float[Tensor, "j i"]:
    """The ideal pairs with the outputs of the stored inputs exchanged, by one random cycle over these inputs."""
    stored = ideal.any(0).nonzero().flatten()
    order = stored[torch.randperm(len(stored), generator=generator)]
    shuffled = ideal.clone()
    shuffled[:, order] = ideal[:, order.roll(1)]
    return shuffled


KEYS = 50.0  # logits of a stored pair of positions
MATCH = 25.0  # logits of a match through one of the current-token heads
OUTPUT = 15.0  # logits of the right output, from all heads together


@field_docs
@dataclass(frozen=True, eq=False)
class Planted:
    """A model with a known circuit, and the facts about it. Heads have the names of `interventions.components`.

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
        with torch.no_grad():
            model.embed.W_E.copy_(basis[:N])
            model.pos_embed.W_pos.copy_(basis[N : N + T])
            model.unembed.W_U.copy_(basis[4 * (N + T) : 5 * N + 4 * T].T)
    R_P, R_C, R_idle = (basis.T @ basis.roll(-block * (N + T), 0) for block in (1, 2, 3))
    p, w_E, w_U = (embedding(model, name) for name in ("p", "w_E", "w_U"))
    undo_scaling = d_model**0.5

    before = KEYS * undo_scaling * store(_unit(p)[:-1], _unit(p)[1:])
    itself = KEYS * undo_scaling * store(_unit(p), _unit(p))
    match = MATCH * undo_scaling * store(_unit(w_E @ R_P.T), _unit(w_E @ R_C.T))
    copy = OUTPUT * store(_unit(w_E), _unit(w_U))
    unread = _outside(w_U, generator)
    nothing, eye, idle = torch.zeros_like(match), torch.eye(d_model), [R_idle] * (n_heads - 3)

    set_matrix(model, "W_K1", torch.stack([before, itself, itself, *[nothing] * len(idle)]))
    set_matrix(model, "W_V1", torch.stack([R_P, R_C, R_C, *idle]))
    set_matrix(model, "W_O1", torch.stack([eye] * n_heads))
    set_matrix(model, "W_K2", torch.stack([match] * 3 + [nothing] * len(idle)))
    set_matrix(model, "W_V2", torch.stack([eye] * n_heads))
    set_matrix(model, "W_O2", torch.stack([shares[0] * copy, shares[1] * copy, *[unread] * (n_heads - 2)]))
    more = ["none"] * (n_heads - 3)
    first = ["previous-token", "current-token", "current-token", *more]
    second = ["induction", "induction", "none", *more]
    written = [share / sum(shares) for share in shares] + [0.0] * (n_heads - 2)
    earlier, later = head_names((1,), n_heads), head_names((2,), n_heads)
    roles = dict(zip(earlier + later, first + second, strict=True))
    return Planted(model, roles, dict(zip(later, written, strict=True)), "L2H3", ("L1H2", "L1H3"))


def permuted(model: HookedTransformer, orders: Mapping[int, Sequence[int]]) -> HookedTransformer:
    """The same model with the heads of a layer (from 1) in another order: new head i is old head `order[i]`.

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


def _outside(w_U: Float[Tensor, "n d"], generator: torch.Generator) -> Float[Tensor, "d d"]:
    """A random matrix that writes with norm about OUTPUT, orthogonally to every output embedding."""
    W = torch.randn(w_U.shape[1], w_U.shape[1], generator=generator) * OUTPUT / w_U.shape[1] ** 0.5
    return W - torch.linalg.pinv(w_U) @ (w_U @ W)
