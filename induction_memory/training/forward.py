"""One pass over a batch for training: the loss, its gradients, and the predictions at each position.

`evaluate` is the entry. Models that are unchanged since `model/building.py` made them take the fast path: hand-written
forward and backward (`fast/network.py`) on the model's own parameters, in micro-batches that stay in cache, spread over
threads. Any other model takes the reference path (`evaluation.py`), and a warning in the log says so once for each
reason.

The same batch gives the same bits every time, for any number of threads (`fast/micro_batches.py`).
"""

import logging
from typing import Any

import torch
from torch import Tensor, nn

from induction_memory.errors import require
from induction_memory.experiment.train_config import Loss
from induction_memory.model.building import departure
from induction_memory.task.batch import Batch
from induction_memory.training.evaluation import (
    Clamps,
    Evaluation,
    mean_loss,
    output_is_tied,
    plain_evaluate,
    safe_targets,
    trained_positions,
)
from induction_memory.training.fast.micro_batches import (
    MicroBatch,
    Sums,
    Workspace,
    library_threads,
    micro_batches,
    run_groups,
)
from induction_memory.training.fast.network import Network

_said: set[str] = set()


def evaluate(
    model: nn.Module,
    batch: Batch,
    loss: Loss,
    *,
    gradients: bool = True,
    clamps: Clamps | None = None,
    micro_batch: int | None = None,
    full_metrics: bool = False,
) -> Evaluation:
    """Loss, gradients and predictions of one batch.

    Under "trigger-output" only the trained positions are evaluated, unless `full_metrics` is True. In both cases the
    gradients come only from the trained positions.
    """
    reason = supported(model) or ("the targets are soft" if batch.soft else None)
    settings = gradients, clamps or Clamps(), micro_batch, full_metrics
    if reason is None:
        with library_threads(1) as threads, torch.no_grad():
            return _fast_evaluate(model, batch, loss, *settings, threads)
    if reason not in _said:
        _said.add(reason)
        logging.getLogger("induction_memory").warning("evaluating by the slow path: %s", reason)
    return plain_evaluate(model, batch, loss, *settings)


def supported(model: nn.Module) -> str | None:
    """Why the fast path does not support this model; None if it does."""
    reason = departure(model)
    if reason is not None:
        return reason
    config: Any = model.model_config
    if config.d_vocab < 2:
        return "the vocabulary has one token only"
    known, parameters = config.parameters.values(), dict(model.named_parameters())
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            return f"{name} is {str(parameter.dtype).removeprefix('torch.')}, not float32"
        if name not in known and (parameter.requires_grad or bool(parameter.any())):
            return f"{name} is a bias that is trained or not zero"
    missing = set(known) - parameters.keys()
    return f"the model has no {min(missing)}" if missing else None


def _fast_evaluate(
    model: Any,
    batch: Batch,
    loss: Loss,
    gradients: bool,
    clamps: Clamps,
    micro_batch: int | None,
    full_metrics: bool,
    threads: int,
) -> Evaluation:
    parameters, learning = dict[str, Tensor](), list[str]()
    for name, parameter in model.named_parameters():
        parameters[name] = parameter.detach()
        if parameter.requires_grad and gradients:
            learning.append(name)
    longest, pos = len(parameters["pos_embed.W_pos"]), batch.tokens.shape[1]
    require(pos <= longest, "batch", f"at most {longest} tokens per sequence (the model's n_ctx)", pos)
    device = parameters["embed.W_E"].device
    tokens, targets = batch.tokens.to(device), safe_targets(batch).to(device).flatten()
    trained = trained_positions(batch, loss).to(device)
    evaluated = batch.counted.to(device) if full_metrics else trained
    weights = trained.flatten().float() / max(int(trained.sum()), 1) if gradients else None
    nll = torch.full(trained.shape, torch.nan, device=device)
    correct = torch.zeros_like(trained)
    network = Network(model.model_config, parameters, learning, output_is_tied(model), model.cfg.eps, pos, clamps)

    def work(piece: MicroBatch, buffers: Workspace, sums: Sums) -> None:
        places = piece.places(pos)
        weight = None if weights is None else weights[places]
        if weight is not None and piece.real is not None:
            weight *= piece.real
        found = network.run(tokens[piece.sequences], targets[places], weight, piece, buffers, sums)
        for values, into in zip(found, (nll, correct), strict=True):
            into.view(-1).index_copy_(0, places.view(-1), values.view(-1))

    if device.type != "cpu":
        size, threads = max(1, 2**17 // pos), 1
    else:  # activations fit the cache, and there are at least four micro-batches
        size = max(1, min(2**12 // pos, -(-len(batch) // 4)))
    sums = run_groups(work, micro_batches(evaluated, micro_batch or size), device, threads)
    found = network.gradients(sums) if gradients else {}
    return Evaluation(mean_loss(nll, trained), nll, correct, evaluated, found)
