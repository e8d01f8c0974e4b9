"""The paper's architectures as HookedTransformers, and their weights as matrices in the paper's orientation."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.model.config import Architecture as Architecture
    from induction_memory.model.memories import embedding as embedding
    from induction_memory.model.memories import matrix as matrix
    from induction_memory.model.memories import set_matrix as set_matrix

_WHERE, __getattr__, __dir__ = lazily(__name__, __file__)
