"""Recall between chosen token embeddings through each head's two circuits, in any TransformerLens model or series.

With w_E(i) and w_U(i) the input and output embeddings of the chosen tokens, and W_K<l>, Phi_<l> the memories of a head:

    QK   w_E(j)^T W_K<l>^T w_E(i)     the key token j that the query token i prefers
    OV   w_U(j)^T Phi_<l> w_E(i)      the output token j that attending to token i favours

A circuit recalls token i if its target has the highest score among the chosen tokens. The target is token i itself
unless another is given: QK then finds equal tokens, OV copies. Rotary positions are left out, so QK is the score at
distance 0. Norms are folded as in `model/memories.py`.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.memory.association import matching
from induction_memory.model import axes
from induction_memory.model.head_names import head_names
from induction_memory.probes.between import READINGS
from induction_memory.probes.memory_recall import READINGS as MEASURES
from induction_memory.subject import Steps, Subject, subject
from induction_memory.trajectory.kept_results import key_of
from induction_memory.trajectory.revisions import joined

MOST = 512
"""Tokens that are compared when none are chosen: the first of the vocabulary."""


def token_recall(
    source: Any,
    tokens: Sequence[int | str] | None = None,
    *,
    targets: Sequence[int | str] | None = None,
    steps: Steps = "all",
) -> pd.DataFrame:
    """Recall, mean margin, mean rank and signal to interference: one row per step, head and circuit (QK, OV).

    `tokens` are numbers, or texts that are one token each for the series' tokenizer. `targets` are the tokens that they
    should recall, all of them among `tokens`.

    >>> table = token_recall("induction-small", steps="last")
    >>> table.loc[table["circuit"] == "OV", ["head", "recall"]].values.tolist()
    [['L1H1', 0.0], ['L2H1', 1.0]]
    """
    opened = subject(source, step=steps, field="steps")
    chosen = None if tokens is None else _numbers(opened, tokens, "tokens")
    wanted = None if targets is None else _places(chosen, _numbers(opened, targets, "targets"))
    if opened.series is None:
        return _of_stack(opened, chosen, wanted)
    settings = {"token recall": [chosen, wanted]}
    found = opened.series.results(
        lambda _, model: {"table": _of_stack(subject(model), chosen, wanted)}, key=key_of(settings)
    )
    return joined([(step, tables["table"]) for step, tables in found])


def _of_stack(opened: Subject, tokens: Int[Tensor, " i"] | None, targets: Int[Tensor, " i"] | None) -> pd.DataFrame:
    stack = opened.stack
    tokens = torch.arange(min(MOST, stack.vocab_size)) if tokens is None else tokens
    allowed = bool((tokens >= 0).all()) and bool((tokens < stack.vocab_size).all())
    require(allowed, "tokens", f"0 to {stack.vocab_size - 1} (the vocabulary)", tokens.tolist())
    parts = []
    for layer in range(1, stack.n_layers + 1):
        layers = (layer,)
        w_E, w_U = (axes.rows(stack, name, layers)[..., tokens, :] for name in ("w_E", "w_U"))
        circuits = {
            "QK": matching(axes.matrix(stack, f"W_K{layer}", layers).mT, w_E, w_E, targets),
            "OV": matching(axes.matrix(stack, f"Phi_{layer}", layers), w_E, w_U, targets),
        }
        heads = head_names(layers, stack.n_heads)
        for circuit, association in circuits.items():
            columns = {}
            for name, suffix in READINGS.items():
                values = MEASURES[suffix][0](association).double().reshape(-1, len(heads))
                columns[name] = values.expand(len(opened.steps), -1).flatten().cpu().numpy()
            index = pd.MultiIndex.from_product([opened.steps, heads], names=["step", "head"])
            part = pd.DataFrame(columns, index=index).reset_index()
            part.insert(2, "circuit", circuit)
            parts.append(part)
    return pd.concat(parts, ignore_index=True).sort_values(["step", "head", "circuit"], ignore_index=True)


def _numbers(opened: Subject, tokens: Sequence[int | str], field: str) -> Int[Tensor, " i"]:
    """Tokens by number; a text must be one token."""
    numbers = []
    for token in tokens:
        if isinstance(token, str):
            require(
                opened.series is not None, field, "numbers of tokens: only a series brings a tokenizer", repr(token)
            )
            assert opened.series is not None
            found = opened.series.tokenizer()(token, add_special_tokens=False)["input_ids"]
            require(len(found) == 1, field, "texts that are one token each", f"{token!r}, which is {len(found)}")
            numbers.append(int(found[0]))
        else:
            numbers.append(int(token))
    require(len(numbers) >= 2, field, "two or more", len(numbers))
    return torch.tensor(numbers)


def _places(tokens: Int[Tensor, " i"] | None, targets: Int[Tensor, " i"]) -> Int[Tensor, " i"]:
    """The place of each target among the tokens."""
    require(tokens is not None, "targets", "none without tokens", targets.tolist())
    assert tokens is not None
    places = {token: place for place, token in enumerate(tokens.tolist())}
    for target in targets.tolist():
        require(target in places, "targets", f"some of the tokens {list(places)}", target)
    return torch.tensor([places[target] for target in targets.tolist()])
