"""Local learning coefficients over a series of checkpoints that others trained.

The same sampling as in `langevin.py`, on a loss that needs no task: the mean of -log p(next token) over a
group of positions of given sequences (in_context: pairs of tokens seen before in their sequence; global: the others;
all). Gradients are torch's own. A part is "all", a matrix of a layer (`W_Q1`, `W_K2`, `W_V2`, `W_O2`: all its heads), a
head (`L2H1`: its slices of the four), a matrix of one head (`W_K2 of L2H1`), or a feed-forward (`FF1`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from induction_memory.errors import InputError, require
from induction_memory.probes.langevin import DivergedError, Gradients, Sampling, estimate
from induction_memory.subject import Sequences, Steps, subject
from induction_memory.task.batch import Batch
from induction_memory.trajectory.kept_results import key_of
from induction_memory.trajectory.revisions import joined

_PART = re.compile(r"^(?:W_([QKVO])(\d+)(?: of L(\d+)H(\d+))?|L(\d+)H(\d+)|FF(\d+)|all)$")


def series_coefficient(
    source: Any,
    parts: Sequence[str] = ("all",),
    *,
    batch: Sequences = None,
    group: str = "all",
    steps: Steps = "all",
    sampling: Sampling | None = None,
) -> pd.DataFrame:
    """One row per step and part: coefficient, standard error over chains, loss at the stored weights, settings.

    One setting serves all steps. `batch` holds `minibatches * batch_size` sequences or more; without it they are random
    tokens repeated once.

    >>> import induction_memory as im
    >>> model = im.load("induction-small").model
    >>> series = im.revisions([(0, model(step=0)), (600, model(step=600))])
    >>> quick = im.probes.Sampling(burn_in=2, draws=4, chains=2, batch_size=2, minibatches=2)
    >>> batch = im.load("induction-small").task.sample(4, im.step_rng(0, 0))
    >>> series_coefficient(series, ["L2H1"], batch=batch, sampling=quick)[["step", "part"]]
       step  part
    0     0  L2H1
    1   600  L2H1
    """
    how = sampling or Sampling()
    for part in parts:
        require(_PART.match(part) is not None, "part", "all, W_K2, L2H1, W_K2 of L2H1 or FF1", repr(part))
    needed = how.minibatches * how.batch_size
    opened = subject(source, step=steps, batch=batch, sequences=needed, field="steps")
    if opened.series is None:
        raise InputError(
            "source: expected a series of others' checkpoints (learning_coefficient takes runs), got another"
        )
    rows = opened.batch
    require(len(rows) >= needed, "batch", f"{needed} sequences or more (minibatches x batch_size)", len(rows))
    rows.group(group)  # an unknown one is refused before anything is measured

    def measure(step: int, model: nn.Module) -> dict[str, pd.DataFrame]:
        return {"table": pd.DataFrame([_row(step, model, part, rows, group, how) for part in parts])}

    settings = {"coefficient": list(parts), "batch": rows, "group": group, "sampling": asdict(how)}
    found = opened.series.results(measure, key=key_of(settings))
    return joined([(step, tables["table"]) for step, tables in found])


def _row(step: int, model: nn.Module, part: str, rows: Batch, group: str, how: Sampling) -> dict[str, Any]:
    weights, masks = weights_of_part(model, part)
    try:
        value, error, centre = estimate(weights, _gradients(model, weights, rows, group, how.batch_size), how, masks)
    except DivergedError as reason:
        raise DivergedError(f"{part} at step {step}: {reason}; try a smaller step_size") from reason
    found = {"part": part, "group": group, "value": value, "se": error, "loss": centre}
    return found | {"n_beta": how.n_beta, "step_size": how.step_size, "localisation": how.localisation}


def _gradients(model: nn.Module, weights: Mapping[str, Tensor], rows: Batch, group: str, size: int) -> Gradients:
    """The mean loss over the group's positions in a minibatch, and its gradients."""

    def at(minibatch: int) -> tuple[float, Mapping[str, Tensor]]:
        part = rows[slice(minibatch * size, (minibatch + 1) * size)]
        with torch.enable_grad():
            logits = model(part.tokens)
            chosen = part.group(group)
            loss = torch.nn.functional.cross_entropy(logits[chosen], part.targets[chosen])
            found = torch.autograd.grad(loss, list(weights.values()))
        return float(loss.detach()), dict(zip(weights, found, strict=True))

    return at


def weights_of_part(model: Any, part: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters that a part's name means, and masks where only one head of them moves."""
    found = _PART.match(part)
    require(found is not None, "part", "all, W_K2, L2H1, W_K2 of L2H1 or FF1", repr(part))
    assert found is not None
    letter, matrix_layer, of_layer, of_head, head_layer, head, feed_forward = found.groups()
    if part == "all":
        return _used(model), {}
    layer = int(matrix_layer or head_layer or feed_forward)
    require(1 <= layer <= model.cfg.n_layers, "part", f"layers 1 to {model.cfg.n_layers}", repr(part))
    require(of_layer is None or int(of_layer) == layer, "part", "a head of the matrix's own layer", repr(part))
    block = model.blocks[layer - 1]
    if feed_forward:
        return {f"mlp {i}": p.requires_grad_() for i, p in enumerate(block.mlp.parameters())}, {}
    number = of_head or head
    require(
        number is None or 1 <= int(number) <= model.cfg.n_heads, "part", f"heads 1 to {model.cfg.n_heads}", repr(part)
    )
    weights, masks = dict[str, Tensor](), dict[str, Tensor]()
    for one in letter or "QKVO":
        own = getattr(block.attn, f"W_{one}")
        inner = None if isinstance(own, nn.Parameter) else getattr(block.attn, one.lower()).original_component
        weights[f"W_{one}"] = (own if inner is None else inner.weight).requires_grad_()
        if number is not None:
            masks[f"W_{one}"] = _of_head(weights[f"W_{one}"], inner, one, int(number) - 1, model.cfg.d_head)
    return weights, masks


def _of_head(weight: Tensor, inner: nn.Module | None, letter: str, head: int, d_head: int) -> Tensor:
    """A mask of ones at the entries of one head. In a HookedTransformer, which has no inner module, it is an index.

    In a bridge they are rows of a Linear's weight for Q, K, V and columns for O; a Conv1D is transposed.
    """
    mask = torch.zeros_like(weight)
    if inner is None:
        mask[head] = 1
        return mask
    axis = 0 if letter in "QKV" else 1
    axis = axis if isinstance(inner, nn.Linear) else 1 - axis
    mask.narrow(axis, head * d_head, d_head).fill_(1)
    return mask


def _used(model: Any) -> dict[str, Tensor]:
    """Every parameter that the forward reads: a bridge keeps joint matrices beside the parts that it computes with."""
    tokens = torch.zeros(1, 2, dtype=torch.long)
    named = {name: p.requires_grad_() for name, p in model.named_parameters()}
    with torch.enable_grad():
        found = torch.autograd.grad(model(tokens).sum(), list(named.values()), allow_unused=True)
    return {name: p for (name, p), slope in zip(named.items(), found, strict=True) if slope is not None}
