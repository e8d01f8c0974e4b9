"""docs/reproduction.md: figure by figure, what the paper says beside what came out. No number is typed by hand."""

import textwrap
from collections.abc import Mapping, Sequence

import pandas as pd

from induction_memory.reproduction import plan
from induction_memory.reproduction.claims import CLAIMS, DAGGER
from induction_memory.reproduction.drawing import FIGURES
from induction_memory.reproduction.plan import Scale
from induction_memory.reproduction.records import Record, Records

HEADS = ("run", "steps", "in-context accuracy", "W_O2", "W_K2", "W_K1 (t < 64)", "minutes")


def page(
    chosen: Sequence[int],
    scale: Scale,
    records: Records,
    verdicts: pd.DataFrame,
    pictures: Mapping[int, str],
    reasons: Mapping[int, str],
) -> str:
    """The page; `pictures` are the figures that were drawn, `reasons` why the others were not."""
    counts = verdicts["verdict"].value_counts()
    words = {"holds": "hold", "does not hold": "do not hold", "no run": "wait for a run"}
    summary = ", ".join(f"{counts[verdict]} {word}" for verdict, word in words.items() if verdict in counts)
    parts = [
        f"# The paper's figures and claims, {'at its own scale' if scale == 'paper' else 'at a reduced scale'}",
        _wrap(f"Written by `induction-memory reproduce all --scale {scale}`. {_scale(scale)}"),
        _wrap(
            f"Of {len(verdicts)} measurements of {verdicts['claim'].nunique()} claims: {summary}. Thresholds were not "
            f"moved once the numbers were in; measures with a dagger ({DAGGER}) were added after a first look at them. "
            "Accuracy is the mean over the last 20 batches; recalls are those of the last stored step, of W_K2 among "
            "the triggers Q alone where they are fixed; minutes are wall time on a shared two-core machine, two runs "
            "side by side."
        ),
    ]
    for figure in chosen:
        parts.append(f"## Figure {figure}")
        parts.append(_wrap(" ".join(str(FIGURES[figure].__doc__).split())))
        if figure in pictures:
            parts.append(f"![Figure {figure}]({pictures[figure]})")
        else:
            parts.append(f"Not drawn: {reasons[figure]}.")
        parts += _claims(figure, scale, verdicts)
        parts.append(_runs(figure, records))
    return "\n\n".join(part for part in parts if part) + "\n"


def _scale(scale: Scale) -> str:
    if scale == "quick":
        return f"The scale is reduced ({plan.describe(scale).removeprefix('quick scale: ')})."
    return (
        "Hyper-parameters are those of the paper's appendix where it gives them; the numbers of steps, the task and "
        "step size of Figures 10 and 11, and the dimensions and step sizes of Figure 8 are ours. Figures 2 and 11 warm "
        "up for 30 steps, without which those with random triggers diverge. Figures 2 and 10 were trained for longer "
        "after their first numbers (400 steps, 600 in Figure 2 with random triggers, 300 for one layer) were in. The "
        "KL of W_F is KL(bigrams || W_F), as in the authors' code, where the paper's text has it the other way round."
    )


def _claims(figure: int, scale: Scale, verdicts: pd.DataFrame) -> list[str]:
    parts = []
    for claim in CLAIMS.values():
        own = verdicts.loc[(verdicts["claim"] == claim.name).to_numpy()]
        if claim.figure != figure or own.empty:
            continue
        quote = textwrap.fill(
            f'The paper: "{claim.says.rstrip(".")}."', 118, initial_indent="> ", subsequent_indent="> "
        )
        rows = [
            f"| {row['measure']} | {_number(row['value'])} | {row['threshold']} | {_bold(row['verdict'])} |"
            for row in own.to_dict("records")
        ]
        heads = ["| measure | value | threshold | verdict |", "| --- | --- | --- | --- |"]
        parts += [f"### {claim.name}", quote, "\n".join([*heads, *rows]), _wrap(f"Why there: {claim.reason}.")]
        if scale == "paper" and claim.if_not and (own["verdict"] == "does not hold").any():
            parts.append(_wrap(f"Why not: {claim.if_not}."))
    return parts


def _runs(figure: int, records: Records) -> str:
    presets = plan.FIGURES[figure]
    own = [record for name, record in records.items() if name.rpartition("-seed-")[0] in presets]
    if not own:
        return ""
    lines = ["| " + " | ".join(HEADS) + " |", "|" + " --- |" * len(HEADS)]
    for record in own:
        columns = [_last(record, name) for name in ("W_O2", "W_K2", "W_K1_first64")]
        minutes = "" if record.seconds is None else f"{record.seconds / 60:.1f}"
        cells = [record.name, record.steps, _number(record.accuracy()), *columns, minutes]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    commands = "\n".join(sorted({record.command for record in own if record.command}))
    return "\n".join(lines) + f"\n\n<details><summary>Commands</summary>\n\n```\n{commands}\n```\n\n</details>"


def _last(record: Record, name: str) -> str:
    """The last recall of what is trained: on the triggers where they are fixed, the range where heads are several."""
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


def _number(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"


def _bold(verdict: str) -> str:
    return f"**{verdict}**" if verdict != "holds" else verdict


def _wrap(text: str) -> str:
    return textwrap.fill(text, 120)
