"""The checks of the theory by name, in the paper's order: each measures one statement and returns its rows.

A known error of the paper is marked as a slip, and a second row has the corrected statement.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import require, require_known
from induction_memory.paper.verdicts import Measurement, at_most

TOLERANCE = 1e-5
"""Largest relative error of two computations that agree."""


@dataclass(frozen=True)
class Result:
    """The result of one check: its rows, and the tables for its figure."""

    checks: tuple[Measurement, ...]
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)


def column(table: pd.DataFrame, name: str, **where: object) -> Float[np.ndarray, " row"]:
    """A column as numbers, for the rows whose other columns have these values."""
    kept = np.ones(len(table), dtype=bool)
    for other, value in where.items():
        kept &= np.asarray(table[other] == value)
    return np.asarray(table[name], dtype=float)[kept]


def slope(x: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"]) -> float:
    """Least-squares slope of log y against log x: the power with which y grows."""
    return float(np.polyfit(np.log(x), np.log(np.maximum(y, 1e-300)), 1)[0])


def relative_error(found: Float[Tensor, "a b"], expected: Float[Tensor, "a b"]) -> float:
    """Frobenius norm of the difference, divided by that of the expected matrix."""
    return ((found - expected).norm() / expected.norm()).item()


def agree(
    statement: str, found: Float[Tensor, "a b"], expected: Float[Tensor, "a b"], tolerance: float = TOLERANCE
) -> Measurement:
    """Holds when two computations of a matrix agree."""
    return at_most(f"{statement}: relative error", tolerance, relative_error(found, expected))


@dataclass(frozen=True)
class Entry:
    """One check: the function of that name (dashes as underscores) in a module of this folder."""

    name: str
    module: str
    where: str
    title: str

    @property
    def function(self) -> Callable[[], Result]:
        """The check itself; its docstring is the text of docs/theory.md."""
        return getattr(import_module(f"induction_memory.paper.theory.{self.module}"), self.name.replace("-", "_"))


CATALOGUE = (
    Entry("lemma-1", "lemmas", "Section 4.1", "Lemma 1: gradients are associative memories"),
    Entry("iterates", "lemmas", "Section 4.1", "Lemma 1: the form of gradient descent's iterates"),
    Entry("initial-matrix", "learning_conditions", "Section 4.1", "Lemma 1: the minor role of W_0"),
    Entry("initial-attention", "learning_conditions", "Sections 4.1 and 5", "Attention at initialisation"),
    Entry("feature-learning", "learning_conditions", "Section 4.1, Figure 8", "Size of one step and dimension"),
    Entry("row-space", "learning_conditions", "Section 4.2", "Outputs of W_O2 and the row space of W_F"),
    Entry("lemma-2", "lemmas", "Section 6", "Lemma 2: gradients with noisy inputs"),
    Entry("example", "lemmas", "Section 6 and Appendix B.1", "The illustrative example"),
    Entry("random-vectors", "random_vectors", "Appendix A", "Norm, near-orthogonality, remapping"),
    Entry("capacity", "random_vectors", "Appendix A", "Capacity of the outer-product memory"),
    Entry("lemma-4", "lemmas", "Appendix B.2", "Lemma 4: gradient of the second attention layer"),
    Entry("lemma-5", "lemmas", "Appendix B.2", "Lemma 5: gradient of the first attention layer"),
    Entry("theorem-data", "theorem", "Appendix B.3", "Theorem 3: the data"),
    Entry("ignored-residual", "learning_conditions", "Appendix B.3.1", "Theorem 3: the residual that is left out"),
    Entry("theorem-step-1", "theorem", "Appendix B.3.1", "Theorem 3: the step on W_O2"),
    Entry("theorem-step-2", "theorem", "Appendix B.3.2", "Theorem 3: the step on W_K2"),
    Entry("theorem-step-3", "theorem", "Appendix B.3.3", "Theorem 3: the step on W_K1"),
    Entry("theorem-terms", "theorem", "Appendix B.3", "Theorem 3: term by term"),
    Entry("trigger-prediction", "theorem", "Appendix B.3.3", "Theorem 3: what the model says before its last step"),
    Entry("theorem-accuracy", "theorem_model", "Theorem 3", "Theorem 3: the three-step model"),
    Entry("theorem-order", "theorem_model", "Theorem 3", "Theorem 3: any other order"),
    Entry("theorem-simplifications", "theorem_model", "Appendix B.3", "Theorem 3: the role of the simplifications"),
    Entry("factorisation", "architectures", "Appendix D", "Factorised memories"),
    Entry("layer-norm", "architectures", "Appendix D", "Layer normalisation"),
    Entry("frequencies", "learning_conditions", "Appendix D", "Layer normalisation: frequent and rare tokens"),
    Entry("mlp-memory", "architectures", "Appendix D", "MLP memories"),
    Entry("set-memory", "architectures", "Appendix D", "Associations of sets"),
    Entry("conditioning", "learning_conditions", "Appendix E", "Conditioning and dimension"),
    Entry("starved-outputs", "learning_conditions", "Appendix E", "Outputs drawn from the global bigrams"),
    Entry("one-step", "first_step_recall", "Appendix E, Figure 9", "One-step recall of W_O2"),
)


def names() -> dict[str, str]:
    """Every check's name and its one line.

    >>> import induction_memory as im
    >>> im.paper.theory.names()["lemma-1"]
    'Lemma 1: gradients are associative memories (Section 4.1)'
    """
    return {entry.name: f"{entry.title} ({entry.where})" for entry in CATALOGUE}


def find(wanted: Sequence[str] | None) -> tuple[Entry, ...]:
    """The entries of these names in the paper's order; None for all."""
    known = names()
    several = wanted is None or (isinstance(wanted, list | tuple) and len(wanted) > 0)
    require(several, "checks", "a list of names, or none for all", repr(wanted))
    for name in wanted or ():
        require_known(name, known, "check")
    return tuple(entry for entry in CATALOGUE if not wanted or entry.name in wanted)
