"""The types of this package's errors. Every message is one line.

    InputError     the caller's mistake; a ValueError                exit code 2
    DamagedError   a file does not hold what was written to it       exit code 1
    StorageError   the disk refused to read or to write              exit code 1
    DivergedError  a loss is not finite, or a chain left its model   exit code 1
    Stopped        SIGINT or SIGTERM ended it; not an Error          exit code 128 + the signal's number

The command line and the scripts of analyses/ print the line and end with the exit code. A message that needs a longer
explanation has an `entry`: the command line ends the line with the entry's address, and a traceback shows it as a note.
"""

import signal
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path

__all__ = ["DamagedError", "DivergedError", "Error", "InputError", "StorageError"]

LONGEST = 1000
"""The largest number of characters in a message; the middle of a longer one is left out."""
LONGEST_WORD = 80
"""The largest number of characters that are compared with known words."""


def __dir__() -> list[str]:
    return __all__


class Error(Exception):
    """The base of this package's errors: one printable line.

    >>> import induction_memory as im
    >>> try:
    ...     im.BigramTask(k=80)
    ... except im.errors.Error as error:
    ...     print(error)
    task.k: expected 1 to 65 triggers (the vocabulary), got 80
    """

    exit_code = 1
    entry: str | None = None
    """The heading in docs/reference/errors.md that says what to do."""

    def __init__(self, message: str, entry: str | None = None) -> None:
        super().__init__(shortened(printable(message)))
        self.entry = entry or type(self).entry
        if self.entry is not None:
            self.add_note(f"what to do: {self.address}")

    @property
    def address(self) -> str:
        """The address of the page that explains the error; empty if there is none."""
        return f"docs/reference/errors.md#{self.entry}" if self.entry else ""

    @property
    def line(self) -> str:
        """What the command line prints: the message, and the address of its entry on the page of errors."""
        return f"{self} ({self.address})" if self.entry else str(self)


class InputError(Error, ValueError):
    """`field: expected ..., got ...`, for something the caller can put right.

    >>> import induction_memory as im
    >>> try:
    ...     im.load("induction-small").model(step=7)
    ... except im.errors.InputError as error:
    ...     print(error)
    step: expected one of the 5 stored steps (0 to 600; next to it 0 and 100), got 7
    """

    exit_code = 2


class UnsupportedError(InputError):
    """The model or task does not support the request; the message says why in one line."""


class DamagedError(Error):
    """A file does not hold what was written to it.

    >>> import pathlib
    >>> import tempfile
    >>> import induction_memory as im
    >>> run = im.thin(im.load("induction-small"), f"{tempfile.mkdtemp()}/copy", [600])
    >>> file = pathlib.Path(run.path) / "trained.safetensors"
    >>> cut = file.write_bytes(file.read_bytes()[:-1])
    >>> try:
    ...     im.load(run.path).memory("W_O2")
    ... except im.errors.DamagedError as error:
    ...     print(error.path.name)
    trained.safetensors
    """

    entry = "damaged"

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: expected what was written, got {what}")
        self.path = path
        self.what = what

    def __reduce__(self) -> tuple[type, tuple[Path, str]]:
        return type(self), (self.path, self.what)  # so that a worker process can send it back


class Stopped(KeyboardInterrupt):
    """A signal ended a run or a sweep; the message says where, and the same command continues it."""

    def __init__(self, number: int, told: str = "") -> None:
        super().__init__(told or signal.Signals(number).name)
        self.number = number


class StorageError(Error):
    """The disk refused to read or to write."""


class DivergedError(Error):
    """The loss of a run is no longer finite, or a sampled chain has left the neighbourhood of its weights.

    >>> import tempfile
    >>> import induction_memory as im
    >>> task, model, out = im.BigramTask(length=16), im.ModelConfig(d_model=16), f"{tempfile.mkdtemp()}/hasty"
    >>> try:
    ...     im.train(task, model, out=out, steps=9, batch_size=8, learning_rate=1e9, progress=False)
    ... except im.errors.DivergedError as error:
    ...     print(str(error).removeprefix(f"{out}: "))
    the loss is nan at step 3; train.learning_rate may be too large; what was kept before is intact
    """

    entry = "diverged"


def require(condition: bool, field: str, expected: str, got: object) -> None:
    """Raise an InputError with the field, the expected and the actual value, unless `condition` holds."""
    if not condition:
        raise InputError(f"{field}: expected {expected}, got {got}")


def require_known(name: object, known: Iterable[str], field: str, expected: str = "") -> None:
    """Raise an InputError that lists the known words, and names the nearest one, unless `name` is one of them."""
    words = list(known)
    if not isinstance(name, str) or name not in words:
        listed = expected or f"one of {', '.join(words)}"
        raise InputError(f"{field}: expected {listed}, got {name!r}{nearest(name, words)}")


def nearest(name: object, known: Iterable[str]) -> str:
    """The known word that is nearest in spelling, as the end of a message; empty if none is near.

    >>> nearest("means", ["zero", "mean"])
    '; did you mean mean?'
    """
    word, words = str(name)[:LONGEST_WORD], list(known)
    same = [one for one in words if sorted(one.split("_")) == sorted(word.split("_"))]  # in another order
    near = same or get_close_matches(word, words, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def printable(text: str) -> str:
    """The text with control characters written as escapes: a file's name cannot move the cursor of a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str) -> str:
    """The text without its middle, if it is too long: a caller may pass thousands of digits."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 400]} ... {text[-400:]}"


def run_script(main: Callable[..., None], about: str | None) -> None:
    """Call `main` with the command line's arguments; an error is one line on standard error and its exit code."""
    import tyro

    name = Path(sys.argv[0]).stem
    try:
        tyro.cli(main, description=about)
    except Error as error:
        print(f"{name}: {error.line}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt as stop:
        print(f"{name}: {str(stop) or 'interrupted'}", file=sys.stderr)
        sys.exit(128 + getattr(stop, "number", signal.SIGINT))
