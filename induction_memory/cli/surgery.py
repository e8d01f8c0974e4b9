"""`surgery`: edit associations of a trained matrix."""

from induction_memory.cli.arguments import Names, OptionalFloat, OptionalInt, OptionalStr, Run, load, run_at, step_of
from induction_memory.cli.output import TERMINAL, TableOutput
from induction_memory.errors import InputError

# fmt: off
COLUMNS = (
    "step", "input", "output", "head", "through", "group", "before", "damage", "in_context_accuracy", "in_context_loss",
    "kl",
)
# fmt: on
NOTE = "damage: accuracy lost, as a share of the group's positions (1 is all of them)"


def surgery(
    run: Run,
    /,
    memory: str,
    erase: Names = (),
    insert: Names = (),
    swap: OptionalStr = None,
    project: bool = False,
    complement: bool = False,
    truncate: OptionalInt = None,
    transplant: OptionalStr = None,
    strength: OptionalFloat = None,
    head: OptionalStr = None,
    through: OptionalStr = None,
    step: str = "last",
    output: TableOutput = TERMINAL,
) -> None:
    """Edit single associations of a trained matrix and measure the damage.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        memory: matrix to edit: W_K1, W_K2, W_O2 or W_F.
        erase: associations to erase, as in 'a->b': input a, output b, or 'a' for a and its target. For W_O2 and W_F the
            input is a token that is read, the output a token that is predicted. For W_K2 the input is the key's token
            and the output the query's. For W_K1 both are positions (from 1; the key is not after the query). The
            table's damage is the lost accuracy, as a share of positions in context (global for W_F): where the
            association is needed (target), and elsewhere (bystanders).
        insert: associations to insert, as in 'a->b': input a, output b.
        swap: two inputs that exchange their outputs, as in 'a->b'.
        project: keep only the part in the span of the ideal memory's pairs.
        complement: keep only the part outside this span.
        truncate: keep this many singular values.
        transplant: take the matrix from RUN@STEP.
        strength: score of an inserted association; by default the mean score of the stored ones.
        head: edit only this head, as in L2H1.
        through: the layer-1 head whose output W_K2 reads, as in L1H3; by default the one that carries the previous
            token.
        step: a stored step, several, last, or all.
    """
    if project and complement:
        raise InputError("--complement: expected it or --project, got both")
    edit = {"erase": erase or None, "insert": insert or None, "swap": swap, "truncate": truncate}
    edit |= {"project": "complement" if complement else project}
    how = {"strength": strength, "head": head, "through": through}
    if transplant is not None:
        donor, at = run_at(transplant, "--transplant")
        edit["transplant"] = (load(donor), at)
    from induction_memory.interventions.memory_surgery import surgery as measure

    output.write(measure(load(run), memory=memory, step=step_of(step), **edit, **how), COLUMNS, note=NOTE)
