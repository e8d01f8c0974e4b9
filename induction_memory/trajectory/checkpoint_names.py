"""What the name of a checkpoint says: its training step and, in some names, the tokens seen by then.

    step1000                        step 1,000
    checkpoint-1000                 step 1,000
    stage1-step120000-tokens252B    step 120,000 after 252 billion tokens
    step-001000-2BT                 step 1,000 after 2 billion tokens
    model_1000.pth                  step 1,000

The step is the number after a word such as `step` or `checkpoint`. Without such a word, it is the only number besides
the tokens and the stage. A name with two candidates gives no step.
"""

import re
from dataclasses import dataclass
from pathlib import PurePath

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_TOKENS = re.compile(r"tokens?[-_=]?(\d+(?:\.\d+)?)([KMBT]?)(?![0-9A-Za-z])|(?<![0-9A-Za-z.])(\d+(?:\.\d+)?)([KMB])T\b")
_STAGE = re.compile(r"stage[-_=]?\d+", re.IGNORECASE)
_STEP = re.compile(
    r"(?:steps?|checkpoint|ckpt|iter(?:ation)?|model|state)[-_=]?(\d+)(?![0-9A-Za-z.]*[A-Za-z])", re.IGNORECASE
)
_NUMBER = re.compile(r"(?<![0-9A-Za-z.])(\d+)(?![0-9A-Za-z.])")
_ENDINGS = (".safetensors", ".pth", ".pt", ".bin")


@dataclass(frozen=True)
class Label:
    """Step of a checkpoint, and tokens seen by then (None if the name does not say)."""

    step: int
    tokens: int | None = None


def label(name: str) -> Label | None:
    """What a file's, folder's or revision's name says; None if it names no step, or more than one.

    >>> label("stage1-step120000-tokens252B")
    Label(step=120000, tokens=252000000000)
    >>> label("main") is None
    True
    """
    bare = PurePath(name).name
    for ending in _ENDINGS:
        bare = bare.removesuffix(ending)
    tokens = _TOKENS.search(bare)
    rest = _STAGE.sub("", bare if tokens is None else bare.replace(tokens[0], "", 1))
    steps = {int(found) for found in _STEP.findall(rest)} or {int(found) for found in _NUMBER.findall(rest)}
    if len(steps) != 1:
        return None
    return Label(steps.pop(), None if tokens is None else _count(tokens))


def _count(match: re.Match[str]) -> int:
    number, unit = (match[1], match[2]) if match[1] else (match[3], match[4])
    return round(float(number) * _UNITS[unit])
