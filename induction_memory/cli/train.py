"""`train`: train an experiment and store its trajectory."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from induction_memory.cli.arguments import OptionalInt, optional, this_command
from induction_memory.errors import InputError, printable, require

Settings = Annotated[
    tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="PART.FIELD=VALUE ...")
]


def train(
    preset: Annotated[str | None, tyro.conf.Positional, optional("[PRESET]", str)] = None,
    /,
    *,
    out: Path,
    steps: OptionalInt = None,
    seed: OptionalInt = None,
    set: Settings = (),
    resume: bool = False,
    quiet: bool = False,
    log: Annotated[Literal["tensorboard", "wandb"] | None, optional("{tensorboard,wandb}")] = None,
) -> None:
    """Train an experiment and store its whole trajectory.

    Args:
        preset: name of the experiment; `induction-memory presets` lists them. Not needed to resume.
        out: folder of the trajectory.
        steps: number of updates, instead of the preset's.
        seed: one number that sets the seeds of initial weights, data and evaluation.
        set: change settings, as in task.k=3 train.learning_rate=0.5.
        resume: continue the run in that folder with its stored experiment; to more steps if --steps is larger.
        quiet: no progress.
        log: also write to TensorBoard or Weights & Biases.
    """
    from induction_memory.experiment.presets import preset as find
    from induction_memory.experiment.presets import with_seed

    settings = _settings(set) + ([] if steps is None else [f"train.steps={steps}"])
    if preset is None:
        require(resume, "PRESET", "the name of an experiment, or --resume", "none")
        require(seed is None, "--seed", "none: the run to resume has its own", seed)
        from induction_memory.training import run as runs

        run = runs.resume(out, settings=settings, progress=False if quiet else None, log=log)
    else:
        config = find(preset).config
        config = (config if seed is None else with_seed(config, seed)).with_settings(settings)
        from induction_memory.training.run import start

        run = start(config, out, resume=resume, progress=False if quiet else None, log=log, command=this_command())
    if not quiet:
        print(f"{len(run.steps)} checkpoints, steps {run.steps[0]} to {run.steps[-1]}, in {printable(str(out))}")


def _settings(groups: tuple[tuple[str, ...], ...]) -> list[str]:
    """The settings, whether after one --set or several."""
    if not all(groups):
        raise InputError("--set: expected PART.FIELD=VALUE, got nothing")
    return [setting for group in groups for setting in group]
