"""`branch`: continue training from a stored step under another rule."""

import re
from pathlib import Path
from typing import Any

from induction_memory.cli.arguments import (
    Names,
    OptionalInt,
    OptionalStr,
    Run,
    listed,
    load,
    this_command,
)
from induction_memory.cli.refusals import parts_of, require_edit, require_steps
from induction_memory.errors import InputError, printable, require
from induction_memory.files import require_folder

CONSTRUCTED = "constructed"


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
        steps: last step of the branch; the run's own by default.
        freeze: parameters to hold, as in W_K1 or "W_K1: 300..".
        clamp: attention patterns to impose: previous-token, induction.
        graft: matrices to take from elsewhere: W_O2=RUN@STEP, W_O2=RUN (its last step; also a plain folder of state
            dicts), W_O2=FILE.npy (a matrix), or W_O2=constructed (the paper's memory for this run's embeddings). Their
            momentum begins at zero and they go on training; add --freeze W_O2 to hold them.
        edit: associations to change before the first step, as in 'W_K2: erase e' or 'W_O2: insert a->b'.
        resume: continue the branch in that folder, to more steps if they are set.
        quiet: no progress.
    """
    from induction_memory.trajectory.layout import require_begun

    changed, grafts = None if edit is None else _edit(run, edit), listed(graft, "--graft")
    rules = {"freeze": listed(freeze, "--freeze"), "clamps": listed(clamp, "--clamp"), "steps": steps}
    require_begun(require_folder(out, "--out"), resume, "--out")
    _require_rules(run, at, rules, grafts)
    opened = load(run)
    from induction_memory.training.branching import branch as start

    result = start(
        opened,
        at,
        out,
        **rules,
        grafts=grafts,
        edit=changed,
        resume=resume,
        quiet=quiet,
        command=this_command(),
    )
    if not quiet:
        print(f"steps {result.steps[0]} to {result.steps[-1]} in {printable(str(out))}")


def _require_rules(run: str, at: int, rules: dict[str, Any], grafts: tuple[str, ...]) -> None:
    """Refuse rules that the run cannot follow, and steps that it or a donor does not have, before heavy imports."""
    from induction_memory.experiment.constraints import Graft
    from induction_memory.experiment.run_config import RunConfig, branch_config
    from induction_memory.trajectory.search import find

    require_steps(run, [at])
    parts = parts_of(run)
    stored = [text for text in grafts if "@" in text or not text.partition("=")[2].strip()]
    if parts is not None and parts[0] is not None:
        branch_config(RunConfig(*parts), at, grafts=stored, **rules)
    for donor in map(Graft.parse, stored):
        require_steps(donor.run, [donor.step])
    for name, _, source in (text.partition("=") for text in grafts if text not in stored):
        known = () if parts is None else parts[1].parameters
        require(parts is None or name.strip() in known, "--graft", f"names out of {', '.join(known)}", repr(name))
        if source.strip().endswith(".npy"):
            require(Path(source.strip()).is_file(), "--graft", "a file that is there", repr(source.strip()))
        elif source.strip() != CONSTRUCTED:
            find(source.strip())


def _edit(run: str, text: str) -> dict[str, str]:
    match = re.fullmatch(r"(\w+): (erase|insert) (.+)", text, re.DOTALL)
    if match is None:
        raise InputError(f"--edit: expected 'MEMORY: erase PAIR' or 'MEMORY: insert PAIR', got {text!r}")
    require_edit(run, match[1], {match[2]: (match[3],)}, option="--edit")
    return {"memory": match[1], match[2]: match[3]}
