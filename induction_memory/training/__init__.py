"""Training: the fast forward and backward, the loop, and runs that keep their trajectory."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.training.branching import branch as branch
    from induction_memory.training.loop import Snapshot as Snapshot
    from induction_memory.training.run import resume as resume
    from induction_memory.training.run import start as start
    from induction_memory.training.run import train as train

_WHERE, __getattr__, __dir__ = lazily(__name__, __file__)
