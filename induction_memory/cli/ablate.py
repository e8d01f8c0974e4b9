"""`ablate`: remove components of a model and measure what is lost."""

from typing import TYPE_CHECKING, Literal

from induction_memory.cli.arguments import Run, listed, load, step_of
from induction_memory.cli.output import TERMINAL, TableOutput

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["all", "zero", "mean", "mean-position", "resample", "resample-output", "noise", "initial"]
COLUMNS = ("step", "component", "kind", "in_context_accuracy", "in_context_loss", "kl")


def ablate(
    run: Run,
    /,
    step: str = "last",
    kind: Kind = "all",
    components: tuple[str, ...] = (),
    output: TableOutput = TERMINAL,
) -> None:
    """Remove parts of the model, in several ways side by side, and measure what is lost.

    The intact model comes first, then the components with the lowest in-context accuracy.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        step: a stored step, several (0,300,600), last, or all.
        kind: one kind of ablation, or all.
        components: names such as L1H1, W_K2, FF2 or pos->L2.k, or groups (heads, matrices ...).
    """
    chosen = step_of(step)
    opened = load(run)
    from induction_memory.interventions.ablations import ablate as measure

    table = measure(opened, components=listed(components) or None, kind=kind, step=chosen)
    output.write(worst_first(table) if output.format == "table" else table, COLUMNS)


def worst_first(table: "pd.DataFrame") -> "pd.DataFrame":
    """Per step: the intact model, then components by their lowest accuracy, and their kinds from the lowest up."""
    accuracy = table["in_context_accuracy"]
    by = [name for name in ("step",) if name in table]
    worst = accuracy.groupby([table[name] for name in (*by, "component")]).transform("min")
    order = table.assign(worst=worst.where(table["component"] != "none", -1.0))
    return order.sort_values([*by, "worst", "component", "in_context_accuracy"]).drop(columns="worst")
