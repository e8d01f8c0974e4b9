"""docs/theory.md, written from what was measured: each statement in the paper's order, its text, rows and picture.

python analyses/theory_page.py --docs docs

The text of a section is its check's docstring; every number in a table comes from the run.
"""

import inspect
import sys
import textwrap
from pathlib import Path

import pandas as pd

from induction_memory.errors import run_script
from induction_memory.paper.theory import measure, save_picture
from induction_memory.paper.theory.checks import Entry, Result
from induction_memory.paper.verdicts import Measurement
from induction_memory.terminal import markdown

QUESTION = "**Does what the paper proves hold when its gradient steps are run for real?**"
OPENING = """Each section takes one statement of the paper, says what was measured, and gives a verdict for each row. A
row *holds* if the measured value lies within the tolerance of the predicted one. Where the tolerance is *at most* or
*at least*, the predicted value is a bound: a relative error of at most 1e-05 means that two computations agree. A row
marked *slip* is a statement of the paper that does not hold as printed or in the setting of the row. The row beside it
has the corrected statement, where there is one.
"""
KINDS = {
    "printed": "These are errors of the text. They change constants and wording, not the theorem:",
    "setting": "These statements are true where the paper makes them, and not in the setting of its figures or steps:",
    "beyond": "This is a finding about what the paper simplifies, not an error:",
}
"""Kind of slip -> the line above its rows."""
PROVENANCE = """## How it was made

All numbers are in float64. They use the associative memories of `induction_memory/memory` and a two-layer circuit in
plain torch (`induction_memory/paper/theory/circuit.py`). No trained model is used. One section,
[attention at initialisation](#attention-at-initialisation), uses untrained transformers. `induction-memory theory`
prints the same rows. This page is written by `python analyses/theory_page.py --docs docs`.
"""


def write(docs: Path) -> bool:
    """Measure everything and write `theory.md` and its pictures; True if every row came out as expected."""
    pieces, everything = [], []
    for entry, result in measure():
        save_picture(entry, result, docs / "theory")
        pieces.append(section(entry, result, docs))
        everything += [(entry, check) for check in result.checks]
    title = "# The theory, statement by statement\n"
    text = "\n".join([title, summary(everything), *pieces, PROVENANCE])
    (docs / "theory.md").write_text(text, encoding="utf-8")
    return all(check.expected for _, check in everything)


def summary(everything: list[tuple[Entry, Measurement]]) -> str:
    """The question, how many rows hold, how to read them, and what does not hold as printed, by kind."""
    checks = [check for _, check in everything]
    unexpected = [(entry, check) for entry, check in everything if not check.expected]
    slips = {kind: [(entry, check) for entry, check in everything if check.slip == kind] for kind in KINDS}
    answer = (
        f"{QUESTION} {sum(c.holds for c in checks)} of {len(checks)} rows hold, {sum(map(len, slips.values()))} are "
        f"known slips, and {len(unexpected)} are not as expected."
    )
    lines = [textwrap.fill(answer, 120) + "\n", OPENING]
    for kind, told in KINDS.items():
        lines += [f"{told}\n", _listed(slips[kind]), ""]
    if failed := [pair for pair in unexpected if not pair[1].slip]:
        lines += ["Other statements that fail:\n", _listed(failed), ""]
    return "\n".join(lines)


def _listed(rows: list[tuple[Entry, Measurement]]) -> str:
    cells = [
        (f"[{entry.where}](#{_anchor(entry)})", check.statement, _number(check.predicted), _number(check.measured))
        for entry, check in rows
    ]
    return markdown(pd.DataFrame(cells, columns=["where", "statement", "predicted", "measured"]))


def section(entry: Entry, result: Result, docs: Path) -> str:
    """One statement: text, rows, picture."""
    lines = [
        f"## {entry.title}\n",
        f"*{entry.where}* · `induction-memory theory {entry.name}`\n",
        inspect.getdoc(entry.function) or "",
        "",
    ]
    rows = [(c.statement, _number(c.predicted), _number(c.measured), c.tolerance, _verdict(c)) for c in result.checks]
    columns = ["statement", "predicted", "measured", "tolerance", "verdict"]
    lines.append(markdown(pd.DataFrame(rows, columns=columns)))
    if (docs / "theory" / f"{entry.name}.png").exists():
        lines.append(f"\n![{entry.title}](theory/{entry.name}.png)")
    return "\n".join([*lines, ""])


def _anchor(entry: Entry) -> str:
    kept = "".join(c for c in entry.title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _number(value: float) -> str:
    return f"{value:.4g}"


def _verdict(check: Measurement) -> str:
    if check.slip:
        return "holds (unexpected)" if check.holds else "*slip*"
    return "holds" if check.holds else "**fails**"


def main(docs: Path) -> None:
    """Measure every statement and write the page; exit 1 if a row came out otherwise than expected.

    Args:
        docs: folder that receives theory.md and theory/*.png.
    """
    sys.exit(0 if write(docs) else 1)


if __name__ == "__main__":
    run_script(main, __doc__)
