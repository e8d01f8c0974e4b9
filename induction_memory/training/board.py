"""Progress of a run during training: on the screen, and in TensorBoard or Weights & Biases.

The screen shows a live line in a terminal or a notebook, and plain lines elsewhere, unless switched off.

    step 300/1000 loss 1.234 acc 0.91 W_K1 0.98 W_K2 1.00 W_O2 1.00 2.9/s 4:02 left

All values of a line belong to the step that it names; acc is the accuracy on the task's main group. A line has at most
79 columns. Everything goes to standard error, because standard output is for results.

TensorBoard and Weights & Biases are optional packages, imported on request. They receive the measured numbers of each
step. A resumed run sends from the step at which it resumes, and TensorBoard drops the old values of later steps.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from induction_memory.errors import InputError, printable, require, require_known
from induction_memory.terminal import Line, Progress, notebook_cell
from induction_memory.training.loop import Metrics, Snapshot, recalls

PLAIN_LINES = 20  # lines for a whole run if there is no terminal
LIVE_SECONDS = 0.5  # time between two updates in a terminal or a notebook
COLUMNS = 79  # a line that wraps in a terminal cannot be rewritten


class Board:
    """Follows a run from its first step to its last, until it is closed."""

    def __init__(self, first: int, last: int, task: Any, progress: "Progress" = None) -> None:
        self._first, self._last, self._task, self._progress = first, last, task, progress
        self._line = Line() if sys.stderr.isatty() or notebook_cell() is not None else None
        self._started = time.perf_counter()
        self._shown = -LIVE_SECONDS

    def close(self) -> None:
        """Leave the last line on the screen."""
        if self._line is not None and self._line.text and sys.stderr.isatty():
            print(file=sys.stderr)

    def note(self, text: str) -> None:
        """Print a separate line before the first step, if lines are shown."""
        if self._progress is None:
            print(printable(text), file=sys.stderr)

    def update(self, snapshot: Snapshot) -> None:
        """Show a step, or call the `progress` function."""
        if callable(self._progress):
            self._progress(snapshot.step, self._last)
        if self._progress is not None:
            return
        elapsed, last = time.perf_counter() - self._started, snapshot.step == self._last
        every = max(1, (self._last - self._first) // PLAIN_LINES)
        if self._line is None:
            due = (snapshot.step - self._first) % every == 0
        else:
            due = elapsed - self._shown >= LIVE_SECONDS
        if not due and not last:
            return
        self._shown = elapsed
        recalled = recalls(snapshot.model, self._task)
        line = describe(snapshot.metrics, recalled, self._first, self._last, elapsed)
        if self._line is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self._line.write(line)


def describe(metrics: Metrics, recalled: dict[str, float], first: int, last: int, elapsed: float) -> str:
    """The line of a step, `elapsed` seconds after the step `first`; parts that do not fit are left out."""
    parts = [f"step {metrics.step}/{last}"]
    if math.isfinite(metrics.loss):
        parts.append(f"loss {metrics.loss:.3f}")
    accuracy = metrics.accuracies.get(metrics.main)
    if accuracy is not None:
        parts.append(f"acc {accuracy:.2f}")
    parts += [f"{name} {value:.2f}" for name, value in recalled.items()]
    done = metrics.step - first
    if done and elapsed > 0:
        left = round((last - metrics.step) * elapsed / done)
        parts += [f"{done / elapsed:.3g}/s", f"{left // 60}:{left % 60:02d} left"]
    while len(" ".join(parts)) > COLUMNS:
        del parts[-2]
    return " ".join(parts)


Tracker = Literal["tensorboard", "wandb"]


def require_tracker(kind: str | None) -> None:
    """Raise an InputError unless `kind` is None or a tracker that is installed and, if it needs one, has a login."""
    if kind is None:
        return
    require_known(kind, get_args(Tracker), "log")
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
    """A function that sends the row of a step to event files in the folder (TensorBoard), to the project
    induction-memory (Weights & Biases), or nowhere.
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
    """Report errors of Weights & Biases as an InputError in one line."""
    try:
        yield
    except kind as error:
        reason = " ".join(str(error).split())
        raise InputError(f"log: expected a working Weights & Biases login, got: {reason}") from error


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The measured numbers of a row, without its step."""
    return {n: v for n, v in row.items() if n != "step" and isinstance(v, int | float) and not isinstance(v, bool)}
