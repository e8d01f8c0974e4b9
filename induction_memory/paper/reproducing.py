"""The whole reproduction: train what is missing, measure, draw, judge, and write the page.

At the paper's scale the records of all runs and the trajectories of a few ship with the repository; `audit.audit`
judges the claims from those alone.

The paper's figures, each from the records and the trajectories of its runs.

A figure is drawn from the runs that exist. If one that it needs is missing, the error names it.

docs/reproduction.md: for each figure, what the paper says and what was measured. No number is typed by hand.
"""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from induction_memory import probes
from induction_memory.files import require_folder, write_figure, write_file
from induction_memory.paper import claims, plan
from induction_memory.paper.auditing import with_shipped
from induction_memory.paper.claims import CLAIMS, DAGGER
from induction_memory.paper.claims.reading import ELSEWHERE, NOT_MEASURED, REMOVED
from induction_memory.paper.figures.dimension import dimension, one_step
from induction_memory.paper.figures.distributions import global_and_in_context, recalls_by_setting
from induction_memory.paper.figures.freezing import freezing
from induction_memory.paper.figures.layernorm_mlp import realistic
from induction_memory.paper.plan import Job, Scale, describe, jobs
from induction_memory.paper.records import MissingRunError, Record, Records, tuned_runs
from induction_memory.paper.shipped import TRAJECTORIES
from induction_memory.paper.theory.first_step_recall import one_step as measure_one_step
from induction_memory.paper.training import gather
from induction_memory.sweep.loop import require_workers
from induction_memory.terminal import markdown
from induction_memory.trajectory.search import SHIPPED
from induction_memory.trajectory.trajectory import Trajectory, load
from induction_memory.views.figures.maps import Panel, induction_maps
from induction_memory.views.figures.memories import memories

DOTS_AN_INCH = 150


@dataclass(frozen=True, eq=False)
class Material:
    """What figures are drawn from: the records, and the trajectory of a preset's first repetition."""

    records: Records
    trajectory: Callable[[str], Trajectory]
    note: str = ""


def figure_2(given: Material) -> Figure:
    """Attention of the vanilla transformers: the previous token, then what follows triggers or any repeated token."""
    fixed, random = (given.trajectory(plan.TWO_LAYERS[kind]) for kind in ("fixed", "random"))
    maps = [
        *_maps(random, {"L1H1": "first layer"}),
        *_maps(fixed, {"L2H1": "second layer, fixed triggers"}),
        *_maps(random, {"L2H1": "second layer, random triggers"}),
    ]
    return induction_maps(maps, columns=3, note=given.note)


def figure_3(given: Material) -> Figure:
    """The induction head alone, with some matrices frozen until step 300."""
    return _freezing(given, plan.FREEZING)


def figure_4(given: Material) -> Figure:
    """Global against in-context learning: five settings, other outputs in the test, and the probes of one run."""
    tested = {}
    for trained_on, name in plan.OUTPUTS.items():
        if _has(given, name):
            metrics = given.records.one(name).metrics.set_index("step")
            other = "bigram" if trained_on == "uniform" else "uniform"
            tested[f"train {trained_on}, test {trained_on}"] = metrics["accuracy_in_context"].dropna()
            tested[f"train {trained_on}, test {other}"] = metrics["out_of_distribution_accuracy"].dropna()
    return global_and_in_context(_settings(given), tested, given.records.one(plan.OUTPUTS["uniform"]), note=given.note)


def figure_5(given: Material) -> Figure:
    """Recall in the five settings; on the triggers alone where they are fixed, as in the paper."""
    settings = _settings(given)
    _require_one(settings, next(iter(plan.SETTINGS.values())))
    return recalls_by_setting({label: _on_triggers(run) for label, run in settings.items()}, note=given.note)


def figure_6(given: Material) -> Figure:
    """Recall with uniform and with bigram outputs, each for as many steps as it was trained."""
    runs = {f"train {kind}": given.records.one(name) for kind, name in plan.OUTPUTS.items() if _has(given, name)}
    _require_one(runs, plan.OUTPUTS["uniform"])
    return recalls_by_setting(runs, note=given.note)


def figure_7(given: Material) -> Figure:
    """The three memories of a trained model: all v_j^T W u_i."""
    return _memories(given, plan.OUTPUTS["uniform"])


def figure_8(given: Material) -> Figure:
    """Recall of W_O2 alone by dimension: with one step size, and with the best of several."""
    fixed = {d: given.records.one(f"figure-8-d{d}") for d in plan.DIMENSIONS if _has(given, f"figure-8-d{d}")}
    _require_one(fixed, f"figure-8-d{plan.DIMENSIONS[0]}")
    tuned = {d: tuned_runs(given.records, d)[0] for d in fixed}
    curves = [{d: pd.Series(run.probes["W_O2"]) for d, run in runs.items()} for runs in (fixed, tuned)]
    step_sizes = {d: run.config.train.learning_rate for d, run in tuned.items()}
    return dimension(curves[0], curves[1], step_sizes, note=given.note)


def figure_9(given: Material) -> Figure:
    """One-step recall of W_O2 by dimension (infinite: orthonormal embeddings) and number of batches of 32 sequences;
    nothing is trained, so that both scales agree.
    """
    return one_step(measure_one_step().tables["recall"])


def figure_10(given: Material) -> Figure:
    """Everything trained, with LayerNorm and a ReLU feed-forward."""
    return realistic(given.records.one(plan.REALISTIC), note=given.note)


def figure_11(given: Material) -> Figure:
    """Attention of the model with four heads per layer."""
    run = given.trajectory(plan.FOUR_HEADS)
    titles = {f"L{layer}H{head}": f"layer {layer}, head {head}" for layer in (1, 2) for head in (1, 2, 3, 4)}
    return induction_maps(_maps(run, titles), columns=4, note=given.note)


FIGURES: dict[int, Callable[[Material], Figure]] = {
    2: figure_2,
    3: figure_3,
    4: figure_4,
    5: figure_5,
    6: figure_6,
    7: figure_7,
    8: figure_8,
    9: figure_9,
    10: figure_10,
    11: figure_11,
}

IN_THE_TEXT: dict[int, Callable[[Material], Figure]] = {
    3: lambda given: _freezing(given, plan.FREEZING_IN_THE_TEXT),
    7: lambda given: _memories(given, plan.UNIFORM_IN_THE_TEXT),
}
"""Figures that are drawn a second time, from the model of the paper's text."""


def draw(figure: int, given: Material, folder: Path) -> list[Path]:
    """Draw a figure of the paper into the folder and, if those runs exist, in the text's parametrisation too."""
    path, again = (folder / f"figure-{figure:02}{end}.png" for end in ("", "-text"))
    _write(FIGURES[figure](given), path)
    if figure not in IN_THE_TEXT:
        return [path]
    try:
        _write(IN_THE_TEXT[figure](given), again)
    except MissingRunError:
        return [path]
    return [path, again]


def _write(drawn: Figure, path: Path) -> None:
    write_figure(drawn, path, dpi=DOTS_AN_INCH, metadata={"Software": None})


def _freezing(given: Material, presets: Mapping[str, str]) -> Figure:
    runs = {label: given.records.of(name) for label, name in presets.items() if _has(given, name)}
    _require_one(runs, next(iter(presets.values())))
    return freezing(runs, note=given.note)


def _memories(given: Material, preset: str) -> Figure:
    run = given.trajectory(preset)
    W_K1, W_K2, W_O2 = (_scores(run, name, int(run.steps[-1])) for name in ("W_K1", "W_K2", "W_O2"))
    return memories(W_K1, W_K2, W_O2, run.task.vocabulary, note=given.note)


def _has(given: Material, preset: str) -> bool:
    return f"{preset}-seed-0" in given.records


def _require_one(runs: Mapping[Any, Any], preset: str) -> None:
    if not runs:
        raise MissingRunError(f"{preset}-seed-0")


def _settings(given: Material) -> dict[str, Record]:
    return {label: given.records.one(name) for label, name in plan.SETTINGS.items() if _has(given, name)}


def _on_triggers(record: Record) -> Record:
    if "W_K2_triggers" not in record.probes:
        return record
    return replace(record, probes=record.probes.assign(**{"W_K2 drawn": record.probes["W_K2_triggers"]}))


def _scores(run: Trajectory, memory: str, step: int) -> Any:
    """v_j^T W u_i, one row per j and one column per i."""
    table: pd.DataFrame = probes.score_matrix(run, memory, step=step)
    return table.to_numpy().T if memory == "W_O2" else table.to_numpy()


def _maps(run: Trajectory, titles: Mapping[str, str]) -> list[Panel]:
    """The maps of some heads at the last step, over the sampled sequence in which the most triggers recur."""
    from induction_memory.views.attention_maps import attention

    view = attention(run, length=plan.LETTERS, heads=list(titles))
    marks: dict[str, Any] = {name: getattr(view, name) for name in ("right", "other", "triggers", "outputs")}
    return [
        Panel(title, pattern, view.tokens, **marks)
        for title, pattern in zip(titles.values(), view.patterns[0], strict=True)
    ]


HEADS = ["run", "steps", "in-context accuracy", "W_O2", "W_K2", "W_K1 (t < 64)", "minutes"]

SAME_IN_THE_TEXT = "The same in the parametrisation of the paper's text (docs/text-code-here.md):"
RUNS = "The runs behind the figure, with the accuracy and the recalls at their last step:"


def page(
    chosen: Sequence[int],
    scale: Scale,
    records: Records,
    verdicts: pd.DataFrame,
    pictures: Mapping[int, Sequence[str]],
    reasons: Mapping[int, str],
    *,
    linked: bool = False,
) -> str:
    """The page; `pictures` are the figures that were drawn, `reasons` why the others were not.

    `linked` says that the other pages of the documentation are in the same folder.
    """
    parts = [_opening(scale, _summary(verdicts))]
    for figure in chosen:
        parts.append(f"## Figure {figure}")
        parts.append(_wrap(" ".join(str(FIGURES[figure].__doc__).split())))
        if figure in pictures:
            drawn, *again = pictures[figure]
            parts.append(f"![Figure {figure}]({drawn})")
            for other in again:
                parts += [_link(SAME_IN_THE_TEXT, linked), f"![Figure {figure}, the text's parametrisation]({other})"]
        else:
            parts.append(f"Not drawn: {reasons[figure]}.")
        parts += [_link(part, linked) for part in _claims(figure, scale, verdicts, records)]
        parts.append(_runs(figure, records))
    parts += [*_removed(), *_reading(linked), *_provenance(scale)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _opening(scale: Scale, summary: str) -> str:
    """The question of the page, the answer in numbers, and how to read a verdict."""
    where = "at its own scale" if scale == "paper" else "at a reduced scale"
    parts = [
        f"# The paper's figures and claims, {where}",
        _wrap(
            f"**Which of the paper's figures and claims come out again?** {summary} Each section below has a figure of "
            "the paper, drawn anew, then every claim about it: the sentence of the paper, what was measured, and a "
            "verdict. [How it was made](#how-it-was-made) has the settings."
        ),
        "A measurement",
        "- *holds* if its value is beyond the threshold by more than its error,\n"
        "- *does not hold* if it misses the threshold by more than its error,\n"
        "- is *undecided* in between.",
        _wrap(
            "The error is half of a 95 % interval, and its column says what it is taken over: seeds, repeated draws, "
            'sequences or associations at the last step, or the steps of a curve. "Seeds (1 run)" means that there is '
            "one run. Its spread is taken to be that between the three seeds of Figure 3, the only figure with "
            "repetitions of whole runs. Figure 8 has the spread of its own seeds."
        ),
        _wrap(
            "Measurements marked *ours* ask for something that the paper does not claim: a stricter reading, or a "
            f"cause. Measures with a dagger ({DAGGER}) were added after a first look at the runs. No threshold was "
            "changed after its number was known. The rules for the errors were written when the values were known."
        ),
    ]
    return "\n\n".join(parts)


def _provenance(scale: Scale) -> list[str]:
    """Settings, how accuracies and recalls are taken, and the command."""
    about = (
        "Accuracy is the mean over the last 20 batches, and its spread over seeds is that of a share, sqrt(p (1 - p)). "
        "Recalls are those of the last stored step. With fixed triggers, that of W_K2 is among the triggers Q alone. "
        "Minutes are wall time on a shared two-core machine with two runs at a time."
    )
    command = f"This page is written by `induction-memory reproduce all --scale {scale}`."
    return ["## How it was made", _wrap(_scale(scale)), _wrap(about), command]


def _summary(verdicts: pd.DataFrame) -> str:
    """How many measurements hold: the paper's claims, then what is asked for here."""
    words = {"holds": "hold", "undecided": "are undecided", "does not hold": "do not hold"}
    parts = []
    for whose, called in (("paper", "the paper's claims"), ("ours", "our own")):
        own = verdicts.loc[(verdicts["whose"] == whose).to_numpy(), "verdict"].tolist()
        *some, last = [f"{own.count(verdict)} {word}" for verdict, word in words.items() if verdict in own] or [""]
        told = f"{', '.join(some)} and {last}" if some else last or "none is there"
        parts.append(f"Of {len(own)} measurements of {called}, {told}.")
    missing = verdicts["verdict"].tolist().count("no run")
    return " ".join(parts) + (f" {missing} have no run." if missing else "")


def _scale(scale: Scale) -> str:
    if scale == "quick":
        return f"The scale is reduced ({plan.describe(scale).removeprefix('quick scale: ')})."
    return (
        "Hyper-parameters are those of the paper's appendix where it gives them. The numbers of steps, the task and "
        "step size of Figures 10 and 11, and the dimensions and step sizes of Figure 8 are chosen here. Figures 2 and "
        "11 warm up for 30 steps, because the runs with random triggers diverge without it. Figures 2, 10 and 11 were "
        "trained for longer after their first numbers were known (400 steps, and in Figure 10 again after 600; in "
        "Figure 2 600 and 1,000 with random triggers, 300 for one layer). The two-layer runs of Figure 2 went on from "
        "steps 1,000 and 600, which had been kept without the optimiser's state: momentum began at zero there. "
        "The KL of W_F is KL(bigrams || W_F), as in the authors' code; the paper's text has the "
        "arguments in the other order."
    )


def _claims(figure: int, scale: Scale, verdicts: pd.DataFrame, records: Records) -> list[str]:
    parts = []
    for claim in CLAIMS.values():
        own = verdicts.loc[(verdicts["claim"] == claim.name).to_numpy()]
        if claim.figure != figure or own.empty:
            continue
        quote = textwrap.indent(_wrap(f"The paper: {_quoted(claim.says.rstrip('.') + '.')}", 116), "> ")
        rows = own.assign(
            measure=[_whose(row) for row in own.to_dict("records")],
            value=own["value"].map(_number),
            error=[_error(row) for row in own.to_dict("records")],
            verdict=own["verdict"].map(_bold),
        )
        table = markdown(rows[["measure", "value", "error", "threshold", "verdict"]])
        parts += [f"### {claim.name}", quote, table, _wrap(f"Thresholds: {claim.reason}.")]
        if scale == "paper" and claim.explain is not None and (own["verdict"] == "does not hold").any():
            parts.append(_wrap(f"Explanation: {claim.explain(records)}"))
    return parts


def _runs(figure: int, records: Records) -> str:
    presets = plan.FIGURES[figure]
    own = [record for name, record in records.items() if name.rpartition("-seed-")[0] in presets]
    if not own:
        return ""
    rows = []
    for record in own:
        columns = [_last(record, name) for name in ("W_O2", "W_K2", "W_K1_first64")]
        minutes = "" if record.seconds is None else f"{record.seconds / 60:.1f}"
        rows.append((record.name, record.steps, _number(record.accuracy()), *columns, minutes))
    commands = "\n".join(sorted({record.command for record in own if record.command}))
    return (
        f"{RUNS}\n\n{markdown(pd.DataFrame(rows, columns=HEADS))}"
        f"\n\n<details><summary>Commands</summary>\n\n```\n{commands}\n```\n\n</details>"
    )


def _last(record: Record, name: str) -> str:
    """The last recall of a trained memory: on the triggers where they are fixed, as a range over several heads."""
    probes, trained = record.probes, record.config.model.trained_names
    if not any(memory.startswith(name.split("_first")[0]) for memory in trained):
        return ""
    if f"{name}_triggers" in probes:
        return f"{float(probes[f'{name}_triggers'].iloc[-1]):.3f} (on Q)"
    if name in probes:
        return _number(float(probes[name].iloc[-1]))
    if f"{name}_max" in probes:
        low, high = (float(probes[f"{name}_{end}"].iloc[-1]) for end in ("min", "max"))
        return f"{low:.2f} to {high:.2f} (heads)"
    return ""


def _removed() -> list[str]:
    rows = [(r.claim, r.measure, r.value, r.threshold, r.verdict, r.why) for r in REMOVED]
    columns = ["claim", "measure", "last value", "threshold", "verdict", "why"]
    about = "These measures were removed or replaced after their values were known. Their last values were:"
    return ["## Measures that were removed", about, markdown(pd.DataFrame(rows, columns=columns))]


def _reading(linked: bool) -> list[str]:
    """The rest of the paper: one table of what is checked on other pages, one of what is not measured."""
    parts = ["## The rest of the paper"]
    for about, column, sentences in (
        ("These sentences of the paper are checked on other pages:", "where", ELSEWHERE),
        ("These are not measured:", "why", NOT_MEASURED),
    ):
        in_order = sorted(sentences, key=lambda sentence: sentence.section)
        rows = [(s.section, _quoted(s.says), _link(s.about, linked)) for s in in_order]
        parts += [about, markdown(pd.DataFrame(rows, columns=["section", "the paper", column]))]
    return parts


def _whose(row: Mapping[str, Any]) -> str:
    return f"{row['measure']} (ours)" if row["whose"] == "ours" else str(row["measure"])


def _error(row: Mapping[str, Any]) -> str:
    if pd.isna(row["error"]):
        return "" if row["verdict"] == "no run" else "unknown"
    return f"± {_number(row['error'])} over {row['over']}" if row["over"] else "exact"


def _number(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"


def _bold(verdict: str) -> str:
    return f"**{verdict}**" if verdict != "holds" else verdict


def _quoted(says: str) -> str:
    """Words of the paper in quotation marks; LaTeX's own inside them become single ones."""
    return '"' + re.sub("``(.*?)''", r"'\1'", says) + '"'


def _link(text: str, linked: bool) -> str:
    """The text with the pages that it names as links."""
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](\1.md)", text) if linked else text


def _wrap(text: str, width: int = 120) -> str:
    return textwrap.fill(text, width, break_on_hyphens=False)


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What came out: the verdicts, the figures drawn, and why others were not."""

    verdicts: pd.DataFrame
    pictures: dict[int, list[Path]]
    reasons: dict[int, str]
    page: Path


def reproduce(
    chosen: Sequence[int],
    scale: Scale,
    *,
    runs: Path = Path("runs"),
    out: Path = Path("reproduction"),
    workers: int = 2,
    train: bool = True,
    quiet: bool = False,
) -> Reproduction:
    """Figures and claims at a scale, from runs in `runs/SCALE`, into `out`: a page and a folder of pictures.

    Without training, shipped records and trajectories replace missing runs of the paper's scale.
    """
    require_workers(workers)
    out = require_folder(out, "--out")
    folder, planned = require_folder(Path(runs) / scale, "--runs"), jobs(chosen, scale)
    records = gather(planned, folder, workers=workers, train=train, quiet=quiet)
    if not train and scale == "paper":
        records = with_shipped(records, planned)
    by_preset = {job.preset: job for job in planned if job.seed == 0}
    given = Material(records, lambda preset: _trained(by_preset[preset], folder, records), describe(scale))
    pictures, reasons = {}, {}
    for figure in chosen:
        try:
            pictures[figure] = draw(figure, given, out / "reproduction")
        except MissingRunError as missing:
            reasons[figure] = str(missing)
    wanted = [claim.name for claim in claims.CLAIMS.values() if claim.figure in chosen]
    verdicts = claims.check(records, wanted)
    links = {figure: [path.relative_to(out).as_posix() for path in paths] for figure, paths in pictures.items()}
    written = out / "reproduction.md"
    linked = (out / "theory.md").exists()
    write_file(written, page(chosen, scale, records, verdicts, links, reasons, linked=linked), "--out")
    return Reproduction(verdicts, pictures, reasons, written)


def _trained(job: Job, folder: Path, records: Records) -> Trajectory:
    """The trajectory behind a record: the run's own, or the shipped one."""
    shipped = [SHIPPED / name for name, what in TRAJECTORIES.items() if what.preset == job.preset]
    for place in (folder / job.name, *shipped):
        if job.name in records and (place / "manifest.json").exists():
            run = load(place)
            if run.finished and run.config == job.config:
                return run
    raise MissingRunError(job.name)
