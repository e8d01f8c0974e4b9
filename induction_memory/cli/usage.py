"""Before a command runs: report mistakes in its arguments in one line, and import the user's own modules.

tyro reports each failure to a hook as a typed event before it prints its message. The hook is not part of tyro's stable
interface, so pyproject.toml bounds tyro's version and tests cover every kind of event. For an unknown kind, tyro prints
its own message and also exits with code 2.

A user's own tasks, probes and kinds of ablation:

    INDUCTION_MEMORY_IMPORT=mine.py induction-memory probe --list

The variable holds names of modules, or paths of Python files, separated as in PATH. Nothing else is imported by name;
stored runs never cause imports.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from tyro import _errors as tyro_errors

from induction_memory.errors import InputError, nearest

Command = Callable[..., None]


@contextmanager
def usage_errors(commands: Sequence[Command], arguments: Sequence[str]) -> Iterator[None]:
    """While active, a mistake in the command line's `arguments` raises an `InputError`."""
    by_name = {command.__name__: command for command in commands}
    name = arguments[0] if arguments else None

    def refuse(event: tyro_errors.ParseErrorEvent) -> None:
        if name not in by_name:
            got, known = "nothing" if name is None else repr(name), f"; known are {', '.join(by_name)}"
            raise InputError(f"expected a command, got {got}{nearest(name or '', by_name) or known}")
        message = _unknown_option(by_name[name], arguments[1:]) or _message(event, arguments[1:])
        if message is not None:
            raise InputError(f"{name}: {message}")

    with tyro_errors.on_parse_error(refuse):
        yield


def _message(event: tyro_errors.ParseErrorEvent, arguments: Sequence[str]) -> str | None:
    match event:
        case tyro_errors.UnrecognizedArgs():
            return f"expected no further argument, got {event.tokens[0]!r}"
        case tyro_errors.MissingArgs():
            return "expected " + ", ".join(_described(missing.arg) for missing in event.missing_arguments)
        case tyro_errors.InvalidChoice():
            choices = ", ".join(sorted(choice for choice in event.choices if choice != "None"))
            near = nearest(event.value, event.choices)
            return f"{_name(event.argument)}: expected one of {choices}, got {event.value!r}{near}"
        case tyro_errors.BadValue(reason="too_few_values"):
            return f"{_name(event.argument)}: expected {_values(event.argument)}, got nothing"
        case tyro_errors.InstantiationFailure(argument=None):
            return event.message
        case tyro_errors.InstantiationFailure():
            given = _given(event.argument, arguments)
            return f"{_name(event.argument)}: expected {_values(event.argument)}, got {given}"
        case _:
            return None


def _unknown_option(command: Command, arguments: Sequence[str]) -> str | None:
    """The first option that the command does not have, and its nearest option."""
    known = [f"--{name}".replace("_", "-") for name in _options(command)]
    for argument in arguments:
        flag = argument.partition("=")[0].replace("_", "-").replace("--no-", "--")
        if flag.startswith("--") and flag not in known:
            return (
                f"expected a known option, got {argument!r}{nearest(flag, known) or '; known are ' + ', '.join(known)}"
            )
    return None


def _options(command: Command) -> Iterator[str]:
    """Names of a command's options, also of options that commands share."""
    for parameter in inspect.signature(command).parameters.values():
        group = getattr(parameter.annotation, "__origin__", parameter.annotation)
        if parameter.kind is parameter.POSITIONAL_ONLY:
            continue
        if is_dataclass(group):
            yield from (field.name for field in fields(group))
        else:
            yield parameter.name


def _given(argument: Any, arguments: Sequence[str]) -> str:
    """What the user wrote after an option."""
    for given, value in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, joined, rest = given.partition("=")
        if flag.replace("_", "-") in argument.lowered.name_or_flags:
            return repr(rest if joined else value)
    return "another value"


def _described(argument: Any) -> str:
    """An argument with its meaning, as in the help."""
    written = _values(argument) if argument.is_positional() else f"{_name(argument)} {_values(argument)}"
    meaning = (argument.field.helptext or "").rstrip(".")
    return f"{written} ({meaning})" if meaning else written


def _name(argument: Any) -> str:
    return _values(argument) if argument.is_positional() else argument.display_name()


def _values(argument: Any) -> str:
    """The form of a value in the help: INT, PATH, one of a set."""
    return str(argument.lowered.metavar).replace("{None}|", "").strip("[]").split(" [")[0]


IMPORT = "INDUCTION_MEMORY_IMPORT"


def import_own_modules() -> None:
    """Import what the variable names; an InputError if that fails."""
    for name in filter(None, os.environ.get(IMPORT, "").split(os.pathsep)):
        try:
            _import_file(Path(name)) if name.endswith(".py") else import_module(name)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise InputError(f"{IMPORT}: expected modules that can be imported, got {name!r}: {reason}") from error


def _import_file(path: Path) -> None:
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.exists():
        raise FileNotFoundError(f"no file {path}")
    module = sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
