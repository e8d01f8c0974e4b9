"""`ablate`: ablate components of a model and measure the effect."""

from typing import TYPE_CHECKING, Annotated

import tyro

from induction_memory.cli.arguments import (
    HERE,
    OptionalVia,
    Text,
    Where,
    listed,
    load_any,
    optional,
    sequences_of,
    step_of,
)
from induction_memory.cli.output import TERMINAL, TableOutput
from induction_memory.errors import InputError, require

if TYPE_CHECKING:
    import pandas as pd

COMPONENTS = ("heads", "layers", "feed_forward", "embeddings", "matrices")


def ablate(
    run: Annotated[str | None, tyro.conf.Positional, optional("RUN", str)] = None,
    /,
    step: str = "last",
    kind: str = "mean",
    components: tuple[str, ...] = COMPONENTS,
    via: OptionalVia = None,
    list: bool = False,
    text: Text = None,
    sequences: int = 64,
    where: Where = HERE,
    output: TableOutput = TERMINAL,
) -> None:
    """Ablate components of a model and measure the effect.

    The intact model comes first, then the components in the order of accuracy.

    Args:
        run: a trajectory's folder, the name of a shipped one, or a folder with a series of checkpoints.
        step: a stored step, several (0,300,600), last, or all.
        kind: what replaces the activation: a kind of ablation, several (zero,mean,resample), or all.
        components: names such as L1H1, W_K2, FF2 or pos->L2.k, groups (heads, parts, edges, paths ...), or all.
        via: hooks for one hooked forward per row; by default the fast path, if it supports the model.
        list: explain each kind of ablation in one line.
        text: for a series, the text to run on, or @FILE with it; by default random tokens repeated once.
        sequences: how many sequences of the text to use.
    """
    from induction_memory.interventions.ablations import ablate as measure
    from induction_memory.interventions.ablations import kinds

    if list:
        for name, about in kinds().items():
            print(f"{name:<24} {about}")
        return
    if run is None:
        raise InputError("RUN: expected a trajectory's folder or name, or --list")
    require(sequences >= 1, "--sequences", "at least 1", sequences)
    opened, names = load_any(run), listed(components, "--components")
    batch = sequences_of(opened, text, sequences)
    chosen = listed((kind,), "--kind")
    kinds_of = chosen[0] if len(chosen) == 1 else chosen
    table = measure(
        opened, batch, components=names or None, kind=kinds_of, step=step_of(step), via=via, engine=where.engine
    )
    shown = ("step", "component", "kind", *scores_of(table)[:2], "kl")
    output.write(worst_first(table) if output.format == "table" else table, shown)


def worst_first(table: "pd.DataFrame") -> "pd.DataFrame":
    """Sort the rows of each step: the intact model, then components by their lowest accuracy, kinds by accuracy.

    For soft targets there is no accuracy, and the highest loss comes first.
    """
    first = scores_of(table)[0]
    accuracy = table[first] if first.endswith("_accuracy") else -table[first]
    by = [name for name in ("step",) if name in table]
    worst = accuracy.groupby([table[name] for name in (*by, "component")]).transform("min")
    order = table.assign(worst=worst.where(table["component"] != "none", -float("inf")), own=accuracy)
    return order.sort_values([*by, "worst", "component", "own"]).drop(columns=["worst", "own"])


def scores_of(table: "pd.DataFrame") -> list[str]:
    """The columns of accuracies and losses: the main group first, accuracy before loss."""
    return [name for name in table.columns if name.endswith(("_accuracy", "_loss"))]
