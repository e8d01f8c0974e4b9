"""`circuit`: the few edges between components that matter."""

from typing import TYPE_CHECKING, Any, Literal

from induction_memory.cli.arguments import Run, load, step_of
from induction_memory.cli.output import TERMINAL, Output, TableOutput
from induction_memory.errors import InputError, UnsupportedError, require

if TYPE_CHECKING:
    import pandas as pd

    from induction_memory.interventions.circuits import Discovery
    from induction_memory.trajectory.trajectory import Trajectory


def circuit(
    run: Run,
    /,
    step: str = "last",
    table: Literal["edges", "curve", "attribution"] = "edges",
    kind: Literal["zero", "mean", "mean-position", "resample", "noise"] = "mean",
    share: float = 0.05,
    sequences: int = 64,
    output: TableOutput = TERMINAL,
) -> None:
    """Find the circuit of a model.

    Edges are ranked by their effect; circuits of each size are scored.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        step: a stored step, or last.
        table: edges (the effect of each, exactly and by gradients), curve (faithfulness and completeness by size), or
            attribution (attribution patching of all edges between clean and corrupted sequences).
        kind: what replaces an edge.
        share: the circuit has the edges above this share of the strongest edge's effect.
        sequences: sequences to measure on.
    """
    if not 0 < share < 1:
        raise InputError(f"--share: expected a number between 0 and 1, got {share}")
    chosen = step_of(step)
    if not isinstance(chosen, int) and chosen != "last":
        raise InputError(f"--step: expected one stored step or last, got {step!r}")
    require(sequences >= 1, "--sequences", "at least 1", sequences)
    opened = load(run)
    from induction_memory.task.sampler import step_rng

    batch = opened.task.sample(sequences, step_rng(opened.config.train.eval_seed, 0))
    if table == "attribution":
        _attribution(opened, batch, chosen, output)
        return
    from induction_memory.interventions import discover

    quick = {"sizes": [0], "random_orders": 0} if table == "edges" else {}
    found = discover(opened, batch, kind=kind, share=share, step=chosen, **quick)
    if table == "curve":
        _write(found.curve, output)
    else:
        _edges(found, opened.task, batch, output)


def _attribution(run: "Trajectory", batch: Any, step: Any, output: Output) -> None:
    """Attribution patching of all edges, the strongest first."""
    import numpy as np

    from induction_memory.interventions import attribute, contrast
    from induction_memory.task.corruptions import pairs_of

    pairs = pairs_of(run.task, batch, None, np.random.default_rng(0))
    found = attribute(contrast(run.model(step), pairs))
    by = next(name for name in found.columns if found[name].dtype.kind == "f")
    _write(found.sort_values(by, key=lambda effect: -effect.abs()), output)
    if "gradient" not in found and output.format == "table" and output.out is None:
        print("\nno column gradient: targets are soft, and the derivative of a KL is zero at the intact run")


def _edges(found: "Discovery", task: Any, batch: Any, output: Output) -> None:
    """The effect of each edge; in the terminal, also the size of the circuit and a comparison with the known one."""
    from induction_memory.interventions.circuits import INDUCTION_HEAD

    _write(found.edges.assign(circuit=found.edges["edge"].isin(found.circuit)), output)
    if output.format != "table" or output.out is not None:
        return
    print(f"\n{len(found.circuit)} edges are the circuit")
    if _asks_for_induction(task, batch) and set(INDUCTION_HEAD) <= set(found.edges["edge"]):
        known = found.against()
        print(f"against the known induction head: precision {known['precision']:.2f}, recall {known['recall']:.2f}")


def _write(table: "pd.DataFrame", output: Output) -> None:
    """Write shares of an effect, with three decimal places in the terminal."""
    output.write(table.round(3) if output.format == "table" and output.out is None else table)


def _asks_for_induction(task: Any, batch: Any) -> bool:
    """Whether the task needs an induction head: it names the source `induction`."""
    from induction_memory.task.protocol import ask

    try:
        return "induction" in ask(task, "sources", batch)
    except UnsupportedError:
        return False
