"""The page of a series of checkpoints that others trained: one HTML file that works offline.

It shows what the files say about the series (`series_check`), the standard head scores over training, what is lost
without each head, the roles of the heads at the last checkpoint, and under a slider over the checkpoints the attention
maps and the numbers of each head.
"""

import base64
import html
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from induction_memory.errors import require
from induction_memory.figures.series import series_figure
from induction_memory.files import require_file, write_file
from induction_memory.heads.examination import identify
from induction_memory.interventions.ablations import ablate
from induction_memory.probes.standard_scores import head_scores
from induction_memory.subject import Sequences
from induction_memory.tables import number
from induction_memory.trajectory.revisions import Revisions
from induction_memory.trajectory.series_check import check
from induction_memory.views.attention_page import POLICY, STYLE, framed
from induction_memory.views.series_steps import chosen_steps, slider, views_by_step

_TABLE_STYLE = "table { border-collapse: collapse; } td, th { padding: .1rem .7rem .1rem 0; text-align: left; }"


@dataclass(frozen=True, eq=False)
class SeriesReport:
    """A page that shows itself in a notebook and can be saved."""

    title: str
    body: str

    def html(self) -> str:
        """The whole page."""
        return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width">
<title>{html.escape(self.title)}</title><style>{STYLE}{_TABLE_STYLE}</style></head>
<body><h1>{html.escape(self.title)}</h1>
{self.body}
</body></html>
"""

    def save(self, path: str | Path) -> Path:
        """Write the page to an .html file."""
        path = require_file(path, (".html",))
        write_file(path, self.html())
        return path

    def _repr_html_(self) -> str:
        return framed(self.html(), height=1200)


def series_report(
    series: Revisions,
    *,
    batch: Sequences = None,
    text: str | None = None,
    progress: Callable[[str], object] | None = None,
) -> SeriesReport:
    """The page of a series; ablations and roles on `batch`, or on random tokens repeated once."""
    say = progress or (lambda message: None)
    say("checking the files")
    findings = check(series)
    say("head scores")
    scores = series.table(head_scores, key="head scores")
    say("ablations")
    lost = ablate(series, batch, heads="all", kind="mean", step="all")
    say("roles")
    roles = identify(series, batch=batch).roles
    panels, lowest = curves(scores, lost)
    parts = [
        f"<p>{len(series)} checkpoints, steps {series.steps[0]} to {series.steps[-1]}.</p>",
        _section("Files", _table(findings) if len(findings) else "<p>No finding: no duplicates, gaps or jumps.</p>"),
        _section("Heads over training", _image(series_figure(panels, lowest=lowest))),
        _section(f"Roles at step {series.steps[-1]}", _table(roles.loc[:, ["head", "role", "confidence", "share"]])),
    ]
    say("attention maps")
    views = views_by_step(series, chosen_steps(series.steps), text, batch)
    parts.append(_section("Heads at one checkpoint", slider(views, by_head(scores, lost), _table)))
    return SeriesReport(f"{series.name}: a series of checkpoints", "\n".join(parts))


def curves(scores: pd.DataFrame, lost: pd.DataFrame) -> tuple[dict[str, pd.DataFrame], Sequence[str]]:
    """The panels of head scores and ablations, and the names of those in which low lines are the important ones."""
    by_head = {name: scores.pivot_table(index="step", columns="head", values=name) for name in scores.columns[2:]}
    intact = lost[lost["component"] == "none"].set_index("step")["in_context_loss"]
    heads = lost[lost["component"] != "none"]
    added = heads.pivot_table(index="step", columns="component", values="in_context_loss").sub(intact, axis="index")
    panels = {
        "previous-token score": by_head["previous_token"],
        "induction score": by_head["induction"],
        "in-context loss": intact.to_frame("intact"),
        "loss added without a head": added,
    }
    return panels, ()


def by_head(scores: pd.DataFrame, lost: pd.DataFrame) -> pd.DataFrame:
    """One row per step and head: its scores, and the in-context loss that is added without it."""
    intact = lost.loc[lost["component"] == "none", ["step", "in_context_loss"]]
    rows = lost.loc[lost["component"] != "none"].merge(intact, on="step", suffixes=("", "_intact"))
    difference = rows["in_context_loss"] - rows["in_context_loss_intact"]
    added = pd.DataFrame({"step": rows["step"], "head": rows["component"], "loss_added": difference})
    return scores.merge(added, on=["step", "head"])


def _section(title: str, content: str) -> str:
    return f"<h2>{html.escape(title)}</h2>\n{content}"


def _table(table: pd.DataFrame) -> str:
    def cell(value: Any) -> str:
        return html.escape(number(value) if isinstance(value, float) else "" if value is pd.NA else str(value))

    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in table.columns)
    rows = ["".join(f"<td>{cell(v)}</td>" for v in row) for row in table.itertuples(index=False)]
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _image(figure: Any) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    return _data_image(buffer.getvalue(), "svg+xml", "curves over the checkpoints")


def _data_image(content: bytes, kind: str, says: str) -> str:
    require(len(content) > 0, "image", "some content", "none")
    return f'<img alt="{says}" src="data:image/{kind};base64,{base64.b64encode(content).decode()}">'
