"""The local learning coefficient of a model, or of some of its weights, by stochastic gradient Langevin dynamics.

With w* the stored weights, L the mean loss and n_beta the inverse temperature, weights w near w* are drawn by

    w <- w - step_size / 2 * (n_beta * grad L_m(w) + localisation * (w - w*)) + N(0, step_size)

and the coefficient is  lambda = n_beta * mean over the draws of (L_m(w) - L_m(w*)).  L_m is the loss on a minibatch m.
Both use the same minibatch, because otherwise the noise between minibatches would hide a small coefficient.
Only the weights of one part move (the "refined" coefficient), so that matrices and heads can be compared.

The value depends on the settings, above all on n_beta: compare only values of the same setting, and run `calibrate`
first. On a quadratic loss with curvatures h the coefficient is 1/2 sum n_beta h / (n_beta h + localisation).

The loss is the training loss of a run, or for other models the mean of -log p(next token) over a group of positions
(in_context: pairs of tokens seen before in their sequence; global: the others; all). A part is "all" (all trained
parameters, or all that the forward reads), a matrix of a layer (`W_K1`, all its heads), a head (`L2H1`: its slices of
all trained parameters), a matrix of one head (`W_K2 of L2H1`), or a feed-forward (`W_F`; `FF1` of other models).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from induction_memory.errors import DivergedError, require, require_known
from induction_memory.field_docs import field_docs
from induction_memory.source.measuring import over_steps
from induction_memory.source.sources import At, Selection, Sequences, select
from induction_memory.task.batch import Batch
from induction_memory.task.sampler import step_rng
from induction_memory.terminal import Progress, track
from induction_memory.training.forward import evaluate
from induction_memory.trajectory.search import Steps

Gradients = Callable[[int], tuple[float, Mapping[str, Tensor]]]
"""Number of a minibatch -> its loss and gradients at the current weights."""

FAR = 10.0  # a chain whose squared distance is this many times the expected one has diverged
PLATEAU = 0.1  # largest relative difference between step sizes on a plateau
EVALUATION_STREAM = 1  # the probes' evaluation batch is number 0 of the same seed


@field_docs
@dataclass(frozen=True)
class Langevin:
    """Settings of the sampling in `learning_coefficient`. Use one setting for a whole trajectory.

    >>> Langevin(n_beta=30).draws
    200
    """

    step_size: float | int = 1e-3
    """Variance of the noise of one update."""
    n_beta: float | int = 100.0
    """Inverse temperature times the number of samples."""
    localisation: float | int = 100.0
    """Strength of the pull back to w*."""
    burn_in: int = 100
    """Updates before the first draw."""
    draws: int = 200
    """Draws per chain, one after each update."""
    chains: int = 4
    """Independent chains; their spread gives the standard error."""
    batch_size: int = 32
    """Sequences per minibatch."""
    minibatches: int = 32
    """Number of different minibatches."""
    seed: int = 0
    """Seed of the noise and of the order of minibatches."""

    def __post_init__(self) -> None:
        for name in ("step_size", "n_beta", "localisation"):
            value = getattr(self, name)
            require(math.isfinite(value) and value > 0, f"sampling.{name}", "a number above 0", value)
        for name, least in (("burn_in", 0), ("draws", 1), ("chains", 2), ("batch_size", 1), ("minibatches", 1)):
            require(getattr(self, name) >= least, f"sampling.{name}", f"at least {least}", getattr(self, name))


def chain(
    weights: Mapping[str, Tensor],
    gradients: Gradients,
    at_centre: Float[Tensor, " minibatch"],
    sampling: Langevin,
    seed: int,
    masks: Mapping[str, Tensor] | None = None,
) -> Float[Tensor, " draw"]:
    """n_beta * (L_m(w) - L_m(w*)) of every draw of one chain. The weights move in place and are restored at the end.

    `masks` has the entries of each weight that move; a weight without a mask moves as a whole.
    """
    centre = {name: weight.detach().clone() for name, weight in weights.items()}
    generator = torch.Generator().manual_seed(seed)
    order = torch.randint(len(at_centre), (sampling.burn_in + sampling.draws,), generator=generator).tolist()
    found = torch.empty(sampling.draws, dtype=torch.float64)
    try:
        loss, slope = gradients(order[0])
        for update, minibatch in enumerate(order):
            _move(weights, centre, slope, sampling, generator, masks)
            loss, slope = gradients(minibatch)
            _require_near(weights, centre, loss, sampling, update + 1)
            if update >= sampling.burn_in:
                found[update - sampling.burn_in] = sampling.n_beta * (loss - float(at_centre[minibatch]))
    finally:
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(centre[name])
    return found


@torch.no_grad()
def _require_near(
    weights: Mapping[str, Tensor], centre: Mapping[str, Tensor], loss: float, sampling: Langevin, updates: int
) -> None:
    """Refuse a diverged chain. Without a loss, |w - w*|^2 would stay near (number of weights) / localisation."""
    if not math.isfinite(loss):
        raise DivergedError(f"the loss is {loss} after {updates} updates of a chain")
    away = sum(float((weight - centre[name]).square().sum()) for name, weight in weights.items())
    usual = sum(weight.numel() for weight in weights.values()) / sampling.localisation
    if not away <= FAR * usual:
        far = f"{math.sqrt(away / usual):.3g} times as far from the stored ones as usual"
        raise DivergedError(f"the weights are {far} after {updates} updates of a chain")


@torch.no_grad()
def _move(
    weights: Mapping[str, Tensor],
    centre: Mapping[str, Tensor],
    slope: Mapping[str, Tensor],
    sampling: Langevin,
    generator: torch.Generator,
    masks: Mapping[str, Tensor] | None,
) -> None:
    for name, weight in weights.items():
        pull = sampling.n_beta * slope[name] + sampling.localisation * (weight - centre[name])
        noise = torch.randn(weight.shape, generator=generator).to(weight) * math.sqrt(sampling.step_size)
        change = noise - sampling.step_size / 2 * pull
        weight += change if masks is None or name not in masks else change * masks[name]


def estimate(
    weights: Mapping[str, Tensor], gradients: Gradients, sampling: Langevin, masks: Mapping[str, Tensor] | None = None
) -> tuple[float, float, float]:
    """Coefficient, its standard error over chains, and the loss at w*."""
    centres = [gradients(minibatch)[0] for minibatch in range(sampling.minibatches)]
    at_centre = torch.tensor(centres, dtype=torch.float64)
    means = []
    for number in range(sampling.chains):
        seed = sampling.seed * 1_000_003 + number
        means.append(float(chain(weights, gradients, at_centre, sampling, seed, masks).mean()))
    spread = float(np.std(means, ddof=1) / math.sqrt(len(means)))
    return float(np.mean(means)), spread, float(at_centre.mean())


def learning_coefficient(
    source: Any,
    parts: Sequence[str] = ("all",),
    *,
    step: "Steps" = None,
    loss: str | None = None,
    batch: "Sequences" = None,
    task: Any = None,
    sampling: Langevin | None = None,
    progress: "Progress" = None,
) -> pd.DataFrame:
    """One row per part, by default at the last step: coefficient, standard error over chains, loss, settings.

    `loss` is by default the training loss, or a group of positions (`global`, `in_context`, `all`). The minibatches are
    drawn from the task; without a task they are taken from `batch`, or from random tokens repeated once. The default
    sampling takes about a minute per step and part.

    >>> quick = Langevin(burn_in=2, draws=4, chains=2, batch_size=2, minibatches=2)
    >>> learning_coefficient("induction-small", ["W_K2", "W_O2"], sampling=quick)[["step", "part"]]
       step  part
    0   600  W_K2
    1   600  W_O2
    """
    how = sampling or Langevin()
    needed = how.minibatches * how.batch_size
    chosen = select(source, step=step, batch=batch, task=task, sequences=needed, progress=progress)
    config = None if chosen.task is None else getattr(chosen.source, "config", None)
    objective = loss or (config.train.loss if config is not None else "all")
    batches = minibatches(chosen, how)
    if not hasattr(chosen.source, "config") or config is None:
        batches[0].group(objective)  # refuse an unknown group before measuring

    def measure(at: At) -> dict[str, pd.DataFrame]:
        return {"table": pd.DataFrame([_row(at, part, batches, objective, how) for part in parts])}

    settings = {"coefficient": list(parts), "batches": batches, "loss": objective, "sampling": asdict(how)}
    return over_steps(chosen, measure, settings=settings)["table"]


def _row(at: At, part: str, batches: Sequence[Batch], loss: str, how: Langevin) -> dict[str, Any]:
    weights, masks = weights_of_part(at.model, part)
    if hasattr(at.model, "model_config"):
        gradients: Gradients = partial(_by_training, at.model, batches, loss)
    else:
        gradients = partial(_by_torch, at.model, weights, batches, loss)
    try:
        value, error, centre = estimate(weights, gradients, how, masks)
    except DivergedError as reason:
        raise DivergedError(f"{part} at step {at.step}: {reason}; try a smaller step_size") from reason
    found = {"part": part, "value": value, "value_se": error, "loss": centre}
    return found | {"n_beta": how.n_beta, "step_size": how.step_size, "localisation": how.localisation}


def calibrate(
    source: Any,
    part: str = "all",
    *,
    step: int | None = None,
    n_betas: Sequence[float | int] = (10, 30, 100, 300, 1000),
    step_sizes: Sequence[float] = (1e-4, 3e-4, 1e-3),
    sampling: Langevin | None = None,
    progress: "Progress" = None,
) -> pd.DataFrame:
    """The coefficient over n_beta and step size, to find a plateau before choosing a setting.

    `plateau` is True if the value is within PLATEAU of the value at the next smaller step size with the same n_beta. If
    chains diverge, the value is nan and `note` says so.

    >>> quick = Langevin(burn_in=2, draws=4, chains=2, batch_size=2, minibatches=2)
    >>> calibrate("induction-small", "W_O2", n_betas=[100], step_sizes=[1e-4, 1e-3], sampling=quick).columns.tolist()
    ['n_beta', 'step_size', 'value', 'value_se', 'note', 'plateau']
    """
    rows = []
    for n_beta, step_size in track(product(n_betas, step_sizes), "settings", progress=progress):
        setting = replace(sampling or Langevin(), n_beta=float(n_beta), step_size=float(step_size))
        try:
            row = learning_coefficient(source, [part], step=step, sampling=setting).iloc[0]
            rows.append([n_beta, step_size, row["value"], row["value_se"], ""])
        except DivergedError as reason:
            rows.append([n_beta, step_size, math.nan, math.nan, str(reason)])
    table = pd.DataFrame(rows, columns=["n_beta", "step_size", "value", "value_se", "note"])
    smaller = table.sort_values("step_size").groupby("n_beta")["value"].shift().sort_index()
    return table.assign(plateau=(table["value"] - smaller).abs() <= PLATEAU * smaller.abs())


def minibatches(chosen: Selection, how: Langevin) -> list[Batch]:
    """The fixed minibatches: drawn from the task with the evaluation seed, or parts of the sequences."""
    if chosen.given is None and chosen.task is not None:
        rng = step_rng(chosen.eval_seed, EVALUATION_STREAM)
        return [chosen.task.sample(how.batch_size, rng) for _ in range(how.minibatches)]
    needed = how.minibatches * how.batch_size
    require(
        len(chosen.batch) >= needed,
        "batch",
        f"{needed} sequences or more (minibatches x batch_size)",
        len(chosen.batch),
    )
    return [chosen.batch[slice(m * how.batch_size, (m + 1) * how.batch_size)] for m in range(how.minibatches)]


def weights_of_part(model: Any, part: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters of a part, and masks if only one of their heads moves."""
    return _of_paper(model, part) if hasattr(model, "model_config") else _of_layers(model, part)


def _of_paper(model: nn.Module, part: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The trained parameters of a part by the paper's names of matrices, for a model that this package built."""
    matrix, _, head = part.rpartition(" of ") if " of " in part else (part, "", "")
    if part[:1] == "L" and "H" in part and not head:
        matrix, head = "all", part
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    paper: Mapping[str, str] = model.model_config.parameters  # type: ignore[assignment,union-attr]
    if matrix != "all":
        known = [short for short, name in paper.items() if name in trained]
        require_known(matrix, known, "part", f"all, one of {', '.join(known)}, or a head such as L2H1")
        trained = {paper[matrix]: trained[paper[matrix]]}
    if not head:
        return dict(trained), {}
    return _of_head(trained, head, part)


def _of_head(trained: Mapping[str, Tensor], head: str, part: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    layer, _, number = head.removeprefix("L").partition("H")
    numbers = layer.isdecimal() and number.isdecimal()
    require(numbers, "part", "a head such as L2H1", repr(part))
    prefix, index = f"blocks.{int(layer) - 1}.attn.", int(number) - 1
    chosen = {name: p for name, p in trained.items() if name.startswith(prefix) and p.dim() == 3 and index < len(p)}
    require(bool(chosen) and index >= 0, "part", "a head with weights that were trained", repr(part))
    masks = {}
    for name, parameter in chosen.items():
        masks[name] = torch.zeros_like(parameter)
        masks[name][index] = 1
    return chosen, masks


def _by_training(
    model: nn.Module, batches: Sequence[Batch], loss: Any, minibatch: int
) -> tuple[float, Mapping[str, Tensor]]:
    found = evaluate(model, batches[minibatch], loss)
    return found.loss, found.gradients


def _by_torch(
    model: nn.Module, weights: Mapping[str, Tensor], batches: Sequence[Batch], group: str, minibatch: int
) -> tuple[float, Mapping[str, Tensor]]:
    """The mean loss over the group's positions in a minibatch, and its gradients."""
    part = batches[minibatch]
    with torch.enable_grad():
        logits, chosen = model(part.tokens), part.group(group)
        loss = torch.nn.functional.cross_entropy(logits[chosen], part.targets[chosen])
        found = torch.autograd.grad(loss, list(weights.values()))
    return float(loss.detach()), dict(zip(weights, found, strict=True))


_PART = re.compile(r"^(?:W_([QKVO])(\d+)(?: of L(\d+)H(\d+))?|L(\d+)H(\d+)|FF(\d+)|all)$")


def _of_layers(model: Any, part: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters of a part by layer, head and letter, for any TransformerLens model."""
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
            masks[f"W_{one}"] = _head_mask(weights[f"W_{one}"], inner, one, int(number) - 1, model.cfg.d_head)
    return weights, masks


def _head_mask(weight: Tensor, inner: nn.Module | None, letter: str, head: int, d_head: int) -> Tensor:
    """A mask with ones at the entries of one head, or the head's index in a HookedTransformer (it has no inner module).

    In a bridge these entries are rows of a Linear's weight for Q, K, V and columns for O; a Conv1D is transposed.
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
    """Every parameter that the forward reads. A bridge also holds joint matrices, which it does not read."""
    tokens = torch.zeros(1, 2, dtype=torch.long)
    named = {name: p.requires_grad_() for name, p in model.named_parameters()}
    with torch.enable_grad():
        found = torch.autograd.grad(model(tokens).sum(), list(named.values()), allow_unused=True)
    return {name: p for (name, p), slope in zip(named.items(), found, strict=True) if slope is not None}
