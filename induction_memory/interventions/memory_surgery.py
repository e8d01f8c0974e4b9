"""Memory surgery: change single associations of a trained matrix, and measure the effect on predictions.

    erase       the pair's score becomes 0, by the smallest change that does it (memory/edits.py)
    insert      the pair's score becomes `strength`, by default the mean score of the ideal pairs
    swap        two inputs exchange their outputs: a -> b and b -> a get the scores that a -> a and b -> b had
    project     keep the part in the span of the ideal memory's pairs ("ideal"), or the rest ("complement")
    truncate    keep only the largest singular values
    transplant  the matrix of another step or run: a model, or (trajectory, step)

`model/associations.py` defines what each memory associates. Surgery edits the stored parameter, so "W_K2" is here the
parameter W_K of layer 2, read with the queries W_Q w_E(k), not the product of both. Pairs are written `a->b`, input
then output, in tokens, or for W_K1 in positions counted from 1. `a` alone means `a` and its target. The input of W_K1
and W_K2 is the key and the output the query, so for W_K1 `a` is at most `b`: with `5->6`, or `5` alone, position 6
attends to position 5. With several heads each has its own matrix. W_K2's keys are the output of one layer-1 head:
`through`, by default the head that carries the previous token (`carrier`). The table names it.

Scores are over three groups: "target" (positions that rely on the edited pairs), "bystanders" (other positions of their
kind: in-context, or global for W_F) and "all". An edit of the whole matrix has only "all". `damage` is the lost
accuracy. Afterwards the model has its old weights again, bit for bit.

    memory   a position relies on a pair if
    W_K1     its trigger occurs for the second time, and its first output is at the pair's query position
    W_K2     its token is the pair's query
    W_O2     its right output is the pair's input
    W_F      its token is the pair's input

Edits are checked first by names and sizes alone, without a model or tensors.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import InputError, UnsupportedError, require, require_known
from induction_memory.fields import require_number, require_texts
from induction_memory.interventions.scores import Scorer
from induction_memory.memory import edits
from induction_memory.memory.association import Association
from induction_memory.model.associations import associate, carrier, parameter_of, written
from induction_memory.model.building import HookedTransformer
from induction_memory.model.memories import head_names, weights_of
from induction_memory.runner.choice import runner
from induction_memory.runner.components import shares_keys
from induction_memory.runner.weights import replaced
from induction_memory.shown_tokens import visible
from induction_memory.source.measuring import over_steps
from induction_memory.source.sources import SEQUENCES, At, Sequences, select
from induction_memory.task.batch import Batch
from induction_memory.task.protocol import Task
from induction_memory.terminal import Progress
from induction_memory.trajectory.search import Steps
from induction_memory.trajectory.trajectory import Trajectory

EDITS = ("erase", "insert", "swap", "project", "truncate", "transplant")
MOST_STRENGTH = 1e30
"""The largest score that can be set: larger ones overflow in the model."""
MEMORY_LAYERS = 2
"""The number of layers of a model whose memories can be edited."""


def one_edit(edit: Mapping[str, Any], strength: float | None = None) -> tuple[str, Any]:
    """Name and value of the one edit that is not None; only an insertion has a strength.

    >>> one_edit({"erase": "e", "swap": None, "project": False})
    ('erase', 'e')
    """
    given = [name for name, value in edit.items() if value is not None and value is not False]
    require(len(given) == 1 and given[0] in EDITS, "edit", f"one of {', '.join(EDITS)}", ", ".join(given) or "none")
    name = given[0]
    if strength is not None:
        require(name == "insert", "strength", f"none: {name} needs no strength", repr(strength))
        require_number(strength, "strength", -MOST_STRENGTH, MOST_STRENGTH)
    return name, edit[name]


def edited_heads(
    memory: str, n_layers: int, n_heads: int, *, head: str | None = None, through: str | None = None
) -> tuple[str | None, str | None]:
    """The names of the head to edit and of the layer-1 head that writes W_K2's keys; None if not specified.

    >>> edited_heads("W_K2", 2, 4, head="L2H1", through="L1H3")
    ('L2H1', 'L1H3')
    """
    require(n_layers == MEMORY_LAYERS, "memory", "a model with two layers", f"one with {n_layers}")
    require(through is None or memory == "W_K2", "through", "none: only W_K2 reads through a head", repr(through))
    layer = 1 if memory == "W_K1" else 2
    one = None if head is None else _named(head, layer, n_heads, "head")
    return one, None if through is None else _named(through, 1, n_heads, "through")


def exchanged(text: str) -> tuple[str, str]:
    """The two names of a swap, `a->b`."""
    first, arrow, second = text.partition("->")
    require(bool(arrow), "swap", "two names, 'a->b'", repr(text))
    return first, second


def _named(head: str, layer: int, n_heads: int, field: str) -> str:
    """The head, if the layer has one of this name."""
    names = head_names((layer,), n_heads)
    require_known(head, names, field, f"a head of layer {layer}: {', '.join(names)}")
    return head


Names = str | Sequence[str]
Projection = Literal["ideal", "complement"]


def surgery(
    source: Any,
    batch: "Sequences" = None,
    *,
    memory: str,
    erase: Names | None = None,
    insert: Names | None = None,
    swap: str | None = None,
    project: Projection | bool | None = None,
    truncate: int | None = None,
    transplant: "HookedTransformer | tuple[Trajectory, int] | None" = None,
    strength: float | None = None,
    head: str | None = None,
    through: str | None = None,
    step: "Steps" = None,
    task: Task | None = None,
    sequences: int = SEQUENCES,
    progress: "Progress" = None,
) -> pd.DataFrame:
    """The effect of one edit: rows for target, bystanders and all positions, at each step.

    Pass exactly one edit. `head` restricts it to one head; `through` is the layer-1 head that writes W_K2's keys. The
    columns head and through name these heads, input and output the edited pairs. `damage` is the group's accuracy
    before the edit minus that after it.

    >>> import induction_memory as im
    >>> batch = im.load("induction-small").task.sample(16, im.task.step_rng(0, 0))
    >>> table = im.surgery("induction-small", batch, memory="W_K2", erase="e")
    >>> table[["group", "before", "in_context_accuracy"]].round(2)
            group  before  in_context_accuracy
    0      target    1.00                 0.08
    1  bystanders    0.92                 0.92
    2         all    0.93                 0.79
    """
    chosen = select(source, step=step, batch=batch, task=task, sequences=sequences, progress=progress)
    require(not chosen.batch.soft, "batch", "sequences with one right output for each position", "soft targets")
    wanted: dict[str, Any] = {"erase": erase, "insert": insert, "swap": swap}
    wanted |= {"project": project, "truncate": truncate, "transplant": transplant}

    def measure(at: At) -> dict[str, pd.DataFrame]:
        before, where = place(at.model, memory, chosen.require_task(), head=head, through=through)
        name, after, pairs = edited_memory(before, strength=strength, **wanted)
        label = {"memory": memory, "edit": name} | _sides(before, pairs) | where
        return {"rows": _measure(at.model, _only(before, after, where["head"]), label, pairs, at.batch)}

    return over_steps(chosen, measure)["rows"]


@contextmanager
def edited(
    model: HookedTransformer,
    task: Task,
    *,
    memory: str,
    strength: float | None = None,
    head: str | None = None,
    through: str | None = None,
    **edit: Any,
) -> Iterator[HookedTransformer]:
    """`with edited(model, task, memory="W_K2", erase="a"):` the edited model, for any other analysis.

    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> model = run.model(step=600)
    >>> with im.interventions.edited(model, run.task, memory="W_K2", erase="e"):
    ...     without = im.probes.score_matrix(model, "W_K2", task=run.task).loc["e", "e"]
    >>> intact = im.probes.score_matrix(model, "W_K2", task=run.task).loc["e", "e"]
    >>> round(float(without)) + 0, round(float(intact))
    (0, 105)
    """
    before, where = place(model, memory, task, head=head, through=through)
    _, after, _ = edited_memory(before, strength=strength, **edit)
    with replaced(model, written(_only(before, after, where["head"]), weights_of(model))):
        yield model


def place(
    model: HookedTransformer,
    memory: str,
    task: Task,
    *,
    head: str | None = None,
    through: str | None = None,
) -> tuple[Association, dict[str, str]]:
    """The stored memory of a model with two layers, and the heads of the edit: head ("all" or one) and through."""
    one, writer = edited_heads(memory, model.cfg.n_layers, model.cfg.n_heads, head=head, through=through)
    if (reason := runner(model).refusal) is not None:
        raise InputError(f"memory: {memory} {reason}")
    require(not shares_keys(model), "model", "keys and values of each head's own, to edit them", "one that shares them")
    if memory == "W_K2" and writer is None:
        writer = carrier(model, task, head=one)
    try:
        a = associate(model, memory, task=task, bare=True, through=writer)
    except UnsupportedError as reason:
        raise InputError(f"memory: {memory} {reason}") from None
    only = one or (a.heads[0] if len(a.heads) == 1 else "all")
    return a, {"head": only, "through": writer or ""}


def edited_memory(
    a: Association, *, strength: float | None = None, **edit: Any
) -> tuple[str, Association, Int[Tensor, "pair side"] | None]:
    """The name of the edit, the edited memory, and the edited pairs (None: all of W)."""
    name, value = one_edit(edit, strength)
    if name == "truncate":
        return f"truncate {value}", replace(a, W=edits.truncate(a.W, value)), None
    if name == "transplant":
        return name, replace(a, W=_transplant(a, value)), None
    if name == "project":
        kind = "ideal" if value is True else value
        require_known(kind, ("ideal", "complement"), "project")
        return f"project {kind}", edits.project(a, complement=kind == "complement"), None
    names = require_texts([value] if isinstance(value, str) else value, name, "names such as 'a->b'")
    require(bool(names), name, "names such as 'a->b'", repr(value))
    if name == "swap":
        pairs, scores = _swapped(a, names)
        after = edits.set_scores(a, pairs, scores)
    else:
        after, pairs = edits.erase_or_insert(a, name, names, strength)
    return f"{name} {', '.join(map(visible, names))}", after, pairs


def relying(a: Association, batch: Batch, pairs: Int[Tensor, "pair side"]) -> Bool[Tensor, "batch pos"]:
    """The positions that rely on these pairs (module docstring)."""
    inputs, outputs = (pairs[:, side].unique() for side in (0, 1))
    if a.name == "W_K2":
        return torch.isin(batch.tokens, outputs) & batch.group()
    if a.name == "W_O2":
        return torch.isin(batch.targets, inputs) & batch.group()
    if a.name == "W_F":
        return torch.isin(batch.tokens, inputs) & batch.group("global")
    known = "counts" in batch.latents
    require(known, "memory", "W_K2 or W_O2; for W_K1 the pairs are known only for in-context bigrams", a.name)
    same = (batch.tokens[:, None, :] == batch.tokens[:, :, None]).tril(-1)
    first_output = same.int().argmax(-1) + 1
    return torch.isin(first_output, outputs + 1) & (batch.latents["counts"] == 2)  # output 0 is the second position


def _sides(a: Association, pairs: Int[Tensor, "pair side"] | None) -> dict[str, str]:
    """The names of the edited pairs, as columns input and output; empty for an edit of the whole matrix."""
    numbers = [] if pairs is None else pairs.tolist()
    return {
        "input": ", ".join(visible(str(a.input_names[i])) for i, _ in numbers),
        "output": ", ".join(visible(str(a.output_names[j])) for _, j in numbers),
    }


def _swapped(a: Association, names: Sequence[str]) -> tuple[Int[Tensor, "pair side"], Float[Tensor, "*head pair"]]:
    """The four pairs of an exchange a <-> b, and their new scores."""
    first, second = exchanged("->".join(names))
    (i, i_out), (j, j_out) = a.number(first, "swap"), a.number(second, "swap")
    require(i != j, "swap", "two different names", repr(names[0]))
    pairs = _tensor([(i, i_out), (j, j_out), (i, j_out), (j, i_out)], a)
    return pairs, edits.pair_scores(a, pairs)[..., [2, 3, 0, 1]]


def _tensor(pairs: list[tuple[int, int]], a: Association) -> Int[Tensor, "pair side"]:
    return torch.tensor(pairs, device=a.W.device)


def _transplant(a: Association, donor: Any) -> Float[Tensor, "*head d_out d_in"]:
    if isinstance(donor, tuple):
        donor = donor[0].model(donor[1])
    if not isinstance(donor, HookedTransformer):
        raise InputError(f"transplant: expected a model, or a trajectory and a step, got {type(donor).__name__}")
    theirs = weights_of(donor)
    has = parameter_of(a.name, theirs) in theirs
    require(has, "transplant", f"a model that has {a.name}", "one without")
    W = theirs[parameter_of(a.name, theirs)].mT.unsqueeze(0)
    require(W.shape == a.W.shape, "transplant", f"a matrix of shape {tuple(a.W.shape[1:])}", tuple(W.shape[1:]))
    return W


def _only(before: Association, after: Association, head: str) -> Association:
    """The edit restricted to one head, unless `head` is "all"."""
    if head not in before.heads or len(before.heads) == 1:
        return after
    which = torch.arange(len(before.heads), device=before.W.device) == before.heads.index(head)
    return replace(after, W=torch.where(which[:, None, None], after.W, before.W))


@torch.no_grad()
def _measure(
    model: HookedTransformer,
    changed: Association,
    label: dict[str, str],
    pairs: Int[Tensor, "pair side"] | None,
    batch: Batch,
) -> pd.DataFrame:
    before: Tensor = model(batch.tokens)
    with replaced(model, written(changed, weights_of(model))):
        after: Tensor = model(batch.tokens)
    main = "global" if changed.name == "W_F" else batch.main
    kind, accuracy = batch.group(main), f"{main}_accuracy"
    groups: dict[str, Bool[Tensor, "batch pos"]] = {"all": batch.counted}
    if pairs is not None:
        target = relying(changed, batch, pairs)
        groups = {"target": target, "bystanders": kind & ~target} | groups
    rows = []
    for group, where in groups.items():
        was, now = (
            {name: value.item() for name, value in Scorer(before, batch, where)(logits).items()}
            for logits in (before, after)
        )
        rows.append(label | {"group": group, "before": was[accuracy], "damage": was[accuracy] - now[accuracy]} | now)
    return pd.DataFrame(rows)
