"""Figure 1 of the paper from a trained model: which embedding stands where in the residual stream at each layer.

    python analyses/superposition.py --docs docs/superposition.png
    python analyses/superposition.py random-triggers --text "to be to" --step 300

Prints the embeddings on the stream of the last token, and draws all streams (`probes/attribution.py`).
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
import tyro
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import induction_memory as im
from induction_memory.errors import require, run_script
from induction_memory.paper.superposition import attention_of, superposition
from induction_memory.terminal import show

COLOURS = {"w_E": "#dbe9f6", "p": "#e2f2e1", "w_1": "#f8dcd6", "w_2": "#efe0f5"}
"""Colour of a box by the outermost map of its embedding."""
SHOWN = 3
"""Boxes drawn per stream: the largest coefficients, with those of the newest layer first."""
HEIGHT, BOX = 1.7, 0.3


def superposition_figure(
    table: pd.DataFrame,
    attention: Sequence[Float[Tensor, "query key"]],
    tokens: Sequence[str],
    predicted: str = "",
    *,
    least: float = 0.25,
) -> Figure:
    """The drawing, from a table that `paper.superposition` returns and the attention of each layer.

    Columns are tokens, rows are layers from the bottom up. A box is an embedding with its coefficient. An arrow is
    attention, from the attended stream to the one that attends.
    Coefficients and attention weights below `least` are left out.
    """
    known = bool(len(attention) == table["layer"].max())
    require(known, "attention", "one pattern per layer of the table", len(attention))
    layers, n = len(attention), len(tokens)
    figure = Figure(figsize=(1.1 + 1.25 * n, 1.2 + HEIGHT * (layers + 1) * 0.8), layout="constrained")
    axes = figure.subplots()
    for layer in range(layers + 1):
        for position in range(n):
            own = table.loc[(table["layer"] == layer) & (table["position"] == position)]
            for i, (name, value) in enumerate(_shown(own, layer, least)):
                colour = COLOURS.get(name.split("(")[0], "#eeeeee")
                box = {"boxstyle": "round,pad=0.25", "facecolor": colour, "edgecolor": "#999999", "linewidth": 0.6}
                y = HEIGHT * layer + BOX * i
                axes.text(position, y, f"{name}  {value:.2f}", ha="center", va="center", fontsize=7.5, bbox=box)
    for layer, pattern in enumerate(attention, 1):
        for query in range(n):
            for key in range(query + 1):
                weight = float(pattern[query, key])
                if weight >= least:
                    below, above = HEIGHT * (layer - 1) + BOX * SHOWN, HEIGHT * layer - BOX
                    _arrow(axes, (float(key), below), (float(query), above), weight)
    axes.set(xlim=(-0.7, n - 0.3), ylim=(-0.7, HEIGHT * layers + BOX * (SHOWN + 1)))
    axes.set_xticks(range(n), [repr(token)[1:-1] for token in tokens])
    axes.set_yticks([HEIGHT * layer + BOX for layer in range(layers + 1)], ["embeddings", *_names(layers)])
    if predicted:
        axes.set_title(f"predicted after the last token: {predicted}", fontsize="medium", loc="right")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def _names(layers: int) -> list[str]:
    return [f"after layer {layer}" for layer in range(1, layers + 1)]


def _shown(own: pd.DataFrame, layer: int, least: float) -> list[tuple[str, float]]:
    """The boxes of one stream: what the layer wrote, then what was there; positions give way to tokens."""
    rows = [(str(r["embedding"]), float(r["coefficient"])) for r in own.to_dict("records") if r["coefficient"] >= least]
    order = sorted(rows, key=lambda row: (not row[0].startswith(f"w_{layer}("), "p " in row[0], -row[1]))
    return order[:SHOWN]


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], weight: float) -> None:
    style = {"arrowstyle": "-|>", "color": "#444444", "alpha": weight, "linewidth": 1.5 * weight, "shrinkA": 2}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)


def main(
    run: tyro.conf.Positional[str] = "induction-alone",
    /,
    step: int | None = None,
    text: str = "hear me a",
    docs: Path | None = None,
) -> None:
    """Print and draw.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        step: a stored step; the last by default.
        text: what the model reads.
        docs: picture to write.
    """
    opened = im.load(run)
    names = list(opened.task.vocabulary)
    unknown = [letter for letter in text if letter not in names]
    require(bool(text) and not unknown, "text", "characters of the run's vocabulary", repr(text))
    tokens = torch.tensor([names.index(letter) for letter in text])
    model = opened.model(int(opened.steps[-1]) if step is None else step)
    table = superposition(model, tokens, names=names)
    last = table.loc[(table["position"] == len(text) - 1) & (table["coefficient"] >= 0.05)]
    show(last.drop(columns="position"))
    with torch.no_grad():
        predicted = names[int(model(tokens.unsqueeze(0))[0, -1].argmax())]
    print(f"predicted after {text!r}: {predicted!r}")
    if docs is not None:
        superposition_figure(table, attention_of(model, tokens), text, repr(predicted)).savefig(docs, dpi=120)


if __name__ == "__main__":
    run_script(main, __doc__)
