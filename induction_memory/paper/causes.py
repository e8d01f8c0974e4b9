"""What the paper says about causes, measured inside trained models: who writes a logit, and where gradients point.

W_F on what W_O2 writes. After layer 2 the stream is h = x + a with a = Phi_2 (attended x), and the logits are
w_U^T (h + W_F h). The right logit, less the mean over the vocabulary, is therefore the sum of

    w^T a  (direct)    +    w^T W_F a  (through W_F)    +    w^T (I + W_F) x  (the rest),    w = w_U(y) - mean w_U.

Gradients. -v_j^T G u_i is how fast a step along the gradient G raises the score of the pair (i, j). Its mean over the
right pairs of a key-query memory is measured at a step, and again with the other key-query memory put back to its
initial values: what is left of it then is not due to the other memory.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from induction_memory.model.memories import embedding, matrix
from induction_memory.paper import plan
from induction_memory.task.batch import Batch, masked_mean, ratio
from induction_memory.task.bayes import predict
from induction_memory.task.sampler import sample, step_rng
from induction_memory.trajectory.trajectory import Trajectory

Numbers = tuple[dict[str, float], dict[str, float]]
SEQUENCES = 64
CHUNKS, CHUNK = 12, 16
"""Gradients are means over so many batches of so many sequences; their spread gives the error."""
LEARNED, GROWING = 30, 100
"""W_F has learned the bigrams, and both memories of keys are being learned; the nearest stored steps are taken."""
EARLY = 64


def causes(run: Trajectory, name: str) -> Numbers:
    """Numbers and standard errors for the runs that have the parts in question, by the run's name."""
    preset, values, errors = name.rpartition("-seed-")[0], {}, {}
    measured: list[Numbers] = []
    if preset in (plan.OUTPUTS["uniform"], plan.SETTINGS["K=5, fixed frequent"]):
        measured.append(logit_writers(run))
    if preset == plan.OUTPUTS["uniform"]:
        measured.append(loss_on_triggers(run))
    if preset == plan.FREEZING["nothing frozen"]:
        measured += [gradients_of_keys(run), first_appearances(run)]
    for some, of_some in measured:
        values, errors = values | some, errors | {f"{key} over sequences": error for key, error in of_some.items()}
    return values, errors


def logit_writers(run: Trajectory) -> Numbers:
    """The share of the right logit that W_F makes out of W_O2's output; and W_F's gain on that output, relative to its
    gain on token embeddings. In-context positions of the last step.
    """
    model, batch = run.model(int(run.steps[-1])), _fresh(run, SEQUENCES)
    W_F, w_U = matrix(model, "W_F"), embedding(model, "w_U")
    wanted = w_U - w_U.mean(0)
    with torch.no_grad():
        _, cache = model.run_with_cache(
            batch.tokens, names_filter=["blocks.1.hook_resid_pre", "blocks.1.hook_attn_out"]
        )
    x, a = cache["blocks.1.hook_resid_pre"], cache["blocks.1.hook_attn_out"]
    w = wanted[batch.targets] * batch.group("in_context").unsqueeze(-1)
    through, whole = ((w * part).sum((-1, -2)).double() for part in (a @ W_F.mT, x + a + (x + a) @ W_F.mT))
    share, error = ratio(through, whole)
    written = embedding(model, "W_V2 w_E") @ matrix(model, "W_O2").mT
    gains = [((u @ W_F.mT).norm(dim=-1) / u.norm(dim=-1)).mean() for u in (written, embedding(model, "w_E"))]
    return {"W_F_share_of_logit": share.item(), "W_F_gain_on_outputs": (gains[0] / gains[1]).item()}, {
        "W_F_share_of_logit": error.item(),
        "W_F_gain_on_outputs": 0.0,
    }


def loss_on_triggers(run: Trajectory) -> Numbers:
    """The share of the loss, and of its excess over the Bayes-optimal loss, that falls on triggers once W_F has learned
    the bigrams.
    """
    batch, step = _fresh(run, SEQUENCES), _nearest(run, LEARNED)
    with torch.no_grad():
        loss = -_log_probability(run.model(step), batch)
    best = -predict(run.task, batch.tokens).probabilities.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1).log()
    on_triggers: Bool[Tensor, "batch pos"] = ~batch.group("global")
    values, errors = {}, {}
    for name, of in (("loss_on_triggers", loss), ("excess_on_triggers", loss - best)):
        share, error = ratio((of * on_triggers).sum(-1), of.sum(-1))
        values[name], errors[name] = share.item(), error.item()
    return values, errors


def gradients_of_keys(run: Trajectory) -> Numbers:
    """Of the gradient that raises W_K1's right pairs, the share at early positions; and for both W_K, what is left of
    the gradient on right pairs if the other one is as it was at the start.
    """
    step = _nearest(run, GROWING)
    start, drawn = run.initial(), {"early_gradient": [], "left_for_W_K1": [], "left_for_W_K2": []}
    assert start is not None
    for number in range(CHUNKS):
        batch = sample(run.task, CHUNK, step_rng(run.config.train.eval_seed, number))
        now = {name: _right_pairs(run.model(step), batch, {})[name] for name in ("W_K1", "W_K2")}
        for memory, other in (("W_K1", 1), ("W_K2", 0)):
            alone = _right_pairs(
                run.model(step), batch, {f"blocks.{other}.attn.W_K": start[f"blocks.{other}.attn.W_K"]}
            )
            drawn[f"left_for_{memory}"].append((alone[memory].mean(), now[memory].mean()))
        drawn["early_gradient"].append((now["W_K1"][: EARLY - 1].sum(), now["W_K1"].sum()))
    values, errors = {}, {}
    for name, pairs in drawn.items():
        above, below = (torch.stack(part).double() for part in zip(*pairs, strict=True))
        value, error = ratio(above, below)
        values[name], errors[name] = value.item(), error.item()
    return values, errors


def first_appearances(run: Trajectory) -> Numbers:
    """The share of in-context positions whose trigger was first seen early."""
    batch = _fresh(run, SEQUENCES)
    first = (batch.tokens[:, :, None] == batch.tokens[:, None, :]).int().argmax(-1)
    share, error = masked_mean((first < EARLY - 1).float(), batch.group("in_context"))
    return {"early_appearances": share.item()}, {"early_appearances": error.item()}


def _right_pairs(model: nn.Module, batch: Batch, put: Mapping[str, Tensor]) -> dict[str, Float[Tensor, " pair"]]:
    """How fast descent raises the scores of the right pairs of W_K1 and W_K2, with some parameters replaced."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in put.items():
            parameters[name].copy_(value)
    keys = [parameters[f"blocks.{layer}.attn.W_K"].requires_grad_() for layer in (0, 1)]
    where = batch.group("in_context")
    loss = -(_log_probability(model, batch) * where).sum() / where.sum()
    first, second = (-gradient.squeeze(0).mT for gradient in torch.autograd.grad(loss, keys))
    p, w_E, remapped = (embedding(model, name) for name in ("p", "w_E", "Phi_1 w_E"))
    return {"W_K1": (p[1:] @ first * p[:-1]).sum(-1), "W_K2": (w_E @ second * remapped).sum(-1)}


def _log_probability(model: nn.Module, batch: Batch) -> Float[Tensor, "batch pos"]:
    log_p = torch.cat([model(tokens) for tokens in batch.tokens.split(16)]).log_softmax(-1)
    return log_p.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)


def _nearest(run: Trajectory, step: int) -> int:
    return min(run.steps.tolist(), key=lambda stored: abs(stored - step))


def _fresh(run: Trajectory, sequences: int) -> Batch:
    return sample(run.task, sequences, step_rng(run.config.train.eval_seed, 0))
