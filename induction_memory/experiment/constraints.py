"""Freeze, clamp, graft: interventions on a model during training, as rules in a configuration.

Update n turns the weights of step n into those of step n + 1; checkpoint n and the metrics of step n are taken before
update n. A freeze over [start, stop) leaves out the updates start, ..., stop - 1 of one parameter:

    "W_K1"           never moves
    "W_K1: ..300"    frozen until step 300: the first update that moves it is update 300
    "W_K1: 300.."    frozen from step 300 on: steps 300, 301, ... hold the same bits
    "W_K1: 100..200" frozen in between

A frozen parameter gets no gradient, no weight decay and no momentum. Its optimiser state is dropped when the freeze
begins, so that it thaws with momentum zero.

A clamp replaces an attention pattern from a step on, without changing weights: "previous-token" or "induction@100".

A graft sets a matrix to another trajectory's at the start of one step, before that step's metrics and checkpoint, and
drops its optimiser state: "W_O2=RUN@300 from 100". The matrix then goes on training, unless a freeze "W_O2: 100.."
holds it.
"""

import re
from dataclasses import dataclass

from induction_memory.errors import InputError

CLAMPS = ("previous-token", "induction")


@dataclass(frozen=True)
class Freeze:
    """The updates n of `name` with start <= n < stop are left out; a stop of None means to the end."""

    name: str
    start: int
    stop: int | None

    @classmethod
    def parse(cls, text: str, field: str = "train.freeze") -> "Freeze":
        """Read "NAME", "NAME: ..STOP", "NAME: START.." or "NAME: START..STOP"."""
        match = re.fullmatch(r"\s*([\w.]*\w)\s*(?::\s*(\d{0,15})\s*\.\.\s*(\d{0,15})\s*)?", text)
        if match is None:
            raise InputError(f"{field}: expected NAME, NAME: ..300, NAME: 300.. or NAME: 100..200, got {text!r}")
        name, start, stop = match.groups()
        rule = cls(name, int(start or 0), int(stop) if stop else None)
        if rule.stop is not None and rule.stop <= rule.start:
            raise InputError(f"{field}: expected a range that ends after it starts, got {text!r}")
        return rule

    def holds(self, step: int) -> bool:
        """Whether the parameter is frozen in update `step`."""
        return self.start <= step and (self.stop is None or step < self.stop)

    def __str__(self) -> str:
        if self.start == 0 and self.stop is None:
            return self.name
        return f"{self.name}: {self.start or ''}..{'' if self.stop is None else self.stop}"


@dataclass(frozen=True)
class Clamp:
    """An attention pattern that replaces the model's from a step on."""

    kind: str
    start: int

    @classmethod
    def parse(cls, text: str, field: str = "train.clamps") -> "Clamp":
        """Read "previous-token", "induction" or either with "@STEP"."""
        match = re.fullmatch(r"\s*([\w-]+)\s*(?:@\s*(\d{1,15})\s*)?", text)
        if match is None or match[1] not in CLAMPS:
            raise InputError(f"{field}: expected previous-token or induction, optionally with @STEP, got {text!r}")
        return cls(match[1], int(match[2] or 0))

    def __str__(self) -> str:
        return self.kind if self.start == 0 else f"{self.kind}@{self.start}"


@dataclass(frozen=True)
class Graft:
    """At the start of step `start`, the matrix `name` is replaced by its value at `step` of the trajectory `run`."""

    name: str
    run: str
    step: int
    start: int

    @classmethod
    def parse(cls, text: str, field: str = "train.grafts", default_start: int = 0) -> "Graft":
        """Read "NAME=RUN@STEP" or "NAME=RUN@STEP from START"."""
        match = re.fullmatch(r"\s*([\w.]*\w)\s*=\s*(.+)@(\d{1,15})\s*(?:\s+from(?:\s+step)?\s+(\d{1,15})\s*)?", text)
        if match is None:
            raise InputError(f"{field}: expected NAME=RUN@STEP, optionally with from STEP, got {text!r}")
        start = default_start if match[4] is None else int(match[4])
        return cls(match[1], match[2].strip(), int(match[3]), start)

    def __str__(self) -> str:
        return f"{self.name}={self.run}@{self.step} from {self.start}"
