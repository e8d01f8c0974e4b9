"""`attention`: draw attention maps."""

from pathlib import Path

from induction_memory.cli.arguments import Run, load, step_of


def attention(run: Run, /, out: Path, step: str = "last", text: str | None = None) -> None:
    """Draw attention maps: an interactive page, or a figure as in the paper.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        out: file to write: .html, .png, .pdf or .svg.
        step: a stored step, several (0,300,600) side by side, or last.
        text: text to attend over; a sequence of the run's task by default.
    """
    from induction_memory.views.attention import attention as look

    look(load(run), step=step_of(step), text=text).save(out)
    print(out)
