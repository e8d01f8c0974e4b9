"""Pictures from tables and arrays, without a model."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.views.figures.curves import birth_figure as birth_figure
    from induction_memory.views.figures.curves import predictor_figure as predictor_figure

_WHERE, __getattr__, __dir__ = lazily(__name__, __file__)
