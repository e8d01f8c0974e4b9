"""Ablations: take a part of the model away, in every sense of the word, and see what it was for.

A part is a head, a layer's heads, a feed-forward, an embedding, one of the paper's matrices, or one term of what an
input reads (`pos->L2.k`: the positional part of the induction head's keys). The names are in components.py, the kinds
of ablation in replacements.py, the scores in scores.py. The row of the component "none" is the intact model.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import pandas as pd
import torch
from transformer_lens import HookedTransformer

from induction_memory.errors import require
from induction_memory.interventions.outcome import Scorer
from induction_memory.interventions.replacements import Kind, Replacements, name_of
from induction_memory.interventions.subjects import (
    SEQUENCES,
    SEQUENCES_A_STEP,
    Steps,
    Subject,
    batch_of,
    several,
    subjects,
    with_step,
)
from induction_memory.runner.choice import record
from induction_memory.runner.components import Graph
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.sampler import Batch

INTACT = "none"
GROUPS = ("heads", "layers", "feed_forward", "embeddings", "matrices", "parts", "edges")


def ablate(
    source: Any,
    batch: Batch | None = None,
    *,
    heads: Literal["all"] | Sequence[Any] | None = None,
    components: str | Sequence[str] | None = None,
    kind: Kind | Sequence[Kind] = "all",
    step: Steps = None,
    task: BigramTask | None = None,
    initial: HookedTransformer | None = None,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> pd.DataFrame:
    """One row a component and kind of ablation (and step): in-context and global scores, KL, and standard errors.

    `source` is a model (then give the batch) or a trajectory. `heads` are "all" or some, as "L2H1" or (2, 1);
    `components` are names, or groups of them (heads, layers, feed_forward, embeddings, matrices, parts, edges, all).
    When neither is given: everything but single edges between heads, and at several steps heads, feed-forwards,
    embeddings and matrices. `step` is a stored step, several, or "all"; `progress` is called after each with the
    number done. Without a batch 64 sequences are drawn, or 16 for several steps.
    """
    many = several(source, step)
    if many and heads is None and components is None:
        components = GROUPS[:5]
    rows = batch_of(source, batch, task, SEQUENCES_A_STEP if many else SEQUENCES)
    tables = []
    for subject in subjects(source, step, initial):
        tables.append(with_step(_ablate_one(subject, rows, heads, components, kind, seed), subject))
        if progress is not None:
            progress(len(tables))
    return pd.concat(tables, ignore_index=True)


def component_names(
    graph: Graph, heads: Literal["all"] | Sequence[Any] | None, components: str | Sequence[str] | None
) -> list[str]:
    """The names asked for, each once, in the order given; groups spelt out and every name checked."""
    if heads is None and components is None:
        components = "all"
    names: list[str] = []
    if heads is not None:
        names += graph.heads if isinstance(heads, str) and heads == "all" else map(graph.head, _listed(heads))
    for name in [] if components is None else _listed(components):
        names += _group(graph, name) if name in (*GROUPS, "all") else [name]
    for name in names:
        graph.resolve(name)
    require(len(names) > 0, "components", "at least one", "none")
    return list(dict.fromkeys(names))


def _group(graph: Graph, name: str) -> Iterable[str]:
    groups: dict[str, Iterable[str]] = {
        "heads": graph.heads,
        "layers": [f"L{layer}" for layer in range(1, graph.n_layers + 1)] if graph.n_heads > 1 else [],
        "feed_forward": [f"FF{layer}" for layer in graph.feed_forwards],
        "embeddings": ["embed", "pos"] if graph.positions else ["embed"],
        "matrices": graph.matrices,
        "parts": graph.parts,
        "edges": graph.edges,
    }
    if name != "all":
        return groups[name]
    return [component for group in GROUPS[:-1] for component in groups[group]]


def _listed(names: Any) -> Sequence[Any]:
    return [names] if isinstance(names, str) or callable(names) else list(names)


@torch.no_grad()
def _ablate_one(
    subject: Subject, batch: Batch, heads: Any, components: Any, kind: Kind | Sequence[Kind], seed: int
) -> pd.DataFrame:
    recording = record(subject.model, batch.tokens)
    replacements = Replacements(recording, batch, subject.initial, seed)
    names = component_names(recording.graph, heads, components)
    kinds: Sequence[Kind] = replacements.kinds if kind == "all" else _listed(kind)
    for one in kinds:
        replacements.function(one)
    cells = [(name, one) for name in names for one in kinds]
    variants = [replacements.patches(name, one) for name, one in cells]
    labels = [(INTACT, INTACT), *((name, name_of(one)) for name, one in cells)]
    table = pd.DataFrame(labels, columns=["component", "kind"])
    scorer, measured = Scorer(recording.logits, batch), dict[int, dict[str, float]]()
    for indices, logits in recording.run([[], *variants]):
        scored = scorer(logits)
        for place, index in enumerate(indices):
            measured[index] = {name: value[place].item() for name, value in scored.items()}
    return table.join(pd.DataFrame.from_dict(measured, orient="index").sort_index())
