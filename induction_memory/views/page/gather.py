"""Measure everything on the page for one source with the public functions, as a Pack.

The sequences are `im.source.select(run, sequences=16).batch`: the first of a run's evaluation stream, or random tokens
repeated once for a source whose task is not known. The line of Python beside a panel measures the same. Missing parts
are left out with the reason.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from induction_memory.model.associations import token_names
from induction_memory.source.sources import Source, select
from induction_memory.source.text import words_of
from induction_memory.task.protocol import offered
from induction_memory.trajectory.series import Revisions
from induction_memory.trajectory.verification import lines
from induction_memory.views.attention_maps import telling_rows
from induction_memory.views.page import causes, curves, live, sequences, tables, words
from induction_memory.views.page.pack import Pack, Quantised, quantise

EVALUATED = 16  # sequences for causes and distances
LENGTH = 64  # tokens of each shown sequence
LIKELY_BIGRAM = 0.1  # marked pairs of W_F have at least this pi_b(j | k)

PARTS = 5
"""Number of parts measured per source: attention, memories, curves, causes, and files or weights."""


def gather(
    source: Source, steps: Sequence[int], at: Sequence[int], *, shown: int, length: int, parts: Iterator[int]
) -> Pack:
    """Metadata and arrays of one source at the page's steps, with causes at the steps `at`; `parts` counts progress."""
    chosen = select(source, step=steps, sequences=EVALUATED)
    batch, task = chosen.batch, source.task
    cut = min(length, batch.tokens.shape[1])
    rows = telling_rows(batch, cut)[:shown]
    next(parts)
    found = sequences.run_over(chosen, rows, cut)
    listed = sequences.facts(batch, rows, cut, task)
    if task is None:
        ids, likely = sequences.renumbered(listed, found.likely)
        known = words_of(chosen, torch.from_numpy(ids), None)
        vocabulary = known, known
    else:
        likely, vocabulary = found.likely, token_names(task)
    next(parts)
    stored, skipped = tables.tables(source, steps)
    next(parts)
    leaders = {table.memory: table.head for table in reversed(stored)}
    drawn, more = curves.curves(source, batch, leaders, found.n_layers)
    next(parts)
    measured, lost = causes.causes(source, at, batch)
    next(parts)
    arrays: dict[str, np.ndarray | Quantised] = {
        "attention": quantise(found.attention, 16, 0.0, 1.0),
        "loss": found.loss.astype("<f4"),
        "likely": likely.astype("<u2" if len(vocabulary[1]) <= 2**16 else "<f4"),
        "probability": quantise(found.probability, 16, 0.0, 1.0),
    }
    memories = []
    for table in stored:
        name = f"table {table.memory} {table.head}".strip()
        arrays[name] = codes = quantise(table.scores)
        memories.append(tables.facts(table, codes.step, name))
    phases, cap = curves.phases(drawn)
    bigrams = None if task is None else offered(task, "bigram")
    meta: dict[str, Any] = words.facts(task, batch, *vocabulary) | {
        "name": source.name,
        "steps": list(steps),
        "heads": found.heads,
        "n_layers": found.n_layers,
        "likely_bigrams": [] if bigrams is None else np.argwhere(bigrams >= LIKELY_BIGRAM).tolist(),
        "about": _about(source, found),
        "files": _files(source) if isinstance(source, Revisions) else [],
        "recorded": task is not None,
        "sequences": listed,
        "memories": memories,
        "curves": drawn,
        "births": curves.births(source, leaders),
        "phases": phases,
        "caps": cap,
        "causes": measured,
        "skipped": {name: reason for name, reason in (skipped | more | lost).items() if "_triggers" not in name},
        "snippets": words.of(source, drawn, cut),
        "live": None,
        "why_not_live": live.why_not(source),
    }
    if not meta["why_not_live"]:
        meta["live"], weights = live.pack(source, steps)
        meta["live"]["tolerance"] = _tolerance(meta["live"], weights, batch.tokens[rows, :cut], found)
        arrays |= {f"live {name}": array for name, array in weights.items()}
    return Pack(meta, arrays)


def spread(steps: Sequence[int], n: int) -> list[int]:
    """At most n of the steps, evenly by index, with the first and the last."""
    chosen = np.linspace(0, len(steps) - 1, min(n, len(steps)))
    return np.asarray(steps)[np.unique(np.rint(chosen).astype(int))].tolist()


def _about(source: Any, found: sequences.Shown) -> str:
    """A short description of the model, its task and its training."""
    n_heads = len(found.heads) // found.n_layers
    heads = "one head" if n_heads == 1 else f"{n_heads} heads"
    shape = f"{'one layer' if found.n_layers == 1 else f'{found.n_layers} layers'} of {heads}"
    model, task, kind = getattr(source, "model_config", None), source.task, "Transformer"
    if model is not None:
        feed = {"none": "no feed-forward", "linear": "a linear feed-forward", "relu": "ReLU feed-forwards"}
        feed |= {"other": "feed-forwards of another kind"}
        shape += f", d = {model.d_model}, {feed[model.feed_forward]}{', LayerNorm' if model.layer_norm else ''}"
        kind = "Simplified model" if model.identity_queries else kind
    if task is None:
        first, last = source.steps[0], source.steps[-1]
        read = "Its task is not known: it reads random tokens repeated once"
        return f"{kind}: {shape}. {read}. {len(source.steps)} checkpoints from step {first} to {last}."
    asked = offered(task, "about") or f"{task.name}, sequences of {task.length} tokens"
    return f"{kind}: {shape}. Task: {asked}. Trained for {source.config.train.steps} steps."


def _files(source: Revisions) -> list[str]:
    """Problems in the files of a series: duplicates, gaps, damage, jumps."""
    return lines(source) or ["No duplicates, gaps, damage or jumps in the files of its checkpoints."]


def _tolerance(
    facts: dict[str, Any], arrays: live.Arrays, tokens: torch.Tensor, exact: sequences.Shown
) -> dict[str, float]:
    """Differences between the page's forward pass and the model's, over all shown steps and sequences.

    Probabilities are compared at the most likely outputs of each position.
    """
    attention, right = [], []
    for step in range(len(exact.attention)):
        maps, logits = live.forward(facts, arrays, step, tokens)
        q = logits.double().softmax(-1).gather(-1, torch.from_numpy(exact.likely[step])).numpy()
        attention.append(np.abs(sequences.triangle(maps).numpy() - exact.attention[step]))
        right.append(np.abs(q - exact.probability[step]))
    return {
        "attention_mean": float(np.mean(attention)),
        "attention_max": float(np.max(attention)),
        "probability_mean": float(np.mean(right)),
        "probability_max": float(np.max(right)),
    }
