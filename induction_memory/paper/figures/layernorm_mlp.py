"""Figure 10: a more realistic architecture (ReLU MLP, LayerNorm, every parameter trained) through training."""

from matplotlib.figure import Figure

from induction_memory.paper.figures.distributions import draw_divergence
from induction_memory.views.figures.curves import LABELS, RECALLS, SHARE, RunCurves, draw_recall, measured, probed
from induction_memory.views.figures.panels import INK, legend_below, panels, sign


def realistic(run: RunCurves, note: str = "") -> Figure:
    """Loss on global and in-context tokens, in-context accuracy, and recall of each memory of one run."""
    figure, (loss, accuracy, recall) = panels(1, 3, 3.4, 3.1)
    for column, label, style in (("loss_in_context", "in-context", "-"), ("loss_global", "global", "--")):
        values = measured(run.metrics, column)
        if len(values):
            loss.plot(values.index, values, style, color=INK, lw=1, label=label)
    loss.set_ylabel("loss")
    loss.set_ylim(bottom=0)
    legend_below(loss, loss.get_legend_handles_labels()[0])

    values = measured(run.metrics, "accuracy_in_context")
    accuracy.plot(values.index, values, color=INK, lw=1)
    accuracy.set(ylim=SHARE, ylabel="in-context accuracy")

    draw_recall(recall, run.probes, {name: LABELS[name] for name in RECALLS})
    handles = recall.get_legend_handles_labels()[0]
    if "W_F_kl" in run.probes:
        handles += draw_divergence(recall, probed(run.probes, "W_F_kl"))
    legend_below(recall, handles, columns=2 if len(handles) % 2 == 0 else 3)
    for axes in (loss, accuracy, recall):
        axes.set_xlabel("iteration")
        axes.margins(x=0.01)
    return sign(figure, note)
