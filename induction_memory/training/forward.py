"""One pass over a batch, as training needs it: the loss, its gradients, and how each position was predicted.

`evaluate` is the entry. The models of `model/build.py` take the fast path: hand-written forward and backward
(`network.py`) on the model's own parameters, in micro-batches that stay in cache, spread over threads. Any other model
takes the plain path (`plain.py`), and a warning in the log says so once for each reason.

Sums are kept by groups of micro-batches that do not depend on the number of threads, and are added in a fixed order: the
same batch gives the same bits every time.
"""

import logging
from typing import Any

import torch
from torch import Tensor, nn

from induction_memory.model.config import ModelConfig
from induction_memory.task.sampler import Batch
from induction_memory.training.clamps import Clamps
from induction_memory.training.config import Loss
from induction_memory.training.evaluation import Evaluation, mean_loss, output_is_tied, trained_positions
from induction_memory.training.network import Network
from induction_memory.training.parallel import run_groups
from induction_memory.training.plain import plain_evaluate
from induction_memory.training.queries import Piece, chosen_pieces, whole_pieces
from induction_memory.training.sums import Sums
from induction_memory.training.workspace import Workspace

__all__ = ["Clamps", "Evaluation", "evaluate", "plain_evaluate", "supported"]

GROUPS = 8
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

    Under "trigger-output" only the trained positions are evaluated, unless `full_metrics` asks for all of them; the
    gradients come from the trained positions alone in either case.
    """
    reason = supported(model)
    if reason is None:
        return _fast_evaluate(
            model, batch, loss, gradients, clamps or Clamps(), micro_batch or _micro_batch(model), full_metrics
        )
    if reason not in _said:
        _said.add(reason)
        logging.getLogger("induction_memory").warning("evaluating by the slow path: %s", reason)
    return plain_evaluate(
        model,
        batch,
        loss,
        gradients=gradients,
        clamps=clamps,
        micro_batch=micro_batch,
        full_metrics=full_metrics,
    )


def supported(model: nn.Module) -> str | None:
    """Why the fast path does not take this model; None when it does."""
    config = getattr(model, "model_config", None)
    if not isinstance(config, ModelConfig):
        return "the model was not made by induction_memory.model.build"
    known = frozenset(config.parameters.values())
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            return f"{name} is {str(parameter.dtype).removeprefix('torch.')}, not float32"
        if name not in known and (parameter.requires_grad or bool(parameter.any())):
            return f"{name} is a bias that is trained or not zero"
    missing = known - {name for name, _ in model.named_parameters()}
    if missing:
        return f"the model has no {min(missing)}"
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
            return f"{name or 'the model'} has hooks"
    return None


def _micro_batch(model: nn.Module) -> int:
    return 16 if next(model.parameters()).device.type == "cpu" else 128


def _fast_evaluate(
    model: Any,
    batch: Batch,
    loss: Loss,
    gradients: bool,
    clamps: Clamps,
    micro_batch: int,
    full_metrics: bool,
) -> Evaluation:
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    trained_names = frozenset(name for name, p in model.named_parameters() if p.requires_grad)
    device = parameters["embed.W_E"].device
    tokens, targets = batch.tokens.to(device), batch.targets.to(device)
    trained = trained_positions(batch, loss).to(device)
    evaluated = torch.ones_like(trained) if full_metrics else trained
    weights = trained.float() / max(int(trained.sum()), 1) if gradients else None
    nll = torch.full(tokens.shape, torch.nan, device=device)
    correct = torch.zeros_like(trained)

    with torch.no_grad():
        network = Network(
            model.model_config,
            parameters,
            trained_names,
            output_is_tied(model),
            model.cfg.eps,
            tokens.shape[1],
            clamps,
        )
        if loss == "all" or full_metrics:
            pieces = whole_pieces(len(batch), micro_batch, device)
        else:
            pieces = chosen_pieces(trained, micro_batch, device)

        def work(piece: Piece, buffers: Workspace, sums: Sums) -> None:
            places = _places(piece)
            found = network.run(
                tokens[piece.sequences],
                targets[places],
                None if weights is None else _masked(weights[places], piece),
                piece,
                buffers,
                sums,
            )
            if piece.real is None:
                nll[places], correct[places] = found
            else:
                real = tuple(index.expand_as(piece.real)[piece.real] for index in places)
                nll[real], correct[real] = (values[piece.real] for values in found)

        sums = run_groups(work, [pieces[i::GROUPS] for i in range(GROUPS)], device)
        found = network.gradients(sums) if gradients else {}
    return Evaluation(mean_loss(nll, trained), nll, correct, evaluated, found)


def _places(piece: Piece) -> tuple[Tensor, ...]:
    """The index of the piece's queries into [batch, pos]."""
    return (piece.sequences,) if piece.positions is None else (piece.sequences[:, None], piece.positions)


def _masked(weights: Tensor, piece: Piece) -> Tensor:
    return weights if piece.real is None else weights * piece.real
