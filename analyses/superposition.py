"""Figure 1 of the paper from a trained model: which embedding stands where in the residual stream at each layer.

    python analyses/superposition.py --docs docs/superposition.png
    python analyses/superposition.py random-triggers --text "to be to" --step 300

Prints the embeddings on the stream of the last token, and draws all streams (`probes/attribution.py`).
"""

from pathlib import Path

import torch
import tyro

import induction_memory as im
from induction_memory.errors import require, run_script
from induction_memory.paper.figures.superposition import superposition_figure
from induction_memory.probes.attribution import attention_of, superposition
from induction_memory.terminal import show


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
