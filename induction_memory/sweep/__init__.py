"""Many runs: a file lists them, a process pool or a Dask cluster trains them, and one table has the results."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.sweep.launch import start as start
    from induction_memory.sweep.one_page import page as page
    from induction_memory.sweep.plan import Sweep as Sweep
    from induction_memory.sweep.plan import read as read
    from induction_memory.sweep.results import table as table

_WHERE = {"Sweep": "plan", "read": "plan", "start": "launch", "page": "one_page", "table": "results"}

__getattr__, __dir__ = lazily(__name__, _WHERE)
