"""Sweeps: a file lists many runs, a process pool or a Dask cluster trains them, and one table has the results."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.sweep.loop import Workers as Workers
    from induction_memory.sweep.loop import start as start
    from induction_memory.sweep.plan import Sweep as Sweep
    from induction_memory.sweep.plan import read as read
    from induction_memory.sweep.results import table as table
    from induction_memory.sweep.sweep_page import page as page

_WHERE, __getattr__, __dir__ = lazily(__name__, __file__)
