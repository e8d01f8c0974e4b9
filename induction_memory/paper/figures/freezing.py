"""Figure 3: the induction head alone, with some matrices frozen at first.

One column per experiment: in-context accuracy above, recall of each memory below. Over several seeds the line is the
mean and the band the range.
"""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from induction_memory.errors import require
from induction_memory.views.figures.curves import (
    COLOURS,
    LABELS,
    SHARE,
    RunCurves,
    draw_range,
    drawn_recalls,
    measured,
    probed,
)
from induction_memory.views.figures.panels import FAINT, INK, legend_above, panels, sign, title

NOTHING = "nothing frozen"
"""The label of the column without a line at the end of freezing."""


def freezing(runs: Mapping[str, Sequence[RunCurves]], frozen_until: int | None = 300, note: str = "") -> Figure:
    """One column per label, in order, with a dotted line where freezing ends (none in the column 'nothing frozen')."""
    require(len(runs) > 0, "runs", "at least one experiment", len(runs))
    count = len(runs)
    figure, flat = panels(2, count, 2.15, 2.15, share_y=True)
    shown: set[str] = set()
    for accuracy, recall, (label, seeds) in zip(flat[:count], flat[count:], runs.items(), strict=True):
        require(len(seeds) > 0, f"runs[{label!r}]", "at least one seed", len(seeds))
        draw_range(accuracy, [measured(run.metrics, "accuracy_in_context") for run in seeds], INK, lw=1)
        for column, name in drawn_recalls(seeds[0].probes).items():
            kept = [probed(run.probes, column) for run in seeds if column in run.probes]
            draw_range(recall, kept, COLOURS[name])
            shown.add(name)
        title(accuracy, label)
        accuracy.tick_params(labelbottom=False)
        last = max(run.metrics["step"].to_numpy().max() for run in seeds)
        for axes in (accuracy, recall):
            axes.set(ylim=SHARE, xlim=(0, last))
            if frozen_until is not None and label != NOTHING:
                axes.axvline(frozen_until, color=FAINT, lw=0.9, ls=":")
        recall.set_xlabel("iteration")
    flat[0].set_ylabel("in-context accuracy")
    flat[count].set_ylabel("memory recall")
    handles = [Line2D([], [], color=COLOURS[name], lw=1.8, label=LABELS[name]) for name in LABELS if name in shown]
    legend_above(figure, handles)
    seeds = max(map(len, runs.values()))
    spread = f"line: mean, band: range of {seeds} seeds" if seeds > 1 else ""
    return sign(figure, "; ".join(filter(None, (note, spread))))
