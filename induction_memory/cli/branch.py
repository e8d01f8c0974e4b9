"""`branch`: train on from a stored step under another rule."""

from pathlib import Path

from induction_memory.cli.arguments import Run, listed, load, this_command


def branch(
    run: Run,
    /,
    at: int,
    out: Path,
    steps: int | None = None,
    freeze: tuple[str, ...] = (),
    clamp: tuple[str, ...] = (),
    graft: tuple[str, ...] = (),
    resume: bool = False,
    quiet: bool = False,
) -> None:
    """Go on from a stored step with the same data to come, under another rule.

    Args:
        run: trajectory to branch from.
        at: stored step to start at.
        out: folder of the branch.
        steps: last step of the branch; the run's own by default.
        freeze: parameters to hold, as in W_K1 or "W_K1: 300..".
        clamp: attention patterns to impose: previous-token, induction.
        graft: matrices to take from elsewhere, as in W_O2=RUN@STEP.
        resume: go on with the branch in that folder, to more steps if they are set.
        quiet: no progress.
    """
    from induction_memory.training.branching import branch as start

    result = start(
        load(run),
        at,
        out,
        steps=steps,
        freeze=listed(freeze),
        clamps=listed(clamp),
        grafts=listed(graft),
        resume=resume,
        quiet=quiet,
        command=this_command(),
    )
    if not quiet:
        print(f"steps {result.steps[0]} to {result.steps[-1]} in {out}")
