"""`surgery`: edit associations of a trained matrix."""

from typing import Any

from induction_memory.cli.arguments import Run, load, run_at, step_of
from induction_memory.cli.output import TERMINAL, TableOutput
from induction_memory.errors import InputError

COLUMNS = ("step", "head", "through", "group", "before", "damage", "in_context_accuracy", "in_context_loss", "kl")


def surgery(
    run: Run,
    /,
    memory: str,
    erase: tuple[str, ...] = (),
    insert: tuple[str, ...] = (),
    swap: str | None = None,
    project: bool = False,
    complement: bool = False,
    truncate: int | None = None,
    transplant: str | None = None,
    strength: float | None = None,
    head: str | None = None,
    through: str | None = None,
    step: str = "last",
    output: TableOutput = TERMINAL,
) -> None:
    """Edit single associations of a trained matrix and measure the damage to target and bystanders.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        memory: matrix to edit: W_K1, W_K2, W_O2 or W_F.
        erase: associations to erase, as in 'a->b': input a, output b. The table's damage is the fall of the in-context
            accuracy, from `before`, where the association is needed (target) and elsewhere (bystanders).
        insert: associations to insert, as in 'a->b': input a, output b.
        swap: two inputs that exchange their outputs, as in 'a->b'.
        project: keep only what lies in the span of the ideal memory.
        complement: keep only what lies outside it.
        truncate: keep this many singular values.
        transplant: take the matrix from RUN@STEP.
        strength: score of an inserted association; that of the stored ones by default.
        head: edit this head alone, as in L2H1.
        through: the head of layer 1 whose output W_K2 reads, as in L1H3; found by default.
        step: a stored step, several, last, or all.
    """
    if project and complement:
        raise InputError("--complement: expected it or --project, got both")
    donor = None if transplant is None else _model(transplant)
    from induction_memory.interventions.surgery import surgery as measure

    table = measure(
        load(run),
        memory=memory,
        erase=erase or None,
        insert=insert or None,
        swap=swap,
        project="complement" if complement else project,
        truncate=truncate,
        transplant=donor,
        strength=strength,
        head=head,
        through=through,
        step=step_of(step),
    )
    output.write(table, COLUMNS)


def _model(where: str) -> Any:
    """The model at RUN@STEP."""
    name, at = run_at(where, "--transplant")
    return load(name).model(at)
