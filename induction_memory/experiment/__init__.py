"""(Task, model, training) as one frozen configuration, schedules and presets. Nothing runs here."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.experiment.presets import names as names
    from induction_memory.experiment.presets import preset as preset
    from induction_memory.experiment.run_config import RunConfig as RunConfig
    from induction_memory.experiment.train_config import TrainConfig as TrainConfig

_WHERE, __getattr__, __dir__ = lazily(__name__, __file__)
