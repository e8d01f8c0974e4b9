"""Whole runs: train into a folder, resume after a kill, or continue to more steps.

The folder is prepared and locked, and its files are always read back before training. So new runs, resumed runs and
branches take the same path, and a run depends only on the bits on the disk. A run that cannot be trained is refused
before anything is written.

Ctrl-C and SIGTERM end a run with one line. The files on the disk are valid at any moment (`trajectory/writer.py`), so
`--resume` continues a run that was killed. SIGTERM becomes an exception while a run trains in the main thread, unless
the program has its own handler for it.
"""

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from induction_memory.errors import DivergedError, InputError, Stopped, printable, require, require_known
from induction_memory.experiment.constraints import Graft
from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.files import require_folder
from induction_memory.model.building import build, departure, fill
from induction_memory.model.config import AnyModel, Architecture, ModelConfig, freeze
from induction_memory.task.protocol import Task
from induction_memory.task.sampler import step_rng
from induction_memory.terminal import Progress
from induction_memory.training import loop
from induction_memory.training.board import Board, require_tracker, tracker
from induction_memory.training.evaluation import trained_positions
from induction_memory.training.fast.micro_batches import library_threads
from induction_memory.training.loop import watched_values
from induction_memory.training.optimizer import zero_state
from induction_memory.trajectory.export import is_export
from induction_memory.trajectory.lock import locked, may_begin, tidy
from induction_memory.trajectory.manifest import MANIFEST, Manifest
from induction_memory.trajectory.search import find
from induction_memory.trajectory.tensors import checksum, with_tied
from induction_memory.trajectory.trajectory import Trajectory, load
from induction_memory.trajectory.writer import (
    Origin,
    Writer,
    begin,
    lengthen,
    resume_point,
    why_not_longer,
)

GB = 1e9
SEQUENCES = 256  # sequences searched for a trained position


def check(config: RunConfig) -> None:
    """Raise an InputError if this machine cannot train the run, or nothing would learn."""
    task, train = config.task, config.train
    cpu = train.device == "cpu" or torch.cuda.is_available()
    require(cpu, "train.device", "cpu: no CUDA device is there", repr(train.device))
    require(bool(config.model.trained_names), "model.trained", "at least one name to train", "none")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fit = f"fit into this machine's memory ({memory / GB:.3g} GB)"
    copies = 4  # the weights, a copy on their way to the disk, gradients, momentum
    weights = sum(map(math.prod, config.model.shapes.values())) * 4 * copies
    require(
        weights < memory, "model", f"weights that {fit}", f"about {weights / GB:.3g} GB with gradients and momentum"
    )
    tokens = train.batch_size * (task.length + 1) * 8 * 4  # tokens, targets, classes, predictions
    allowed = f"batches that {fit}"
    require(tokens < memory, "train.batch_size", allowed, f"{train.batch_size}, about {tokens / GB:.3g} GB")
    batch = task.sample(SEQUENCES, step_rng(train.eval_seed, 0))
    allowed = f"sequences with positions that the loss {train.loss!r} averages over (later occurrences of triggers ...)"
    counted = bool(trained_positions(batch, train.loss).any())
    require(counted, "task", allowed, f"none in {SEQUENCES} sequences of {task.length} tokens")


def graft_matrices(config: RunConfig, given: Mapping[Graft, Tensor] | None = None) -> dict[Graft, Tensor]:
    """The matrix of each graft, with its shape checked: from `given`, or else from the graft's run."""
    matrices = dict(given or {})
    for rule in config.train.graft_rules:
        if rule in matrices:
            continue
        run = donor(rule.run, config.model)
        known = run.model_config.parameters
        require(rule.name in known, "train.grafts", f"a matrix that {rule.run} has", repr(rule.name))
        matrix = run.stack(rule.name, [rule.step])[0].clone()
        wanted, got = config.model.shapes[config.model.parameters[rule.name]], tuple(matrix.shape)
        require(got == wanted, "train.grafts", f"a matrix of shape {wanted}", f"{got} for {rule}")
        matrices[rule] = matrix
    return matrices


def donor(where: str, model: AnyModel) -> Trajectory:
    """The run to graft from: a trajectory, or a plain folder of state dicts of the architecture `model`."""
    folder = find(where)
    own = (folder / MANIFEST).exists() or is_export(folder)
    return load(folder) if own else load(folder, model=model)


def model_and_weights(model: Any) -> tuple[AnyModel, dict[str, Tensor] | None]:
    """The configuration of the model to train and, if `model` is a model, its weights.

    Parameters of a model with requires_grad False stay frozen.
    """
    if isinstance(model, ModelConfig | Architecture):
        return model, None
    if not isinstance(model, nn.Module):
        return Architecture.of(model), None
    config: Any = getattr(model, "model_config", None)
    if isinstance(config, ModelConfig):
        reason = departure(model)
        require(reason is None, "model", "an unchanged model from im.build", f"one where {reason}")
    else:
        config = Architecture.of(model)
    _require_kept(model, config)
    held = [n for n, p in model.named_parameters() if not p.requires_grad and n in config.parameters.values()]
    weights = {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}
    return freeze(config, held) if held else config, weights


def _require_kept(model: nn.Module, config: AnyModel) -> None:
    """Refuse parameters that training would not keep: missing ones, ones that share memory, and ones of another
    type."""
    named = dict(model.named_parameters(remove_duplicate=False))
    places: dict[int, list[str]] = {}
    for name, parameter in named.items():
        dtype = str(parameter.dtype).removeprefix("torch.")
        require(dtype == "float32", f"model.{name}", "float32", dtype)
        places.setdefault(parameter.data_ptr(), []).append(name)
    shared = [" and ".join(sorted(names)) for names in places.values() if len(names) > 1]
    tied = ["embed.W_E and unembed.W_U"] if config.tied_output else []
    allowed = f"only {tied[0]} tied" if tied else "no tied parameters"
    require(shared == tied, "model", allowed, ", ".join(shared) or "none")
    for name in config.parameters.values():
        require(name in named, "model", f"a parameter {name}", "none")


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises an exception, as Ctrl-C does."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


Resume = bool | Literal["or start"]
"""False: the folder must be new. True: it must hold a run. "or start": resume a run if there is one, else begin."""


def train(
    task: Task,
    model: Any,
    *,
    out: str | Path,
    steps: int = TrainConfig.steps,
    frozen: Sequence[str] = (),
    seed: int | None = None,
    resume: Resume = False,
    progress: "Progress" = None,
    log: str | None = None,
    **settings: Any,
) -> Trajectory:
    """Train a model on a task into the folder `out`; `settings` are the other fields of `TrainConfig`.

    `model` is a `ModelConfig` (sizes left at their defaults follow the task), any HookedTransformerConfig
    (TransformerLens initialises it from `init_seed`), or a HookedTransformer (the run begins with a copy of its
    weights). `frozen` names parameters, or modules, that never learn. `seed` sets `init_seed`, `data_seed` and
    `eval_seed` to 3 seed, 3 seed + 1 and 3 seed + 2, as `--seed` does. `progress` is None for lines, False for none,
    or a function of the step and the last step.

    >>> import tempfile
    >>> import induction_memory as im
    >>> task, model, out = im.task.MarkovChains(length=16), im.ModelConfig(d_model=16), tempfile.mkdtemp()
    >>> train(task, model, out=out, steps=2, batch_size=4, loss="all", frozen=["blocks.0"], progress=False).steps
    array([0, 1, 2])
    """
    known = sorted(TrainConfig.__dataclass_fields__)
    for name in settings:
        require_known(name, known, name)
    asked, weights = model_and_weights(model)
    how = TrainConfig(steps=steps, **settings)
    if seed is not None:
        own = [name for name in settings if name.endswith("_seed")]
        require(not own, "seed", "either seed or single seeds", f"seed and {', '.join(own)}")
        how = how.with_seed(seed)
    config = RunConfig.of(task, freeze(asked, frozen) if frozen else asked, how)
    options = {"resume": resume, "progress": progress, "log": log, "command": None}
    return run_from(partial(_new, config, weights), 0, config, out, weights=weights, **options)


def start(
    config: RunConfig,
    out: str | Path,
    *,
    resume: Resume = False,
    progress: "Progress" = None,
    log: str | None = None,
    command: str | None = None,
) -> Trajectory:
    """Train a new run into the folder `out`; with `resume`, continue the run there, also to more steps.

    `log` is "tensorboard", "wandb" or None; `command` is noted in the manifest.

    >>> import tempfile, induction_memory as im
    >>> config = im.experiment.preset("demo").config.with_settings(["train.steps=2", "train.batch_size=2"])
    >>> start(config, f"{tempfile.mkdtemp()}/mine", progress=False)
    Trajectory('mine': 3 steps from 0 to 2)
    """
    return run_from(partial(_new, config), 0, config, out, resume=resume, progress=progress, log=log, command=command)


def resume(
    out: str | Path, *, settings: Sequence[str] = (), progress: "Progress" = None, log: str | None = None
) -> Trajectory:
    """Continue the run or branch in the folder to its end; `settings` may set a larger `train.steps`.

    >>> import tempfile, induction_memory as im
    >>> task, model, out = im.BigramTask(length=8), im.ModelConfig(d_model=16), tempfile.mkdtemp()
    >>> run = im.train(task, model, out=out, steps=2, progress=False)
    >>> resume(out, settings=["train.steps=4"]).steps
    array([0, 1, 2, 3, 4])
    """
    require_begun(folder := require_folder(out), resume=True)
    config = load(folder).config.with_settings(list(settings))
    return run_from(partial(_new, config), None, config, out, resume=True, progress=progress, log=log, command=None)


def run_from(
    origin: Callable[[], Origin],
    first_step: int | None,
    config: RunConfig,
    out: str | Path,
    *,
    resume: Resume,
    progress: Progress,
    log: str | None,
    command: str | None,
    weights: Mapping[str, Tensor] | None = None,
    branched: bool = False,
) -> Trajectory:
    """Train a new run from step `first_step` into the folder, or resume the run there (None: from its own first step).

    `weights` are the user's initial weights, if any: a run that began with other weights is refused.
    """
    known = isinstance(resume, bool) or (isinstance(resume, str) and resume == "or start")
    require(known, "resume", "True, False or 'or start'", repr(resume))
    out = require_folder(out)
    require_tracker(log)
    check(config)
    begun_with = None if weights is None else checksum(config.model, weights)
    place = out, config, resume, first_step, begun_with, branched
    prepared = None if _begun(*place) else origin()
    with terminable(), locked(out):
        manifest = _begun(*place)  # again, because another process may have changed the folder before it was locked
        with library_threads(config.train.threads if manifest is None else manifest.threads):
            if manifest is None:
                begin(out, config, prepared or origin(), command, torch.get_num_threads())
            elif config.differences(RunConfig.from_dict(manifest.config)):  # only more steps
                lengthen(out, manifest, config, command)
            _go_on(out, config, progress, log)
    return load(out)


def _go_on(out: Path, config: RunConfig, progress: Progress, log: str | None) -> None:
    """Train the prepared run in the locked folder to its end."""
    manifest = Manifest.read(out)
    if manifest.finished:
        tidy(out)
        return
    point = resume_point(out, manifest, config)
    model, step = build(config.model), point.step
    if config.train.device != "cpu":
        model.to(config.train.device, print_details=False)
        if config.model.tied_output:
            model.unembed.W_U = nn.Parameter(model.embed.W_E.data.T, requires_grad=False)  # moving made it a copy
    fill(model, with_tied(config.model, point.parameters))
    reference: dict[str, float] = {}  # the watched values at the last checkpoints
    for row in point.rows:
        if row["checkpoint"]:
            reference |= watched_values(row, config.task.main)
    begun = loop.Start(step, manifest.first_step, point.optimizer, reference)
    snapshots = loop.train(config.task, model, config.train, start=begun, grafts=point.grafts)
    live = dict(model.named_parameters())
    with (
        closing(Board(step, config.train.steps, config.task, progress)) as board,
        tracker(log, out, config.to_dict(), step) as track,
    ):
        writer = Writer(out, manifest, config, point)
        for note in point.notes:
            board.note(f"{note}; computed again")
        try:
            for snapshot in snapshots:
                row, step = snapshot.metrics.row(), snapshot.step
                writer.record(step, row, snapshot.checkpoint, live, snapshot.optimizer)
                track(step, row)
                board.update(snapshot)
            writer.finish()
        except KeyboardInterrupt as stop:
            number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
            told = f"{out}: stopped by {signal.Signals(number).name} at step {step}"
            raise Stopped(number, printable(f"{told}; continue with --resume or resume=True")) from None
        except DivergedError as error:
            raise DivergedError(f"{out}: {error}; what was kept before is intact") from None


def _new(config: RunConfig, weights: Mapping[str, Tensor] | None = None) -> Origin:
    """A run from its initialisation, or from the user's weights."""
    model = build(config.model, config.train.init_seed)
    if weights is not None:
        fill(model, weights)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    grafts = graft_matrices(config)
    grafted = {config.model.parameters[rule.name]: matrix for rule, matrix in grafts.items() if rule.start == 0}
    initial = with_tied(config.model, parameters | grafted)
    return Origin(parameters, zero_state(config, parameters), grafts, initial)


def _begun(
    out: Path, config: RunConfig, resume: Resume, first_step: int | None, begun_with: str | None, branched: bool
) -> Manifest | None:
    """The run in the folder to continue, or None if a new run can begin there; an InputError otherwise."""
    try:
        begun, free = (out / MANIFEST).exists(), may_begin(out)
    except OSError as error:
        raise InputError(f"out: expected a folder, got {str(out)[:200]!r}: {error.strerror}") from None
    if begun:
        require_begun(out, resume)
        manifest = Manifest.read(out)
        _require_same(out, manifest, config, first_step, begun_with, branched)
        return manifest
    for folder in out.absolute().parents:
        if (folder / MANIFEST).exists():
            inside = f"{str(out)!r} inside the run {folder.name!r}"
            raise InputError(f"out: expected a folder outside of other runs, got {inside}")
    require(free, "out", "a new or an empty folder", repr(str(out)))
    require_begun(out, resume)
    return None


def _require_same(
    out: Path, manifest: Manifest, config: RunConfig, first_step: int | None, begun_with: str | None, branched: bool
) -> None:
    """Refuse a configuration or a first step that differs from the run in `out`; more steps at the end are allowed."""
    begun = "a branch" if manifest.parent else "a run"
    if first_step is not None and (first_step, branched) != (manifest.first_step, bool(manifest.parent)):
        asked = f"a branch from step {first_step}" if branched else "a run from its beginning"
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


def require_begun(folder: Path, resume: bool | str, field: str = "out") -> None:
    """Refuse a folder that holds a run, unless the run is to be resumed; with `resume`, refuse a folder without a
    run."""
    begun = (folder / MANIFEST).exists()
    if begun and resume is False:
        expected = f"a new or an empty folder (or --resume, resume=True, to go on), got a run in {str(folder)!r}"
        raise InputError(f"{field}: expected {expected}", entry="another-run")
    if not begun and resume is True:
        got = f"{str(folder)!r}, in which none has begun (leave resume out to begin one)"
        raise InputError(f"{field}: expected the folder of a run to resume, got {got}")
