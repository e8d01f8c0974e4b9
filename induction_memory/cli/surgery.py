"""`surgery`: edit associations of a trained matrix."""

from induction_memory.cli.arguments import (
    Names,
    OptionalFloat,
    OptionalInt,
    OptionalStr,
    Run,
    load,
    require_heads,
    require_pairs,
    run_at,
    step_of,
)
from induction_memory.cli.output import TERMINAL, TableOutput
from induction_memory.errors import InputError, require

COLUMNS = (
    "step",
    "input",
    "output",
    "head",
    "through",
    "group",
    "before",
    "damage",
    "in_context_accuracy",
    "in_context_loss",
    "kl",
)
MEMORIES = ("W_K1", "W_K2", "W_O2", "W_F")
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
        erase: associations to erase, as in 'a->b': input a, output b, or 'a' for the pair that a is asked with. W_O2
            and W_F map a token that is read to one that is predicted. For W_K2 the input is the key's token and the
            output the query's, for W_K1 both are positions (from 1; the key is not after the query). The table's damage
            is the accuracy lost, a share of positions: in context (global for W_F), where the association is needed
            (target) and elsewhere (bystanders).
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
    require(memory in MEMORIES, "--memory", f"one of {', '.join(MEMORIES)}", repr(memory))
    edits = {"erase": erase, "insert": insert, "swap": swap, "project": project, "complement": complement}
    edits |= {"truncate": truncate is not None, "transplant": transplant}
    require(any(edits.values()), "edit", f"one of {', '.join(f'--{name}' for name in edits)}", "none")
    for option, pairs in (("--erase", erase), ("--insert", insert)):
        require_pairs(run, memory, pairs, option)
    donor_at = None if transplant is None else run_at(transplant, "--transplant")
    require_heads(run, tuple(name for name in (head, through) if name is not None))
    opened = load(run, chosen := step_of(step))
    donor = None if donor_at is None else load(*donor_at).model(donor_at[1])
    from induction_memory.interventions.surgery import surgery as measure

    table = measure(
        opened,
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
        step=chosen,
    )
    output.write(table, COLUMNS, note=NOTE)
