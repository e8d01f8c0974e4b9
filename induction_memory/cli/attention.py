"""`attention`: draw attention maps."""

from pathlib import Path

from induction_memory.cli.arguments import Run, Text, load_any, step_of, text_of
from induction_memory.cli.refusals import require_text
from induction_memory.errors import printable, require
from induction_memory.files import require_file

ENDINGS = (".html", ".png", ".pdf", ".svg")
MOST = 12  # columns that one can still look at


def attention(run: Run, /, out: Path, step: str = "last", text: Text = None) -> None:
    """Draw attention maps: an interactive page, or a figure as in the paper.

    Args:
        run: trajectory's folder or the name of a shipped one, or a folder of checkpoints that others trained.
        out: file to write: .html, .png, .pdf or .svg.
        step: a stored step, several (0,300,600) side by side, or last.
        text: text to attend over, or @FILE with it; by default a sequence of the run's task, or random tokens for
            others' checkpoints.
    """
    require_file(out, ENDINGS, "--out")
    chosen = step_of(step)
    several = isinstance(chosen, list) and len(chosen) <= MOST
    allowed = f"a stored step, up to {MOST} of them, or last"
    require(several or isinstance(chosen, int) or chosen == "last", "--step", allowed, repr(step))
    content = text_of(text)
    require_text(run, content)
    opened = load_any(run, chosen)
    from induction_memory.views.attention_maps import attention as look

    look(opened, step=chosen, text=content).save(out)
    print(printable(str(out)))
