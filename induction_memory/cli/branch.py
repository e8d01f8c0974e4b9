"""`branch`: continue training from a stored step under another rule."""

import re
from pathlib import Path

from induction_memory.cli.arguments import Names, OptionalInt, OptionalStr, Run, listed, load, this_command
from induction_memory.errors import InputError, printable


def branch(
    run: Run,
    /,
    at: int,
    out: Path,
    steps: OptionalInt = None,
    freeze: Names = (),
    clamp: Names = (),
    graft: Names = (),
    edit: OptionalStr = None,
    resume: bool = False,
    quiet: bool = False,
) -> None:
    """Continue training from a stored step with the same data, under another rule.

    Args:
        run: trajectory to branch from.
        at: stored step to start at.
        out: folder of the branch.
        steps: last step of the branch; by default the run's.
        freeze: parameters to freeze, as in W_K1 or "W_K1: 300..".
        clamp: attention patterns to impose: previous-token, induction.
        graft: matrices to take from elsewhere: W_O2=RUN@STEP, W_O2=RUN (its last step; also a plain folder of state
            dicts), W_O2=FILE.npy (a matrix), or W_O2=constructed (the paper's memory for this run's embeddings). Their
            momentum begins at zero and they go on training unless you add --freeze W_O2.
        edit: associations to change before the first step, as in 'W_K2: erase e' or 'W_O2: insert a->b'.
        resume: continue the branch in that folder, to more steps if they are set.
        quiet: no progress.
    """
    changed = None if edit is None else _edit(edit)
    opened = load(run)
    from induction_memory.training.branching import branch as start

    result = start(
        opened,
        at,
        out,
        steps=steps,
        freeze=listed(freeze, "--freeze"),
        clamps=listed(clamp, "--clamp"),
        grafts=listed(graft, "--graft"),
        edit=changed,
        resume=resume,
        progress=False if quiet else None,
        command=this_command(),
    )
    if not quiet:
        print(f"steps {result.steps[0]} to {result.steps[-1]} in {printable(str(out))}")


def _edit(text: str) -> dict[str, str]:
    match = re.fullmatch(r"(\w+): (erase|insert) (.+)", text, re.DOTALL)
    if match is None:
        raise InputError(f"--edit: expected 'MEMORY: erase PAIR' or 'MEMORY: insert PAIR', got {text!r}")
    return {"memory": match[1], match[2]: match[3]}
