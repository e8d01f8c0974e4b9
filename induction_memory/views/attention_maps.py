"""Attention maps of a model, or of runs at some steps, shown in a notebook or saved.

    im.attention(run, step=300, text="the tree at the gate")        shows itself in a notebook
    im.attention(run, step=[0, 100, 300], batch=batch, row=2)       steps side by side
    im.attention(im.revisions("folder"), text="the tree")           a series, or a model, by its own tokenizer
    im.attention([run0, run1]).save("maps.pdf")                      runs side by side; .html, .png, .pdf or .svg

Boxes show where an induction head should attend: the keys that follow earlier occurrences of the query, or for other
tasks the sources that the task names. Pass the triggers of a text as {"a": "b"}; the default is the task's fixed
triggers that always have the same successor in the text. A text is split by the model's tokenizer if it has one,
otherwise by the task's vocabulary (`source/text.py`).

If a sequence has triggers with outputs, a box is `right` if the key is the query's output, `other` if not. For other
tasks a box is `right` at queries of the main group and `other` at other queries. The source `previous` is left out,
because it would box the whole line below the diagonal. On the axes, triggers and their outputs are marked, or else the
queries of the main group.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import UnsupportedError, require
from induction_memory.field_docs import field_docs
from induction_memory.fields import require_integer
from induction_memory.files import require_file, write_file
from induction_memory.model.associations import token_names
from induction_memory.runner.components import head_of
from induction_memory.runner.recording import Runner, require_length
from induction_memory.shown_tokens import visible
from induction_memory.source.sources import SEQUENCES, Sequences, select
from induction_memory.source.text import tokens_of, words_of
from induction_memory.task.batch import Batch
from induction_memory.task.corpus import encode
from induction_memory.task.ideals import after_same_context, sources_of
from induction_memory.task.protocol import Task, offered
from induction_memory.trajectory.search import Steps
from induction_memory.views.attention_page import framed, page
from induction_memory.views.light_maps import WORDS, legend
from induction_memory.views.light_maps import picture as light_picture
from induction_memory.views.page.words import legend_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def telling_rows(batch: Batch, length: int | None) -> list[int]:
    """All rows; rows with more different tokens in the main group come first, then rows with more queries."""
    asked = torch.where(batch.group(), batch.tokens, -1)[:, :length]
    score = [(len(row[row >= 0].unique()), int((row >= 0).sum())) for row in asked]
    return sorted(range(len(score)), key=score.__getitem__, reverse=True)


def row_marks(batch: Batch, row: int, length: int | None, task: Task | None) -> dict[str, np.ndarray]:
    """Boxes and marked positions of a row of a batch, cut to `length`."""
    tokens = batch.tokens[row, :length].cpu()
    if "triggers" in batch.latents and "outputs" in batch.latents:
        triggers, outputs = batch.latents["triggers"][row], batch.latents["outputs"][row]
        return trigger_marks(tokens, dict(zip(triggers.tolist(), outputs.tolist(), strict=True)))
    return source_marks(batch[row : row + 1], length, task)


def trigger_marks(tokens: Int[Tensor, " pos"], pairs: Mapping[int, int]) -> dict[str, np.ndarray]:
    """Boxes and marked positions of a sequence, from its triggers and their outputs."""
    boxed = after_same_context(tokens[None])[0]
    answer = torch.tensor([pairs.get(int(z), -1) for z in tokens])
    is_right = answer[:, None] == tokens[None, :]
    is_trigger = answer >= 0
    is_output = torch.zeros_like(is_trigger)
    is_output[1:] = is_trigger[:-1] & (answer[:-1] == tokens[1:])
    return {
        "right": (boxed & is_right).numpy(),
        "other": (boxed & ~is_right).numpy(),
        "triggers": is_trigger.numpy(),
        "outputs": is_output.numpy(),
    }


def source_marks(batch: Batch, length: int | None, task: Task | None) -> dict[str, np.ndarray]:
    """Boxes and marked positions of a batch of one sequence, from the task's sources, if any."""
    queries = batch.group()[0].cpu()
    try:
        sources: dict[str, Any] = {} if task is None else sources_of(task, batch)
    except UnsupportedError:
        sources = {}
    boxed: Bool[Tensor, "query key"] = torch.zeros(len(queries), len(queries), dtype=torch.bool)
    for role, keys in sources.items():
        if role != "previous":
            boxed = boxed | keys[0].cpu()
    cut = slice(length)
    asked = queries[:, None]
    return {
        "right": (boxed & asked)[cut, cut].numpy(),
        "other": (boxed & ~asked)[cut, cut].numpy(),
        "triggers": (queries[cut] & ~queries.all()).numpy(),
        "outputs": torch.zeros_like(queries)[cut].numpy(),
    }


FORMATS = (".html", ".png", ".pdf", ".svg")
SHOWN = 48  # tokens shown of a sampled sequence by default
MOST_TOKENS = 100_000
MOST = 12  # most columns; more would be too small to read


@field_docs
@dataclass(frozen=True, eq=False)
class AttentionView:
    """Attention over one sequence: a map for each head of each column (a step or a run)."""

    title: str
    tokens: tuple[str, ...]
    heads: tuple[str, ...]
    """`L1H1` ..."""
    columns: tuple[str, ...]
    """What is compared: steps, runs, or "" for one model."""
    patterns: Float[np.ndarray, "column head query key"]
    right: Bool[np.ndarray, "query key"]
    """Red boxes: keys that hold the right output, or keys of queries of the main group."""
    other: Bool[np.ndarray, "query key"]
    """The other boxed keys."""
    triggers: Bool[np.ndarray, " pos"]
    outputs: Bool[np.ndarray, " pos"]
    words: Mapping[str, str] = field(default_factory=lambda: WORDS)
    """What the legend calls each kind of mark."""

    def __repr__(self) -> str:
        shown = f"{len(self.heads)} heads, {len(self.tokens)} tokens"
        return f"AttentionView({self.title!r}: {shown}; .save(FILE) writes .html, .png, .pdf or .svg)"

    def figure(self) -> "Figure":
        """The figure for print, as in the paper's Figure 2."""
        from induction_memory.views.figures.maps import attention_figure

        rows, columns, places = self._arranged()
        maps = [[self.patterns[column][head] for head, column in line] for line in places]
        marks = dict(zip(("right", "other", "triggers", "outputs"), self._marks, strict=True))
        return attention_figure(maps, self.tokens, rows=rows, columns=columns, words=self.words, **marks)

    def _arranged(self) -> tuple[list[str], list[str], list[list[tuple[int, int]]]]:
        """Titles of rows (none if there is one row) and of columns, and which head and column of the view is where.

        Layers of several heads each have a row per step, with the heads side by side.
        """
        numbers, steps = [head_of(head) for head in self.heads], range(len(self.columns))
        names = [f"layer {layer}, head {head}" for layer, head in numbers]
        layers = sorted({layer for layer, _ in numbers})
        by_layer = [[i for i, (own, _) in enumerate(numbers) if own == layer] for layer in layers]
        across = {tuple(numbers[i][1] for i in row) for row in by_layer}
        if len(across) > 1 or len(by_layer[0]) == 1 or numbers != sorted(numbers):
            if len(steps) == 1:
                return [], names, [[(i, 0) for i in range(len(names))]]
            return names, list(self.columns), [[(i, step) for step in steps] for i in range(len(names))]
        rows = [f"layer {layer}, {self.columns[step]}".removesuffix(", ") for layer in layers for step in steps]
        places = [[(i, step) for i in row] for row in by_layer for step in steps]
        return rows, [f"head {numbers[i][1]}" for i in by_layer[0]], places

    def picture(self) -> tuple[str, float, float]:
        """A light SVG of the maps for the screen, and its width and height (`light_maps`)."""
        places = self._arranged()[2]
        maps = [
            (f"{self.heads[i]}, {self.columns[step]}".removesuffix(", "), self.patterns[step][i])
            for line in places
            for i, step in line
        ]
        shown = [visible(token) for token in self.tokens]
        return light_picture(maps, len(places[0]), shown, *self._marks)

    @property
    def _marks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        return self.right, self.other, self.triggers, self.outputs

    def html(self) -> str:
        """A complete page that needs no network: the light picture of all heads, and one head in CircuitsVis."""
        drawn, _, _ = self.picture()
        picture = f"data:image/svg+xml;base64,{base64.b64encode(drawn.encode()).decode()}"
        names = [f"{column} {head}".strip() for column in self.columns for head in self.heads]
        kinds = ["trigger" if t else "output" if o else "" for t, o in zip(self.triggers, self.outputs, strict=True)]
        patterns = self.patterns.reshape(-1, *self.patterns.shape[-2:])
        shown = [visible(token) for token in self.tokens]
        words = legend(*self._marks, self.words)
        return page(self.title, shown, list(patterns), names, picture=picture, classes=kinds, legend=words)

    def _repr_html_(self) -> str:
        return framed(self.html(), height=int(190 + self.picture()[2]))

    def save(self, path: str | Path) -> Path:
        """Write the page (.html) or the figure for print (.png, .pdf, .svg)."""
        path = require_file(path, FORMATS)
        if path.suffix == ".html":
            write_file(path, self.html())
        else:
            from induction_memory.views.figures.panels import drawn

            write_file(path, drawn(self.figure(), path.suffix[1:], dpi=200))
        return path


def attention(
    source: Any,
    step: "Steps" = None,
    *,
    text: str | None = None,
    batch: "Sequences" = None,
    row: int | None = None,
    length: int | None = None,
    heads: Literal["all"] | Sequence[Any] | None = None,
    triggers: Mapping[str, str] | None = None,
    task: Task | None = None,
) -> AttentionView:
    """The attention of a model, of steps of a trajectory or series, or of several runs, over one sequence.

    The sequence is `text`, a row of `batch`, or by default a fresh one of the run's task; `length` cuts it. The default
    `row` has the most different tokens at positions of the main group. `heads` are all, or some as "L2H1".

    >>> view = attention("induction-small", step=600, text="the tree")
    >>> view.patterns.shape  # column, head, query, key
    (1, 2, 8, 8)
    """
    sources = list(source) if isinstance(source, list | tuple) else [source]
    require(len(sources) > 0, "source", "a model or a trajectory", "none")
    require(text is None or batch is None, "text", "a text or a batch, not both", "both")
    read = [select(one, step=step, batch=batch, task=task, sequences=SEQUENCES) for one in sources]
    task = task or next((one.task for one in read if one.task is not None), None)
    if length is not None:
        require_integer(length, "length", 1, MOST_TOKENS, "tokens")
    good = triggers is None or (text is not None and isinstance(triggers, Mapping))
    require(good, "triggers", "trigger -> output, together with a text", repr(triggers))
    heads = None if heads == "all" else [heads] if isinstance(heads, str) else heads
    listed = heads is None or (isinstance(heads, list | tuple) and len(heads) > 0)
    require(listed, "heads", "all, or a list of heads", repr(heads))
    cut = SHOWN if length is None and text is None and batch is None else length
    reader = next((one for one in read if getattr(one.source, "reads_text", False)), read[0])
    words: Mapping[str, str] = WORDS
    if text is None:
        whose = task if isinstance(batch, Batch | None) else None
        tokens, boxes = _of_batch(read[0].batch, row, cut, whose)
        words = legend_words(whose, read[0].batch)
    else:
        whole = tokens_of(reader, text, task)
        tokens = whole[:cut]
        boxes = trigger_marks(tokens, _triggers(whole, task, triggers))
    labels, columns, patterns = [], [], []
    for one in read:
        for at in one.in_turn():
            graph = at.runner.graph
            chosen = graph.heads if heads is None else tuple(map(graph.head, heads))
            patterns.append(_patterns(at.runner, tokens, chosen))
            columns.append((one.name, at.step if one.source.has_steps else None))
            require(len(columns) <= MOST, "step", f"at most {MOST} maps side by side", "more")
            labels.append(chosen)
    require(len(set(labels)) == 1, "source", "models with the same heads", "different ones")
    return AttentionView(
        title=_title(columns),
        tokens=tuple(words_of(reader, tokens, task)),
        heads=labels[0],
        columns=_column_titles(columns),
        patterns=np.stack(patterns),
        words=words,
        **boxes,
    )


def _of_batch(
    batch: Batch, row: int | None, cut: int | None, task: Task | None
) -> tuple[Int[Tensor, " pos"], dict[str, np.ndarray]]:
    """A row of a batch, cut, with its boxes and marks."""
    if row is None:
        asked = torch.where(batch.group(), batch.tokens, -1)[:, :cut]
        row = int(torch.tensor([len(tokens.unique()) for tokens in asked]).argmax())
    require_integer(row, "row", 0, len(batch) - 1, "(the batch)")
    return batch.tokens[row, :cut], row_marks(batch, row, cut, task)


def _triggers(tokens: Int[Tensor, " pos"], task: Task | None, given: Mapping[str, str] | None) -> dict[int, int]:
    """Trigger -> output in a text: the user's, or the fixed triggers that always have the same successor there."""
    if given is not None:
        require(task is not None, "triggers", "a task that names its tokens", "none")
        assert task is not None
        names = token_names(task)[0]
        sides = (encode(list(side), names, "triggers").tolist() for side in (given, given.values()))
        return dict(zip(*sides, strict=True))
    found: dict[int, int] = {}
    fixed = None if task is None else offered(task, "fixed_triggers")
    for q in [] if fixed is None else fixed.tolist():
        after = tokens[1:][tokens[:-1] == q].unique()
        if len(after) == 1:
            found[q] = int(after)
    return found


def _patterns(runner: Runner, tokens: Int[Tensor, " pos"], names: Sequence[str]) -> Float[np.ndarray, "head q k"]:
    require_length(tokens[None], runner.n_ctx, "text")
    patterns = runner.patterns(tokens[None])
    return np.stack([patterns[layer - 1][0, head - 1].cpu().numpy() for layer, head in map(head_of, names)])


def _title(columns: Sequence[tuple[str, int | None]]) -> str:
    names = list(dict.fromkeys(name for name, _ in columns))
    steps = list(dict.fromkeys(step for _, step in columns if step is not None))
    at = f" at step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}" if 0 < len(steps) <= 6 else ""
    return f"Attention of {', '.join(names)}{at}"


def _column_titles(columns: Sequence[tuple[str, int | None]]) -> tuple[str, ...]:
    """What differs between the columns: run, step, or both."""
    if len(columns) == 1:
        return ("",)
    runs, steps = len({name for name, _ in columns}) > 1, len({step for _, step in columns}) > 1
    titles = []
    for i, (name, step) in enumerate(columns):
        parts = [name] * runs + [f"step {step}"] * (steps and step is not None)
        titles.append(", ".join(parts) or f"{name} {i + 1}")
    return tuple(titles)
