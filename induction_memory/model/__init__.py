"""The paper's architectures as HookedTransformers, and their weights as memories.

Names are resolved when first used, so that a config needs no torch. `build` and `construct` are modules here; the
functions of those names are `induction_memory.build` and `induction_memory.construct`.
"""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.model.config import ModelConfig as ModelConfig
    from induction_memory.model.memories import embedding as embedding
    from induction_memory.model.memories import memory as memory
    from induction_memory.model.memories import set_memory as set_memory

_WHERE = {"ModelConfig": "config", "embedding": "memories", "memory": "memories", "set_memory": "memories"}

__getattr__, __dir__ = lazily(__name__, _WHERE)
