"""One forward of a model and its patched variants. Names are resolved when first used."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.runner.components import Graph as Graph
    from induction_memory.runner.engine import logits as logits
    from induction_memory.runner.patches import Patch as Patch
    from induction_memory.runner.recording import record as record

_WHERE = {"Graph": "components", "Patch": "patches", "logits": "engine", "record": "recording"}

__getattr__, __dir__ = lazily(__name__, _WHERE)
