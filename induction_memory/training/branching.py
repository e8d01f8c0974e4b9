"""Branches: continue training from a stored step of a run, with the same batches but under other rules."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from induction_memory.errors import require
from induction_memory.experiment.branch_config import branch_config
from induction_memory.experiment.constraints import Graft
from induction_memory.experiment.run_config import RunConfig
from induction_memory.memory import edits
from induction_memory.model.associations import associate, written
from induction_memory.training.grafting import given_grafts
from induction_memory.training.preflight import graft_matrices
from induction_memory.training.run import Resume, run_from, zero_optimizer
from induction_memory.trajectory.trajectory import Trajectory
from induction_memory.trajectory.writer import Origin


def branch(
    run: Trajectory,
    at: int,
    out: str | Path,
    *,
    freeze: Sequence[str] = (),
    clamps: Sequence[str] = (),
    grafts: Sequence[str] | Mapping[str, Any] = (),
    edit: Mapping[str, str | Sequence[str]] | None = None,
    steps: int | None = None,
    settings: Sequence[str] = (),
    resume: Resume = False,
    quiet: bool = False,
    log: str | None = None,
    command: str | None = None,
) -> Trajectory:
    """Continue training from a stored step of a run.

    The rules are added to the run's own and hold from the branch's step on unless they say otherwise: `freeze=["W_K1"]`
    freezes from `at`. `steps` is the number of the last step (the run's own when not given). `settings` change any
    other field by its path. The optimiser continues from its stored state, or from zero if none was kept.

    `grafts` are rules such as "W_O2=RUN@STEP" or "W_O2=constructed", or a mapping from names to replacements from `at`
    on: a matrix in the paper's orientation, a model, or a trajectory (`grafting.py` lists all). The momentum of a
    grafted matrix begins at zero, and the matrix goes on training: freeze it to keep it as it is.

    `edit` changes associations of one memory before the first update: `{"memory": "W_K2", "erase": "e"}`, or "insert".
    The optimiser's state of the edited matrix begins at zero.

    >>> import tempfile
    >>> import induction_memory as im
    >>> task, model, out = im.task.MarkovChains(length=16), im.ModelConfig(d_model=16), tempfile.mkdtemp()
    >>> run = im.train(task, model, out=f"{out}/run", steps=4, batch_size=4, loss="all", quiet=True)
    >>> held = branch(run, at=2, steps=3, out=f"{out}/held", freeze=["W_O2"], quiet=True)
    >>> held.steps
    array([2, 3])
    >>> bool((held.memory("W_O2", [3]) == run.memory("W_O2", [2])).all())
    True
    """
    require(isinstance(run, Trajectory), "run", "a trajectory (as im.load gives it)", type(run).__name__)
    at = run.resolve(at)
    rules, given = given_grafts(run, at, grafts)
    config = branch_config(run.config, at, freeze=freeze, clamps=clamps, grafts=rules, steps=steps, settings=settings)
    how = {"resume": resume, "quiet": quiet, "log": log, "command": command}
    return run_from(lambda: _origin(run, at, config, edit, given), at, config, out, **how)


def _origin(
    run: Trajectory,
    at: int,
    config: RunConfig,
    edit: Mapping[str, str | Sequence[str]] | None,
    given: Mapping[Graft, Tensor],
) -> Origin:
    """The weights and the optimiser's state with which a branch begins."""
    parameters = run.state(at)
    changed = {} if edit is None else edited(parameters, edit, config.task)
    optimizer = zero_optimizer(config, parameters)
    stored = run.source.optimizer(at) if config.train.optimizer == run.config.train.optimizer else None
    unchanged = [name for name in optimizer if name.partition("/")[2] not in changed]
    optimizer |= {name: stored[name] for name in unchanged if stored is not None and name in stored}
    parent = {
        "name": run.name,
        "fingerprint": run.fingerprint,
        "step": at,
        "optimizer": "stored" if stored else "zero",
    }
    if at in run.source.rounded:
        parent["weights"] = "rounded"
    if edit is not None:
        parent["edit"] = {name: list(value) if not isinstance(value, str) else value for name, value in edit.items()}
    return Origin(parameters | changed, optimizer, graft_matrices(config, given), run.initial(), at, parent)


def edited(parameters: Mapping[str, Tensor], edit: Mapping[str, str | Sequence[str]], task: Any) -> dict[str, Tensor]:
    """The parameter that an edit changes: associations erased (score 0) or inserted (the ideal pairs' mean score)."""
    kinds = [name for name in edit if name != "memory"] if isinstance(edit, Mapping) else []
    right = len(kinds) == 1 and kinds[0] in ("erase", "insert") and "memory" in edit
    require(right, "edit", 'such as {"memory": "W_K2", "erase": "e"} (erase or insert)', repr(edit))
    kind, memory = kinds[0], edit["memory"]
    require(isinstance(memory, str), "edit", "the name of one memory", repr(memory))
    names = [edit[kind]] if isinstance(edit[kind], str) else list(edit[kind])
    a = associate(parameters, str(memory), task=task, bare=True)
    pairs = torch.tensor([a.number(str(text), kind) for text in names])
    now = edits.strength(a).unsqueeze(-1)
    scores = (now if kind == "insert" else torch.zeros_like(now)).expand(*now.shape[:-1], len(pairs))
    return written(edits.set_scores(a, pairs, scores), parameters)
