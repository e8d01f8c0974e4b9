"""The claims of the paper's text, each a function of stored records with a threshold and a verdict.

A claim quotes the paper, states its thresholds and the reasons for them, and returns measurements with errors. Numbers
are means over the repetitions of a run. `check(records)` is the table of all claims; `CLAIMS` has them by name, in the
order of the paper's figures.
"""

# Importing a module adds its claims, in this order.
# isort: off
from induction_memory.paper.claims import attention, freezing, distributions
from induction_memory.paper.claims import memories, architectures

# isort: on
from induction_memory.paper.claims.claim import CLAIMS, check

__all__ = ["CLAIMS", "check"]


def __dir__() -> list[str]:
    return __all__
