"""`patch`: exchange activations between a clean and a corrupted sequence."""

from typing import Literal

from induction_memory.cli.arguments import HERE, OptionalStr, OptionalVia, Run, Where, load, step_of
from induction_memory.cli.output import TERMINAL, TableOutput

COLUMNS = ("step", "component", "position", "source", "target", "effect", "accuracy", "logit", "kl")
SEEN = 0.001
"""In the terminal, smaller effects are counted, not listed."""


def patch(
    run: Run,
    /,
    step: str = "last",
    kind: Literal["activation", "path"] = "activation",
    corruption: OptionalStr = None,
    via: OptionalVia = None,
    where: Where = HERE,
    output: TableOutput = TERMINAL,
) -> None:
    """Patch activations or paths between a clean and a corrupted sequence.

    The clean run comes first, then the largest effects.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        step: a stored step, several (0,300,600), last, or all.
        kind: activation (a component at a position) or path (an edge between two).
        corruption: what differs in the other sequence: a name of the task's corruptions, by default the first. For
            in-context bigrams: trigger, output, or first (the trigger's first occurrence).
        via: hooks for one hooked forward per row; by default the fast path, if it supports the model.
    """
    from induction_memory.interventions.ablations import INTACT
    from induction_memory.interventions.patching import patch as measure

    table = measure(
        load(run), kind=kind, corruption=corruption, step=step_of(step), via=via, intact=True, engine=where.engine
    )
    if output.format != "table":
        output.write(table, COLUMNS)
        return
    first = table["source" if kind == "path" else "component"] == INTACT
    size = table["effect"].abs()
    by = ["step"] if "step" in table else []
    order = table.assign(size=-size.where(~first, float("inf"))).sort_values([*by, "size"], kind="stable")
    seen = order if output.columns == "all" else order.loc[~(order["size"] > -SEEN)]
    left = len(order) - len(seen)
    note = f"{left} more with an effect below {SEEN}: --columns all, csv and json have them" if left else ""
    output.write(seen.drop(columns="size"), COLUMNS, note=note)
