"""The three recalls of the paper (Section 5), quickly, for the progress line and for adaptive checkpoints.

    W_K1   query p_t, keys p_s with s < T, target s = t - 1
    W_K2   query w_E(k), keys Phi_1 w_E(k'), target k' = k
    W_O2   input W_V2 w_E(k), outputs w_U(j), target j = k

Of several heads, or pairs of heads, the best counts. `probes` has these and their variants for whole trajectories.
"""

import torch
from torch import nn

from induction_memory.memory.associative import recall
from induction_memory.model.memories import embedding, memory
from induction_memory.task.bigrams import BigramTask


@torch.no_grad()
def recalls(model: nn.Module, task: BigramTask) -> dict[str, float]:
    """Recall of W_K1 and, in a model of two or more layers, of W_K2 and W_O2; nothing for a sequence of one token."""
    weights = {name: value.detach() for name, value in model.named_parameters()}
    p = embedding(weights, "p")[: task.length]
    if len(p) < 2:
        return {}
    found = {"W_K1": recall(memory(weights, "W_K1").mT, p[1:], p[:-1], _each(len(p) - 1, p))}
    if "blocks.1.attn.W_K" in weights:
        w_E, w_U = embedding(weights, "w_E"), embedding(weights, "w_U")
        remapped, W_K2 = embedding(weights, "Phi_1 w_E"), memory(weights, "W_K2").mT
        if W_K2.dim() == 3:
            remapped, W_K2 = remapped[:, None], W_K2.expand(len(remapped), *W_K2.shape)
        each = _each(len(w_E), w_E)
        found["W_K2"] = recall(W_K2, w_E, remapped, each)
        found["W_O2"] = recall(memory(weights, "Phi_2"), w_E, w_U, each)
    return {name: float(value.max()) for name, value in found.items()}


def _each(count: int, like: torch.Tensor) -> torch.Tensor:
    return torch.arange(count, device=like.device)
