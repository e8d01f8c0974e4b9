"""Does a small language model of characters show the induction bump, and which heads make it?

    python analyses/characters_train.py input.txt --out runs/characters
    python analyses/characters_train.py input.txt --out runs/characters-repeats --repeats 0.5 --steps 1500
    python analyses/characters.py runs/characters runs/characters-repeats --text input.txt --out docs/characters

Reads series of checkpoints with `im.revisions`. Written for each series: the in-context learning score on held-out text
(mean loss at the last eighth of positions minus that at the second eighth; lower is better), previous-token and
induction scores of every head and the loss on random characters repeated once, and what the loss on the repeated half
gains without each head. Two pictures per series, one of the losses and one of the heads, and the numbers as CSV.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import pandas as pd
import torch
import tyro
from matplotlib.figure import Figure

import induction_memory as im
from induction_memory.errors import require, run_script
from induction_memory.source.sources import At
from induction_memory.trajectory.series import Revisions

WINDOWS = 32


def text_loss(series: Revisions, text: str) -> pd.DataFrame:
    """Loss on held-out text, early and late in the window, and their difference, at each checkpoint."""
    length = series.config().max_position_embeddings
    windows = series.encode(text[len(text) * 9 // 10 :], length)[:WINDOWS]

    def measure(at: At) -> dict[str, float]:
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(
                at.model(windows)[:, :-1].transpose(1, 2), windows[:, 1:], reduction="none"
            ).mean(0)
        eighth = length // 8
        early, late = losses[eighth : 2 * eighth].mean().item(), losses[-eighth:].mean().item()
        return {"early": early, "late": late, "in-context score": late - early}

    return im.measure(series, measure)


def main(
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional],
    /,
    text: Path,
    out: Path,
    keep: Path | None = None,
) -> None:
    """Measure the series and draw the picture.

    Args:
        folders: folders of checkpoints that characters_train.py has left.
        text: the text file that they were trained on.
        out: pictures and table of each folder: OUT-NAME-losses.png, OUT-NAME-heads.png, OUT-NAME.csv.
        keep: folder for the results of each checkpoint, so that a killed run goes on.
    """
    require(len(folders) > 0, "folders", "at least one series", "none")
    for folder in folders:
        series = im.revisions(folder, keep=keep)
        losses = text_loss(series, text.read_text(encoding="utf-8")).set_index("step")
        scores = im.probes.head_scores(series, step="all")
        lost = im.ablate(series, heads="all", kind="mean", step="all")
        panels = curves(scores, lost)
        panels = {
            "in-context score on text": losses.loc[:, ["in-context score"]],
            "loss on text": losses.loc[:, ["early", "late"]],
        } | panels
        path = out.with_name(f"{out.name}-{folder.name}.csv")
        pd.concat(panels, axis="columns").to_csv(path, float_format="%.4f")
        for picture in draw(panels, path):
            print(picture)


def draw(panels: dict[str, pd.DataFrame], table: Path) -> list[Path]:
    """Two pictures beside the table: the losses, and what has one line per head."""
    of_heads = {name: panel for name, panel in panels.items() if "L1H1" in panel.columns}
    losses = {name: panel for name, panel in panels.items() if name not in of_heads}
    written = []
    for what, chosen in (("losses", losses), ("heads", of_heads)):
        written.append(table.with_name(f"{table.stem}-{what}.png"))
        series_figure(chosen).savefig(written[-1], dpi=110)
    return written


def curves(scores: pd.DataFrame, lost: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The panels of head scores and ablations: step by head."""
    by_head = {name: scores.pivot_table(index="step", columns="head", values=name) for name in scores.columns[2:]}
    intact = lost[lost["component"] == "none"].set_index("step")["in_context_loss"]
    heads = lost[lost["component"] != "none"]
    added = heads.pivot_table(index="step", columns="component", values="in_context_loss").sub(intact, axis="index")
    return {
        "previous-token score": by_head["previous_token"],
        "induction score": by_head["induction"],
        "in-context loss": intact.to_frame("intact"),
        "loss added without a head": added,
    }


LABELLED = 8
"""Lines that the legend names: those with the highest last value."""


def series_figure(panels: Mapping[str, pd.DataFrame]) -> Figure:
    """One panel per table (index: step, one column per line), side by side over a logarithmic axis of steps."""
    figure = Figure(figsize=(1 + 3.6 * len(panels), 3.4), layout="constrained")
    for axes, (name, table) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        last = table.ffill().iloc[-1].sort_values(ascending=False)
        named = list(last.index[:LABELLED])
        for line in table.columns:
            values = table[line].dropna()
            label = str(line) if line in named and len(table.columns) > 1 else None
            axes.plot(values.index, values, lw=1.3 if line in named else 0.5, marker=".", ms=3, label=label)
        first = min((step for step in table.index if step > 0), default=1)
        axes.set_xscale("symlog", linthresh=float(first))
        axes.set(title=name, xlabel="step")
        axes.set_xlim(left=0)
        axes.spines[["top", "right"]].set_visible(False)
        if len(table.columns) > 1:
            axes.legend(frameon=False, fontsize="x-small")
    return figure


if __name__ == "__main__":
    run_script(main, __doc__)
