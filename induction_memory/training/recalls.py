"""The three recalls of the paper (Section 5), quickly, for the progress line and for adaptive checkpoints.

Where there are several heads, or pairs of heads, the best value counts. `probes` has these and their variants for whole
trajectories.
"""

from typing import Any

import torch
from torch import nn

from induction_memory.memory.readings import recall
from induction_memory.model.associations import associate
from induction_memory.model.memories import Memories, UnsupportedError, weights_of
from induction_memory.task.bigrams import BigramTask


@torch.no_grad()
def recalls(model: nn.Module, task: Any) -> dict[str, float]:
    """Recall of W_K1 and, in a model of two or more layers, of W_K2 and W_O2; nothing for a sequence of one token.

    These are memories of the in-context bigram task; for other tasks there is none here.
    """
    if task.name != BigramTask.name or task.length < 2:
        return {}
    m = Memories(weights_of(model))
    names = ["W_K1"] + ["W_K2", "W_O2"] * (m.n_layers > 1)
    found = {}
    for name in names:
        try:
            found[name] = float(recall(associate(m, name, task=task)).max())
        except UnsupportedError:  # this architecture has no such memory
            continue
    return found
