"""Sources (runs, series, models): the one loop over their steps, and the one store of results."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.source.sources import At as At
    from induction_memory.source.sources import Source as Source
    from induction_memory.source.sources import batch_of_tokens as batch_of_tokens
    from induction_memory.source.sources import open_source as open_source
    from induction_memory.source.sources import select as select
    from induction_memory.trajectory.series import fetch_revisions as fetch_revisions

_WHERE, __getattr__, __dir__ = lazily(__name__, __file__)
