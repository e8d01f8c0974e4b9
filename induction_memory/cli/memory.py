"""`memory`: draw what a memory holds."""

from pathlib import Path

from induction_memory.cli.arguments import Run, load_any, step_of
from induction_memory.errors import printable


def memory(run: Run, /, out: Path, memory: str = "W_O2", step: str = "last") -> None:
    """Draw the scores of all pairs in a memory, with boxes around the pairs to store.

    Args:
        run: a trajectory's folder, the name of a shipped one, or a folder with a series of checkpoints.
        out: file to write: .png, .pdf or .svg.
        memory: W_K1, W_K2, W_O2, W_F, or one of their variants.
        step: a stored step, several (0,300,600) side by side, or last.
    """
    from induction_memory.files import require_file
    from induction_memory.views.memory_maps import FORMATS, memory_map

    require_file(out, FORMATS, "--out")
    memory_map(load_any(run), memory, step=step_of(step)).save(out)
    print(printable(str(out)))
