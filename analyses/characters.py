"""Does a small language model of characters show the induction bump, and which heads make it?

    python analyses/characters_train.py input.txt --out runs/characters
    python analyses/characters_train.py input.txt --out runs/characters-repeats --repeats 0.5 --steps 1500
    python analyses/characters.py runs/characters runs/characters-repeats --text input.txt --out docs/characters

Reads series of checkpoints with `im.revisions`. Written for each series: the in-context learning score on held-out text
(mean loss at the last eighth of positions minus that at the second eighth; lower is better), previous-token and
induction scores of every head and the loss on random characters repeated once, and what the loss on the repeated half
gains without each head. Two pictures per series, one of the losses and one of the heads, and the numbers as CSV.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd
import torch
import tyro

import induction_memory as im
from induction_memory.errors import require, run_script
from induction_memory.source.sources import At
from induction_memory.trajectory.series import Revisions
from induction_memory.views.figures.curves import series_figure
from induction_memory.views.run_page import curves

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
        panels, lowest = curves(scores, lost)
        panels = {
            "in-context score on text": losses.loc[:, ["in-context score"]],
            "loss on text": losses.loc[:, ["early", "late"]],
        } | panels
        path = out.with_name(f"{out.name}-{folder.name}.csv")
        pd.concat(panels, axis="columns").to_csv(path, float_format="%.4f")
        for picture in draw(panels, lowest, path):
            print(picture)


def draw(panels: dict[str, pd.DataFrame], lowest: Sequence[str], table: Path) -> list[Path]:
    """Two pictures beside the table: the losses, and what has one line per head."""
    of_heads = {name: panel for name, panel in panels.items() if "L1H1" in panel.columns}
    losses = {name: panel for name, panel in panels.items() if name not in of_heads}
    written = []
    for what, chosen in (("losses", losses), ("heads", of_heads)):
        written.append(table.with_name(f"{table.stem}-{what}.png"))
        series_figure(chosen, lowest=lowest).savefig(written[-1], dpi=110)
    return written


if __name__ == "__main__":
    run_script(main, __doc__)
