"""Sequences that ask for a fact, and what their readers would answer (model in `task.py`).

Each reader says what it can after every prefix: `fact` is the mean of 1{j = a(s, r)} over the pairs (s, r) that the
prefix leaves possible, `relation` averages over all subjects, `marginal` over all pairs.
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.task.batch import Batch
from induction_memory.task.fields import require_draw
from induction_memory.task.pairs import Pairs, with_queries
from induction_memory.task.positions import one_key
from induction_memory.task.protocol import Predictor

Part = Literal["subject", "relation"]


def sample(task: Any, n: int, rng: np.random.Generator) -> Batch:
    """Draw `n` sequences, each with a random fact in random places."""
    require_draw(n, task.length, rng)
    T = task.length
    subject, relation = rng.integers(task.subjects, size=n), rng.integers(task.relations, size=n)
    tokens = task.first_noise + rng.integers(max(task.noise_tokens, 1), size=(n, T))
    places = rng.random((n, T - 1)).argsort(1)[:, :2]
    here = np.arange(n)
    tokens[here, places[:, 0]] = subject
    tokens[here, places[:, 1]] = task.first_relation + relation
    tokens[:, -1] = task.asking
    answer = torch.from_numpy(task.facts[subject, relation])
    asked = torch.zeros(n, T, dtype=torch.bool)
    asked[:, -1] = True
    return Batch(
        torch.from_numpy(tokens),
        answer[:, None].expand(n, T).contiguous(),
        counted=asked,
        groups={"query": asked},
        main=task.main,
        latents={"subject": torch.from_numpy(subject), "relation": torch.from_numpy(relation)},
    )


def predictors(task: Any) -> dict[str, Predictor]:
    """Candidate predictors, from the one that knows least to the Bayes-optimal one."""
    facts = torch.nn.functional.one_hot(torch.from_numpy(np.array(task.facts)), task.n_outputs).to(torch.float64)
    facts = torch.cat([facts, facts.mean(0, keepdim=True)])  # the last subject: not known
    facts = torch.cat([facts, facts.mean(1, keepdim=True)], 1)  # the last relation: not known

    def fact(tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos answer"]:
        return facts[_seen(task, tokens, "subject"), _seen(task, tokens, "relation")]

    return {
        "marginal": lambda tokens: facts[-1, -1].expand(*tokens.shape, -1),
        "relation": lambda tokens: facts[-1, _seen(task, tokens, "relation")],
        "fact": fact,
    }


def is_part(task: Any, tokens: Int[Tensor, "batch pos"], part: Part) -> Bool[Tensor, "batch pos"]:
    """Where a subject, or a relation, stands."""
    if part == "subject":
        return tokens < task.first_relation
    return (tokens >= task.first_relation) & (tokens < task.first_noise)


def _seen(task: Any, tokens: Int[Tensor, "batch pos"], part: Part) -> Int[Tensor, "batch pos"]:
    """The number of the subject (or relation) at or before each position; S (or R) if there is none yet."""
    bad = tokens[(tokens < 0) | (tokens >= task.n_inputs)]
    require(len(bad) == 0, "tokens", f"ids of 0 to {task.n_inputs - 1} (the vocabulary)", bad[:1].tolist())
    mask = is_part(task, tokens, part)
    require(bool((mask.sum(1) <= 1).all()), "tokens", f"at most one {part} per sequence", int(mask.sum(1).max()))
    first, count = (0, task.subjects) if part == "subject" else (task.first_relation, task.relations)
    number = torch.where(mask, tokens - first, 0).cumsum(1)
    return torch.where(mask.cumsum(1) > 0, number, count)


def sources(task: Any, batch: Batch) -> dict[str, Bool[Tensor, "batch query key"]]:
    """Keys by role: the places of subject and relation, for the last position."""
    found = {}
    for part in ("subject", "relation"):
        key = torch.full_like(batch.tokens, -1)
        key[:, -1] = _place(task, batch.tokens, part)
        found[part] = one_key(key, batch.tokens.shape[1])
    return found


def _place(task: Any, tokens: Int[Tensor, "batch pos"], part: Part) -> Int[Tensor, " batch"]:
    return is_part(task, tokens, part).int().argmax(1)


def other_fact(task: Any, part: Part, batch: Batch, rng: np.random.Generator) -> Pairs:
    """Another subject, or relation, with another answer; sequences for which none exists are left out."""
    facts = torch.from_numpy(np.array(task.facts))
    subject, relation = batch.latents["subject"], batch.latents["relation"]
    answers = facts[:, relation].T if part == "subject" else facts[subject]
    right = facts[subject, relation]
    differs = answers != right[:, None]
    possible = torch.zeros_like(batch.counted)
    possible[:, -1] = differs.any(1)
    chosen = torch.from_numpy(rng.random(differs.shape)).masked_fill(~differs, -1).argmax(1)
    kept = differs.any(1)
    batch, query = with_queries(batch, possible, f"another {part} has another answer")
    chosen, answer, other = chosen[kept], right[kept], answers.gather(1, chosen[:, None]).squeeze(1)[kept]
    place = _place(task, batch.tokens, part)
    tokens = batch.tokens.clone()
    tokens[torch.arange(len(batch)), place] = chosen + (0 if part == "subject" else task.first_relation)
    roles = {name: _place(task, batch.tokens, name) for name in ("subject", "relation")}
    return Pairs(batch, replace(batch, tokens=tokens), query, answer, other, roles)
