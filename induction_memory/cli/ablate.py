"""`ablate`: remove components of a model and measure what is lost."""

from typing import Literal

from induction_memory.cli.arguments import Run, listed, load, step_of
from induction_memory.cli.output import TERMINAL, TableOutput

Kind = Literal["all", "zero", "mean", "mean-position", "resample", "resample-output", "noise", "initial"]


def ablate(
    run: Run,
    /,
    step: str = "last",
    kind: Kind = "all",
    components: tuple[str, ...] = (),
    output: TableOutput = TERMINAL,
) -> None:
    """Take parts of the model away, in several ways side by side, and measure what is lost.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        step: a stored step, several (0,300,600), last, or all.
        kind: one kind of ablation, or all.
        components: names such as L1H1, W_K2, FF2 or pos->L2.k, or groups (heads, matrices ...).
    """
    from induction_memory.interventions.ablations import ablate as measure

    output.write(measure(load(run), components=listed(components) or None, kind=kind, step=step_of(step)))
