"""What to put in the place of an activation that is taken away: the kinds of ablation.

For an activation y of a site, [batch, pos, d]:

    zero              0
    mean              the mean of y over sequences and positions
    mean-position     the mean of y over sequences, at each position
    resample          y of another sequence of the batch
    resample-output   y of the same sequence with the outputs of its triggers changed
    noise             Gaussian, each coordinate with y's own mean and standard deviation
    initial           what the same weights computed before training, from the same input

They disagree, and each disagreement says something: a component that only adds a constant matters under `zero` and not
under `mean`; one that depends on the position alone does not matter under `mean-position`; one that carries no output
of a trigger does not matter under `resample-output`.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import HookedTransformer

from induction_memory.errors import InputError, require
from induction_memory.runner.components import ARROW
from induction_memory.runner.patches import Patch
from induction_memory.runner.recording import Recording, record
from induction_memory.runner.swapped_weights import of_initial, replaced
from induction_memory.task.corruptions import other_outputs
from induction_memory.task.sampler import Batch

Kind = Literal["zero", "mean", "mean-position", "resample", "resample-output", "noise", "initial"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(eq=False)
class Replacements:
    """Replacement values for the sites of one recorded run; what several of them need is computed once."""

    recording: Recording
    batch: Batch
    initial: HookedTransformer | None = None
    seed: int = 0
    _other: Recording | None = field(default=None, repr=False)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that can be had here: `initial` needs the initial model, resampling another sequence."""
        missing: set[Kind] = set() if self.initial is not None else {"initial"}
        if len(self.batch) < 2:
            missing.add("resample")
        return tuple(kind for kind in KINDS if kind not in missing)

    def patches(self, name: str, kind: str) -> list[Patch]:
        """The patches that ablate everything a name stands for."""
        sites = self.recording.graph.resolve(name)
        if kind == "initial":
            before = self._before_training(name)
            return [Patch(site, before.at(site.split(ARROW)[0])) for site in sites]
        return [Patch(site, self.value(site.split(ARROW)[0], kind)) for site in sites]

    def value(self, site: str, kind: str) -> Float[Tensor, "#batch #pos d"]:
        """What replaces the activation at a node; for an edge, ask for its source."""
        self.require_kind(kind)
        y = self.recording.at(site)
        if kind == "zero":
            return torch.zeros_like(y[:1, :1])
        if kind == "mean":
            return y.mean((0, 1), keepdim=True)
        if kind == "mean-position":
            return y.mean(0, keepdim=True)
        if kind == "resample":
            return y.roll(1, dims=0)
        if kind == "resample-output":
            if self._other is None:
                other = other_outputs(self.batch, np.random.default_rng(self.seed))
                self._other = record(self.recording.model, other.tokens)
            return self._other.at(site)
        if kind == "noise":
            generator = torch.Generator().manual_seed(self.seed)
            spread = y.flatten(0, 1).std(0, correction=0)
            return y.mean((0, 1)) + spread * torch.randn(y.shape, generator=generator)
        return self._before_training(site).at(site)

    def require_kind(self, kind: str) -> None:
        require(kind in KINDS, "kind", f"all or one of {', '.join(KINDS)}", repr(kind))
        if kind in self.kinds:
            return
        if kind == "initial":
            raise InputError("kind: expected a trajectory, or the model before training as `initial`, got neither")
        raise InputError(f"kind: expected two or more sequences for {kind!r}, got {len(self.batch)}")

    def _before_training(self, name: str) -> Recording:
        """The run in which only the weights behind a name are those from before training."""
        self.require_kind("initial")
        assert self.initial is not None
        model = self.recording.model
        weights = of_initial(model, self.initial, self.recording.graph.parameters(name))
        with replaced(model, weights):
            recording = record(model, self.recording.tokens)
            for site in self.recording.graph.writers:  # a head's output is computed when asked: ask now
                recording.at(site)
        return recording
