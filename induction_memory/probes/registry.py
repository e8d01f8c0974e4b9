"""What a probe is, and how it gets a name: the same for the package's probes and a user's.

    @im.probes.register("norm_of_W_O", about="Frobenius norm of layer 2's output matrix", layers=(2,))
    def norm(subject):
        return torch.linalg.matrix_norm(subject.memory("W_O2"))          # [step, head]

    im.probes.table(run, ["W_O2", "norm_of_W_O"])
    im.probes.table(run, ["W_O2", norm])                                 # any plain function, registered or not

A probe of weights receives a `Stack`: the weights of some steps, their memories and associations, and the task. It
returns one value per step, then per head of each of its `layers`. A probe of activations (`of="activations"`) receives
the `Activations` of one step (logits, attention patterns, the batch) and returns one value, or one per head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from induction_memory.errors import InputError, require, require_known
from induction_memory.field_docs import field_docs

Kind = Literal["weights", "activations"]
Measure = TypeVar("Measure", bound=Callable[[Any], Any])
OWN = "own"  # the family of a user's probes


@field_docs
@dataclass(frozen=True)
class Probe:
    """A measure with a name."""

    name: str
    about: str
    """One line on what it measures, with its formula."""
    measure: Callable[[Any], Any]
    """A Stack (of="weights") or the Activations of one step -> values."""
    of: Kind = "weights"
    """What it reads."""
    layers: tuple[int, ...] = ()
    """The layers of the head axes of a value: none, one, or two for pairs of heads."""
    family: str = OWN
    """The group of probes it belongs to."""


registered: dict[str, Probe] = {}
"""The probes that users have registered."""


def register(
    name: str, *, about: str, of: Kind = "weights", layers: tuple[int, ...] = (), family: str = OWN
) -> Callable[[Measure], Measure]:
    """Decorate a function to make it a probe: it appears in `probe --list` and in `table(run, [name])`.

    >>> import induction_memory as im
    >>> @im.probes.register("largest_entry", about="the largest entry of W_O2", layers=(2,))
    ... def largest_entry(stack):
    ...     return stack.memory("W_O2").flatten(2).max(-1).values
    >>> im.probes.table("induction-small", ["largest_entry"], step=[0, 600]).round(2)
       step          probe  head  value
    0     0  largest_entry  L2H1   0.09
    1   600  largest_entry  L2H1   0.93
    """
    from induction_memory.probes import tables

    require(bool(name) and isinstance(name, str), "probe", "a name", repr(name))
    require_known(of, ("weights", "activations"), "of")
    if tables.built_in(name) is not None or name in (*tables.FAMILIES, *tables.OF_TASK, "all"):
        raise InputError(f"probe: expected a name that the package does not use, got {name!r}")

    def added(function: Measure) -> Measure:
        registered[name] = Probe(name, about, function, of, tuple(layers), family)
        return function

    return added


def split_layer(name: str) -> tuple[str, int]:
    """A name and the layer's number that it ends with (0 for none): `entropy12` -> ("entropy", 12)."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)
