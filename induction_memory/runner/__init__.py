"""One forward of a model and its patched variants: by hooks (the definition), or by the fast path."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.runner.choice import record as record
    from induction_memory.runner.choice import runner as runner
    from induction_memory.runner.components import Graph as Graph
    from induction_memory.runner.recording import Patch as Patch

_WHERE, __getattr__, __dir__ = lazily(__name__, __file__)
