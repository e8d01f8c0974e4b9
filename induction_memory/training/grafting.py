"""What can replace a matrix of a branch, and how the rules are written.

"W_O2=RUN@STEP", "... from STEP"    a stored step of another run
"W_O2=RUN"                          its last step; also a plain folder of state dicts of the same architecture
"W_O2=FILE.npy"                     a matrix in the paper's orientation, as `im.matrix` reads it
"W_O2=constructed"                  the paper's memory (equation 7) for the embeddings that the run itself has
{"W_O2": source}                    any of these, a tensor, a model (`im.construct(...)` too) or a trajectory
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from induction_memory.errors import InputError, require
from induction_memory.experiment.constraints import Graft
from induction_memory.model.associations import associate, written
from induction_memory.model.config import ModelConfig
from induction_memory.model.memories import matrix, set_matrix
from induction_memory.task.fields import require_texts
from induction_memory.training.preflight import donor
from induction_memory.trajectory.trajectory import Trajectory

CONSTRUCTED = "constructed"


def given_grafts(
    run: Trajectory, at: int, grafts: Sequence[str] | Mapping[str, Any]
) -> tuple[list[str], dict[Graft, Tensor]]:
    """The rules of a branch's grafts, and the parameters of those that are not in a stored run.

    In the rule of such a matrix, its checksum takes the place of the run's name.
    """
    pairs = grafts.items() if isinstance(grafts, Mapping) else map(_pair, _texts(grafts))
    rules, given = [], dict[Graft, Tensor]()
    for name, source in pairs:
        if isinstance(source, str) and (not source or "@" in source):
            rules.append(f"{name}={source}" if source else name)
            continue
        parameter = _parameter(run, at, name, source)
        checksum = hashlib.sha256(parameter.cpu().contiguous().numpy().tobytes()).hexdigest()
        rule = Graft(name, f"given-{checksum[:12]}", 0, at)
        given[rule] = parameter
        rules.append(str(rule))
    return rules, given


def _texts(grafts: Sequence[str]) -> list[str]:
    return require_texts(grafts, "grafts", "a list of rules written as text")


def _pair(text: str) -> tuple[str, str]:
    name, _, source = text.partition("=")
    return name.strip(), source.strip()


def _parameter(run: Trajectory, at: int, name: str, source: Any) -> Tensor:
    """The parameter `name` of the run's model, made from the given source."""
    known = run.model_config.parameters
    require(name in known, "grafts", f"names out of {', '.join(known)}", repr(name))
    if isinstance(source, str | Path) and str(source) == CONSTRUCTED:
        return _constructed(run, at, name)
    given, target = _matrix(run, name, source), run.model(at)
    wanted = tuple(matrix(target, name, fold=False).shape)
    require(tuple(given.shape) == wanted, "grafts", f"a matrix of shape {wanted} for {name}", tuple(given.shape))
    set_matrix(target, name, given.detach())
    return dict(target.named_parameters())[known[name]].detach().clone()


def _matrix(run: Trajectory, name: str, source: Any) -> Tensor:
    if isinstance(source, Tensor):
        return source
    if isinstance(source, str | Path):
        if str(source).endswith(".npy"):
            return _stored_matrix(Path(source))
        source = donor(str(source), run.model_config)
    known = isinstance(source, nn.Module | Trajectory)
    allowed = "a matrix, a model or a trajectory (or rules such as W_O2=RUN@STEP)"
    require(known, "grafts", allowed, f"{type(source).__name__} for {name}")
    return matrix(source.model() if isinstance(source, Trajectory) else source, name, fold=False)


def _stored_matrix(path: Path) -> Tensor:
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"grafts: expected a matrix that can be read, got {str(path)!r} ({error})") from None
    numbers = isinstance(values, np.ndarray) and values.dtype.kind in "iuf" and bool(np.isfinite(values).all())
    require(numbers, "grafts", "finite numbers", f"others in {str(path)!r}")
    return torch.from_numpy(values.astype(np.float32))


def _constructed(run: Trajectory, at: int, name: str) -> Tensor:
    """The paper's memory for the run's own embeddings."""
    from induction_memory.model.construction import is_constructible, memory

    config, task = run.model_config, run.task
    if not (isinstance(config, ModelConfig) and is_constructible(task) and config.n_heads == 1):
        allowed = "in-context bigrams and one head per layer for a constructed matrix"
        raise InputError(f"grafts: expected {allowed}, got {run.name}")
    require(name in ("W_K1", "W_K2", "W_O2", "W_F"), "grafts", "W_K1, W_K2, W_O2 or W_F to construct", repr(name))
    weights = run.state(at)
    a = associate(weights, name, task=task, bare=True)
    return written(replace(a, W=memory(a, task, config)), weights)[config.parameters[name]].clone()
