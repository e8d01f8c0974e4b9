"""Whole runs: train into a folder, go on after a kill or to more steps, branch off a stored step.

A folder is prepared, locked and then always read back before training goes on, so that a new run, a resumed one and a
branch take the same path: the bits on the disk are all that a run depends on.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from induction_memory.errors import InputError, require
from induction_memory.experiment.constraints import Clamp, Freeze, Graft
from induction_memory.experiment.run_config import RunConfig
from induction_memory.training.loop import Start, train
from induction_memory.training.metrics import watched_values
from induction_memory.training.optimizer import zero_state
from induction_memory.training.progress import Progress
from induction_memory.training.tracking import open_tracker, require_tracker
from induction_memory.trajectory import manifest as manifests
from induction_memory.trajectory.lock import locked
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.states import fill, with_tied
from induction_memory.trajectory.trajectory import Trajectory, load
from induction_memory.trajectory.writer import (
    Origin,
    Writer,
    begin,
    is_empty,
    lengthen,
    resume_point,
    tidy,
    why_not_longer,
)


def start(
    config: RunConfig,
    out: str | Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    log: str | None = None,
    command: str | None = None,
) -> Trajectory:
    """Train a new run into the folder `out`, or go on with the one that is there (`resume`), to more steps if asked.

    `log` is "tensorboard", "wandb" or None; `command` is noted in the manifest.
    """
    return _run(config, Path(out), lambda: _new(config), 0, resume=resume, quiet=quiet, log=log, command=command)


def resume(out: str | Path, *, quiet: bool = False, log: str | None = None) -> Trajectory:
    """Go on with whatever unfinished run, or branch, is in the folder."""
    config = load(out).config
    return _run(config, Path(out), lambda: _new(config), None, resume=True, quiet=quiet, log=log, command=None)


def branch(
    run: Trajectory,
    at: int,
    out: str | Path,
    *,
    freeze: Sequence[str] = (),
    clamps: Sequence[str] = (),
    grafts: Sequence[str] = (),
    steps: int | None = None,
    settings: Sequence[str] = (),
    resume: bool = False,
    quiet: bool = False,
    log: str | None = None,
    command: str | None = None,
) -> Trajectory:
    """Train on from a stored step of a run, with the batches that run would have seen, under other rules.

    The rules are added to the run's own and hold from the branch's step on unless they say otherwise: `freeze=["W_K1"]`
    freezes from `at`. `steps` is the number of the last step (the run's own when not given); `settings` change any
    other field by its path. The optimiser goes on from its stored state; where none was kept, from zero.
    """
    at = run.resolve(at)
    config = branch_config(run.config, at, freeze=freeze, clamps=clamps, grafts=grafts, steps=steps, settings=settings)
    return _run(
        config, Path(out), lambda: _off(run, at, config), at, resume=resume, quiet=quiet, log=log, command=command
    )


def branch_config(
    config: RunConfig,
    at: int,
    *,
    freeze: Sequence[str] = (),
    clamps: Sequence[str] = (),
    grafts: Sequence[str] = (),
    steps: int | None = None,
    settings: Sequence[str] = (),
) -> RunConfig:
    """The configuration of a branch: the run's, with rules from step `at` on."""
    train = config.train
    frozen = [str(Freeze(rule.name, at, None) if ":" not in text else rule) for text, rule in _read(Freeze, freeze)]
    clamped = [str(Clamp(rule.kind, at) if "@" not in text else rule) for text, rule in _read(Clamp, clamps)]
    grafted = [str(Graft.parse(text, default_start=at)) for text in grafts]
    early = [rule for rule in map(Graft.parse, grafted) if rule.start < at]
    require(not early, "train.grafts", f"grafts from step {at} (the branch's first) on", ", ".join(map(str, early)))
    changed = config.replace(
        train=train.replace(
            freeze=(*train.freeze, *frozen),
            clamps=(*train.clamps, *clamped),
            grafts=(*(str(rule) for rule in train.graft_rules if rule.start > at), *grafted),
            steps=train.steps if steps is None else steps,
        )
    ).with_settings(list(settings))
    require(changed.train.steps >= at, "train.steps", f"at least {at} (the branch's first step)", changed.train.steps)
    same = changed.model.replace(trained=None) == config.model.replace(trained=None)
    require(same, "model", "the run's own architecture", "another")
    return changed


def _read(kind: Any, texts: Sequence[str]) -> list[tuple[str, Any]]:
    return [(text, kind.parse(text)) for text in texts]


def _run(
    config: RunConfig,
    out: Path,
    origin: Callable[[], Origin],
    first_step: int | None,
    *,
    resume: bool,
    quiet: bool,
    log: str | None,
    command: str | None,
) -> Trajectory:
    require_tracker(log)
    _require_device(config.train.device)
    require(bool(config.model.trained_names), "model.trained", "at least one name to train", "none")
    exists = (out / manifests.NAME).exists()
    if exists:
        _require_same(out, config, resume, first_step)
    elif inside := next((folder for folder in out.absolute().parents if (folder / manifests.NAME).exists()), None):
        raise InputError(
            f"out: expected a folder outside of other runs, got {str(out)!r} inside the run {inside.name!r}"
        )
    elif not is_empty(out):
        raise InputError(f"out: expected a new or an empty folder, got {str(out)!r}")
    prepared = None if exists else origin()
    with locked(out):
        manifest = Manifest.read(out) if (out / manifests.NAME).exists() else None
        with _threads(config.train.threads if manifest is None else manifest.threads):
            if manifest is None:
                begin(out, config, prepared or origin(), command, torch.get_num_threads())
            else:
                _require_same(out, config, resume, first_step)  # once more: another process may have been here since
                if config.differences(RunConfig.from_dict(manifest.config)):  # more steps, nothing else
                    lengthen(out, manifest, config, command)
            _go_on(out, config, quiet, log)
    return load(out)


def _go_on(out: Path, config: RunConfig, quiet: bool, log: str | None) -> None:
    """Train the prepared run in the locked folder to its end."""
    from induction_memory.model.build import build

    manifest = Manifest.read(out)
    if manifest.state == "finished":
        tidy(out)
        return
    point = resume_point(out, manifest, config)
    model = build(config.model)
    if config.train.device != "cpu":
        model.to(config.train.device, print_details=False)
        if config.model.tied_output:
            model.unembed.W_U = nn.Parameter(model.embed.W_E.data.T, requires_grad=False)  # moving made it a copy
    fill(model, with_tied(config.model, point.parameters))
    begun = Start(point.step, manifest.first_step, point.optimizer, _reference(point.rows, config.task.main))
    snapshots = train(config.task, model, config.train, start=begun, grafts=point.grafts)
    live = dict(model.named_parameters())
    with (
        Progress(point.step, config.train.steps, config.task, quiet=quiet) as progress,
        closing(Writer(out, manifest, config, point)) as writer,
        closing(open_tracker(log, out, config.to_dict(), point.step)) as tracker,
    ):
        for note in point.notes:
            progress.note(f"{note}; computed again")
        for snapshot in snapshots:
            row = snapshot.metrics.row()
            writer.record(snapshot.step, row, snapshot.checkpoint, live, snapshot.optimizer)
            tracker.send(snapshot.step, row)
            progress.update(snapshot)
        writer.finish()


def _new(config: RunConfig) -> Origin:
    """A run from its initialisation."""
    from induction_memory.model.build import build

    model = build(config.model, config.train.init_seed)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    return Origin(parameters, _zero(config, parameters), _graft_matrices(config))


def _off(run: Trajectory, at: int, config: RunConfig) -> Origin:
    """A branch from a stored step."""
    parameters = run.state(at)
    optimizer = _zero(config, parameters)
    stored = run.source.optimizer(at) if config.train.optimizer == run.config.train.optimizer else None
    optimizer |= {name: value for name, value in (stored or {}).items() if name in optimizer}
    parent = {
        "name": run.name,
        "fingerprint": run.fingerprint,
        "step": at,
        "optimizer": "stored" if stored else "zero",
    }
    return Origin(parameters, optimizer, _graft_matrices(config), at, parent)


def _zero(config: RunConfig, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    names = [config.model.parameters[name] for name in config.model.trained_names]
    return zero_state(config.train.optimizer, {name: parameters[name] for name in names})


def _graft_matrices(config: RunConfig) -> dict[Graft, Tensor]:
    matrices = {}
    for rule in config.train.graft_rules:
        run = load(rule.run)
        known = run.model_config.parameters
        require(rule.name in known, "train.grafts", f"a matrix that {rule.run} has", repr(rule.name))
        matrices[rule] = run.stack(rule.name, [rule.step])[0].clone()
    return matrices


def _reference(rows: Sequence[Mapping[str, Any]], main: str) -> dict[str, float]:
    """The watched values at the last checkpoints."""
    reference: dict[str, float] = {}
    for row in rows:
        if row["checkpoint"]:
            reference |= {name: value for name, value in watched_values(row, main).items() if value is not None}
    return reference


def _require_same(out: Path, config: RunConfig, resume: bool, first_step: int | None) -> None:
    """Refuse another configuration or beginning than that of the run in `out`, unless it only adds steps at the end."""
    if not resume:
        raise InputError(f"out: expected a new or an empty folder (or --resume to go on), got a run in {str(out)!r}")
    manifest = Manifest.read(out)
    begun = "a branch" if manifest.parent else "a run"
    if first_step not in (None, manifest.first_step) or (first_step == 0 and manifest.parent):
        asked = "a run from its beginning" if first_step == 0 else f"a branch from step {first_step}"
        raise InputError(f"out: expected {asked}, got {begun} from step {manifest.first_step} in {str(out)!r}")
    require(manifest.config["task"] is not None, "out", "a run that was trained here", f"weights alone in {str(out)!r}")
    differences = config.differences(RunConfig.from_dict(manifest.config))
    asked, kept = differences.get("train.steps", (0, 0))
    if asked > kept:
        del differences["train.steps"]
        for reason in why_not_longer(out, manifest, config):
            raise InputError(f"train.steps: expected {kept}, as in the run to resume, got {asked}: {reason}")
    for path, (asked, kept) in differences.items():
        raise InputError(f"{path}: expected {kept!r}, as in the run to resume, got {asked!r}")


def _require_device(device: str) -> None:
    require(device == "cpu" or torch.cuda.is_available(), "train.device", "cpu: no CUDA device is there", repr(device))


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
