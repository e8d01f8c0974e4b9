"""The smallest runs that have every part: d = 16, T = 16, batches of 8."""

from typing import Any

from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.model.config import ModelConfig
from induction_memory.task.bigrams import BigramTask

TASK = BigramTask(length=16, k=3)
MODEL = ModelConfig(d_model=16, n_ctx=16, feed_forward="linear")
TRAIN = TrainConfig(
    steps=12, batch_size=8, checkpoints="every 1 to 4 then every 4", resume_every=5, full_metrics_every=4, threads=1
)


def tiny(model: ModelConfig = MODEL, **train: Any) -> RunConfig:
    """A tiny run with some of its training settings changed."""
    return RunConfig(TASK, model, TRAIN.replace(**train))
