"""The paper's hand-built induction head: a model whose circuit is known (Section 4.2, equations 7 and 8).

    W_K1 = sum_t p_t p_{t-1}^T                          previous-token head
    W_K2 = sum_{k in Q} w_E(k) (Phi_1 w_E(k))^T         induction head: match the trigger with its remapped self
    W_O2 = sum_k w_U(k) (W_V2 w_E(k))^T                 copy the attended token to the output
    W_F  = sum_{i not in Q} sum_j log pi_b(j|i) w_U(j) w_E(i)^T   global bigrams, fixed triggers taken out

The pairs are those of `model/associations.py`: Q is the set of fixed triggers, or the support of pi_q if triggers are
random. Each sum is divided by the mean squared norms of its two sets of embeddings, so that a stored pair scores 1 for
any variance of the embeddings, and multiplied by its scale. So v_j^T W u_i is about the scale for a stored pair (i, j),
in units of the softmax's logits (the division by sqrt(d_head) is undone too).

The rows of W_F are log(pi_b + smoothing), centred: log pi_b is not finite where a bigram never occurs, and the mean
over j only shifts the logits. The cross-talk of W_F with what W_O2 writes falls slowly with d: docs/construction.md.

The frozen maps W_V1, W_O1, W_V2 are Gaussian with variance 1/d, as in Section 4.1, so that a remapped embedding keeps
its norm. Everything else is as `build` initialises it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.memory.association import Association, store
from induction_memory.model.associations import associate, written
from induction_memory.model.building import HookedTransformer, build, remap
from induction_memory.model.config import ModelConfig
from induction_memory.model.memories import weights_of
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.fields import require_texts
from induction_memory.task.ideals import bigram_logits
from induction_memory.task.protocol import Task

Memory = Literal["W_K1", "W_K2", "W_O2", "W_F"]


@field_docs
@dataclass(frozen=True)
class Scales:
    """How strongly each memory of the construction is written, in logits of a stored pair."""

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
    leave_out: Sequence[Memory] = (),
    shuffle: Sequence[Memory] = (),
) -> HookedTransformer:
    """The simplified model with the paper's memories written into it.

    Negative controls: a memory in `leave_out` is all zeros, and one in `shuffle` stores each input with a wrong output
    (a random cyclic order of the same outputs).

    >>> import induction_memory as im
    >>> task = im.BigramTask(k=3, length=32)
    >>> model = im.construct(task, im.ModelConfig(d_model=256, n_ctx=32))
    >>> im.probes.recall(model, ["W_O2", "W_K2"], task=task).iloc[-1].to_dict()
    {'W_O2': 1.0, 'W_K2': 1.0}
    """
    require(isinstance(task, BigramTask), "task", "a BigramTask", repr(task))
    require(config is None or isinstance(config, ModelConfig), "config", "a ModelConfig", repr(config))
    config = config or ModelConfig.simplified(d_vocab=task.vocab_size, n_ctx=task.length)
    scales = scales or Scales()
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
    """The matrix that stores an association's ideal pairs, or those given, as strongly as the construction does."""
    scales = scales or Scales()
    undo_scaling = config.head_dimension**0.5 if config.scale_scores and a.name in ("W_K1", "W_K2") else 1.0
    ideal = _ideal(a, task, scales) if ideal is None else ideal
    return getattr(scales, a.name) * undo_scaling * store(_unit(a.inputs), _unit(a.outputs), ideal)


def _ideal(a: Association, task: BigramTask, scales: Scales) -> Float[Tensor, "j i"]:
    return _feed_forward(task, scales.smoothing) if a.name == "W_F" else a.ideal


def _feed_forward(task: BigramTask, smoothing: float) -> Float[Tensor, "j i"]:
    return torch.from_numpy(bigram_logits(task.bigram, task.fixed_triggers, smoothing)).float().mT


def _unit(rows: Float[Tensor, "*lead n d"]) -> Float[Tensor, "*lead n d"]:
    """The rows divided by their mean squared norm, so that a stored pair scores 1 with the embeddings themselves."""
    return rows / rows.square().sum(-1).mean()


def _shuffled(ideal: Float[Tensor, "j i"], generator: torch.Generator) -> Float[Tensor, "j i"]:
    """The ideal pairs with each stored input's outputs given to another input, in one random cycle over all inputs."""
    stored = ideal.any(0).nonzero().flatten()
    order = stored[torch.randperm(len(stored), generator=generator)]
    shuffled = ideal.clone()
    shuffled[:, order] = ideal[:, order.roll(1)]
    return shuffled
