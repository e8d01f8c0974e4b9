"""What the manifest of a run already rules out: refused before torch is imported and before any weight is read.

A folder of checkpoints that others trained has no manifest. There nothing is refused early, except a missing folder.
"""

import re
from collections.abc import Sequence
from typing import Any

from induction_memory.errors import InputError, require

MEMORIES = ("W_K1", "W_K2", "W_O2", "W_F")


def parts_of(run: str) -> "tuple[Any, Any, Any] | None":
    """Task, model and training of a trajectory as its manifest has them; None for checkpoints that others trained."""
    from induction_memory.trajectory.layout import MANIFEST
    from induction_memory.trajectory.manifest import Manifest
    from induction_memory.trajectory.search import find

    folder = find(run)
    return Manifest.read(folder).parts(folder) if (folder / MANIFEST).exists() else None


def require_steps(run: str, steps: Sequence[int]) -> None:
    """Refuse a run that is not there, and steps that a trajectory does not have."""
    from induction_memory.trajectory.layout import listed_steps, require_stored
    from induction_memory.trajectory.search import find

    folder = find(run)
    stored = listed_steps(folder) if steps else []
    for step in steps if stored else []:
        require_stored(step, stored)


def require_components(run: str, names: Sequence[str]) -> None:
    """Refuse components that the run's model does not have; of another's architecture only the heads are known."""
    from induction_memory.model.config import ModelConfig
    from induction_memory.runner.components import Graph, component_names

    parts = parts_of(run) if names else None
    if parts is None:
        return
    model = parts[1]
    if isinstance(model, ModelConfig):
        component_names(Graph.of_config(model), None, names)
        return
    graph = Graph(model.n_layers, model.n_heads, ())
    for name in names:
        if re.fullmatch(r"L\d+H\d+", name):
            graph.resolve(name)


def require_pairs(run: str, memory: str, pairs: Sequence[str], option: str) -> None:
    """Refuse pairs 'a->b' of tokens or positions that the run's task does not have."""
    from induction_memory.pair_names import named_pair

    parts = parts_of(run) if pairs else None
    task = None if parts is None else parts[0]
    labels = getattr(task, "labels", None)
    if task is None or labels is None:
        return
    positions, (tokens, answers) = range(1, task.length + 1), labels()
    names = {"W_K1": (positions[:-1], positions[1:]), "W_K2": (tokens, tokens)}
    inputs, outputs = names.get(memory, (tokens, answers))
    for pair in pairs:
        named_pair(pair, inputs, outputs, option)


def require_edit(
    run: str,
    memory: str,
    edit: dict[str, Any],
    *,
    strength: float | None = None,
    head: str | None = None,
    through: str | None = None,
    option: str | None = None,
) -> None:
    """Refuse an edit of a memory that the run's model does not have, or that cannot be edited so.

    `option` is the one that the user wrote, where it is not called as the edit or as `--memory` is.
    """
    from induction_memory.interventions.memory_surgery import edited_heads, exchanged, one_edit
    from induction_memory.model.config import ModelConfig

    field = option or "--memory"
    require(memory in MEMORIES, field, f"one of {', '.join(MEMORIES)}", repr(memory))
    name, value = one_edit(edit, strength)
    if name in ("erase", "insert"):
        require_pairs(run, memory, value, option or f"--{name}")
    if name == "swap":
        require_pairs(run, memory, exchanged(value), "--swap")
    parts = parts_of(run)
    if parts is None:
        return
    model = parts[1]
    edited_heads(memory, model.n_layers, model.n_heads, head=head, through=through)
    if not isinstance(model, ModelConfig):
        return
    linear = memory != "W_F" or (model.feed_forward == "linear" and model.has_feed_forward(model.n_layers))
    require(linear, field, "one of W_K1, W_K2, W_O2: the model has no linear feed-forward", repr(memory))
    if name == "truncate":
        most = model.d_model if memory == "W_F" else min(model.d_model, model.head_dimension)
        require(1 <= value <= most, "--truncate", f"a rank of 1 to {most}", value)


def require_text(run: str, text: str | None) -> None:
    """Refuse a text that the run's task has no tokens for, or that is longer than its model can read."""
    from induction_memory.model.config import ModelConfig
    from induction_memory.task.corpus import encode

    parts = None if text is None else parts_of(run)
    if text is None or parts is None:
        return
    require(text != "", "--text", "at least one character", "none")
    task, model, _ = parts
    labels = getattr(task, "labels", None)
    if labels is None:
        return
    length = len(encode(text, labels()[0], "--text"))
    most = model.n_ctx if isinstance(model, ModelConfig) else length
    require(1 <= length <= most, "--text", f"1 to {most} tokens (the model's n_ctx)", length)


def require_text_of_series(run: str, text: str | None) -> None:
    """Refuse a text for a trajectory where only a series of checkpoints runs on one."""
    from induction_memory.trajectory.search import find, is_series

    if text is not None and not is_series(find(run)):
        raise InputError("--text: expected none: a trajectory runs on sequences of its own task")
