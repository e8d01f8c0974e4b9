"""Whole runs: train into a folder, resume after a kill, or continue to more steps.

The folder is prepared and locked, and its files are always read back before training. So a new run, a resumed one and a
branch take the same path, and a run depends only on the bits on the disk.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from induction_memory.errors import DivergedError, InputError, require
from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.files import require_folder
from induction_memory.model.architecture import freeze
from induction_memory.task.protocol import Task
from induction_memory.training import interruption, loop, preflight
from induction_memory.training.given_model import model_and_weights
from induction_memory.training.metrics import watched_values
from induction_memory.training.optimizer import zero_state
from induction_memory.training.progress import Progress
from induction_memory.training.tracking import open_tracker, require_tracker
from induction_memory.trajectory.layout import MANIFEST, require_begun
from induction_memory.trajectory.lengthening import lengthen, why_not_longer
from induction_memory.trajectory.lock import locked
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.ownership import may_begin, tidy
from induction_memory.trajectory.resuming import ResumePoint, resume_point
from induction_memory.trajectory.states import checksum, fill, with_tied
from induction_memory.trajectory.trajectory import Trajectory, load
from induction_memory.trajectory.writer import Origin, Writer, begin

Resume = bool | Literal["or start"]
"""False: the folder must be new. True: it must hold a run. "or start": resume a run if there is one, else begin."""


def train(
    task: Task,
    model: Any,
    *,
    out: str | Path,
    steps: int = TrainConfig.steps,
    frozen: Sequence[str] = (),
    resume: Resume = False,
    quiet: bool = False,
    log: str | None = None,
    **settings: Any,
) -> Trajectory:
    """Train a model on a task into the folder `out`; `settings` are the other fields of `TrainConfig`.

    `model` is a `ModelConfig`, whose sizes follow the task where they are left at their defaults, any
    HookedTransformerConfig, whose model TransformerLens initialises from `init_seed`, or a HookedTransformer: the run
    begins with a copy of its weights. `frozen` names parameters, or modules, that never learn.

    >>> import tempfile
    >>> import induction_memory as im
    >>> task, model, out = im.task.MarkovChains(length=16), im.ModelConfig(d_model=16), tempfile.mkdtemp()
    >>> train(task, model, out=out, steps=2, batch_size=4, loss="all", frozen=["blocks.0"], quiet=True).steps
    array([0, 1, 2])
    """
    known = set(TrainConfig.__dataclass_fields__)
    for name in settings:
        require(name in known, name, f"one of {', '.join(sorted(known))}", repr(settings[name]))
    asked, weights = model_and_weights(model)
    config = RunConfig.of(task, freeze(asked, frozen) if frozen else asked, TrainConfig(steps=steps, **settings))
    how = {"resume": resume, "quiet": quiet, "log": log, "command": None}
    return run_from(lambda: _new(config, weights), 0, config, out, weights=weights, **how)


def start(
    config: RunConfig,
    out: str | Path,
    *,
    resume: Resume = False,
    quiet: bool = False,
    log: str | None = None,
    command: str | None = None,
) -> Trajectory:
    """Train a new run into the folder `out`, or with `resume` continue the run there, to more steps if asked.

    `log` is "tensorboard", "wandb" or None; `command` is noted in the manifest.

    >>> import tempfile, induction_memory as im
    >>> config = im.preset("demo").config.with_settings(["train.steps=2", "train.batch_size=2"])
    >>> im.training.start(config, f"{tempfile.mkdtemp()}/mine", quiet=True)
    Trajectory('mine': 3 steps from 0 to 2)
    """
    return run_from(lambda: _new(config), 0, config, out, resume=resume, quiet=quiet, log=log, command=command)


def resume(out: str | Path, *, settings: Sequence[str] = (), quiet: bool = False, log: str | None = None) -> Trajectory:
    """Continue the run or branch in the folder to its end; `settings` may ask for more `train.steps`.

    >>> import tempfile, induction_memory as im
    >>> task, model, out = im.BigramTask(length=8), im.ModelConfig(d_model=16), tempfile.mkdtemp()
    >>> run = im.train(task, model, out=out, steps=2, quiet=True)
    >>> im.training.resume(out, settings=["train.steps=4"]).steps
    array([0, 1, 2, 3, 4])
    """
    require_begun(folder := require_folder(out), resume=True)
    config = load(folder).config.with_settings(list(settings))
    return run_from(lambda: _new(config), None, config, out, resume=True, quiet=quiet, log=log, command=None)


def run_from(
    origin: Callable[[], Origin],
    first_step: int | None,
    config: RunConfig,
    out: str | Path,
    *,
    resume: Resume,
    quiet: bool,
    log: str | None,
    command: str | None,
    weights: Mapping[str, Tensor] | None = None,
) -> Trajectory:
    """Train from an origin at `first_step` (None: that of the run in the folder) into a new folder, or resume there.

    `weights` are the initial weights, if they were given: a run that began with others is refused.
    """
    known = isinstance(resume, bool) or (isinstance(resume, str) and resume == "or start")
    require(known, "resume", "True, False or 'or start'", repr(resume))
    out = require_folder(out)
    require_tracker(log)
    preflight.check(config)
    begun_with = None if weights is None else checksum(config.model, weights)
    exists = _require_place(out, config, resume, first_step, begun_with)
    prepared = None if exists else origin()
    with interruption.terminable(), locked(out):
        manifest = Manifest.read(out) if (out / MANIFEST).exists() else None
        with _threads(config.train.threads if manifest is None else manifest.threads):
            if manifest is None:
                _require_place(out, config, resume, first_step, begun_with)
                begin(out, config, prepared or origin(), command, torch.get_num_threads())
            else:
                # checked again, because another process may have changed the folder before it was locked
                require_begun(out, resume)
                _require_same(out, config, first_step, begun_with)
                if config.differences(RunConfig.from_dict(manifest.config)):  # more steps, nothing else
                    lengthen(out, manifest, config, command)
            _go_on(out, config, quiet, log)
    return load(out)


def _go_on(out: Path, config: RunConfig, quiet: bool, log: str | None) -> None:
    """Train the prepared run in the locked folder to its end."""
    manifest = Manifest.read(out)
    if manifest.state == "finished":
        tidy(out)
        return
    point = resume_point(out, manifest, config)
    model = _model(config, point)
    reference = _reference(point.rows, config.task.main)
    begun = loop.Start(point.step, manifest.first_step, point.optimizer, reference)
    snapshots = loop.train(config.task, model, config.train, start=begun, grafts=point.grafts)
    live, step = dict(model.named_parameters()), point.step
    with (
        Progress(point.step, config.train.steps, config.task, quiet=quiet) as progress,
        closing(Writer(out, manifest, config, point)) as writer,
        closing(open_tracker(log, out, config.to_dict(), point.step)) as tracker,
    ):
        for note in point.notes:
            progress.note(f"{note}; computed again")
        try:
            for snapshot in snapshots:
                row, step = snapshot.metrics.row(), snapshot.step
                writer.record(step, row, snapshot.checkpoint, live, snapshot.optimizer)
                tracker.send(step, row)
                progress.update(snapshot)
            writer.finish()
        except KeyboardInterrupt as stop:
            raise interruption.Stopped(out, step, interruption.number(stop)) from None
        except DivergedError as error:
            raise DivergedError(f"{out}: {error}; what was kept before is intact") from None


def _model(config: RunConfig, point: ResumePoint) -> nn.Module:
    """The model with the weights of the resume point, on its device."""
    from induction_memory.model.building import build

    model = build(config.model)
    if config.train.device != "cpu":
        model.to(config.train.device, print_details=False)
        if config.model.tied_output:
            model.unembed.W_U = nn.Parameter(model.embed.W_E.data.T, requires_grad=False)  # moving made it a copy
    fill(model, with_tied(config.model, point.parameters))
    return model


def _new(config: RunConfig, weights: Mapping[str, Tensor] | None = None) -> Origin:
    """A run from its initialisation, or from the weights given."""
    from induction_memory.model.building import build

    model = build(config.model, config.train.init_seed)
    if weights is not None:
        fill(model, weights)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    grafts = preflight.graft_matrices(config)
    grafted = {config.model.parameters[rule.name]: matrix for rule, matrix in grafts.items() if rule.start == 0}
    initial = with_tied(config.model, parameters | grafted)
    return Origin(parameters, zero_optimizer(config, parameters), grafts, initial)


def zero_optimizer(config: RunConfig, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The optimiser's state before the first update."""
    names = [config.model.parameters[name] for name in config.model.trained_names]
    return zero_state(config.train.optimizer, {name: parameters[name] for name in names})


def _reference(rows: Sequence[Mapping[str, Any]], main: str) -> dict[str, float]:
    """The watched values at the last checkpoints."""
    reference: dict[str, float] = {}
    for row in rows:
        if row["checkpoint"]:
            reference |= {name: value for name, value in watched_values(row, main).items() if value is not None}
    return reference


def _require_place(
    out: Path, config: RunConfig, resume: Resume, first_step: int | None, begun_with: str | None
) -> bool:
    """Whether the folder holds a run to continue; an InputError if it does not and a new run cannot begin there."""
    try:
        if (out / MANIFEST).exists():
            require_begun(out, resume)
            _require_same(out, config, first_step, begun_with)
            return True
        free = may_begin(out)
    except OSError as error:
        raise InputError(f"out: expected a folder, got {str(out)[:200]!r}: {error.strerror}") from None
    inside = next((folder for folder in out.absolute().parents if (folder / MANIFEST).exists()), None)
    if inside is not None:
        raise InputError(
            f"out: expected a folder outside of other runs, got {str(out)!r} inside the run {inside.name!r}"
        )
    require(free, "out", "a new or an empty folder", repr(str(out)))
    require_begun(out, resume)
    return False


def _require_same(out: Path, config: RunConfig, first_step: int | None, begun_with: str | None) -> None:
    """Refuse a configuration or a start that differs from the run in `out`, except for more steps at the end."""
    manifest = Manifest.read(out)
    begun = "a branch" if manifest.parent else "a run"
    if first_step not in (None, manifest.first_step) or (first_step == 0 and manifest.parent):
        asked = "a run from its beginning" if first_step == 0 else f"a branch from step {first_step}"
        raise InputError(f"out: expected {asked}, got {begun} from step {manifest.first_step} in {str(out)!r}")
    require(manifest.config["task"] is not None, "out", "a run that was trained here", f"weights alone in {str(out)!r}")
    same = begun_with in (None, manifest.initial)
    require(same, "model", f"the initial weights of the run in {str(out)!r}", "a model with others")
    differences = config.differences(RunConfig.from_dict(manifest.config))
    asked, kept = differences.get("train.steps", (0, 0))
    if asked > kept:
        del differences["train.steps"]
        for reason in why_not_longer(out, manifest, config):
            got = f"train.steps: expected {kept}, as in the run to resume, got {asked}: {reason}"
            raise InputError(got, entry="not-the-same-run")
    if differences:
        lines = [
            f"{path}: expected {there!r}, as in the run to resume, got {here!r}"
            for path, (here, there) in differences.items()
        ]
        raise InputError("; ".join(lines))


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
