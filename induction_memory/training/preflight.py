"""Checks before a run begins, so that nothing is written for a run that cannot train.

It refuses a model or a batch that does not fit into memory, a missing device, a task that has no position that the loss
averages over, and a graft of the wrong shape.
"""

import math
import os
from collections.abc import Mapping

import torch
from torch import Tensor

from induction_memory.errors import require
from induction_memory.experiment.constraints import Graft
from induction_memory.experiment.run_config import RunConfig
from induction_memory.model.architecture import AnyModel
from induction_memory.task.sampler import step_rng
from induction_memory.training.evaluation import trained_positions
from induction_memory.trajectory.export import is_export
from induction_memory.trajectory.layout import MANIFEST
from induction_memory.trajectory.search import find
from induction_memory.trajectory.trajectory import Trajectory, load

GB = 1e9
SEQUENCES = 256  # searched for a position that the loss averages over


def check(config: RunConfig) -> None:
    """Raise an InputError if this machine cannot train the run, or nothing in it would learn."""
    device = config.train.device
    require(device == "cpu" or torch.cuda.is_available(), "train.device", "cpu: no CUDA device is there", repr(device))
    require(bool(config.model.trained_names), "model.trained", "at least one name to train", "none")
    _check_memory(config)
    _check_loss(config)


def graft_matrices(config: RunConfig, given: Mapping[Graft, Tensor] | None = None) -> dict[Graft, Tensor]:
    """The matrix of each graft, of the shape that it replaces: those given, and the others from their runs."""
    matrices = dict(given or {})
    for rule in (rule for rule in config.train.graft_rules if rule not in matrices):
        run = donor(rule.run, config.model)
        known = run.model_config.parameters
        require(rule.name in known, "train.grafts", f"a matrix that {rule.run} has", repr(rule.name))
        matrix = run.stack(rule.name, [rule.step])[0].clone()
        wanted = config.model.shapes[config.model.parameters[rule.name]]
        got = tuple(matrix.shape)
        require(got == wanted, "train.grafts", f"a matrix of shape {wanted}", f"{got} for {rule}")
        matrices[rule] = matrix
    return matrices


def donor(where: str, model: AnyModel) -> Trajectory:
    """The run to graft from: a trajectory, or a plain folder of state dicts of the architecture `model`."""
    folder = find(where)
    own = (folder / MANIFEST).exists() or is_export(folder)
    return load(folder) if own else load(folder, model=model)


def _check_memory(config: RunConfig) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    copies = 4  # the weights, a copy on their way to the disk, gradients, momentum
    weights = sum(math.prod(shape) for shape in config.model.shapes.values()) * 4 * copies
    allowed = f"weights that fit into this machine's memory ({memory / GB:.3g} GB)"
    require(weights < memory, "model", allowed, f"about {weights / GB:.3g} GB with gradients and momentum")
    tokens = config.train.batch_size * (config.task.length + 1) * 8 * 4  # tokens, targets, classes, predictions
    allowed = f"batches that fit into this machine's memory ({memory / GB:.3g} GB)"
    require(tokens < memory, "train.batch_size", allowed, f"{config.train.batch_size}, about {tokens / GB:.3g} GB")


def _check_loss(config: RunConfig) -> None:
    """Refuse a task whose sequences never have a position that the loss averages over."""
    loss = config.train.loss
    batch = config.task.sample(SEQUENCES, step_rng(config.train.eval_seed, 0))
    asked = bool(trained_positions(batch, loss).any())
    allowed = f"sequences with positions that the loss {loss!r} averages over (later occurrences of triggers ...)"
    require(asked, "task", allowed, f"none in {SEQUENCES} sequences of {config.task.length} tokens")
