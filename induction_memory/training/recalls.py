"""The three recalls of the paper (Section 5), computed quickly for the progress line and for adaptive checkpoints.

With several heads, or pairs of heads, the best value counts. `probes` measures these recalls and their variants on
whole trajectories.
"""

from typing import Any

import torch
from torch import nn

from induction_memory.errors import UnsupportedError
from induction_memory.memory.readings import recall
from induction_memory.model.associations import associate
from induction_memory.model.memories import Memories, weights_of


@torch.no_grad()
def recalls(model: nn.Module, task: Any) -> dict[str, float]:
    """Recall of W_K1 and, in a model of two or more layers, of W_K2 and W_O2; nothing for a sequence of one token.

    A memory that the task does not name, or whose items have several partners, is left out.
    """
    if task.length < 2:
        return {}
    m, found = Memories(weights_of(model)), {}
    for name in ["W_K1"] + ["W_K2", "W_O2"] * (m.n_layers > 1):
        try:
            a = associate(m, name, task=task)
        except UnsupportedError:
            continue
        if not a.several:
            found[name] = float(recall(a).max())
    return found
