"""Attention maps of a training run, several steps side by side, as in the paper's Figure 2.

    python analyses/attention_maps.py induction-alone --out maps.png
    python analyses/attention_maps.py runs/figure-3 --step 0 100 300 --text "the tree at the gate" --out maps.html

Rows are queries; the keys after earlier occurrences of the query are boxed, red where they are a trigger's output.
"""

from pathlib import Path

import tyro

import induction_memory as im
from induction_memory.errors import run_script


def main(
    run: tyro.conf.Positional[str],
    /,
    out: Path,
    step: tuple[int, ...] = (),
    text: str | None = None,
) -> None:
    """Draw the maps.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        out: .html (interactive), .png, .pdf or .svg file.
        step: stored steps, side by side; the last by default.
        text: text to attend over; a sequence of the run's task by default.
    """
    im.attention(im.load(run), step=step or "last", text=text).save(out)


if __name__ == "__main__":
    run_script(main, __doc__)
