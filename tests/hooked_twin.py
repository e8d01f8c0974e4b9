"""The definition for one variant: a forward of the model with hooks."""

import torch

from induction_memory.runner.hooked import HookedRunner


def hooked_logits(model, tokens, variant):
    runner = HookedRunner(model)
    with torch.no_grad():
        (logits,) = runner.run(runner.record(tokens), [variant], None)
    return logits
