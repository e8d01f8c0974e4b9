"""Interventions as lists of TransformerLens hooks, for `run_with_hooks` and `model.hooks`, beside your own hooks.

    hooks = im.hooks.ablate(model, "L1H1", kind="mean", batch=batch)
    model.run_with_hooks(tokens, fwd_hooks=hooks + mine)

Lists that change the same component act one after the other, in the order of `fwd_hooks`, each on the result of those
before it. They are the patches of `runner/hooked.py`, which defines every intervention of this package. A component has
one of the names of `runner/components.py`. No flag of the model has to be set, except for edges into heads
(`use_split_qkv_input`, if the model offers it) and into feed-forwards (`use_hook_mlp_in`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from induction_memory.errors import require
from induction_memory.interventions.ablations import Kind, Replacements
from induction_memory.runner.choice import runner
from induction_memory.runner.components import ARROW, Graph
from induction_memory.runner.hooked import SPLIT, Hook, head_projections, patch_hooks
from induction_memory.runner.recording import Patch
from induction_memory.source.sources import Sequences, select


def ablate(
    model: nn.Module,
    component: str,
    *,
    batch: Sequences,
    kind: Kind = "mean",
    initial: Mapping[str, Tensor] | nn.Module | None = None,
    seed: int = 0,
) -> list[Hook]:
    """Hooks that take a component away, as `im.ablate` does; the replacement is computed on `batch`.

    With `zero` and `mean` they work on sequences of any number and length, with other kinds only on those of the batch.

    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> model, batch = run.model(step=600), run.task.sample(4, im.step_rng(0, 0))
    >>> hooks = im.hooks.ablate(model, "L1H1", kind="mean", batch=batch)
    >>> model.run_with_hooks(batch.tokens, fwd_hooks=hooks).shape
    torch.Size([4, 256, 65])
    """
    sequences = select(model, batch=batch).at().batch
    recording = runner(model).record(sequences.tokens)
    return _hooks(model, Replacements(recording, sequences, initial, seed).patches(component, kind))


def patch(
    model: nn.Module,
    component: str,
    *,
    tokens: Int[Tensor, "batch pos"],
    where: Bool[Tensor, "batch pos"] | None = None,
) -> list[Hook]:
    """Hooks that replace a component's activations by those of a run on other `tokens`, everywhere or at `where`.

    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> model, batch, other = run.model(step=600), *(run.task.sample(4, im.step_rng(0, n)) for n in (0, 1))
    >>> model.set_use_split_qkv_input(True)  # only for edges into queries, keys and values
    >>> hooks = im.hooks.patch(model, "L1H1->L2H1.k", tokens=other.tokens)
    >>> model.run_with_hooks(batch.tokens, fwd_hooks=hooks).shape
    torch.Size([4, 256, 65])
    """
    other = runner(model).record(tokens)
    sites = other.graph.resolve(component)
    return _hooks(model, [Patch(site, other.at(site.split(ARROW)[0]), where) for site in sites])


def clamp(model: nn.Module, component: str, value: Float[Tensor, " d"] | float) -> list[Hook]:
    """Hooks that hold a component at one vector, or every coordinate at one number.

    >>> import induction_memory as im
    >>> model = im.build(im.ModelConfig(d_model=16, n_ctx=8), seed=0)
    >>> tokens = im.BigramTask(length=8).sample(2, im.step_rng(0, 0)).tokens
    >>> hooks, noted = im.hooks.record(model, ["L1H1"])
    >>> logits = model.run_with_hooks(tokens, fwd_hooks=[*im.hooks.clamp(model, "L1H1", 0.5), *hooks])
    >>> noted["L1H1"].round(decimals=4).unique()
    tensor([0.5000])
    """
    fixed = torch.as_tensor(value, dtype=torch.float32)

    def hold(own: Tensor) -> Tensor:
        require(fixed.dim() == 0 or fixed.shape == own.shape[-1:], "value", f"{own.shape[-1]} numbers", fixed.shape)
        return fixed.to(own).expand_as(own)

    return edit(model, component, hold)


def edit(model: nn.Module, component: str, function: Callable[[Tensor], Tensor]) -> list[Hook]:
    """Hooks that replace a component's activation [batch, pos, d] by a function of it.

    >>> import induction_memory as im
    >>> model = im.build(im.ModelConfig(d_model=16, n_ctx=8), seed=0)
    >>> tokens = im.BigramTask(length=8).sample(2, im.step_rng(0, 0)).tokens
    >>> positive = im.hooks.edit(model, "L2H1", lambda written: written.clamp(min=0))
    >>> hooks, noted = im.hooks.record(model, ["L2H1"])
    >>> logits = model.run_with_hooks(tokens, fwd_hooks=[*positive, *hooks])
    >>> noted["L2H1"].min()
    tensor(0.)
    """
    sites = Graph.of(model).resolve(component)
    return _hooks(model, [_Edit(site, torch.zeros(1, 1, 1), function=function) for site in sites])


def record(model: nn.Module, components: Sequence[str]) -> tuple[list[Hook], dict[str, Tensor]]:
    """Hooks that note what components write (or heads' queries, keys and values), and the dictionary that is filled.

    Put them after hooks that change a component, to note the changed values.

    >>> import induction_memory as im
    >>> model = im.build(im.ModelConfig(d_model=16, n_ctx=8), seed=0)
    >>> hooks, noted = im.hooks.record(model, ["L1H1", "L2H1.k"])
    >>> tokens = im.BigramTask(length=8).sample(2, im.step_rng(0, 0)).tokens
    >>> logits = model.run_with_hooks(tokens, fwd_hooks=hooks)
    >>> {name: tuple(value.shape) for name, value in noted.items()}
    {'L1H1': (2, 8, 16), 'L2H1.k': (2, 8, 16)}
    """
    kept: dict[str, Tensor] = {}

    def note(site: str) -> Callable[[Tensor], Tensor]:
        def keep(own: Tensor) -> Tensor:
            kept[site] = own.detach().clone()
            return own

        return keep

    sites = [site for name in components for site in Graph.of(model).resolve(name)]
    for site in sites:
        require(ARROW not in site, "components", "writers, or queries, keys and values of heads", repr(site))
    return _hooks(model, [_Edit(site, torch.zeros(1, 1, 1), function=note(site)) for site in sites]), kept


@dataclass(frozen=True)
class _Edit(Patch):
    """A patch whose value is a function of the activation."""

    function: Callable[[Tensor], Tensor] = lambda own: own

    def applied(self, own: Tensor, rows: Tensor | None = None) -> Tensor:
        return self.function(own)


def _hooks(model: Any, patches: Sequence[Patch]) -> list[Hook]:
    projected = ()
    targets = [patch.site.split(ARROW)[1] for patch in patches if ARROW in patch.site]
    for target in targets:
        flag = SPLIT if "." in target else "use_hook_mlp_in" if target.startswith("FF") else None
        ready = flag is None or getattr(model.cfg, flag, False)
        if flag == SPLIT and not ready:
            projected = projected or head_projections(model)
            ready = bool(projected)
        require(ready, "model", f"set_{flag}(True) for hooks on an edge into {target}", "it unset")
    return patch_hooks(Graph.of(model), patches, [block.attn.W_O.detach() for block in model.blocks], projected)
