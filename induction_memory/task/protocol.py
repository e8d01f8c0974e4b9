"""What a task must offer, and what it may.

A task says how long its sequences are, how many tokens it reads and how many outputs it asks for, and draws batches.
Any class with these members is a task; `registry.py` gives it a name on the disk. It may offer more, and what it does
not offer is left out with a one-line reason:

    labels()          names of the input tokens and of the outputs
    predictors()      name -> function of the tokens that gives the probabilities of the outputs at each position;
                      simplest first, the Bayes-optimal one last. They read tokens only, never the latents
    sources(batch)    role -> which keys a head in that role would attend to from each query
    associations()    name -> what the matrix of that name would store in a perfect model
    variants()        name -> the same task under another distribution, for evaluation
    groups            names of the groups of positions of its batches
    corruptions()     name -> function (batch, rng) that gives clean and corrupted sequences for patching

A variant has two Bayes-optimal predictors: that of the task on which the model was trained and its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from induction_memory.errors import UnsupportedError, require
from induction_memory.field_docs import field_docs

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
    """What the u_i stand for."""
    outputs: Literal["token", "position", "output"]
    """What the v_j stand for."""
    strength: Float[np.ndarray, "outputs inputs"]
    about: str
    """One line on what the pairs are."""
    asked: Bool[np.ndarray, "outputs inputs"] | None = None
    """The pairs that recall asks for, if not those that are stored."""


class NotOfferedError(UnsupportedError):
    """The task has no such capability; the message is the one-line reason.

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
}
"""What a task may offer -> what follows if it does not."""


def ask(task: Any, capability: str, *arguments: Any) -> Any:
    """What the task offers under that name; a NotOfferedError with the reason if nothing.

    A task can state a reason of its own: its method raises NotOfferedError.

    >>> import induction_memory as im
    >>> list(im.task.ask(im.task.MarkovChains(), "predictors"))
    ['1-gram', '2-gram']
    """
    require(capability in CAPABILITIES, "capability", f"one of {', '.join(CAPABILITIES)}", repr(capability))
    method = getattr(task, capability, None)
    offered = method(*arguments) if callable(method) else None
    if offered is None or (isinstance(offered, Mapping) and not offered):
        raise NotOfferedError(f"the task {task.name!r} offers no {capability}: {CAPABILITIES[capability]}")
    return offered


def choose(task: Any, capability: str, name: str) -> Any:
    """One entry of a capability that maps names to something, such as the variant of that name."""
    offered = ask(task, capability)
    require(name in offered, capability, f"one of {', '.join(offered)} (of the task {task.name!r})", repr(name))
    return offered[name]
