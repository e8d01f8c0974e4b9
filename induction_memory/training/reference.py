"""The reference evaluation of a batch: the HookedTransformer's own forward and autograd, slow but for any model.

The batch goes through in pieces of `micro_batch` sequences, each with the loss

    sum over its trained positions of -log p(target) / number of trained positions in the whole batch

so that the gradients of the pieces add up to the gradient of the mean.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from induction_memory.experiment.train_config import Loss
from induction_memory.task.batch import Batch
from induction_memory.training.clamps import Clamps, clamped_pattern
from induction_memory.training.evaluation import (
    Evaluation,
    mean_loss,
    output_is_tied,
    safe_targets,
    trained_positions,
)


def plain_evaluate(
    model: nn.Module,
    batch: Batch,
    loss: Loss,
    *,
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
    """A context in which the model's attention patterns are replaced by the imposed ones."""
    n_layers = len(model.blocks)
    kinds = {layer: clamps.kind(layer, n_layers) for layer in range(n_layers)} if clamps else {}
    hooks = [
        (f"blocks.{layer}.attn.hook_pattern", _impose(clamped_pattern(kind, tokens)))
        for layer, kind in kinds.items()
        if kind is not None
    ]
    return model.hooks(fwd_hooks=hooks) if hooks else nullcontext()


def _impose(pattern: Tensor) -> Callable[..., Tensor]:
    def hook(activation: Tensor, hook: Any) -> Tensor:
        return pattern[:, None].expand_as(activation)

    return hook
