"""Scores of runs and effects of patches, each with a standard error over sequences (`task/batch.ratio`).

Scores of a run: losses, accuracies and the distance to the intact run. They are means over the positions of each group
of the task. For in-context bigrams the groups are in_context (a trigger seen before) and global (not a trigger). KL is
KL(p_intact || p), with p the run's prediction, averaged over all counted positions.

The effect of a patch is its share of the effect of a corruption. At the query of each sequence, M is the logit of the
right output above the mean of all logits. With means over sequences M_from in the run before patching, M_to in the run
whose activations are patched in, and M in the patched run,

    effect = (M_from - M) / (M_from - M_to):    0, the patch does nothing;  1, it does all that the corruption does.

For soft targets, M = -KL(p_from || p), with p the prediction and p_from the prediction before patching, so M_from = 0.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from induction_memory.errors import require_known
from induction_memory.runner.choice import record
from induction_memory.runner.components import ARROW
from induction_memory.runner.recording import Patch, Recording, Runner, Variant
from induction_memory.task.batch import Batch, masked_mean, ratio, scored_groups
from induction_memory.task.corruptions import Pairs


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores any number of runs on the same batch against the same intact run."""

    intact: Float[Tensor, "batch pos vocab"]
    """Logits."""
    batch: Batch
    where: Bool[Tensor, "batch pos"] | None = None
    """The positions to score; None for all."""

    def __call__(self, logits: Float[Tensor, "*variant batch pos vocab"]) -> dict[str, Float[Tensor, "*variant"]]:
        """Every score and its standard error (`kl`, `kl_se` ...), one value per variant.

        Where targets are soft the loss is their cross-entropy, and there is no accuracy.
        """
        logits = (
            logits if logits.dtype == torch.float64 else logits.float()
        )  # half precision is too coarse for averages
        log_p, batch = logits.log_softmax(-1), self.batch
        p, log_intact = self._intact
        if batch.soft:
            scores = {"loss": -(batch.targets.to(log_p.dtype) * log_p).sum(-1)}
        else:
            targets = torch.where(batch.counted, batch.targets, 0).expand(logits.shape[:-1])
            loss = -log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
            scores = {"accuracy": is_right(logits, targets), "loss": loss}
        names, values, masks = [], [], []
        for group in scored_groups(batch):
            for name, value in scores.items():
                names.append(f"{group}_{name}")
                values.append(value)
                masks.append(batch.group(group))
        names.append("kl")
        values.append(torch.linalg.vecdot(p, log_intact - log_p))
        masks.append(batch.counted)
        where = torch.stack(masks) if self.where is None else torch.stack(masks) & self.where
        mean, error = masked_mean(torch.stack(values, dim=-3), where)
        result = {}
        for i, name in enumerate(names):
            result[name], result[f"{name}_se"] = mean[..., i], error[..., i]
        return result

    @cached_property
    def _intact(self) -> tuple[Tensor, Tensor]:
        """The intact run's probabilities, and their logarithms."""
        log_p = self.intact.to(torch.promote_types(self.intact.dtype, torch.float32)).log_softmax(-1)
        return log_p.exp(), log_p


def is_right(logits: Float[Tensor, "*lead vocab"], targets: Int[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
    """1 where logits.argmax(-1) == targets, 0 elsewhere; nan where a logit is nan.

    Several times faster than this formula: the argmax is computed only where maxima tie or are nan.
    """
    best = logits.amax(-1, keepdim=True)
    if int(torch.count_nonzero(logits == best)) != best.numel():
        right = (logits.argmax(-1) == targets).to(logits.dtype)
        return torch.where(best.squeeze(-1).isnan(), torch.nan, right)
    return (logits.gather(-1, targets.unsqueeze(-1)) == best).squeeze(-1).to(logits.dtype)


Direction = Literal["corrupt", "restore"]


@dataclass(frozen=True, eq=False)
class Contrast:
    """Two recorded runs of one model: the run to patch, and the run whose activations are patched in."""

    start: Recording
    end: Recording
    pairs: Pairs

    @property
    def queries(self) -> Int[Tensor, "batch 1"]:
        return self.pairs.query.unsqueeze(1)


def contrast(model: "nn.Module | Runner", pairs: Pairs, direction: Direction = "corrupt") -> Contrast:
    """Record the clean and the corrupted run.

    `corrupt` puts corrupted activations into the clean run, `restore` clean ones into the corrupted run.

    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> pairs = im.task.corrupt(run.task.sample(4, im.task.step_rng(0, 0)), "trigger", im.task.step_rng(0, 1))
    >>> both = im.interventions.contrast(run.model(step=600), pairs)
    >>> both.start.logits.shape == both.end.logits.shape
    True
    """
    require_known(direction, get_args(Direction), "direction")
    clean, corrupted = record(model, pairs.clean.tokens), record(model, pairs.corrupted.tokens)
    return Contrast(clean, corrupted, pairs) if direction == "corrupt" else Contrast(corrupted, clean, pairs)


def answer_logit(
    logits: Float[Tensor, "*variant batch m vocab"], answer: Int[Tensor, " batch"]
) -> Float[Tensor, "*variant batch"]:
    """M at the query of each sequence: the answer's logit above the mean of all."""
    at_query = logits[..., 0, :]
    index = answer.expand(at_query.shape[:-1]).unsqueeze(-1)
    return at_query.gather(-1, index).squeeze(-1) - at_query.mean(-1)


def measured(
    logits: Float[Tensor, "*variant batch m vocab"],
    start: Float[Tensor, "batch m vocab"],
    answer: Int[Tensor, " batch"] | None,
) -> Float[Tensor, "*variant batch"]:
    """M: the answer's logit above the mean, or for soft targets minus the KL from the run `start`."""
    if answer is not None:
        return answer_logit(logits, answer)
    log_p, log_q = start[..., 0, :].log_softmax(-1), logits[..., 0, :].log_softmax(-1)
    return -(log_p.exp() * (log_p - log_q)).sum(-1)


def at_query(recording: Recording, contrast: Contrast) -> Float[Tensor, "batch 1 vocab"]:
    """The intact run's logits at the queries."""
    index = contrast.queries.unsqueeze(-1).expand(-1, -1, recording.logits.shape[-1])
    return recording.logits.gather(1, index)


@torch.no_grad()
def effects(contrast: Contrast, variants: Sequence[Variant]) -> pd.DataFrame:
    """One row per variant: accuracy, M (`logit`) and effect, with standard errors; `kl` = -M for soft targets."""
    answer = contrast.pairs.answer
    start, end = (at_query(run, contrast) for run in (contrast.start, contrast.end))
    M_from, M_to = (measured(logits, start, answer) for logits in (start, end))
    rows: list[dict[str, float]] = []
    for logits in contrast.start.run(variants, queries=contrast.queries):
        M = measured(logits, start, answer)
        effect, effect_se = ratio(M_from - M, M_from - M_to)
        each = torch.ones_like(M)
        columns: dict[str, Tensor] = {}
        if answer is None:
            columns["kl"], columns["kl_se"] = ratio(-M, each)
        else:
            columns["accuracy"], columns["accuracy_se"] = ratio(is_right(logits[:, 0], answer), each)
            columns["logit"], columns["logit_se"] = ratio(M, each)
        columns |= {"effect": effect, "effect_se": effect_se}
        rows.append({name: value.item() for name, value in columns.items()})
    return pd.DataFrame(rows)


def edge_slopes(
    recording: Recording,
    values: Mapping[str, Tensor],
    alpha: float,
    measure: Callable[[Tensor], Tensor],
    queries: Int[Tensor, "batch m"] | None = None,
) -> Float[Tensor, " edge"]:
    """dM/da_e of every edge at a = alpha 1, by one backward pass.

    a_e interpolates edge e between its own value (0) and the patched one (1); `measure` maps logits to M.
    """
    edges = recording.graph.edges
    amounts = torch.full((len(edges),), alpha, device=recording.tokens.device, requires_grad=True)
    patches = [Patch(edge, values[edge.split(ARROW)[0]], amount=amounts[i]) for i, edge in enumerate(edges)]
    with torch.enable_grad():
        M = measure(recording.patched_logits([patches], queries=queries))
        return torch.autograd.grad(M.sum(), amounts)[0]
