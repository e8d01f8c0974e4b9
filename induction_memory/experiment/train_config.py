"""How a model is trained, as one frozen configuration (Section 5, "Experimental setup").

Defaults are the paper's: SGD with momentum 0.9 and weight decay 1e-4 on fresh batches of 512 sequences. The rules under
`freeze`, `clamps` and `grafts` are explained in `constraints.py`, those under `checkpoints` in `schedule.py`.

Three seeds give three streams: the initial weights, the training batches (one stream per step, so that step n always
sees the same batch) and the evaluation batches. The seeds must differ, so that no stream is a copy of another.
"""

import math
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

from induction_memory.errors import InputError, require
from induction_memory.experiment.constraints import Clamp, Freeze, Graft
from induction_memory.experiment.schedule import CheckpointRule, Decay
from induction_memory.field_docs import field_docs

Optimizer = Literal["sgd", "adamw"]
Loss = str
"""all, or the name of a group of the task's positions; trigger-output and main both name its main group."""
Device = Literal["cpu", "cuda"]
MOST_STEPS = 10_000_000
MOST_THREADS = 256
MOST = 2**53
"""The largest whole number allowed in any field."""
MOST_REAL = 1e38
"""The largest real number allowed in any field: weights and gradients are 32-bit floats."""


@field_docs
@dataclass(frozen=True)
class TrainConfig:
    """Optimiser, loss, data and what is kept of a run.

    >>> import induction_memory as im
    >>> config = im.TrainConfig(steps=300, checkpoints="every 100", freeze=("W_K1: ..100",))
    >>> config.learning_rate, config.momentum
    (0.2, 0.9)
    """

    steps: int = 1000
    """Number of updates; the final weights are those of step `steps`."""
    batch_size: int = 512
    """Fresh sequences per update."""
    optimizer: Optimizer = "sgd"
    """sgd (momentum, weight decay added to the gradient) or adamw (decoupled weight decay)."""
    learning_rate: float = 0.2
    """Step size, at its peak."""
    momentum: float = 0.9
    """Momentum of SGD."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of AdamW's two averages."""
    weight_decay: float = 1e-4
    """Weight decay on every trained matrix."""
    schedule: Decay = "constant"
    """How the step size falls: constant, linear or cosine."""
    warmup: int = 0
    """Updates over which the step size rises linearly to its peak."""
    final_fraction: float = 0.0
    """Fraction of the peak step size at the end of a linear or cosine decay."""
    loss: Loss = "trigger-output"
    """Train on all positions that the task counts, on those of a group, or on its main group (trigger-output)."""
    init_seed: int = 0
    """Seed of the initial weights."""
    data_seed: int = 1
    """Seed of the training batches."""
    eval_seed: int = 2
    """Seed of the evaluation batches."""
    freeze: tuple[str, ...] = ()
    """Parameters held for some steps: "W_K1: 300..", "W_K2: ..300", "W_O2: 100..200" or "W_F"."""
    clamps: tuple[str, ...] = ()
    """Attention patterns imposed from a step on: "previous-token@100", "induction"."""
    grafts: tuple[str, ...] = ()
    """Matrices taken from other trajectories: "W_O2=RUN@300 from 100"."""
    checkpoints: str = "every 1 to 20 then every 10"
    """Steps whose weights are kept."""
    keep_optimizer: bool = True
    """Keep the optimiser's state beside each checkpoint, so that a branch continues exactly."""
    resume_every: int = 25
    """Number of updates after which the latest state is saved again; a killed run resumes from it."""
    full_metrics_every: int = 10
    """Steps between two measurements of the token classes that the loss does not need."""
    out_of_distribution: str | None = None
    """A second task: the name of a variant, such as uniform, bigram, train or test outputs of the bigram task."""
    out_of_distribution_every: int = 10
    """Steps between two measurements on the second task."""
    out_of_distribution_batch: int = 128
    """Sequences of each such measurement."""
    micro_batch: int | None = None
    """Sequences that go through the model at once; chosen to fit the CPU cache when not given."""
    threads: int | None = None
    """Threads of the numerical library; as many as it chooses when not given."""
    device: Device = "cpu"
    """Where the model trains."""

    def __post_init__(self) -> None:
        for name in ("betas", "freeze", "clamps", "grafts"):
            value = getattr(self, name)
            require(isinstance(value, tuple | list), f"train.{name}", "a list", repr(value))
            object.__setattr__(self, name, tuple(value))
        self._check_whole_numbers()
        self._check_reals()
        for name, kind in _CHOICES.items():
            value, allowed = getattr(self, name), get_args(kind)
            known = isinstance(value, str) and value in allowed
            require(known, f"train.{name}", " or ".join(allowed), repr(value))
        require(isinstance(self.loss, str) and self.loss != "", "train.loss", "all or a group's name", repr(self.loss))
        second = self.out_of_distribution
        named = second is None or (isinstance(second, str) and second != "")
        require(named, "train.out_of_distribution", "a variant's name, or none", repr(second))
        kept = self.keep_optimizer
        require(isinstance(kept, bool), "train.keep_optimizer", "true or false", repr(kept))
        self._check_seeds()
        self._check_rules()

    def _check_whole_numbers(self) -> None:
        for name, least in _WHOLE_NUMBERS.items():
            value = getattr(self, name)
            allowed = f"a whole number of at least {least}"
            require(_is_whole(value) and value >= least, f"train.{name}", allowed, repr(value))
            require(value <= MOST, f"train.{name}", f"at most {MOST:,}", repr(value)[:80])
        require(self.steps <= MOST_STEPS, "train.steps", f"at most {MOST_STEPS:,}", self.steps)
        require(self.warmup <= self.steps, "train.warmup", f"at most steps = {self.steps}", self.warmup)
        for name, most in (("micro_batch", MOST), ("threads", MOST_THREADS)):
            value = getattr(self, name)
            allowed = "a whole number of at least 1, or none"
            require(value is None or (_is_whole(value) and value >= 1), f"train.{name}", allowed, repr(value))
            require(value is None or value <= most, f"train.{name}", f"at most {most:,}", repr(value)[:80])

    def _check_reals(self) -> None:
        for name in ("learning_rate", "momentum", "weight_decay", "final_fraction"):
            object.__setattr__(self, name, _real(getattr(self, name), f"train.{name}"))
        require(len(self.betas) == 2, "train.betas", "two numbers", self.betas)
        object.__setattr__(self, "betas", tuple(_real(beta, "train.betas") for beta in self.betas))
        require(self.learning_rate > 0, "train.learning_rate", "a number above 0", self.learning_rate)
        require(0 <= self.momentum < 1, "train.momentum", "0 or more, below 1", self.momentum)
        require(all(0 <= beta < 1 for beta in self.betas), "train.betas", "0 or more, below 1", self.betas)
        require(self.weight_decay >= 0, "train.weight_decay", "a number of at least 0", self.weight_decay)
        within = 0 <= self.final_fraction <= 1
        require(within, "train.final_fraction", "a number from 0 to 1", self.final_fraction)

    def _check_seeds(self) -> None:
        seeds = {name: getattr(self, name) for name in ("init_seed", "data_seed", "eval_seed")}
        for name, value in reversed(seeds.items()):
            others = [other for other in seeds if other != name and seeds[other] == value]
            require(not others, f"train.{name}", f"a seed other than {' and '.join(others)}'s", value)

    def _check_rules(self) -> None:
        for name in ("freeze", "clamps", "grafts"):
            for rule in getattr(self, name):
                require(isinstance(rule, str), f"train.{name}", "rules written as text", repr(rule))
        require(isinstance(self.checkpoints, str), "train.checkpoints", "text", repr(self.checkpoints))
        assert self.checkpoint_rule.fixed
        assert len(self.freezes) == len(self.freeze)
        for graft in self.graft_rules:
            require(graft.start <= self.steps, "train.grafts", f"a step up to {self.steps}", graft.start)
        for clamp in self.clamp_rules:
            require(clamp.start <= self.steps, "train.clamps", f"a step up to {self.steps}", clamp.start)

    @cached_property
    def freezes(self) -> tuple[Freeze, ...]:
        return tuple(Freeze.parse(rule) for rule in self.freeze)

    @cached_property
    def clamp_rules(self) -> tuple[Clamp, ...]:
        return tuple(Clamp.parse(rule) for rule in self.clamps)

    @cached_property
    def graft_rules(self) -> tuple[Graft, ...]:
        return tuple(Graft.parse(rule) for rule in self.grafts)

    @cached_property
    def checkpoint_rule(self) -> CheckpointRule:
        return CheckpointRule.parse(self.checkpoints, self.steps)

    def with_seed(self, seed: int) -> "TrainConfig":
        """The three seeds of the `seed`-th repetition: 3 seed, 3 seed + 1, 3 seed + 2."""
        most = MOST // 3 - 1
        require(_is_whole(seed) and 0 <= seed <= most, "seed", f"a whole number from 0 to {most:,}", seed)
        return replace(self, init_seed=3 * seed, data_seed=3 * seed + 1, eval_seed=3 * seed + 2)

    def replace(self, **changes: Any) -> "TrainConfig":
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainConfig":
        """The inverse of `to_dict`; keys that are not fields are refused."""
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise InputError(f"train.{name}: expected one of {', '.join(known)}, got {name!r}")
        given: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
        return cls(**given)


_WHOLE_NUMBERS = {
    "steps": 0,
    "batch_size": 1,
    "warmup": 0,
    "init_seed": 0,
    "data_seed": 0,
    "eval_seed": 0,
    "resume_every": 1,
    "full_metrics_every": 1,
    "out_of_distribution_every": 1,
    "out_of_distribution_batch": 1,
}
_CHOICES = {
    "optimizer": Optimizer,
    "schedule": Decay,
    "device": Device,
}


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _real(value: Any, field: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    finite = number and (isinstance(value, int) or math.isfinite(value))
    require(finite, field, "a finite number", repr(value)[:80])
    require(abs(value) <= MOST_REAL, field, f"a number up to {MOST_REAL:g}, as a 32-bit float holds", repr(value)[:80])
    return float(value)
