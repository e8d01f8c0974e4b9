"""The claims of the paper's text, each a function of stored records with a threshold and a verdict.

A claim quotes the paper, states beforehand what would count as true and why, and returns what was measured, with its
uncertainty. Numbers are means over the repetitions of a run where there are several. `check(records)` is the table of
all of them; `CLAIMS` has them by name, in the order of the paper's figures. `reading.py` lists the sentences that are
checked elsewhere or not at all, `history.py` the measures that were removed or replaced.
"""

# Importing a module adds its claims, in this order.
# isort: off
from induction_memory.paper.claims import attention, initialisation, freezing  # noqa: F401
from induction_memory.paper.claims import distributions, memories, architectures  # noqa: F401

# isort: on
from induction_memory.paper.claims.claim import CLAIMS, COLUMNS, DAGGER, VERDICTS, Claim, check, measured

__all__ = ["CLAIMS", "COLUMNS", "DAGGER", "VERDICTS", "Claim", "check", "measured"]
