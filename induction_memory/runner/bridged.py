"""The fast path of a TransformerBridge, which earns it anew with every recording.

The maps of a bridge (`maps.py`) are a guess from its configuration. Each recording is made twice, by hooks and by these
maps. If every activation and the logits agree, patched runs take the fast path; otherwise hooks.
"""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from induction_memory.runner.checked import checked
from induction_memory.runner.components import Graph
from induction_memory.runner.fast import FastRunner
from induction_memory.runner.hooked import HookedRunner
from induction_memory.runner.maps import maps_of_bridge
from induction_memory.runner.recording import Recording
from induction_memory.runner.support import bridge_objection
from induction_memory.runner.weights import parameters

logger = logging.getLogger("induction_memory")
CLOSE = 1e-5
"""The largest deviation, as a share of the largest number of an activation."""


class BridgedRunner(FastRunner):
    """Runs a TransformerBridge by its maps, if they agree with its forward on the same tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__(Graph.of(model), model.cfg.n_ctx, parameters(model), partial(maps_of_bridge, model))
        self.model = model

    @property
    def refusal(self) -> str | None:
        return checked(self.model).memories

    def record(
        self, tokens: Int[Tensor, "batch pos"], weights: Mapping[str, Tensor] | None = None, *, patterns: bool = False
    ) -> Recording:
        hooked = HookedRunner(self.model)
        if weights or bridge_objection(self.model) is not None:
            return hooked.record(tokens, weights, patterns=patterns)
        slow = hooked.record(tokens)
        try:
            fast = super().record(tokens, patterns=patterns)
            different = _first_difference(slow, fast)
            if different is None:
                return fast
            reason = f"computes another {different}"
        except (AttributeError, KeyError, RuntimeError, TypeError) as error:  # the guess does not fit its modules
            reason = f"cannot run it ({type(error).__name__}: {error})".partition("\n")[0]
        logger.warning("this model runs with TransformerLens's hooks: the fast path %s", reason)
        return slow


def _first_difference(slow: Recording, fast: Recording) -> str | None:
    """The first activation of the fast path that the hooks did not see; None if there is none."""
    for name, found in {**fast.activations, "logits": fast.logits}.items():
        if name.endswith("hook_pattern"):  # z is the values' mean with it
            continue
        expected = slow.logits if name == "logits" else slow.activations.get(name)
        if expected is not None and expected.dim() == 4 == found.dim():  # some heads share keys and values
            expected = expected.repeat_interleave(found.shape[2] // expected.shape[2], 2)
        if expected is None or expected.shape != found.shape:
            return name
        if not bool((found - expected).abs().max() <= CLOSE * expected.abs().max()):
            return name
    return None


def earned(model: Any) -> "BridgedRunner | HookedRunner":
    """The fast path of a bridge if it agrees with the bridge on a few tokens, otherwise hooks."""
    few = torch.arange(min(4, model.cfg.d_vocab, model.cfg.n_ctx))[None]
    runner = BridgedRunner(model).record(few).runner
    assert isinstance(runner, BridgedRunner | HookedRunner)
    return runner
