"""Metrics sent to TensorBoard or Weights & Biases while a run trains, besides the run's own metrics.jsonl.

Both are optional packages, imported on request. At each step, the measured numbers are sent. A resumed run sends from
the step at which it resumes, and TensorBoard drops later steps that were sent before.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from induction_memory.errors import InputError, require

Tracker = Literal["tensorboard", "wandb"]


def require_tracker(kind: str | None) -> None:
    """Raise an InputError unless `kind` is None or a tracker that is installed and, if it needs one, has a login."""
    if kind is None:
        return
    require(kind in get_args(Tracker), "log", " or ".join(get_args(Tracker)), repr(kind))
    package = f"the package {kind} (pip install 'induction-memory[{kind}]')"
    require(find_spec(kind) is not None, "log", package, "an installation without it")
    if kind == "wandb":
        import wandb  # pyright: ignore[reportMissingImports]

        with _login_errors(wandb.Error):
            wandb.login()


@contextmanager
def tracker(
    kind: str | None, folder: Path, config: Mapping[str, Any], first_step: int
) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """A function that sends the row of a step: to event files under the folder, to the project induction-memory of
    Weights & Biases, or nowhere.
    """
    if kind is None:
        yield lambda step, row: None
    elif kind == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(folder / "tensorboard"), purge_step=first_step) as writer:

            def send(step: int, row: Mapping[str, Any]) -> None:
                for name, value in numbers(row).items():
                    writer.add_scalar(name, value, step)

            yield send
    else:
        import wandb  # pyright: ignore[reportMissingImports]

        with _login_errors(wandb.Error):
            run = wandb.init(project="induction-memory", name=folder.name, dir=str(folder), config=dict(config))
        try:
            yield lambda step, row: run.log(numbers(row), step=step)
        finally:
            run.finish()


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
