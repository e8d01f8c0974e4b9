"""Why a model predicts what it predicts, as a sentence, a table, a tree, a picture and a graph.

    im.why(run, text="the tree at the tr")                    shows itself in a notebook
    im.why(run, text="...", position=12).sentence
    im.why(run, text="...", step="all").terms                 the terms at each step, for the output of the last one
    im.why(model, batch=tokens, position=7).save("why.pdf")   .png, .svg, .pdf, .csv (terms) or .json (graph)

`probes/why.py` has the decomposition; positions count from 1.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.fields import require_integer
from induction_memory.files import require_file, write_file
from induction_memory.probes.activations import Activations
from induction_memory.probes.why import Attended, Reason, explain
from induction_memory.runner.recording import require_length
from induction_memory.shown_tokens import visible
from induction_memory.source.sources import Sequences, select
from induction_memory.source.text import tokens_of, words_of, words_of_outputs
from induction_memory.task.batch import Batch
from induction_memory.task.protocol import Task
from induction_memory.terminal import Progress, track
from induction_memory.trajectory.search import Steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf", ".csv", ".json")
SHARE = 0.25
"""Clauses of the sentence about less than this share of the largest one are left out."""
NOTHING = 0.05
"""The sentence leaves out smaller terms."""


@dataclass(frozen=True)
class Node:
    """A sum and its parts."""

    name: str
    value: float
    parts: "tuple[Node, ...]" = ()

    def lines(self, depth: int = 0) -> Iterator[str]:
        yield f"{'  ' * depth}{self.value:+8.2f}  {self.name}"
        for part in self.parts:
            yield from part.lines(depth + 1)

    def __str__(self) -> str:
        return "\n".join(self.lines())


@dataclass(frozen=True, eq=False)
class Explanation:
    """One prediction as a sum of terms, at one step or at several."""

    title: str
    reasons: tuple[Reason, ...]

    def __repr__(self) -> str:
        return f"{self.title}\n{self.sentence}"

    @property
    def last(self) -> Reason:
        return self.reasons[-1]

    @property
    def terms(self) -> pd.DataFrame:
        """All terms. The rows of "logit" add up to the logit, the rows of a head to the log-odds of its attention."""
        tables = [reason.terms.assign(step=reason.step) for reason in self.reasons]
        table = pd.concat(tables, ignore_index=True)
        table.insert(0, "step", table.pop("step"))
        table.attrs |= {"held": self.last.held, "remainder": max(abs(one.remainder) for one in self.reasons)}
        return table

    @property
    def memories(self) -> pd.DataFrame:
        """The terms by memory: one row per step, one column per memory of the logit, and each head's signal."""
        terms = self.terms
        logit, scores = (terms.loc[(terms["of"] == "logit") == of] for of in (True, False))
        table = logit.pivot_table(index="step", columns="memory", values="value", aggfunc="sum", fill_value=0.0)
        if len(scores):
            heads = [self.last.heads[0].head] if self.last.heads else []
            scores = scores.loc[scores["of"].isin(heads) & (scores["query"] == self.last.position)]
            parts = scores.pivot_table(index="step", columns="role", values="value", aggfunc="sum", fill_value=0.0)
            table = table.join(parts.add_prefix(f"{heads[0]} "), how="left")
        return table.rename_axis(columns=None)

    @property
    def pairs(self) -> pd.DataFrame:
        """The terms by stored pair, largest first: one row per path, input and output, summed over positions.

        `position` is the last of these positions, 0 for the terms that are too small to be listed.
        """
        keys = ["step", "of", "query", "memory", "path", "part", "input", "query_part", "output", "role"]
        how = {"position": "max", "value": "sum"}
        table: pd.DataFrame = self.terms.groupby(keys, sort=False).agg(how).reset_index()  # pyright: ignore
        return table.sort_values("value", key=lambda v: -v.abs(), kind="stable", ignore_index=True)

    @property
    def sentence(self) -> str:
        """The reason in words, one line per step."""
        several = len(self.reasons) > 1
        return "\n".join((f"step {one.step}: " if several else "") + _sentence(one) for one in self.reasons)

    @property
    def tree(self) -> Node:
        """The last step's logit by memory and pair; then the log-odds of each head, which are separate sums."""
        r, pairs = self.last, Explanation("", (self.last,)).pairs
        logit = pairs.loc[pairs["of"] == "logit"]
        groups = [Node(str(memory), group["value"].sum(), _largest(group)) for memory, group in logit.groupby("memory")]
        heads = [_of_head(one, pairs) for one in r.heads]
        name = f"logit of {_output(r)} at position {r.position}"
        return Node(name, r.logit, (*sorted(groups, key=lambda node: -abs(node.value)), *heads))

    def graph(self) -> dict[str, Any]:
        """The last step as nodes and links, with the field names of circuit-tracer's attribution graphs.

        One node per embedding and per path, and one for the output. A path's node passes on the sum of its inputs.
        """
        return _graph(self.title, self.last)

    def figure(self) -> "Figure":
        """Tokens on a line, arcs for the heads, bars that add up; of several steps, the terms over training."""
        from induction_memory.views.figures.reasons import over_training, reason_figure

        if len(self.reasons) > 1:
            return over_training(self.memories, f"{self.title}: logit of {_output(self.last)}")
        return reason_figure(self.last, self.pairs, self.sentence)

    def save(self, path: str | Path) -> Path:
        """Write the picture (.png, .svg, .pdf), the terms (.csv) or the graph (.json)."""
        path = require_file(path, FORMATS)
        if path.suffix == ".csv":
            write_file(path, self.terms.to_csv(index=False))
        elif path.suffix == ".json":
            write_file(path, json.dumps(self.graph(), indent=1))
        else:
            from induction_memory.views.figures.panels import drawn

            write_file(path, drawn(self.figure(), path.suffix[1:]))
        return path

    def _repr_png_(self) -> bytes:
        from induction_memory.views.figures.panels import drawn

        return drawn(self.figure(), "png")


def why(
    source: Any,
    *,
    step: "Steps" = None,
    text: str | Sequence[str] | None = None,
    batch: Sequences = None,
    row: int = 0,
    position: int | None = None,
    target: str | None = None,
    against: str | None = None,
    task: Task | None = None,
    progress: Progress = None,
) -> Explanation:
    """Explain one prediction: its logit and attention as exact sums over the pairs that memories store.

    The sequence is `text`, a row of `batch`, or by default one of the run's task. `position` counts from 1; the default
    is the last token of a text, or the last position of the main group. `target` is the output to explain, by default
    the last step's prediction, and `against` an output whose logit is subtracted.

    >>> import induction_memory as im
    >>> im.why("induction-small", step=600, text="the tree at the t").last.predicted
    'h'
    """
    require(text is None or batch is None, "text", "a text or a batch, not both", "both")
    chosen = select(source, step=step, batch=batch, task=task, sequences=1, progress=progress)
    reader = None if getattr(chosen.source, "reads_text", False) else task or chosen.task
    if text is not None:
        tokens = tokens_of(chosen, text, reader)[None]
        chosen, row = replace(chosen, given=_alone(tokens)), 0
    require_integer(row, "row", 0, len(chosen.batch) - 1, "(the batch)")
    sequence = chosen.batch[row : row + 1]
    require_length(sequence.tokens, chosen.source.context()[1], "text" if text is not None else "batch")
    asked = sequence.group()[0].nonzero().flatten().tolist() or [sequence.tokens.shape[1] - 1]
    t = asked[-1] + 1 if position is None else position
    require_integer(t, "position", 1, sequence.tokens.shape[1])
    words, outputs = words_of(chosen, sequence.tokens[0], reader), words_of_outputs(chosen)
    for field, name in (("target", target), ("against", against)):
        require(name is None or name in outputs, field, "one of the outputs", repr(name))
    y, other = (None if name is None else outputs.index(name) for name in (target, against))
    chosen, reasons = replace(chosen, given=sequence), list[Reason]()
    with torch.no_grad():
        if y is None:
            y = int(Activations(chosen.at()).logits[0, t - 1].argmax())
        for at in track(chosen.in_turn(), "steps", len(chosen.steps), progress=progress):
            reasons.append(explain(Activations(at), (words, outputs), position=t, target=y, against=other))
    named = f"{chosen.name}, step {reasons[-1].step}" if chosen.source.has_steps else chosen.name
    return Explanation(named, tuple(reasons))


def _alone(tokens: Int[Tensor, "one pos"]) -> Batch:
    """A text as a batch in which only the last position counts."""
    last = torch.zeros_like(tokens, dtype=torch.bool)
    last[:, -1] = True
    return Batch(tokens, tokens, last, {"last": last}, "last")


def _output(r: Reason) -> str:
    return f"`{visible(r.target)}`" + (f"−`{visible(r.against)}`" if r.against else "")


def _sentence(r: Reason) -> str:
    logit = r.terms.loc[r.terms["of"] == "logit"]
    clauses = [(abs(one.effect), _head_clause(r, one, logit)) for one in r.heads if one.effect == one.effect]
    here = (logit["part"] == "embed") & (logit["position"] == r.position)
    own = logit.loc[here & logit["path"].str.fullmatch(r"(?:FF\d+>)?out")]
    for row in own.to_dict("records"):
        pair = f"{visible(row['input'])}→{visible(row['output'])}"
        said = "the embeddings alone say" if row["memory"] == "direct" else f"{row['memory']} stores"
        clauses.append((abs(row["value"]), f"{said} {pair} ({row['value']:+.1f})"))
    clauses.sort(key=lambda clause: -clause[0])
    start = f"predicts `{visible(r.target)}` with {r.probability:.2f}"
    if r.predicted != r.target:
        start = f"gives `{visible(r.target)}` {r.probability:.2f}, predicts `{visible(r.predicted)}`"
    return f"{start}: {'; '.join(text for size, text in clauses if size >= SHARE * clauses[0][0])}"


def _head_clause(r: Reason, one: Attended, logit: pd.DataFrame) -> str:
    """The clause on a head: where it attends, why, and what it writes."""
    token = r.tokens[one.key - 1]
    terms = r.terms.loc[(r.terms["of"] == one.head) & (r.terms["query"] == one.query)]
    ideal = terms.loc[terms["role"] == "signal"]
    at_key, at_rival = (ideal.loc[ideal["key"] == key] for key in (one.key, one.rival))
    rest, over = one.odds - one.signal, f" over position {one.rival}" if one.rival else ""
    said = f"{one.head} attends to position {one.key} `{visible(token)}` ({one.weight:.2f})"
    stored = float(at_key["value"].sum())
    if one.odds != one.odds:
        said += f" and adds {one.effect:+.1f}"
    elif not one.rival:
        said += ", with no other token to attend to"
    elif stored <= max(rest, 0):
        said += f" by interference ({rest:+.1f}; log-odds {one.odds:+.1f}{over})"
    else:
        best = at_key.loc[at_key["value"].idxmax()]
        said += f" because {best['memory']} stores {visible(best['input'])}→{visible(best['output'])}"
        if -float(at_rival["value"].sum()) > stored / 2:
            said += f" ({stored:+.1f}, as for position {one.rival}; interference {rest:+.1f}"
        else:
            said += f" ({one.signal:+.1f}, interference {rest:+.1f}"
        said += f"; log-odds {one.odds:+.1f}{over})"
    through = logit["path"].str.fullmatch(rf"{one.head}>(?:FF\d+>)?out")
    wrote = logit.loc[through & (logit["part"] == "embed") & (logit["input"] == token)].groupby("memory")["value"].sum()
    parts = [f"{memory} ({value:+.1f})" for memory, value in wrote.items() if abs(value) >= NOTHING]
    return (
        f"{said}, and {visible(token)}→{_output(r).replace('`', '')} is written by {' and '.join(parts) or 'nothing'}"
    )


def _largest(pairs: pd.DataFrame, most: int = 5) -> tuple[Node, ...]:
    named = pairs.loc[pairs["position"] > 0]
    shown = [
        Node(f"{row['path']}: {visible(row['input'])}→{visible(row['output'])}", row["value"])
        for row in named.head(most).to_dict("records")
    ]
    others = pairs["value"].sum() - named["value"].head(most).sum()
    return (*shown, *([Node("others", others)] if len(pairs) > len(shown) else []))


def _of_head(one: Attended, pairs: pd.DataFrame) -> Node:
    own = pairs.loc[(pairs["of"] == one.head) & (pairs["query"] == one.query)]
    roles = [Node(role, group["value"].sum(), _largest(group)) for role, group in own.groupby("role", sort=False)]
    over = f" over {one.rival}" if one.rival else ""
    name = f"log-odds of {one.head}, position {one.query} to {one.key}{over} ({one.weight:.2f})"
    return Node(name, one.odds, tuple(sorted(roles, key=lambda node: node.name, reverse=True)))


def _graph(title: str, r: Reason) -> dict[str, Any]:
    t, nodes, links = r.position - 1, dict[str, dict[str, Any]](), dict[tuple[str, str], float]()

    def node(layer: str, name: str, at: int, kind: str, **more: Any) -> str:
        key = f"{layer}_{name}_{at}"
        said = {"feature": at, "layer": layer, "ctx_idx": at, "feature_type": kind, "clerp": name} | more
        nodes[key] = {"node_id": key, "jsNodeId": key} | said
        return key

    last = str(1 + max(int(number) for number in re.findall(r"(?:L|FF)(\d+)", " ".join(r.terms["path"])) or [0]))
    said = f'Output "{r.target}" (p={r.probability:.3f})'
    out = node(last, r.target, t, "logit", token_prob=r.probability, is_target_logit=True, clerp=said)
    for row in r.terms.loc[r.terms["of"] == "logit"].to_dict("records"):
        passed, at = row["path"].split(">")[:-1], (row["position"] or r.position) - 1
        token = row["part"] == "embed" and row["position"]
        name, kind = (str(r.ids[at]), "embedding") if token else (f"{row['part']} {row['input']}", row["part"])
        source = node("E", name, at, kind, clerp=row["input"])
        for i in range(len(passed)):
            kind = "attention head" if passed[i][0] == "L" else "feed-forward"
            target = node(re.findall(r"\d+", passed[i])[0], ">".join(passed[i:]), t, kind)
            links[source, target] = links.get((source, target), 0.0) + row["value"]
            source = target
        links[source, out] = links.get((source, out), 0.0) + row["value"]
    meta = {"slug": title, "scan": title, "transcoder_list": [], "prompt_tokens": list(r.tokens)}
    meta |= {"prompt": "".join(r.tokens), "schema_version": 1}
    asked = {"pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""}
    flows = [{"source": a, "target": b, "weight": value} for (a, b), value in links.items()]
    return {"metadata": meta, "qParams": asked, "nodes": list(nodes.values()), "links": flows}
