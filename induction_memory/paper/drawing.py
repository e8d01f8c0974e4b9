"""The paper's Figures 2 to 11, each from the records and the trajectories of its runs.

If a run of a figure is missing, the error names it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from induction_memory.files import write_figure
from induction_memory.paper import plan
from induction_memory.paper.figures import (
    dimension,
    freezing,
    global_and_in_context,
    one_step,
    realistic,
    recalls_by_setting,
)
from induction_memory.paper.records import MissingRunError, Record, Records, tuned_runs
from induction_memory.paper.theory.first_step_recall import one_step as measure_one_step
from induction_memory.trajectory.trajectory import Trajectory
from induction_memory.views.figures.maps import Panel, induction_maps
from induction_memory.views.figures.memories import memories
from induction_memory.views.memory_maps import memory_map

DOTS_AN_INCH = 150


@dataclass(frozen=True, eq=False)
class Material:
    """The material of figures: the records, and the trajectories of the presets' first repetitions."""

    records: Records
    trajectory: Callable[[str], Trajectory]
    note: str = ""


def figure_2(given: Material) -> Figure:
    """Attention of the vanilla transformers: to the previous token, then to the successors of triggers or of repeated
    tokens."""
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
    """Recall in the five settings; only on the triggers if they are fixed, as in the paper."""
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
    """Recall of W_O2, trained alone, by dimension: with one step size, and with the best of several."""
    fixed = {d: given.records.one(f"figure-8-d{d}") for d in plan.DIMENSIONS if _has(given, f"figure-8-d{d}")}
    _require_one(fixed, f"figure-8-d{plan.DIMENSIONS[0]}")
    tuned = {d: tuned_runs(given.records, d)[0] for d in fixed}
    curves = [{d: pd.Series(run.probes["W_O2"]) for d, run in runs.items()} for runs in (fixed, tuned)]
    step_sizes = {d: run.config.train.learning_rate for d, run in tuned.items()}
    return dimension(curves[0], curves[1], step_sizes, note=given.note)


def figure_9(given: Material) -> Figure:
    """One-step recall of W_O2 by dimension (infinite: orthonormal embeddings) and number of batches of 32 sequences;
    without training, so equal at both scales.
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


DRAWN = (figure_2, figure_3, figure_4, figure_5, figure_6, figure_7, figure_8, figure_9, figure_10, figure_11)
FIGURES: dict[int, Callable[[Material], Figure]] = dict(enumerate(DRAWN, start=2))

IN_THE_TEXT: dict[int, Callable[[Material], Figure]] = {
    3: lambda given: _freezing(given, plan.FREEZING_IN_THE_TEXT),
    7: lambda given: _memories(given, plan.UNIFORM_IN_THE_TEXT),
}
"""Figures that are also drawn from the model of the paper's text."""


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
    return memories([one for name in ("W_K1", "W_K2", "W_O2") for one in memory_map(run, name).maps], note=given.note)


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


def _maps(run: Trajectory, titles: Mapping[str, str]) -> list[Panel]:
    """The maps of some heads at the last step, over the sampled sequence in which the most triggers recur."""
    from induction_memory.views.attention_maps import attention

    view = attention(run, length=plan.LETTERS, heads=list(titles))
    marks: dict[str, Any] = {name: getattr(view, name) for name in ("right", "other", "triggers", "outputs")}
    return [
        Panel(title, pattern, view.tokens, **marks)
        for title, pattern in zip(titles.values(), view.patterns[0], strict=True)
    ]
