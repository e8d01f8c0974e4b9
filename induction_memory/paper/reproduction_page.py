"""The page that `reproduce` writes: for each figure, what the paper says and what was measured."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from induction_memory.paper import plan
from induction_memory.paper.claims import CLAIMS
from induction_memory.paper.claims.claim import DAGGER, Claim
from induction_memory.paper.drawing import FIGURES
from induction_memory.paper.plan import Scale
from induction_memory.paper.records import Record, Records
from induction_memory.terminal import markdown

HEADS = ["run", "steps", "in-context accuracy", "W_O2", "W_K2", "W_K1 (t < 64)", "minutes"]

PROVENANCE = "## How it was made"
SAME_IN_THE_TEXT = "The same in the parametrisation of the paper's text (docs/text-code-here.md):"
RUNS = "The runs behind the figure, with the accuracy and the recalls at their last step:"


def page(
    chosen: Sequence[int],
    scale: Scale,
    records: Records,
    verdicts: pd.DataFrame,
    pictures: Mapping[int, Sequence[str]],
    reasons: Mapping[int, str],
) -> str:
    """The page; `pictures` are the figures that were drawn, `reasons` why the others were not."""
    parts = [_opening(scale, _summary(verdicts))]
    for figure in chosen:
        parts.append(f"## Figure {figure}")
        parts.append(wrapped(" ".join(str(FIGURES[figure].__doc__).split())))
        if figure in pictures:
            drawn, *again = pictures[figure]
            parts.append(f"![Figure {figure}]({drawn})")
            for other in again:
                parts += [SAME_IN_THE_TEXT, f"![Figure {figure}, the text's parametrisation]({other})"]
        else:
            parts.append(f"Not drawn: {reasons[figure]}.")
        parts += _claims(figure, verdicts)
        parts.append(_runs(figure, records))
    parts += _provenance(scale)
    return "\n\n".join(part for part in parts if part) + "\n"


def _opening(scale: Scale, summary: str) -> str:
    """The question of the page, the answer in numbers, and how to read a verdict."""
    where = "at its own scale" if scale == "paper" else "at a reduced scale"
    parts = [
        f"# The paper's figures and claims, {where}",
        wrapped(
            f"**Which of the paper's figures and claims come out again?** {summary} Each section below has a figure of "
            "the paper, drawn anew, then every claim about it: the sentence of the paper, what was measured, and a "
            "verdict. [How it was made](#how-it-was-made) has the settings."
        ),
        "A measurement",
        "- *holds* if its value is beyond the threshold by more than its error,\n"
        "- *does not hold* if it misses the threshold by more than its error,\n"
        "- is *undecided* in between.",
        wrapped(
            "The error is half of a 95 % interval, and its column says what it is taken over: seeds, repeated draws, "
            'sequences or associations at the last step, or the steps of a curve. "Seeds (1 run)" means that there is '
            "one run. The spread between seeds is that of the settings that were trained with three seeds: the five of "
            "Figure 3, for Figure 8 its own five step sizes, for grafts at T = 64 their own twelve. It is the median "
            "of their variances, so that one outlying setting does not decide it, and is used with the wider interval "
            "that a median needs."
        ),
        wrapped(
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
    return [PROVENANCE, wrapped(_scale(scale)), wrapped(about), command]


def _summary(verdicts: pd.DataFrame) -> str:
    """How many measurements hold: the paper's claims, then ours."""
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
        "Figure 2 several times up to 3,000 with random triggers and 1,020 with fixed ones, 300 for one layer). The "
        "two-layer runs of Figure 2 went on from steps 1,000 and 600, which had been kept without the optimiser's "
        "state: momentum began at zero there. "
        "The KL of W_F is KL(bigrams || W_F), as in the authors' code; the paper's text has the "
        "arguments in the other order."
    )


def _claims(figure: int, verdicts: pd.DataFrame) -> list[str]:
    parts = []
    for claim in CLAIMS.values():
        own = verdicts.loc[(verdicts["claim"] == claim.name).to_numpy()]
        if claim.figure != figure or own.empty:
            continue
        quote = textwrap.indent(wrapped(f"The paper: {quoted(claim.says.rstrip('.') + '.')}", 116), "> ")
        rows = own.assign(
            measure=[_whose(row) for row in own.to_dict("records")],
            value=own["value"].map(_number),
            error=[_error(row) for row in own.to_dict("records")],
            verdict=own["verdict"].map(_bold),
        )
        table = markdown(rows[["measure", "value", "error", "threshold", "verdict"]])
        parts += [f"### {claim.name}", quote, table, thresholds(claim)]
    return parts


def thresholds(claim: Claim) -> str:
    """The paragraph about the thresholds of a claim."""
    return wrapped(f"Thresholds: {claim.reason}.")


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


def _whose(row: Mapping[str, Any]) -> str:
    return f"{row['measure']} (ours)" if row["whose"] == "ours" else str(row["measure"])


def _error(row: Mapping[str, Any]) -> str:
    if pd.isna(row["half_interval"]):
        return "" if row["verdict"] == "no run" else "unknown"
    return f"± {_number(row['half_interval'])} over {row['over']}" if row["over"] else "exact"


def _number(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"


def _bold(verdict: str) -> str:
    return f"**{verdict}**" if verdict != "holds" else verdict


def quoted(says: str) -> str:
    """Words of the paper in quotation marks; LaTeX's own inside them become single ones."""
    return '"' + re.sub("``(.*?)''", r"'\1'", says) + '"'


def wrapped(text: str, width: int = 120) -> str:
    """A paragraph in lines of that width."""
    return textwrap.fill(text, width, break_on_hyphens=False)
