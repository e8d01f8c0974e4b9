"""Arguments that several commands share, and their form for the library."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from induction_memory.errors import InputError, require

if TYPE_CHECKING:
    from induction_memory.trajectory.trajectory import Trajectory

Via = Literal["hooks", "fast"]
"""`hooks`: one forward of TransformerLens with hooks per row. `fast`: the fast path, many rows at once."""
Run = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


def optional(metavar: str, kind: Any = None) -> Any:
    """How help shows an option whose default is None: `metavar`, without `{None}|` and `(default: None)`.

    The word None is read as a `kind` like any other word.
    """
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="(optional)", constructor=kind)


Text = Annotated[str | None, optional("TEXT", str)]
"""A text, or with @ the file that holds it."""
OptionalStr = Annotated[str | None, optional("STR", str)]
Names = Annotated[tuple[str, ...], optional("STR ...")]
"""One or more names after an option."""
OptionalInt = Annotated[int | None, optional("INT", int)]
OptionalFloat = Annotated[float | None, optional("FLOAT", float)]
OptionalPath = Annotated[Path | None, optional("PATH", Path)]
OptionalVia = Annotated[Via | None, optional("{hooks,fast}")]


@dataclass(frozen=True)
class Processes:
    """The options of commands that measure many steps."""

    workers: OptionalInt = None
    """Processes that measure the steps, each with one thread; by default none but this one."""

    scheduler: OptionalStr = None
    """Address of a Dask scheduler whose workers measure the steps instead."""

    def __post_init__(self) -> None:
        require(self.workers is None or self.scheduler is None, "--workers", "it or --scheduler", "both")

    @property
    def engine(self) -> Any:
        """What measures the steps; None for this process."""
        if self.workers is None and self.scheduler is None:
            return None
        from induction_memory.sweep.loop import Workers, require_workers

        return Workers(require_workers(2 if self.workers is None else self.workers), self.scheduler)


Where = Annotated[Processes, tyro.conf.arg(name="")]
HERE = Processes()
SEQUENCE = 64  # tokens per sequence of a series' text


def load(run: str) -> "Trajectory":
    """A trajectory by its folder or shipped name."""
    opened = load_any(run)
    from induction_memory.trajectory.trajectory import Trajectory

    if not isinstance(opened, Trajectory):
        raise InputError(f"RUN: expected a trajectory for this command, got a series of checkpoints, {run!r}")
    return opened


def load_any(run: str) -> Any:
    """A trajectory, or a series of checkpoints."""
    from induction_memory.source.sources import open_source

    return open_source(run)


def text_of(text: str | None) -> str | None:
    """The text itself, or the content of @FILE."""
    if text is None or not text.startswith("@"):
        return text
    try:
        # a pipe or a device may have no end
        require(Path(text[1:]).is_file(), "--text", "a file after @", repr(text[1:]))
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--text: expected a readable text file after @, got {text[1:]!r} ({error})") from None


def sequences_of(opened: Any, text: str | None, most: int) -> Any:
    """The first sequences of a text, for a series; None without a text."""
    if text is None:
        return None
    from induction_memory.source.sources import batch_of_tokens

    own = "none: a trajectory runs on sequences of its own task"
    require(hasattr(opened, "encode"), "--text", own, repr(text))
    length = min(SEQUENCE, opened.context()[1])
    return batch_of_tokens(opened.encode(text_of(text) or "", length)[:most])


def listed(items: tuple[str, ...], option: str) -> tuple[str, ...]:
    """Items as separate words or joined by commas. An empty item, as from an empty shell variable, is refused."""
    parts = tuple(part.strip() for item in items for part in item.split(","))
    require(all(parts), option, "names", repr(",".join(items)))
    return parts


def run_at(text: str, option: str) -> tuple[str, int]:
    """The run and the step of RUN@STEP."""
    name, _, at = text.rpartition("@")
    try:
        return name, int(at) if name and at.isascii() and at.isdigit() else int("")
    except ValueError:  # also thousands of digits
        raise InputError(f"{option}: expected RUN@STEP, got {text!r}") from None


def step_of(text: str) -> Any:
    """A step as the library takes it: last, all, one or several."""
    if text in ("last", "all"):
        return text
    try:
        steps = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--step: expected last, all, or whole numbers between commas, got {text!r}") from None
    return steps[0] if len(steps) == 1 else steps


def this_command() -> str:
    """The command line as it was typed, for the record of a run."""
    return shlex.join(["induction-memory", *sys.argv[1:]])
