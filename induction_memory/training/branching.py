"""Branches: continue training from a stored step of a run, with the same batches but under other rules.

A matrix of a branch can be replaced (grafted) by one of these:

"W_O2=RUN@STEP", "... from STEP"    a stored step of another run
"W_O2=RUN"                          its last step; or a plain folder of state dicts of the same architecture
"W_O2=FILE.npy"                     a matrix in the paper's orientation, as `im.model.matrix` reads it
"W_O2=constructed"                  the paper's memory (equation 7) for the run's embeddings
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

from induction_memory.errors import InputError, require, require_known
from induction_memory.experiment.constraints import Graft
from induction_memory.experiment.run_config import RunConfig, branch_config
from induction_memory.fields import require_texts
from induction_memory.memory import edits
from induction_memory.model.associations import MEMORIES, associate, written
from induction_memory.model.config import ModelConfig
from induction_memory.model.memories import matrix, set_matrix
from induction_memory.terminal import Progress
from induction_memory.training.optimizer import zero_state
from induction_memory.training.run import Resume, donor, graft_matrices, run_from
from induction_memory.trajectory.manifest import MANIFEST, Manifest
from induction_memory.trajectory.trajectory import Trajectory, opened
from induction_memory.trajectory.writer import Origin

CONSTRUCTED = "constructed"


def given_grafts(
    run: Trajectory, at: int, grafts: Sequence[str] | Mapping[str, Any]
) -> tuple[list[str], dict[Graft, Tensor]]:
    """The rules of a branch's grafts, and the parameters of the grafts that do not come from a stored run.

    In the rule of a graft without a stored run, the parameter's checksum takes the place of the run's name.
    """
    if not isinstance(grafts, Mapping):
        parts = [text.partition("=") for text in require_texts(grafts, "grafts", "a list of rules written as text")]
        pairs = [(name.strip(), source.strip()) for name, _, source in parts]
    else:
        pairs = list(grafts.items())
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


def _parameter(run: Trajectory, at: int, name: str, source: Any) -> Tensor:
    """The parameter `name` of the run's model, made from `source`."""
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
    from induction_memory.model.constructed import is_constructible, memory

    config, task = run.model_config, run.task
    if not (isinstance(config, ModelConfig) and is_constructible(task) and config.n_heads == 1):
        allowed = "in-context bigrams and one head per layer for a constructed matrix"
        raise InputError(f"grafts: expected {allowed}, got {run.name}")
    require_known(name, MEMORIES, "grafts")
    weights = run.state(at)
    a = associate(weights, name, task=task, bare=True)
    return written(replace(a, W=memory(a, task, config)), weights)[config.parameters[name]].clone()


def branch(
    source: Trajectory | str | Path,
    at: int,
    out: str | Path,
    *,
    freeze: Sequence[str] = (),
    clamps: Sequence[str] = (),
    grafts: "Sequence[str] | Mapping[str, Any]" = (),
    edit: "Mapping[str, str | Sequence[str]] | None" = None,
    steps: int | None = None,
    settings: Sequence[str] = (),
    resume: Resume = False,
    progress: "Progress" = None,
    log: str | None = None,
    command: str | None = None,
) -> Trajectory:
    """Continue training from a stored step of a run; `source` is the run, its name or its folder.

    The rules are added to the run's rules and hold from the branch's step on unless they say otherwise:
    `freeze=["W_K1"]` freezes from `at`. `steps` is the number of the last step, by default the run's. `settings` change
    any other field by its path. The optimiser continues from its stored state, or from zero if none was kept.

    `grafts` are rules such as "W_O2=RUN@STEP" or "W_O2=constructed", or a mapping from names to replacements from `at`
    on: a matrix in the paper's orientation, a model, or a trajectory; the module's docstring lists all. The momentum of
    a grafted matrix begins at zero, and the matrix goes on training unless it is frozen.

    `edit` changes associations of one memory before the first update: `{"memory": "W_K2", "erase": "e"}`, or "insert".
    The optimiser's state of the edited matrix begins at zero.

    >>> import tempfile
    >>> import induction_memory as im
    >>> task, model, out = im.task.MarkovChains(length=16), im.ModelConfig(d_model=16), tempfile.mkdtemp()
    >>> run = im.train(task, model, out=f"{out}/run", steps=4, batch_size=4, loss="all", progress=False)
    >>> held = branch(run, at=2, steps=3, out=f"{out}/held", freeze=["W_O2"], progress=False)
    >>> held.steps
    array([2, 3])
    >>> bool((held.memory("W_O2", [3]) == run.memory("W_O2", [2])).all())
    True
    """
    run = opened(source)
    at = run.resolve(at)
    rules, given = given_grafts(run, at, grafts)
    config = branch_config(run.config, at, freeze=freeze, clamps=clamps, grafts=rules, steps=steps, settings=settings)
    how = {"resume": resume, "progress": progress, "log": log, "command": command}
    if resume and (Path(out) / MANIFEST).is_file():
        kept, asked = Manifest.read(Path(out)).parent or {}, _listed(edit)
        require(kept.get("edit") == asked, "edit", f"{kept.get('edit')}, as in the branch to resume", asked)
        same = kept.get("fingerprint") in (None, run.fingerprint)
        require(same, "source", f"the run of which {str(out)!r} is a branch", run.name)
    return run_from(lambda: _origin(run, at, config, edit, given), at, config, out, branched=True, **how)


def _origin(
    run: Trajectory,
    at: int,
    config: RunConfig,
    edit: Mapping[str, str | Sequence[str]] | None,
    given: Mapping[Graft, Tensor],
) -> Origin:
    """The initial weights and optimiser's state of a branch."""
    parameters = run.state(at)
    changed = {} if edit is None else edited(parameters, edit, config.task)
    optimizer = zero_state(config, parameters)
    stored = run.stored_optimizer(at) if config.train.optimizer == run.config.train.optimizer else None
    unchanged = [name for name in optimizer if name.partition("/")[2] not in changed]
    optimizer |= {name: stored[name] for name in unchanged if stored is not None and name in stored}
    parent = {
        "name": run.name,
        "fingerprint": run.fingerprint,
        "step": at,
        "optimizer": "stored" if stored else "zero",
    }
    if at in run.rounded:
        parent["weights"] = "rounded"
    if edit is not None:
        parent["edit"] = _listed(edit)
    return Origin(parameters | changed, optimizer, graft_matrices(config, given), run.initial(), at, parent)


def _listed(edit: Mapping[str, str | Sequence[str]] | None) -> dict[str, Any] | None:
    """An edit as JSON has it."""
    return None if edit is None else {n: value if isinstance(value, str) else list(value) for n, value in edit.items()}


def edited(parameters: Mapping[str, Tensor], edit: Mapping[str, str | Sequence[str]], task: Any) -> dict[str, Tensor]:
    """The edited parameter, with associations erased (score 0) or inserted (the ideal pairs' mean score)."""
    kinds = [name for name in edit if name != "memory"] if isinstance(edit, Mapping) else []
    right = len(kinds) == 1 and kinds[0] in ("erase", "insert") and isinstance(edit.get("memory"), str)
    require(right, "edit", 'such as {"memory": "W_K2", "erase": "e"} (erase or insert)', repr(edit))
    names, a = edit[kinds[0]], associate(parameters, str(edit["memory"]), task=task, bare=True)
    after, _ = edits.erase_or_insert(a, kinds[0], [names] if isinstance(names, str) else list(names))
    return written(after, parameters)
