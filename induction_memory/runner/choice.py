"""The runner of a model: the fast path if it is known to be exact, otherwise hooks."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, get_args

from jaxtyping import Int
from torch import Tensor, nn

from induction_memory.errors import InputError, require, require_known
from induction_memory.model.config import AnyModel, Architecture
from induction_memory.runner.components import Graph
from induction_memory.runner.fast import FastRunner
from induction_memory.runner.maps import maps_of_config, maps_of_model
from induction_memory.runner.recording import Recording, Runner, Via
from induction_memory.runner.weights import parameters

logger = logging.getLogger("induction_memory")
_said: set[str] = set()


def runner(
    model: "nn.Module | Mapping[str, Tensor]", config: "AnyModel | None" = None, *, via: Via | None = None
) -> Runner:
    """A runner of a TransformerLens model, or of weights by HookedTransformer's names with their configuration.

    `via` is "hooks" for the definition (one forward per variant) or "fast" for the fast path. The default is the fast
    path for models that it supports, and otherwise hooks, with one logged line that says why.

    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> im.runner.runner(run.model(step=600)).via, im.runner.runner(run.model(step=600), via="hooks").via
    ('fast', 'hooks')
    """
    if via is not None:
        require_known(via, get_args(Via), "via")
    if isinstance(model, Mapping):
        if config is None:
            raise InputError("config: expected the configuration of the weights, got none")
        if via != "hooks" and not isinstance(config, Architecture):
            return FastRunner(Graph.of_config(config), config.n_ctx, model, partial(maps_of_config, config))
        model = _built(model, config)
    from induction_memory.runner.hooked import HookedRunner
    from induction_memory.runner.support import bridge_objection, is_bridge, objection

    known = hasattr(model, "cfg") and hasattr(model, "run_with_hooks")
    require(known, "model", "a HookedTransformer or a TransformerBridge", type(model).__name__)
    if via == "hooks":
        return HookedRunner(model)
    reason = bridge_objection(model) if is_bridge(model) else objection(model)
    if reason is None and is_bridge(model):
        from induction_memory.runner.bridged import earned

        found = earned(model)
        require(via in (None, found.via), "via", "hooks (the fast path computes something else)", "fast")
        return found
    if reason is None:
        cfg: Any = model.cfg
        changed = partial(_if_changed, model)
        return FastRunner(Graph.of(model), cfg.n_ctx, parameters(model), partial(maps_of_model, model), changed)
    require(via is None, "via", "hooks (the fast path does not support this model)", f"fast, but {reason}")
    if reason not in _said:
        _said.add(reason)
        logger.warning("this model runs with TransformerLens's hooks, one forward per variant: %s", reason)
    return HookedRunner(model)


def _if_changed(model: nn.Module) -> Runner | None:
    """The runner with hooks, if the fast path no longer supports the model: hooks or methods have been added."""
    from induction_memory.runner.hooked import HookedRunner
    from induction_memory.runner.support import objection

    return HookedRunner(model) if objection(model) else None


def record(model: "nn.Module | Runner", tokens: Int[Tensor, "batch pos"], via: Via | None = None) -> Recording:
    """One intact run of a model or a runner.

    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> intact = im.runner.record(run.model(step=600), run.task.sample(2, im.task.step_rng(0, 0)).tokens)
    >>> intact.logits.shape
    torch.Size([2, 256, 65])
    """
    return (runner(model, via=via) if isinstance(model, nn.Module) else model).record(tokens)


def _built(weights: Mapping[str, Tensor], config: AnyModel) -> nn.Module:
    """The HookedTransformer of a configuration with these weights."""
    from induction_memory.model.building import build

    model = build(config)
    parameters = dict(model.named_parameters())
    for name, value in weights.items():
        require(name in parameters, "weights", f"names out of {', '.join(parameters)}", repr(name))
        parameters[name].data = value.detach().clone()
    return model
