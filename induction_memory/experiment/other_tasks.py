"""Experiments on the other tasks, each about two minutes of one thread (papers named in the tasks' own modules).

Unless a line says otherwise, AdamW trains every parameter with a step size that falls linearly to zero. With a constant
step size, the noise of the updates keeps the loss 1.5 to 3 times as far from the Bayes-optimal loss. The models are the
smallest that come close to it in that time.
"""

from typing import Any

from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.model.config import ModelConfig
from induction_memory.task.causal.task import CausalGraph
from induction_memory.task.copying.task import Copying
from induction_memory.task.markov.task import MarkovChains
from induction_memory.task.noisy.task import NoisyTriggers
from induction_memory.task.recall.task import FactualRecall


def _full(d_model: int, d_mlp: int, **changes: Any) -> ModelConfig:
    return ModelConfig.full(**{"d_model": d_model, "d_mlp": d_mlp, **changes})


def _adam(steps: int, rate: float, batch: int = 64, **changes: Any) -> TrainConfig:
    every = max(1, steps // 100)
    settings: dict[str, Any] = {
        "steps": steps,
        "batch_size": batch,
        "optimizer": "adamw",
        "learning_rate": rate,
        "schedule": "linear",
        "loss": "all",
        "checkpoints": f"every 1 to 10 then every {every}",
        "keep_optimizer": False,
        "full_metrics_every": 20,
        "resume_every": 200,
    }
    return TrainConfig(**(settings | changes))


NOISY = RunConfig.of(NoisyTriggers(), _full(64, 128), _adam(2500, 3e-3, out_of_distribution="clean"))
BESIDE = RunConfig.of(
    NoisyTriggers(),
    ModelConfig.simplified(d_model=128, parallel_blocks=True),
    _adam(2000, 1.0, optimizer="sgd", out_of_distribution="clean"),
)
MARKOV_1 = RunConfig.of(MarkovChains(), _full(32, 64), _adam(1500, 5e-3))
MARKOV_2 = RunConfig.of(MarkovChains(order=2, symbols=2), _full(32, 64, n_heads=2), _adam(3000, 5e-3))
CAUSAL = RunConfig.of(
    CausalGraph(),
    _full(64, 128),
    _adam(1600, 2e-3, batch=256, schedule="constant", checkpoints="every 1 to 10 then every 20"),
)
FACTS = RunConfig.of(FactualRecall(), _full(64, 256, n_layers=1, parametrisation="text"), _adam(100, 1e-2, batch=512))
COPYING_MIDDLE = RunConfig.of(
    Copying(spans=(12,)),
    _full(32, 64),
    _adam(500, 2e-3, batch=128, schedule="constant", out_of_distribution="elsewhere"),
)
COPYING_ANY = RunConfig.of(
    Copying(spans=tuple(range(1, 13)), placement="any"),
    _full(32, 64),
    _adam(2000, 5e-3, batch=128, schedule="constant", out_of_distribution="elsewhere"),
)

OTHER_TASKS: dict[str, tuple[str, RunConfig]] = {
    "noisy-triggers": ("five fixed triggers, 30 % noise: approaches the Bayes-optimal loss", NOISY),
    "noisy-triggers-beside": ("the simplified model with W_F beside the attention, for ablating W_F", BESIDE),
    "markov-1": ("Markov chains of order 1 over three symbols: 1-gram, then 2-gram", MARKOV_1),
    "markov-2": ("Markov chains of order 2 over two symbols: 1-gram, 2-gram, 3-gram", MARKOV_2),
    "causal-graph": ("induction over a random causal graph", CAUSAL),
    "factual-recall": ("256 facts among noise: marginal, relation, fact", FACTS),
    "copying-middle": ("copying with the output in the middle: a positional shortcut", COPYING_MIDDLE),
    "copying-any": ("copying over any two distances: no shortcut is right", COPYING_ANY),
}
"""Name of a preset -> one line on what it shows, and the experiment."""
