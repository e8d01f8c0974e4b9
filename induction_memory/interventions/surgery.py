"""Memory surgery: change single associations of a trained matrix, and measure who is hurt.

    erase       the pair's score becomes 0                                 (edits.py: the smallest change that does it)
    insert      the pair's score becomes `strength`, by default the mean score of the ideal pairs
    swap        two inputs exchange their outputs: a -> b and b -> a get the scores that a -> a and b -> b had
    project     onto the span of the ideal memory's pairs ("ideal"), or what is left without it ("complement")
    truncate    the largest singular values alone
    transplant  the matrix of another step or run: a model, or (trajectory, step)

The positions that rely on the edited pairs are the target, the others of their sort (in-context, or global for W_F) the
bystanders; where an edit has no single pairs, there is only "all". `damage` is the accuracy lost, in-context or for W_F
global. The model has its own weights again afterwards, bit for bit.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformer_lens import HookedTransformer

from induction_memory.errors import InputError, require
from induction_memory.figures.tokens import visible
from induction_memory.interventions import edits
from induction_memory.interventions.associations import Association, association
from induction_memory.interventions.outcome import score
from induction_memory.interventions.subjects import Steps, batch_of, subjects, task_of, with_step
from induction_memory.runner.swapped_weights import replaced
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.sampler import Batch
from induction_memory.trajectory.trajectory import Trajectory

Names = str | Sequence[str]
Projection = Literal["ideal", "complement"]


def surgery(
    source: Any,
    batch: Batch | None = None,
    *,
    memory: str,
    erase: Names | None = None,
    insert: Names | None = None,
    swap: str | None = None,
    project: Projection | bool | None = None,
    truncate: int | None = None,
    transplant: HookedTransformer | tuple[Trajectory, int] | None = None,
    strength: float | None = None,
    head: int | None = None,
    through: int = 1,
    step: Steps = None,
    task: BigramTask | None = None,
) -> pd.DataFrame:
    """One edit, before and after: rows for the target, the bystanders and all positions (and each step).

    Give exactly one edit. `head` restricts it to one head, counted from 1.
    """
    task = task_of(source, task)
    rows = batch_of(source, batch, task)
    wanted: dict[str, Any] = {"erase": erase, "insert": insert, "swap": swap}
    wanted |= {"project": project, "truncate": truncate, "transplant": transplant}
    tables = []
    for subject in subjects(source, step):
        place = association(subject.model, memory, task, through=through)
        name, W, pairs = edited_matrix(place, strength=strength, **wanted)
        tables.append(with_step(_measure(subject.model, place, name, _only(place.W, W, head), pairs, rows), subject))
    return pd.concat(tables, ignore_index=True)


@contextmanager
def edited(
    model: HookedTransformer,
    task: BigramTask,
    *,
    memory: str,
    strength: float | None = None,
    head: int | None = None,
    through: int = 1,
    **edit: Any,
) -> Iterator[HookedTransformer]:
    """`with edited(model, task, memory="W_K2", erase="a"):` the model under an edit, for any other analysis."""
    place = association(model, memory, task, through=through)
    _, W, _ = edited_matrix(place, strength=strength, **edit)
    with replaced(model, _weights(place, _only(place.W, W, head))):
        yield model


def edited_matrix(
    place: Association, *, strength: float | None = None, **edit: Any
) -> tuple[str, Float[Tensor, "head d_out d_in"], list[tuple[int, int]]]:
    """The name of the one edit that is given, the matrix it makes, and the pairs it aims at (none: the whole)."""
    given = [name for name, value in edit.items() if value is not None and value is not False]
    known = ("erase", "insert", "swap", "project", "truncate", "transplant")
    require(len(given) == 1 and given[0] in known, "edit", f"one of {', '.join(known)}", ", ".join(given) or "none")
    name, value = given[0], edit[given[0]]
    if name == "truncate":
        return f"truncate {value}", edits.truncate(place.W, value), []
    if name == "transplant":
        return name, _transplant(place, value), []
    ideal = place.rows(place.ideal)
    if name == "project":
        kind = "ideal" if value is True else value
        require(kind in ("ideal", "complement"), "project", "ideal or complement", repr(value))
        return f"project {kind}", edits.project(place.W, *ideal, complement=kind == "complement"), []
    names = [value] if isinstance(value, str) else list(value)
    if name == "swap":
        pairs, scores = _swapped(place, names)
    else:
        pairs = [place.parse(text, name) for text in names]
        ideal_score = edits.pair_scores(place.W, *ideal).mean(-1, keepdim=True)
        inserted = ideal_score if strength is None else torch.full_like(ideal_score, strength)
        scores = (inserted if name == "insert" else torch.zeros_like(ideal_score)).expand(-1, len(pairs))
    return f"{name} {', '.join(map(visible, names))}", edits.set_scores(place.W, *place.rows(pairs), scores), pairs


def _swapped(place: Association, names: Sequence[str]) -> tuple[list[tuple[int, int]], Float[Tensor, "head pair"]]:
    """The four pairs of an exchange a <-> b, and their new scores."""
    first, arrow, second = "->".join(names).partition("->")
    require(bool(arrow), "swap", "two names, 'a->b'", repr(names[0]))
    (a, a_out), (b, b_out) = place.parse(first, "swap"), place.parse(second, "swap")
    require(a != b, "swap", "two different names", repr(names[0]))
    pairs = [(a, a_out), (b, b_out), (a, b_out), (b, a_out)]
    now = edits.pair_scores(place.W, *place.rows(pairs))
    return pairs, now[:, [2, 3, 0, 1]]


def _transplant(place: Association, donor: Any) -> Float[Tensor, "head d_out d_in"]:
    if isinstance(donor, tuple):
        donor = donor[0].model(donor[1])
    if not isinstance(donor, HookedTransformer):
        raise InputError(f"transplant: expected a model, or a trajectory and a step, got {type(donor).__name__}")
    parameters = dict(donor.named_parameters())
    require(place.parameter in parameters, "transplant", f"a model that has {place.memory}", "one without")
    W = parameters[place.parameter].detach().mT
    W = W if W.dim() == 3 else W[None]
    require(W.shape == place.W.shape, "transplant", f"a matrix of shape {tuple(place.W.shape)}", tuple(W.shape))
    return W


def _only(W: Tensor, new: Tensor, head: int | None) -> Float[Tensor, "head d_out d_in"]:
    """The edit in one head only."""
    if head is None:
        return new
    require(1 <= head <= len(W), "head", f"1 to {len(W)}", head)
    chosen = (torch.arange(len(W)) == head - 1)[:, None, None]
    return torch.where(chosen, new, W)


def _weights(place: Association, W: Float[Tensor, "head d_out d_in"]) -> dict[str, Tensor]:
    return {place.parameter: W[0].mT if place.memory == "W_F" else W.mT}


@torch.no_grad()
def _measure(
    model: HookedTransformer, place: Association, edit: str, W: Tensor, pairs: list[tuple[int, int]], batch: Batch
) -> pd.DataFrame:
    before: Tensor = model(batch.tokens)
    with replaced(model, _weights(place, W)):
        after: Tensor = model(batch.tokens)
    group_of = batch.global_ if place.memory == "W_F" else batch.in_context
    everywhere: Bool[Tensor, "batch pos"] = torch.ones_like(batch.in_context)
    groups = {"all": everywhere}
    if pairs:
        target = place.asked(batch, pairs)
        groups = {"target": target, "bystanders": group_of & ~target, "all": everywhere}
    accuracy = "global_accuracy" if place.memory == "W_F" else "in_context_accuracy"
    rows = []
    for group, where in groups.items():
        was, now = (
            {name: value.item() for name, value in score(logits, before, batch, where).items()}
            for logits in (before, after)
        )
        label = {"memory": place.memory, "edit": edit, "group": group}
        rows.append(label | {"before": was[accuracy], "damage": was[accuracy] - now[accuracy]} | now)
    return pd.DataFrame(rows)
