"""Which weights, at which steps, on which sequences: a run, a series of checkpoints, a model or stacked weights."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.source.sources import Subject as Subject
    from induction_memory.source.sources import batch_of_tokens as batch_of_tokens
    from induction_memory.source.sources import opened_folder as opened_folder
    from induction_memory.source.sources import subject as subject

_WHERE, __getattr__, __dir__ = lazily(__name__, __file__)
