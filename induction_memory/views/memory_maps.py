"""A picture of a memory: v_j^T W u_i over all inputs and outputs, at one step or several side by side.

im.memory_map(run, "W_O2", step=100)                  shows itself in a notebook
im.memory_map(run, "W_K2", step=[0, 100, 300])        steps side by side, in the same colours
im.memory_map("four-heads", "W_O2").save("W_O2.pdf")  one map per head; .png, .pdf or .svg
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from induction_memory.errors import require, require_known
from induction_memory.files import require_file, write_file
from induction_memory.source.sources import select
from induction_memory.task.protocol import Task
from induction_memory.trajectory.search import Steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from induction_memory.views.figures.memories import Scores

FORMATS = (".png", ".pdf", ".svg")
MOST = 16  # most maps; more would be too small to read


@dataclass(frozen=True, eq=False)
class MemoryMap:
    """The scores of one memory, a map for each step and head."""

    title: str
    maps: "tuple[Scores, ...]"

    def __repr__(self) -> str:
        return f"MemoryMap({self.title!r}: {len(self.maps)} maps; .save(FILE) writes .png, .pdf or .svg)"

    @property
    def unexpected(self) -> pd.DataFrame:
        """The largest scores outside the ideal pairs: map, pair (as surgery names it), score."""
        from induction_memory.views.figures.memories import strengths

        strong = strengths(self.maps)
        rows = [
            (one.title, f"{one.table.index[i]}->{one.table.columns[j]}", one.table.to_numpy()[i, j])
            for one in self.maps
            for i, j in one.unexpected(strong[one.memory])
        ]
        return pd.DataFrame(rows, columns=["map", "pair", "score"])

    def figure(self) -> "Figure":
        """The figure for print."""
        from induction_memory.views.figures.memories import memories

        return memories(self.maps, note=self.title)

    def _repr_png_(self) -> bytes:
        from induction_memory.views.figures.panels import drawn

        return drawn(self.figure(), "png")

    def save(self, path: str | Path) -> Path:
        """Write the figure (.png, .pdf, .svg)."""
        path = require_file(path, FORMATS)
        from induction_memory.views.figures.panels import drawn

        write_file(path, drawn(self.figure(), path.suffix[1:]))
        return path


def memory_map(
    source: Any, memory: str, *, step: "Steps" = None, head: str | None = None, task: Task | None = None
) -> MemoryMap:
    """Draw v_j^T W u_i of a memory, by default at the last step: inputs across, outputs down.

    Boxes are the pairs to store according to the task; the largest other scores have rings and names. `head` is as in
    the tables (`L2H1`, or `L1H1>L2H1` for W_K2), by default all heads.

    >>> drawn = memory_map("induction-small", "W_O2", step=[0, 600])
    >>> [one.title for one in drawn.maps]
    ['W_O2, step 0', 'W_O2, step 600']
    """
    from induction_memory.views.figures.memories import Scores

    chosen = select(source, step=step, task=task)
    maps = []
    for at in chosen.in_turn():
        a = at.stack.association(memory)
        if head is not None:
            require_known(head, a.heads, "head")
        scores = a.scores.flatten(0, -3).double().cpu().numpy()
        inputs, outputs = a.input_names or range(a.inputs.shape[-2]), a.output_names or range(a.outputs.shape[-2])
        for name, values in zip(a.heads, scores, strict=True):
            if head in (None, name):
                step_of = [f"step {at.step}"] if chosen.source.has_steps else []
                heads = [name] if len(a.heads) > 1 else []
                table = pd.DataFrame(values.T, list(inputs), list(outputs))
                ideal = (a.ideal != 0).T.cpu().numpy()
                maps.append(Scores(memory, ", ".join([memory, *heads, *step_of]), table, ideal))
        require(len(maps) <= MOST, "step", f"at most {MOST} maps side by side (choose steps or a head)", "more")
    return MemoryMap(chosen.name, tuple(maps))
