"""All commands under one name, and what happens when a command is stopped or fails."""

import functools
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from tyro.extras import SubcommandApp

from induction_memory.cli.ablate import ablate
from induction_memory.cli.attention import attention
from induction_memory.cli.branch import branch
from induction_memory.cli.circuit import circuit
from induction_memory.cli.demo import demo
from induction_memory.cli.heads import heads
from induction_memory.cli.memory import memory
from induction_memory.cli.patch import patch
from induction_memory.cli.presets import presets
from induction_memory.cli.probe import probe
from induction_memory.cli.report import report
from induction_memory.cli.reproduce import reproduce
from induction_memory.cli.surgery import surgery
from induction_memory.cli.sweep import sweep
from induction_memory.cli.theory import theory
from induction_memory.cli.train import train
from induction_memory.cli.usage import import_own_modules, usage_errors
from induction_memory.cli.verify import verify
from induction_memory.cli.why import why
from induction_memory.errors import Error, printable, shortened
from induction_memory.terminal import interruptions

COMMANDS = (
    demo,
    presets,
    train,
    branch,
    probe,
    attention,
    why,
    memory,
    ablate,
    patch,
    circuit,
    surgery,
    heads,
    report,
    verify,
    theory,
    reproduce,
    sweep,
)


def main() -> None:
    """Run the command line; an error is one line on standard error and its exit code, 2 for the user's mistake."""
    _open_streams()
    try:
        try:
            command = parse()
            import_own_modules()
            command()
            if interruptions():
                sys.exit(128 + signal.SIGINT)
        finally:
            sys.stdout.flush()
    except Error as error:
        _stop(f"induction-memory: {error.line}", error.exit_code)
    except BrokenPipeError:
        _abandon_output()
        sys.exit(1)
    except OSError as error:
        _abandon_output()
        where = "standard output" if error.filename is None else str(error.filename)
        told = f"{where}: expected to read or write it, got {error.strerror or error}"
        _stop(f"induction-memory: {shortened(printable(told))}", 1)
    except KeyboardInterrupt as stop:
        _stop(f"induction-memory: {str(stop) or 'interrupted'}", 128 + getattr(stop, "number", signal.SIGINT))


def parse() -> Callable[[], None]:
    """The command of these arguments, ready to run."""
    app = SubcommandApp()
    for command in COMMANDS:
        app.command(_ready(command))
    with usage_errors(COMMANDS, sys.argv[1:]):
        return app.cli(prog="induction-memory", description="Watch an induction head being born.")


def _ready(command: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """Like `command`, but the call only collects the arguments: parsing ends before any work begins."""

    command.__doc__ = re.sub(r"\n {12}", " ", command.__doc__ or "")  # help wraps the lines of an argument itself

    @functools.wraps(command)
    def collect(*arguments, **options) -> Callable[[], None]:
        return functools.partial(command, *arguments, **options)

    return collect


def _open_streams() -> None:
    """Replace output streams that were closed at the start: writing results is then an error, messages are lost."""
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _abandon_output() -> None:
    """Discard unwritten output, so that the interpreter does not try to write it again at its end."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError:  # a stream without a file descriptor
        return


def _stop(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(code)
