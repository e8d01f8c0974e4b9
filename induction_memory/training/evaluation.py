"""One pass over a batch: the loss, its gradients, and the predictions at each position.

The loss is the mean of -log softmax(logits)[target] over the trained positions: all that the task counts ("all"), its
main group ("main", or "trigger-output", the paper's name), or another group. With soft targets it is the mean of
-sum_j y_j log softmax(logits)[j]. A batch without a trained position has loss nan and zero gradients, so it changes
nothing.

`plain_evaluate` is the definition, by the HookedTransformer's forward and autograd: slow, but for any model. The batch
is cut into pieces of `micro_batch` sequences, each with the loss

    sum over its trained positions of -log p(target) / number of trained positions in the whole batch

so that the gradients of the pieces add up to the gradient of the mean. `forward.py` computes the same faster.

Clamps are attention patterns that replace the softmax in every head of a layer:

    previous token (first layer)   P[t, t-1] = 1, and P[1, 1] = 1
    induction (last layer)         P[t, s] = 1/n for the n positions s <= t whose previous token z_{s-1} is z_t;
                                   uniform over s <= t where there is none

Position 1 has no previous token and never matches. The scores of that layer get no gradient, so its queries and keys
get none either.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from induction_memory.errors import require
from induction_memory.experiment.train_config import Loss
from induction_memory.memory.association import causal
from induction_memory.task.batch import Batch
from induction_memory.task.ideals import after_same_context


@dataclass(frozen=True)
class Clamps:
    """Which layers have a clamped attention pattern."""

    previous_token: bool = False
    """Layer 1 attends to the previous position."""
    induction: bool = False
    """The last layer attends to what followed earlier occurrences of the current token."""

    def kind(self, layer: int, n_layers: int) -> str | None:
        """The clamp of a layer, counted from 0: "previous-token", "induction" or None."""
        require(
            not (self.previous_token and self.induction and n_layers == 1),
            "clamps",
            "one clamp per layer",
            "both on a model of one layer",
        )
        if self.previous_token and layer == 0:
            return "previous-token"
        if self.induction and layer == n_layers - 1:
            return "induction"
        return None


def clamped_pattern(kind: str, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch query key"]:
    """The clamped pattern of each sequence."""
    return previous_token_pattern(tokens) if kind == "previous-token" else induction_pattern(tokens)


def previous_token_pattern(tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch query key"]:
    """All attention on the position before; the first position on itself."""
    batch, pos = tokens.shape
    pattern = torch.zeros(pos, pos, device=tokens.device)
    at = torch.arange(pos, device=tokens.device)
    pattern[at, (at - 1).clamp(min=0)] = 1
    return pattern.expand(batch, pos, pos)


def induction_pattern(tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch query key"]:
    """All attention, in equal parts, on the positions after earlier occurrences of the query's token."""
    match = after_same_context(tokens)
    match |= causal(tokens.shape[1], tokens.device) & ~match.any(-1, keepdim=True)
    pattern = match.float()
    return pattern / pattern.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Evaluation:
    """Loss, gradients and predictions of one batch."""

    loss: float
    """Mean over the trained positions; nan if there is none."""
    nll: Float[Tensor, "batch pos"]
    """-log p(target); NaN where not evaluated."""
    correct: Bool[Tensor, "batch pos"]
    """Whether the likeliest output is the target; False where not evaluated, and where targets are soft."""
    evaluated: Bool[Tensor, "batch pos"]
    """The positions at which `nll` and `correct` were computed."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """By parameter name, for the parameters that have requires_grad; empty if gradients are not requested."""


def trained_positions(batch: Batch, loss: Loss) -> Bool[Tensor, "batch pos"]:
    """The positions in the loss."""
    return batch.group(None if loss in ("main", "trigger-output") else loss)


def safe_targets(batch: Batch) -> Tensor:
    """The targets, with a valid output at positions that are not counted."""
    return batch.targets if batch.soft else torch.where(batch.counted, batch.targets, 0)


def mean_loss(nll: Float[Tensor, "batch pos"], trained: Bool[Tensor, "batch pos"]) -> float:
    """Mean over the trained positions, summed in double precision; nan if there is none."""
    chosen = nll[trained]
    return float(chosen.double().mean()) if chosen.numel() else math.nan


def output_is_tied(model: nn.Module) -> bool:
    """Whether the unembedding is a view of the token embedding, so that its gradient belongs to W_E."""
    parameters = dict(model.named_parameters())
    tied = parameters["unembed.W_U"].data_ptr() == parameters["embed.W_E"].data_ptr()
    config = getattr(model, "model_config", None)
    require(
        tied or not getattr(config, "tied_output", False),
        "model.tied_output",
        "unembed.W_U to be a view of embed.W_E",
        "a copy (a model that was copied or moved must be tied again)",
    )
    return tied


def plain_evaluate(
    model: nn.Module,
    batch: Batch,
    loss: Loss,
    gradients: bool = True,
    clamps: Clamps | None = None,
    micro_batch: int | None = None,
    full_metrics: bool = False,
) -> Evaluation:
    """Loss, gradients and predictions by model(tokens) and autograd."""
    device = next(model.parameters()).device
    tokens, targets = batch.tokens.to(device), safe_targets(batch).to(device)
    trained = trained_positions(batch, loss).to(device)
    evaluated = batch.counted.to(device) if full_metrics else trained
    nll = torch.full(tokens.shape, torch.nan, device=device)
    correct = torch.zeros_like(trained)
    count = int(trained.sum())

    leaves = {name: p for name, p in model.named_parameters() if p.requires_grad}
    tied = output_is_tied(model) and "embed.W_E" in leaves
    total = {name: torch.zeros_like(p) for name, p in leaves.items()} if gradients else {}
    unembedding = model.get_parameter("unembed.W_U")
    was_trained = unembedding.requires_grad
    size = micro_batch or 64
    try:
        if tied and gradients:
            unembedding.requires_grad_(True)
            leaves["unembed.W_U"] = unembedding
        for start in range(0, len(batch), size):
            rows = slice(start, start + size)
            with torch.set_grad_enabled(gradients), _clamped(model, clamps, tokens[rows]):
                logits = model(tokens[rows])
                each = cross_entropy(logits, targets[rows])
                objective = each[trained[rows]].sum() / max(count, 1)
            nll[rows] = torch.where(evaluated[rows], each.detach(), torch.nan)
            if not batch.soft:
                correct[rows] = evaluated[rows] & (logits.detach().argmax(-1) == targets[rows])
            if gradients and leaves and bool(trained[rows].any()):
                found = torch.autograd.grad(objective, list(leaves.values()), allow_unused=True)
                for name, gradient in zip(leaves, found, strict=True):
                    if gradient is None:
                        continue
                    if name == "unembed.W_U" and tied:
                        total["embed.W_E"] += gradient.T
                    if name in total:
                        total[name] += gradient
    finally:
        unembedding.requires_grad_(was_trained)
    return Evaluation(mean_loss(nll, trained), nll, correct, evaluated, total)


def cross_entropy(logits: Float[Tensor, "batch pos output"], targets: Tensor) -> Float[Tensor, "batch pos"]:
    """-log p(target), or its mean under the target's distribution."""
    log_p = logits.log_softmax(-1)
    if targets.dim() == 3:
        return -(targets.to(log_p.dtype) * log_p).sum(-1)
    return -log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def _clamped(model: Any, clamps: Clamps | None, tokens: Tensor) -> Any:
    """A context in which the clamped patterns replace the model's attention patterns."""
    hooks = []
    for layer in range(len(model.blocks)):
        kind = clamps.kind(layer, len(model.blocks)) if clamps else None
        if kind is not None:
            pattern = clamped_pattern(kind, tokens)[:, None]
            hooks.append((f"blocks.{layer}.attn.hook_pattern", partial(_impose, pattern)))
    return model.hooks(fwd_hooks=hooks) if hooks else nullcontext()


def _impose(pattern: Tensor, activation: Tensor, hook: Any) -> Tensor:
    return pattern.expand_as(activation)
