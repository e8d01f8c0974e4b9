"""The paper's figures and claims, from runs that are trained when missing and from records that ship.

reproduce([3], "quick")     train, draw, judge and write a page
audit()                     judge all claims from shipped files
claims.check(records)       the sentences of the paper, each with its measurement
theory.run()                the paper's statements, each with a measured verdict
"""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    import induction_memory.paper.claims as claims
    import induction_memory.paper.theory as theory
    from induction_memory.paper.auditing import audit as audit
    from induction_memory.paper.reproducing import reproduce as reproduce

_WHERE, __getattr__, __dir__ = lazily(__name__, __file__)
