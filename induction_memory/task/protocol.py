"""What a task must offer, and what it may offer.

A task has a sequence length, a number of input tokens and a number of outputs, and draws batches. Any class with these
members is a task; `register` gives it a name on the disk. It may also offer these (measures that need a missing one are
left out with a one-line reason):

    labels()          names of the input tokens and of the outputs
    predictors()      name -> function of the tokens that gives the probabilities of the outputs at each position;
                      simplest first, the Bayes-optimal one last. They read tokens only, never the latents
    sources(batch)    role -> which keys a head in that role would attend to from each query
    associations()    name -> what the matrix of that name would store in a perfect model
    variants()        name -> the same task under another distribution, for evaluation
    corruptions()     name -> function (batch, rng) that gives clean and corrupted sequences for patching
    groups            names of the groups of positions of its batches
    unigram, bigram   how often each token occurs, and what follows each token, in all sequences together
    fixed_triggers    the tokens that are triggers in every sequence, if there are any
    about()           a clause on its sequences, for headings

A variant is compared with two Bayes-optimal predictors: its own, and the one of the task used in training.

On the disk a task is its name and its settings: no code is stored, and none is imported by name.

The settings are what `to_dict()` returns, or else the fields of the dataclass. In a file they are beside the key
`name`. The in-context bigram task is written without this key, so a file without it holds that task.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from induction_memory.errors import InputError, UnsupportedError, nearest, require, require_known
from induction_memory.field_docs import field_docs
from induction_memory.fields import as_plain, from_plain, require_integer

if TYPE_CHECKING:
    from induction_memory.task.batch import Batch


Predictor = Callable[[Any], Any]
"""Tokens [batch pos] -> probabilities of the outputs [batch pos output], in float64."""


@field_docs
@runtime_checkable
class Task(Protocol):
    """The members that every task has."""

    name: ClassVar[str]
    """The name under which the task is registered and stored."""
    main: ClassVar[str]
    """The group of positions over which accuracies are measured."""

    @property
    def length(self) -> int:
        """T, the number of positions of a sequence."""
        ...

    @property
    def n_inputs(self) -> int:
        """Size of the vocabulary that is read."""
        ...

    @property
    def n_outputs(self) -> int:
        """Size of the vocabulary that is predicted."""
        ...

    def sample(self, n: int, rng: np.random.Generator) -> "Batch":
        """Draw `n` sequences; all randomness comes from `rng`."""
        ...


@field_docs
@dataclass(frozen=True, eq=False)
class Ideal:
    """What a matrix of a perfect model stores: the sum over pairs of strength[j, i] v_j u_i^T.

    >>> import numpy as np
    >>> import induction_memory as im
    >>> same = im.task.Ideal("token", "output", np.eye(4), about="say the token again")
    >>> same.strength.sum()
    np.float64(4.0)
    """

    inputs: Literal["token", "position"]
    """What the u_i embed: tokens or positions."""
    outputs: Literal["token", "position", "output"]
    """What the v_j embed."""
    strength: Float[np.ndarray, "outputs inputs"]
    about: str
    """One line on what the pairs are."""
    asked: Bool[np.ndarray, "outputs inputs"] | None = None
    """The pairs that recall counts, by default all that are stored."""


class NotOfferedError(UnsupportedError):
    """The task does not offer something; the message says why in one line.

    >>> import induction_memory as im
    >>> try:
    ...     im.task.ask(im.task.FactualRecall(), "variants")
    ... except im.task.NotOfferedError as reason:
    ...     print(reason)
    the task 'factual-recall' offers no variants: facts are memorised, and other facts cannot be known
    """


CAPABILITIES = {
    "labels": "tokens are shown as numbers",
    "predictors": "there is no predictor to measure a distance to",
    "sources": "no attention mass on sources is measured",
    "associations": "no recall of memories is measured",
    "variants": "nothing is measured out of distribution",
    "corruptions": "there are no corrupted sequences to patch from",
    "groups": "its batches alone name them",
    "unigram": "no token is more frequent than another",
    "bigram": "there are no global bigrams",
    "fixed_triggers": "no token is a trigger in every sequence",
    "about": "it is called by its name",
}
"""What a task may offer -> the consequence if it does not."""


def ask(task: Any, capability: str, *arguments: Any) -> Any:
    """What the task offers under this name, or a NotOfferedError with the reason.

    A task can state its own reason by raising NotOfferedError in the method.

    >>> import induction_memory as im
    >>> list(im.task.ask(im.task.MarkovChains(), "predictors"))
    ['1-gram', '2-gram']
    """
    require_known(capability, CAPABILITIES, "capability")
    member = getattr(task, capability, None)
    found = member(*arguments) if callable(member) else member
    if found is None or (isinstance(found, Mapping) and not found):
        raise NotOfferedError(f"the task {task.name!r} offers no {capability}: {CAPABILITIES[capability]}")
    return found


def offered(task: Any, capability: str, *arguments: Any) -> Any | None:
    """What the task offers under this name, or None.

    >>> import induction_memory as im
    >>> im.task.protocol.offered(im.task.MarkovChains(), "bigram") is None
    True
    """
    try:
        return ask(task, capability, *arguments)
    except NotOfferedError:
        return None


def choose(task: Any, capability: str, name: str) -> Any:
    """One named entry of a capability, such as a variant."""
    found = ask(task, capability)
    require_known(name, found, capability, f"one of {', '.join(found)} (of the task {task.name!r})")
    return found[name]


MOST_TOKENS = 2**28
"""Most tokens drawn at once: 2 GiB."""


def require_draw(n: Any, length: int, rng: Any, field: str = "n") -> None:
    """Raise an InputError unless `n` sequences can be drawn from the generator."""
    whole = int(n) if isinstance(n, np.integer) else n
    most = MOST_TOKENS // (length + 1)
    require_integer(whole, field, 1, most, f"sequences ({MOST_TOKENS:,} tokens in all)")
    require(isinstance(rng, np.random.Generator), "rng", "a numpy.random.Generator, as step_rng gives it", repr(rng))


def read_only(array: np.ndarray) -> np.ndarray:
    """Make an array read-only, because the task is frozen; returns the same array."""
    array.setflags(write=False)
    return array


Kind = TypeVar("Kind", bound=type)

UNNAMED = "bigrams"
"""The task of a file without a name."""

SHIPPED = {
    "bigrams": "induction_memory.task.bigrams",
    "noisy-triggers": "induction_memory.task.noisy",
    "markov": "induction_memory.task.markov",
    "causal-graph": "induction_memory.task.causal",
    "factual-recall": "induction_memory.task.factual_recall",
    "copying": "induction_memory.task.copying",
}
"""Name of a shipped task -> the module that registers it when imported."""

_registered: dict[str, type] = {}


def register(kind: Kind) -> Kind:
    """Decorator that registers a task class under `kind.name`. A class that is defined again replaces itself.

    >>> from dataclasses import dataclass
    >>> from typing import ClassVar
    >>> import torch
    >>> import induction_memory as im
    >>> @im.task.register
    ... @dataclass(frozen=True)
    ... class Echo:
    ...     name: ClassVar[str] = "echo-example"
    ...     main: ClassVar[str] = "position"
    ...     n_inputs: ClassVar[int] = 4
    ...     n_outputs: ClassVar[int] = 4
    ...     length: int = 5
    ...     def sample(self, n, rng):
    ...         tokens = torch.from_numpy(rng.integers(4, size=(n, self.length)))
    ...         everywhere = torch.ones_like(tokens, dtype=torch.bool)
    ...         return im.task.Batch(tokens, tokens, everywhere, {"position": everywhere}, "position")
    >>> im.task.from_dict({"name": "echo-example", "length": 3})
    Echo(length=3)
    """
    name: str = getattr(kind, "name", "")
    require(isinstance(name, str) and name != "", "task.name", "a name in the class", repr(name))
    missing = [member for member in ("sample", "length", "n_inputs", "n_outputs", "main") if not _has(kind, member)]
    require(not missing, f"task {name!r}", "sample, length, n_inputs, n_outputs and main", f"no {', '.join(missing)}")
    stored = hasattr(kind, "__dataclass_fields__") or (hasattr(kind, "to_dict") and hasattr(kind, "from_dict"))
    require(stored, f"task {name!r}", "a dataclass, or to_dict and from_dict", kind.__name__)
    taken = SHIPPED.get(name) not in (None, kind.__module__)
    other = _registered.get(name)
    taken |= other is not None and (other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__)
    require(not taken, "task.name", "a name that no other task has", repr(name))
    _registered[name] = kind
    return kind


def names() -> tuple[str, ...]:
    """The names of all tasks: shipped ones first, then registered ones."""
    return tuple(dict.fromkeys((*SHIPPED, *_registered)))


def task_type(name: str) -> type:
    """The class of a shipped or registered task by its name."""
    if name in _registered:
        return _registered[name]
    if name not in SHIPPED:
        raise InputError(
            f"task.name: expected one of {', '.join(names())}, got {name!r} (a task of your own is registered with "
            f"induction_memory.task.register before it is loaded){nearest(name, names())}",
            entry="unregistered-task",
        )
    import_module(SHIPPED[name])
    return _registered[name]


def to_dict(task: Task) -> dict[str, Any]:
    """The name and settings of a task as plain JSON values.

    >>> import induction_memory as im
    >>> im.task.to_dict(im.task.NoisyTriggers())["noise"]
    0.3
    """
    kind: Any = type(task)
    require(_registered.get(task.name) is kind, "task", "a registered task (induction_memory.task.register)", kind)
    given: Any = task
    settings = given.to_dict() if hasattr(kind, "to_dict") else as_plain(task)
    require("name" not in settings, f"task {task.name!r}", "settings without the key 'name'", "one")
    try:
        settings = json.loads(json.dumps(settings))
    except TypeError as error:
        raise InputError(f"task {task.name!r}: expected settings of plain values, got {error}") from error
    return settings if task.name == UNNAMED else {"name": task.name, **settings}


def from_dict(values: Mapping[str, Any]) -> Any:
    """The inverse of `to_dict`.

    >>> import induction_memory as im
    >>> im.task.from_dict({"name": "copying", "alphabet": 8}).alphabet
    8
    """
    settings = dict(values)
    kind: Any = task_type(settings.pop("name", UNNAMED))
    return kind.from_dict(settings) if hasattr(kind, "from_dict") else from_plain(kind, settings, "task")


def _has(kind: type, member: str) -> bool:
    return hasattr(kind, member) or member in getattr(kind, "__dataclass_fields__", {})
