"""Metrics sent to TensorBoard or Weights & Biases while a run trains, besides the run's own metrics.jsonl.

Both are optional packages, imported on request. At each step, the measured numbers are sent. A resumed run sends from
the step at which it resumes, and TensorBoard drops later steps that were sent before.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from induction_memory.errors import InputError, require

Tracker = Literal["tensorboard", "wandb"]


class Sink:
    """Receives the metrics of one step after another; this one ignores them."""

    def send(self, step: int, row: Mapping[str, Any]) -> None:
        """Take the row of a step."""

    def close(self) -> None:
        """Write out what was taken."""


def require_tracker(kind: str | None) -> None:
    """Raise an InputError unless `kind` is None or a tracker that is installed and, if it needs one, has a login."""
    if kind is None:
        return
    _require_known(kind)
    package = f"the package {kind} (pip install 'induction-memory[{kind}]')"
    require(find_spec(kind) is not None, "log", package, "an installation without it")
    if kind == "wandb":
        import wandb  # pyright: ignore[reportMissingImports]

        with _login_errors(wandb.Error):
            wandb.login()


def open_tracker(kind: str | None, folder: Path, config: Mapping[str, Any], first_step: int) -> Sink:
    """The tracker of that name, or one that does nothing."""
    if kind is not None:
        _require_known(kind)
    if kind == "tensorboard":
        return TensorBoard(folder, first_step)
    return WeightsAndBiases(folder, config) if kind == "wandb" else Sink()


class TensorBoard(Sink):
    """Event files in the run's own folder, under tensorboard/."""

    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step)

    def send(self, step: int, row: Mapping[str, Any]) -> None:
        for name, value in numbers(row).items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases(Sink):
    """A run named after the folder, in the project induction-memory."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        with _login_errors(wandb.Error):
            self._run = wandb.init(project="induction-memory", name=folder.name, dir=str(folder), config=dict(config))

    def send(self, step: int, row: Mapping[str, Any]) -> None:
        self._run.log(numbers(row), step=step)

    def close(self) -> None:
        self._run.finish()


def _require_known(kind: str) -> None:
    require(kind in get_args(Tracker), "log", " or ".join(get_args(Tracker)), repr(kind))


@contextmanager
def _login_errors(kind: type[Exception]) -> Iterator[None]:
    """Report errors of Weights & Biases as a caller's mistake, in one line."""
    try:
        yield
    except kind as error:
        reason = " ".join(str(error).split())
        raise InputError(f"log: expected a working Weights & Biases login, got: {reason}") from error


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row, without its step and what was not measured."""
    return {n: v for n, v in row.items() if n != "step" and isinstance(v, int | float) and not isinstance(v, bool)}
