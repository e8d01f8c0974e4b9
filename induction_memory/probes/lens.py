"""The logit lens: the prediction if the model ended after each layer.

    q_l = softmax(logits(x_l)),    x_l the residual stream after l layers,    logits = unembedding of the final norm

Layer 0 is the stream that enters the first layer. To read x_l, the model runs again with x_l instead of its last
stream, so its own norm and unembedding are used.
"""

from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.probes.activations import largest, run
from induction_memory.probes.prediction import target_log_probability
from induction_memory.source.measuring import over_steps
from induction_memory.source.sources import At, Sequences, select
from induction_memory.task.batch import Batch, masked_mean, scored_groups
from induction_memory.task.protocol import Task
from induction_memory.terminal import Progress
from induction_memory.trajectory.search import Steps


def logit_lens(
    source: Any,
    *,
    step: "Steps" = None,
    batch: "Sequences" = None,
    task: Task | None = None,
    sequences: int | None = None,
    progress: "Progress" = None,
) -> pd.DataFrame:
    """Loss, accuracy and logit of the target, read from the stream after each layer, at the last step or at others.

    One row per layer, 0 before the first. The columns are as in `ablate`: `<group>_loss` and so on, each with its
    standard error `_se`. `<group>_logit` is the target's logit above the average. For soft targets, only the loss has a
    meaning. Works for every source with a model.

    >>> import induction_memory as im
    >>> lens = im.probes.logit_lens("induction-small", step=600, sequences=4)
    >>> lens[["layer", "in_context_accuracy", "in_context_loss"]].round(2)
       layer  in_context_accuracy  in_context_loss
    0      0                 0.01             4.42
    1      1                 0.01             4.42
    2      2                 0.96             0.23
    """
    chosen = select(source, step=step, batch=batch, task=task, sequences=sequences, progress=progress)
    return over_steps(chosen, lambda at: {"table": _of_step(at)})["table"]


def _of_step(at: At) -> pd.DataFrame:
    model: Any = at.model
    names = ["blocks.0.hook_resid_pre", *(f"blocks.{i}.hook_resid_post" for i in range(model.cfg.n_layers))]
    intact, rows = run(model, at.batch.tokens, names), []
    for layer, name in enumerate(names):
        logits = intact["logits"]
        if name != names[-1]:
            with torch.no_grad():
                put = [(names[-1], lambda x, hook, stream=intact[name]: stream)]
                logits = model.run_with_hooks(at.batch.tokens, fwd_hooks=put)
        rows.append({"layer": layer} | _scores(logits, at.batch))
    return pd.DataFrame(rows)


def _scores(logits: Float[Tensor, "batch pos vocab"], batch: Batch) -> dict[str, float]:
    values = {"loss": -target_log_probability(logits.double().log_softmax(-1), batch)}
    if not batch.soft:
        targets = torch.where(batch.counted, batch.targets, 0)
        values["accuracy"] = (largest(logits) == targets).double()
        values["logit"] = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - logits.mean(-1)
    scores = {}
    for group in scored_groups(batch):
        for what, value in values.items():
            mean, error = masked_mean(value, batch.group(group))
            scores |= {f"{group}_{what}": float(mean), f"{group}_{what}_se": float(error)}
    return scores
