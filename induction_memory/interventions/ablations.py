"""Ablations: take a part of the model away, in several ways, and measure what is lost.

A part is a head, a layer's heads, a feed-forward, an embedding, one of the paper's matrices, or one term of what an
input reads (`pos->L2.k`: the positional part of the induction head's keys). The names are in components.py, the kinds
of ablation in replacements.py, the scores in outcome.py. The row of the component "none" is the intact model.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor, nn

from induction_memory.interventions.outcome import Scorer
from induction_memory.interventions.replacements import Kind, Replacements, name_of
from induction_memory.progress import keeping
from induction_memory.runner.attention import take
from induction_memory.runner.component_groups import GROUPS, component_names, listed
from induction_memory.runner.recording import Runner, Via
from induction_memory.subject import Sequences, Steps, Subject, subject
from induction_memory.task.batch import Batch
from induction_memory.task.fields import require_seed

INTACT = "none"


def ablate(
    source: Any,
    batch: Sequences = None,
    *,
    heads: Literal["all"] | Sequence[Any] | None = None,
    components: str | Sequence[str] | None = None,
    kind: Kind | Sequence[Kind] = "mean",
    step: Steps = None,
    task: Any = None,
    initial: Mapping[str, Tensor] | nn.Module | None = None,
    via: Via | None = None,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> pd.DataFrame:
    """One row per component and kind of ablation (and step): in-context and global scores, KL, and standard errors.

    `source` is a trajectory or a series, its folder or name, or a model (then give the batch). `heads` are "all" or
    some, as "L2H1" or (2, 1). `components` are names, or groups of them: heads, layers, feed_forward, embeddings,
    matrices, parts, edges, paths, all. By default they are the first six groups, and at several steps the first five.
    `kind` is a name (replacements.py), a function, several of these, or "all": by default "mean", as on the command
    line. `step` is a stored step, several, or "all", and `progress` is called after each with the number done. Without
    a batch 64 sequences are drawn, or 16 for several steps; for a series they are random tokens repeated once.
    `via="hooks"` runs one hooked forward per row that differs from the others.

    >>> ablate("induction-small", heads="all")[["component", "kind", "in_context_accuracy"]].round(2)
      component  kind  in_context_accuracy
    0      none  none                 0.94
    1      L1H1  mean                 0.24
    2      L2H1  mean                 0.01
    """
    require_seed(seed)
    chosen = subject(source, step=step, batch=batch, task=task, initial=initial, via=via)
    if len(chosen.steps) > 1 and heads is None and components is None:
        components = GROUPS[:5]
    return ablate_subject(chosen, heads=heads, components=components, kind=kind, seed=seed, progress=progress)


def ablate_subject(
    chosen: Subject,
    *,
    heads: Literal["all"] | Sequence[Any] | None = None,
    components: str | Sequence[str] | None = None,
    kind: Kind | Sequence[Kind] = "mean",
    seed: int = 0,
    group: str | None = None,
    progress: Callable[[int], object] | None = None,
) -> pd.DataFrame:
    """The rows of `ablate`; with `group`, all scores are over the positions of that group, which takes less time."""
    tables = []
    with keeping(tables, "steps"):
        how = {"heads": heads, "components": components, "kind": kind, "seed": seed, "group": group}
        settings = {"ablate": how, "batch": chosen.batch, "initial": chosen.initial}

        def measure(_: int, runner: Runner) -> dict[str, pd.DataFrame]:
            return {"rows": _ablate_one(runner, chosen.batch, initial=chosen.initial, **how)}

        for one, measured in chosen.tables(measure, settings):
            tables.append(chosen.labelled(measured["rows"], one))
            if progress is not None:
                progress(len(tables))
    return pd.concat(tables, ignore_index=True)


@torch.no_grad()
def _ablate_one(
    runner: Runner,
    batch: Batch,
    *,
    heads: Any,
    components: Any,
    kind: Kind | Sequence[Kind],
    initial: Mapping[str, Tensor] | nn.Module | None,
    seed: int,
    group: str | None,
) -> pd.DataFrame:
    recording = runner.record(batch.tokens)
    batch = batch.to(recording.logits.device)
    replacements = Replacements(recording, batch, initial, seed)
    names = component_names(recording.graph, heads, components)
    kinds: Sequence[Kind] = replacements.kinds if kind == "all" else listed(kind, "kind")
    for one in kinds:
        replacements.function(one)
    cells = [(name, one) for name in names for one in kinds]
    same = [replacements.identity(name, one) for name, one in cells]  # W_O2 is L2H1, if layer 2 has no other head
    place_of = {key: place for place, key in enumerate(dict.fromkeys(same), start=1)}
    first = [cells[same.index(key)] for key in place_of]
    queries, asked, intact = None, batch, recording.logits
    if group is not None:
        queries, asked = batch.of_group(group)
        intact = take(intact, queries)
    scorer, measured = Scorer(intact, asked), dict[int, dict[str, float]]()
    for indices, logits in recording.run([[], *(replacements.changes(*cell) for cell in first)], queries=queries):
        scored = {name: values.tolist() for name, values in scorer(logits).items()}
        for place, index in enumerate(indices):
            measured[index] = {name: values[place] for name, values in scored.items()}
    rows = [measured[0], *(measured[place_of[key]] for key in same)]
    columns = {
        "component": [INTACT, *(name for name, _ in cells)],
        "kind": [INTACT, *(name_of(one) for _, one in cells)],
    }
    return pd.DataFrame(columns | {score: [row[score] for row in rows] for score in rows[0]})
