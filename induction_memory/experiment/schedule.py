"""Which steps to keep as checkpoints, and the step size of each update.

Checkpoint rules are parts joined by "then"; each begins where the one before it ended:

    every 1 to 20             every step from here to step 20
    every 10                  steps divisible by 10, to the end
    log 40                    40 steps, evenly spaced in log(step), to the end ("log 40 to 1000": to step 1000)
    0, 5, 10, 50              these steps
    adaptive 25 by 0.02       steps divisible by 25, and each step at which a watched value (in-context accuracy, the
                              recalls) has moved by 0.02 or more since the last checkpoint

The first step (the initialisation) and the last are always kept.

Learning rate at update n, of N, with w steps of warm-up and r = (n - w) / (N - w):

    min(1, (n + 1) / w) * eta * { 1  |  1 - r (1 - f)  |  f + (1 - f) (1 + cos(pi r)) / 2 }     constant, linear, cosine

where f eta is the rate at the end.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from induction_memory.errors import InputError, require
from induction_memory.field_docs import field_docs

Decay = Literal["constant", "linear", "cosine"]

_N = r"\d{1,15}"
_PART = re.compile(
    rf"(?:every\s+(?P<every>step|{_N})(?:\s+steps?)?|log\s+(?P<log>{_N}))(?:\s+to\s+(?P<to>{_N}))?"
    rf"|adaptive\s+(?P<adaptive>{_N})(?:\s+by\s+(?P<by>\d{{0,15}}\.?\d{{1,15}}))?"
    rf"|(?P<list>{_N}(?:\s*,\s*{_N})*)",
    re.ASCII,
)


def learning_rate(
    step: int, steps: int, peak: float, decay: Decay = "constant", warmup: int = 0, final_fraction: float = 0.0
) -> float:
    """The rate of update `step` (formula in the module's docstring)."""
    rate = peak * min(1.0, (step + 1) / warmup) if warmup else peak
    if decay == "constant" or step < warmup:
        return rate
    done = (step - warmup) / max(1, steps - warmup)
    shape = 1 - done if decay == "linear" else (1 + math.cos(math.pi * done)) / 2
    return rate * (final_fraction + (1 - final_fraction) * shape)


@field_docs
@dataclass(frozen=True)
class CheckpointRule:
    """The steps of a run to keep: a fixed set and, optionally, an adaptive part."""

    fixed: frozenset[int]
    """Steps that are always kept."""
    adaptive_from: int | None = None
    """First step of the adaptive part; None without one."""
    threshold: float = 0.02
    """The smallest change of a watched value for which a checkpoint is kept."""

    @classmethod
    def parse(cls, text: str, steps: int, name: str = "train.checkpoints") -> "CheckpointRule":
        """The rule written as in the module's docstring, for a run of `steps` updates."""
        kept, start, adaptive_from, threshold = {0, steps}, 0, None, 0.02
        parts = [part.strip() for part in text.split("then")]
        for number, part in enumerate(parts):
            match = _PART.fullmatch(part)
            if match is None:
                raise InputError(
                    f"{name}: expected parts such as 'every 1 to 20', 'every 10', 'log 40', '0, 5, 10', "
                    f"'adaptive 25 by 0.02', joined by 'then', got {part[:80]!r}"
                )
            open_ended = match["list"] is None and match["to"] is None
            if open_ended and number < len(parts) - 1:
                raise InputError(f"{name}: expected an end ('{part} to 100') before 'then', got {part!r}")
            if match["list"]:
                listed = [int(step) for step in match["list"].split(",")]
                if max(listed) > steps:
                    raise InputError(f"{name}: expected steps up to {steps}, got {max(listed)}")
                kept.update(listed)
                start = max(listed)
                continue
            stop = min(steps, int(match["to"])) if match["to"] else steps
            if int(match["to"] or steps) < start:
                raise InputError(f"{name}: expected parts that follow one another, got {text!r}")
            spacing = match["every"] or match["adaptive"]
            if spacing:
                every = 1 if spacing == "step" else int(spacing)
                if every < 1:
                    raise InputError(f"{name}: expected a spacing of at least 1, got {part!r}")
                kept.update(range(-(-start // every) * every, stop + 1, every))
            else:
                count = int(match["log"])
                require(
                    count <= max(1, steps), name, f"at most {max(1, steps)} steps, as many as there are", repr(part)
                )
                kept.update(_log_spaced(max(1, start), stop, count))
            if match["adaptive"]:
                adaptive_from, threshold = start, float(match["by"] or threshold)
            start = stop
        return cls(frozenset(kept), adaptive_from, threshold)


@dataclass
class Keeper:
    """Decides for each step whether to keep it, from the watched values at the last checkpoint."""

    rule: CheckpointRule
    first_step: int = 0
    """The first step of the run, which is always kept."""
    reference: dict[str, float] = field(default_factory=dict)
    """Each watched value at the last checkpoint where it was measured."""

    def keeps(self, step: int, watched: Mapping[str, float]) -> bool:
        """Whether to keep `step`, from the values watched there."""
        kept = step in self.rule.fixed or step == self.first_step
        if self.rule.adaptive_from is not None and step >= self.rule.adaptive_from:
            kept = kept or any(
                abs(value - self.reference[name]) >= self.rule.threshold
                for name, value in watched.items()
                if name in self.reference
            )
        if kept:
            self.reference = {**self.reference, **watched}
        return kept


def _log_spaced(start: int, stop: int, count: int) -> set[int]:
    if stop <= start or count < 1:
        return {start, stop} if stop >= start else set()
    ratio = (stop / start) ** (1 / count)
    return {min(stop, round(start * ratio**i)) for i in range(count + 1)}
