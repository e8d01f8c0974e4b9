"""`attention`: draw attention maps."""

from pathlib import Path

from induction_memory.cli.arguments import OptionalInt, Run, Text, listed, load_any, step_of, text_of
from induction_memory.errors import printable


def attention(
    run: Run,
    /,
    out: Path,
    step: str = "last",
    text: Text = None,
    heads: tuple[str, ...] = ("all",),
    length: OptionalInt = None,
) -> None:
    """Draw attention maps: an interactive page, or a figure as in the paper.

    Args:
        run: a trajectory's folder, the name of a shipped one, or a folder with a series of checkpoints.
        out: file to write: .html, .png, .pdf or .svg.
        step: a stored step, several (0,300,600) side by side, or last.
        text: text to attend over, or @FILE with it; by default a sequence of the run's task, or random tokens for a
            series.
        heads: heads to draw, such as L2H1 L2H3, or all.
        length: how many tokens to draw; by default a whole text, or 48 of a sequence.
    """
    from induction_memory.files import require_file
    from induction_memory.views.attention_maps import FORMATS
    from induction_memory.views.attention_maps import attention as look

    require_file(out, FORMATS, "--out")
    chosen = "all" if heads == ("all",) else list(listed(heads, "--heads"))
    look(load_any(run), step=step_of(step), text=text_of(text), heads=chosen, length=length).save(out)
    print(printable(str(out)))
