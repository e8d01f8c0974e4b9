"""`why`: explain one prediction."""

from induction_memory.cli.arguments import OptionalInt, OptionalPath, OptionalStr, Run, Text, load_any, step_of, text_of
from induction_memory.errors import printable


def why(
    run: Run,
    /,
    text: Text = None,
    position: OptionalInt = None,
    step: str = "last",
    target: OptionalStr = None,
    against: OptionalStr = None,
    out: OptionalPath = None,
) -> None:
    """Explain a prediction in a sentence and as an exact sum over stored pairs.

    Args:
        run: a trajectory's folder, the name of a shipped one, or a folder with a series of checkpoints.
        text: text to explain, or @FILE with it; by default a sequence of the run's task.
        position: position of the prediction, from 1; by default the last one.
        step: a stored step, several (0,300,600), last, or all.
        target: output to explain; by default the predicted one.
        against: output whose logit is subtracted.
        out: file to write: .png, .svg, .pdf, .csv (all terms) or .json (a graph).
    """
    from induction_memory.files import require_file
    from induction_memory.views.explanation import FORMATS
    from induction_memory.views.explanation import why as explain

    if out is not None:
        require_file(out, FORMATS, "--out")
    chosen = {"text": text_of(text), "position": position, "target": target, "against": against}
    found = explain(load_any(run), step=step_of(step), **chosen)
    print(printable(str(found.save(out))) if out is not None else f"{found.sentence}\n\n{found.tree}")
