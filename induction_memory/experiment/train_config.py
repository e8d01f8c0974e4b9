"""How a model is trained, as one frozen configuration (Section 5, "Experimental setup").

Defaults are the paper's: SGD with momentum 0.9 and weight decay 1e-4 on fresh batches of 512 sequences. The rules under
`freeze`, `clamps` and `grafts` are explained in `constraints.py`, those under `checkpoints` in `schedule.py`.

Three seeds give three streams: the initial weights, the training batches (one stream per step, so that step n always
sees the same batch) and the evaluation batches. The seeds must differ, so that no stream is a copy of another.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from induction_memory.errors import require
from induction_memory.experiment.constraints import Clamp, Freeze, Graft
from induction_memory.experiment.schedule import CheckpointRule, Decay
from induction_memory.field_docs import field_docs
from induction_memory.fields import as_plain, check_fields, from_plain, require_integer

Optimizer = Literal["sgd", "adamw"]
Loss = str
"""all, or the name of a group of the task's positions; trigger-output and main both name its main group."""
Device = Literal["cpu", "cuda"]
MOST_STEPS = 10_000_000
MOST_THREADS = 256
MOST = 2**53
"""The largest whole number allowed in any field."""


@field_docs
@dataclass(frozen=True)
class TrainConfig:
    """Optimiser, loss, data and the stored steps of a run.

    >>> import induction_memory as im
    >>> config = im.experiment.TrainConfig(steps=300, checkpoints="every 100", freeze=("W_K1: ..100",))
    >>> config.learning_rate, config.momentum
    (0.2, 0.9)
    """

    steps: int = 1000
    """Number of updates; the final weights belong to step `steps`."""
    batch_size: int = 512
    """Fresh sequences per update."""
    optimizer: Optimizer = "sgd"
    """sgd (momentum, weight decay added to the gradient) or adamw (decoupled weight decay)."""
    learning_rate: float = 0.2
    """Peak step size."""
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
    """Positions of the loss: all that the task counts, a group by its name, or the main group (trigger-output)."""
    init_seed: int = 0
    """Seed of the initial weights."""
    data_seed: int = 1
    """Seed of the training batches."""
    eval_seed: int = 2
    """Seed of the evaluation batches."""
    freeze: tuple[str, ...] = ()
    """Parameters frozen for some steps: "W_K1: 300..", "W_K2: ..300", "W_O2: 100..200" or "W_F"."""
    clamps: tuple[str, ...] = ()
    """Attention patterns imposed from a step on: "previous-token@100", "induction"."""
    grafts: tuple[str, ...] = ()
    """Matrices taken from other trajectories: "W_O2=RUN@300 from 100"."""
    checkpoints: str = "every 1 to 20 then every 10"
    """Steps whose weights are kept."""
    keep_optimizer: bool = True
    """Keep the optimiser's state beside each checkpoint, so that a branch continues exactly."""
    resume_every: int = 25
    """Updates between two saves of the latest state, from which a killed run resumes."""
    full_metrics_every: int = 10
    """Steps between two measurements on the groups of positions that are not in the loss."""
    out_of_distribution: str | None = None
    """A second task: the name of a variant, such as uniform, bigram, train or test outputs of the bigram task."""
    out_of_distribution_every: int = 10
    """Steps between two measurements on the second task."""
    out_of_distribution_batch: int = 128
    """Sequences per measurement on the second task."""
    micro_batch: int | None = None
    """Sequences that go through the model at once; by default chosen to fit the CPU cache."""
    threads: int | None = None
    """Threads of the numerical library; by default the library chooses."""
    device: Device = "cpu"
    """Device on which the model trains."""

    def __post_init__(self) -> None:
        seed, every, batch = (0, MOST), (1, MOST), (1, MOST)
        check_fields(
            self,
            "train",
            steps=(0, MOST_STEPS),
            batch_size=batch,
            warmup=(0, MOST),
            init_seed=seed,
            data_seed=seed,
            eval_seed=seed,
            weight_decay=(0, None),
            final_fraction=(0, 1),
            resume_every=every,
            full_metrics_every=every,
            out_of_distribution_every=every,
            out_of_distribution_batch=batch,
            micro_batch=batch,
            threads=(1, MOST_THREADS),
        )
        require(self.learning_rate > 0, "train.learning_rate", "a number above 0", self.learning_rate)
        require(0 <= self.momentum < 1, "train.momentum", "0 or more, below 1", self.momentum)
        require(0 <= min(self.betas) <= max(self.betas) < 1, "train.betas", "0 or more, below 1", self.betas)
        require(self.warmup <= self.steps, "train.warmup", f"at most train.steps = {self.steps}", self.warmup)
        require(self.loss != "", "train.loss", "all or a group's name", repr(self.loss))
        require(self.out_of_distribution != "", "train.out_of_distribution", "the name of a variant, or none", "''")
        seeds = (self.init_seed, self.data_seed, self.eval_seed)
        for name, place in (("eval_seed", 2), ("data_seed", 1)):
            require(seeds[place] not in seeds[:place], f"train.{name}", "a seed unlike the others", seeds[place])
        assert self.checkpoint_rule.fixed
        assert len(self.freezes) == len(self.freeze)
        for name, rules in (("grafts", self.graft_rules), ("clamps", self.clamp_rules)):
            for rule in rules:
                require(rule.start <= self.steps, f"train.{name}", f"a step up to {self.steps}", rule.start)

    @cached_property
    def freezes(self) -> tuple[Freeze, ...]:
        return tuple(map(Freeze.parse, self.freeze))

    @cached_property
    def clamp_rules(self) -> tuple[Clamp, ...]:
        return tuple(map(Clamp.parse, self.clamps))

    @cached_property
    def graft_rules(self) -> tuple[Graft, ...]:
        return tuple(map(Graft.parse, self.grafts))

    @cached_property
    def checkpoint_rule(self) -> CheckpointRule:
        return CheckpointRule.parse(self.checkpoints, self.steps)

    def with_seed(self, seed: int) -> "TrainConfig":
        """The three seeds of the `seed`-th repetition: 3 seed, 3 seed + 1, 3 seed + 2."""
        most = MOST // 3 - 1
        require_integer(seed, "seed", 0, most)
        return replace(self, init_seed=3 * seed, data_seed=3 * seed + 1, eval_seed=3 * seed + 2)

    def replace(self, **changes: Any) -> "TrainConfig":
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return as_plain(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainConfig":
        """The inverse of `to_dict`; keys that are not fields are refused."""
        return from_plain(cls, values, "train")
