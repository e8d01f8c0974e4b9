"""The command `induction-memory`: one small function a command, which parses, calls the library and prints.

A user's mistake ends with exit code 2 and one line on standard error. Nothing heavy is imported before a command needs
it, so that `--help` answers at once.
"""

import functools
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import tyro
from tyro.extras import SubcommandApp

from induction_memory.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from induction_memory.trajectory.trajectory import Trajectory

app = SubcommandApp()


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Add a command; when it runs, parsing is over and standard error is the user's again."""

    @functools.wraps(function)
    def after_parsing(*arguments, **options) -> None:
        sys.stderr = _complaints.real
        function(*arguments, **options)

    return app.command(after_parsing)


Format = Literal["table", "csv", "json"]
Run = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Settings = Annotated[
    tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="PART.FIELD=VALUE ...")
]


@command
def demo(out: Path = Path("demo"), quiet: bool = False) -> None:
    """The main job, small: train until the induction head is born, probe, draw.

    Args:
        out: folder for the trajectory and the figure; made anew.
        quiet: no progress line.
    """
    from induction_memory.demo import run

    run(out, quiet=quiet)


@command
def presets(name: Annotated[str | None, tyro.conf.Positional] = None, /) -> None:
    """List the experiments, or show one in full.

    Args:
        name: the experiment to show as JSON.
    """
    from induction_memory.experiment.presets import PRESETS, preset

    if name is None:
        for key, entry in PRESETS.items():
            print(f"{key:<28} {entry.about}")
    else:
        entry = preset(name)
        print(json.dumps({"about": entry.about} | entry.run.to_dict(), indent=2))


@command
def train(
    preset: Annotated[str, tyro.conf.Positional],
    /,
    out: Path,
    steps: int | None = None,
    seed: int | None = None,
    set: Settings = (),
    resume: bool = False,
    quiet: bool = False,
    log: Literal["tensorboard", "wandb"] | None = None,
) -> None:
    """Train an experiment and store its whole trajectory.

    Args:
        preset: name of the experiment; `induction-memory presets` lists them.
        out: folder of the trajectory.
        steps: number of updates, instead of the preset's.
        seed: one number for initial weights, data and evaluation alike.
        set: change settings, as in task.k=3 train.learning_rate=0.5.
        resume: go on with the run in that folder, to more steps if they are set.
        quiet: no progress.
        log: also write to TensorBoard or Weights & Biases.
    """
    from induction_memory.experiment.presets import preset as find
    from induction_memory.experiment.presets import with_seed
    from induction_memory.training.run import start

    config = find(preset).run
    config = config if seed is None else with_seed(config, seed)
    changes = _settings(set) + ([] if steps is None else [f"train.steps={steps}"])
    run = start(config.with_settings(changes), out, resume=resume, quiet=quiet, log=log, command=_command())
    if not quiet:
        print(f"{len(run.steps)} checkpoints, steps {run.steps[0]} to {run.steps[-1]}, in {out}")


@command
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
    from induction_memory.training.run import branch as start

    result = start(
        _load(run),
        at,
        out,
        steps=steps,
        freeze=_listed(freeze),
        clamps=_listed(clamp),
        grafts=_listed(graft),
        resume=resume,
        quiet=quiet,
        command=_command(),
    )
    if not quiet:
        print(f"steps {result.steps[0]} to {result.steps[-1]} in {out}")


@command
def probe(
    run: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None,
    /,
    probes: tuple[str, ...] = (),
    steps: str = "all",
    format: Format = "table",
    out: Path | None = None,
    list: bool = False,
) -> None:
    """Measure a trajectory: memory recall, attention, predictions, weights.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        probes: names of the probes; the memory recalls by default.
        steps: all, or a list such as 0,100,300.
        format: table, csv or json.
        out: write to a .csv, .json or .parquet file instead.
        list: explain each probe in one line.
    """
    from induction_memory import probes as library

    if list:
        for name, about in library.names().items():
            print(f"{name:<24} {about}")
        return
    if run is None:
        raise InputError("RUN: expected a trajectory's folder or name, or --list")
    _check(out)
    table = library.table(_load(run), _listed(probes) or None, steps=_steps(steps))
    skipped = table.attrs.get("skipped", {})
    if table.empty and skipped:
        name, reason = next(iter(skipped.items()))
        raise InputError(f"--probes: expected some that this run allows, got {name!r}, which {reason}")
    for reason in dict.fromkeys(skipped.values()):
        print(f"{', '.join(name for name in skipped if skipped[name] == reason)}: {reason}", file=sys.stderr)
    _output(library.wide(table).reset_index(), format, out)


@command
def attention(
    run: Run,
    /,
    out: Path,
    step: str = "last",
    text: str | None = None,
) -> None:
    """Draw attention maps: an interactive page, or a figure as in the paper.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        out: file to write: .html, .png, .pdf or .svg.
        step: a stored step, several (0,300,600) side by side, or last.
        text: text to attend over; a sequence of the run's task by default.
    """
    from induction_memory.views.attention import attention as look

    look(_load(run), step=_step(step), text=text).save(out)


@command
def ablate(
    run: Run,
    /,
    step: str = "last",
    kind: Literal["all", "zero", "mean", "mean-position", "resample", "resample-output", "noise", "initial"] = "all",
    components: tuple[str, ...] = (),
    format: Format = "table",
    out: Path | None = None,
) -> None:
    """Take parts of the model away, in several ways side by side, and measure what is lost.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        step: a stored step, several (0,300,600), last, or all.
        kind: one kind of ablation, or all.
        components: names such as L1H1, W_K2, FF2 or pos->L2.k, or groups (heads, matrices ...).
        format: table, csv or json.
        out: write to a .csv, .json or .parquet file instead.
    """
    from induction_memory.interventions.ablations import ablate as measure

    _check(out)
    _output(measure(_load(run), components=_listed(components) or None, kind=kind, step=_step(step)), format, out)


@command
def patch(
    run: Run,
    /,
    step: str = "last",
    kind: Literal["activation", "path"] = "activation",
    corruption: Literal["output", "trigger", "first"] = "trigger",
    format: Format = "table",
    out: Path | None = None,
) -> None:
    """Patch activations or single paths between a clean and a corrupted sequence.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        step: a stored step, several (0,300,600), last, or all.
        kind: activation (a component at a position) or path (an edge between two).
        corruption: what is changed in the other sequence: the output, the trigger, or its first occurrence.
        format: table, csv or json.
        out: write to a .csv, .json or .parquet file instead.
    """
    from induction_memory.interventions.patching import patch as measure

    _check(out)
    _output(measure(_load(run), kind=kind, corruption=corruption, step=_step(step)), format, out)


@command
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
    step: str = "last",
    format: Format = "table",
    out: Path | None = None,
) -> None:
    """Edit single associations of a trained matrix and measure the damage to target and bystanders.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        memory: matrix to edit: W_K1, W_K2, W_O2 or W_F.
        erase: associations to erase, as in 'a->b'.
        insert: associations to insert, as in 'a->b'.
        swap: two inputs that exchange their outputs, as in 'a->b'.
        project: keep only what lies in the span of the ideal memory.
        complement: keep only what lies outside it.
        truncate: keep this many singular values.
        transplant: take the matrix from RUN@STEP.
        step: a stored step, several, last, or all.
        format: table, csv or json.
        out: write to a .csv, .json or .parquet file instead.
    """
    from induction_memory.interventions.surgery import surgery as measure

    _check(out)
    if project and complement:
        raise InputError("--complement: expected it or --project, got both")
    donor = None
    if transplant is not None:
        name, _, at = transplant.rpartition("@")
        if not name or not (at.isascii() and at.isdigit()):
            raise InputError(f"--transplant: expected RUN@STEP, got {transplant!r}")
        donor = _load(name).model(int(at))
    table = measure(
        _load(run),
        memory=memory,
        erase=erase or None,
        insert=insert or None,
        swap=swap,
        project="complement" if complement else project,
        truncate=truncate,
        transplant=donor,
        step=_step(step),
    )
    _output(table, format, out)


@command
def heads(
    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")],
    /,
    step: str = "last",
    table: Literal["roles", "votes", "shares", "pairs", "mediation", "stability", "identifiability"] = "roles",
    format: Format = "table",
    out: Path | None = None,
) -> None:
    """Say which head does what, by three votes, and how stable that is across runs.

    Args:
        runs: folders of trajectories, or names of shipped ones.
        step: a stored step, several, last, or all.
        table: verdicts, the votes behind them, Shapley shares, pairs of heads, paths, or what several runs agree on.
        format: table, csv or json.
        out: write to a .csv, .json or .parquet file instead.
    """
    from induction_memory.heads import identify

    _check(out)
    if not runs:
        raise InputError("RUN: expected at least one trajectory's folder or name, got none")
    _output(getattr(identify([_load(run) for run in runs], step=_step(step)), table), format, out)


@command
def verify(run: Run, /) -> None:
    """Check every checksum of a trajectory; exit 1 names what is damaged.

    Args:
        run: trajectory's folder, or the name of a shipped one.
    """
    from induction_memory.trajectory.trajectory import find
    from induction_memory.trajectory.verification import verify as check

    damaged = check(find(run))
    for line in damaged:
        print(line, file=sys.stderr)
    if damaged:
        sys.exit(1)
    print(f"{run}: every checksum holds")


@command
def theory(checks: Annotated[tuple[str, ...], tyro.conf.Positional] = (), /, out: Path | None = None) -> None:
    """Check the paper's lemmas and its three-step theorem, and end with one table.

    Args:
        checks: names of the checks; all by default.
        out: folder for the figures.
    """
    from induction_memory import theory as library

    table = library.run([*checks] or None, out=out)
    _output(table, "table", None)
    if not bool(table["expected"].all()):
        sys.exit(1)


@command
def reproduce(
    figures: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FIGURE…|all")] = (),
    /,
    scale: Literal["quick", "paper"] = "quick",
    check: bool = False,
    runs: Path = Path("runs"),
    out: Path = Path("reproduction"),
    workers: int = 2,
    train: bool = True,
    quiet: bool = False,
    format: Format = "table",
) -> None:
    """The paper's figures and claims: train what is missing, draw, judge, and write a page.

    Args:
        figures: numbers of figures, 2 to 11; all by default.
        scale: quick takes minutes at a reduced size, paper hours at the paper's own; both go on where they stopped.
        check: recompute all claims from the records and trajectories that ship, and train nothing.
        runs: folder of the runs, in one folder a scale.
        out: folder of the page and its pictures.
        workers: runs at a time, each with one thread.
        train: train what is missing; otherwise draw what is there.
        quiet: no progress.
        format: of the table of claims.
    """
    from induction_memory.reproduction import plan
    from induction_memory.reproduction import reproduce as library

    if check:
        if figures:
            raise InputError("--check: expected no figures, it checks all claims, got " + " ".join(figures))
        table, compared = library.check()
        _output(table, format, None)
        apart = compared.loc[(compared["largest difference"] > library.AGREE).to_numpy()]
        if format == "table":
            print(f"\n{len(compared)} shipped trajectories measured anew, {len(apart)} differ from their records")
        for row in apart.to_dict("records"):
            print(f"{row['trajectory']} differs from its record by {row['largest difference']:.3g}", file=sys.stderr)
        if len(apart):
            sys.exit(1)
        return
    chosen = plan.figures(figures)
    made = library.reproduce(chosen, scale, runs=runs, out=out, workers=workers, train=train, quiet=quiet)
    _output(made.verdicts, format, None)
    if format == "table":
        for figure, reason in made.reasons.items():
            print(f"figure {figure} was not drawn: {reason}")
        print(f"\n{len(made.pictures)} figures and the claims in {made.page}")


def main() -> None:
    """Run the command line; a mistake is one line on standard error and exit code 2."""
    _complaints.catch()
    try:
        app.cli(prog="induction-memory", description="Watch an induction head being born.")
    except SystemExit as stop:
        sys.stderr = _complaints.real
        if stop.code == 2 and _complaints.getvalue():
            _fail(_complaints.one_line())
        raise
    except InputError as error:
        _fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        sys.stderr = _complaints.real


class _Complaints(io.StringIO):
    """Stands in for standard error while the parser works: it draws its complaint as a box of many lines."""

    real: TextIO = sys.stderr

    def catch(self) -> None:
        self.real = sys.stderr
        self.seek(0)
        self.truncate()
        sys.stderr = self

    def one_line(self) -> str:
        lines = [line.strip("│| ") for line in self.getvalue().splitlines() if not set(line) & set("╭╰")]
        kept = [line for line in lines if set(line) - set("─-+ ") and not line.startswith("For full helptext")]
        text = re.sub(r"\s+", " ", " ".join(kept))
        text = re.sub(r"(Got errors: .* )?Argument helptext: ", "Expected: ", text)
        text = re.sub(r"^(.+?) \1", r"\1", text)  # a title that the sentence repeats
        said, _, suggestions = text.partition(" Perhaps you meant: ")
        flags = [flag for flag in dict.fromkeys(re.findall(r"--[a-z-]+", suggestions)) if flag != "--help"]
        return f"{said.rstrip('.')}. Perhaps you meant: {', '.join(flags)}" if flags else said


_complaints = _Complaints()


def _fail(message: str) -> None:
    print(f"induction-memory: {message}", file=sys.stderr)
    sys.exit(2)


def _command() -> str:
    return shlex.join(["induction-memory", *sys.argv[1:]])


def _load(run: str) -> "Trajectory":
    from induction_memory.trajectory import load

    return load(run)


def _settings(groups: tuple[tuple[str, ...], ...]) -> list[str]:
    """Settings given together after one --set, or each after its own."""
    if not all(groups):
        raise InputError("--set: expected PART.FIELD=VALUE, got nothing")
    return [setting for group in groups for setting in group]


def _listed(items: tuple[str, ...]) -> tuple[str, ...]:
    """Items given apart or joined by commas."""
    return tuple(part.strip() for item in items for part in item.split(",") if part.strip())


def _steps(text: str) -> Literal["all"] | list[int]:
    if text == "all":
        return "all"
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--steps: expected all, or whole numbers between commas, got {text!r}") from None


def _step(text: str) -> Any:
    """A step as the library takes it: last, all, one or several."""
    if text in ("last", "all"):
        return text
    steps = _steps(text)
    return steps[0] if len(steps) == 1 else steps


def _check(out: Path | None) -> None:
    """Refuse a file for a table before the work is done."""
    from induction_memory.tables import require_file_name

    if out is not None:
        require_file_name(out)


def _output(table: "pd.DataFrame", format: Format, out: Path | None) -> None:
    from induction_memory.tables import save, show

    if out is None:
        show(table, format)
    else:
        save(table, out)
