"""induction_memory: watch an induction head being born.

A toolkit on TransformerLens for the paper "Birth of a Transformer: A Memory Viewpoint" (NeurIPS 2023). Everything below
is found on first use, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from induction_memory.lazy import lazily, quiet_import

__version__ = "0.1.0"

_MODULES = {
    "task": "task",
    "memory": "memory",
    "figures": "views.figures",
    "model": "model",
    "runner": "runner",
    "experiment": "experiment",
    "trajectory": "trajectory",
    "training": "training",
    "source": "source",
    "probes": "probes",
    "interventions": "interventions",
    "hooks": "interventions.hooks",
    "stream": "interventions.recall_by_hooks",
    "heads": "heads",
    "theory": "paper.theory",
    "views": "views",
    "paper": "paper",
    "claims": "paper.claims",
    "sweep": "sweep",
}
"""Name -> module: the rooms, interventions as hooks, recall through hooks, and the paper's claims."""

if TYPE_CHECKING:
    from induction_memory.errors import DamagedError as DamagedError
    from induction_memory.errors import DivergedError as DivergedError
    from induction_memory.errors import Error as Error
    from induction_memory.errors import InputError as InputError
    from induction_memory.errors import StorageError as StorageError
    from induction_memory.experiment.presets import preset as preset
    from induction_memory.experiment.run_config import RunConfig as RunConfig
    from induction_memory.experiment.train_config import TrainConfig as TrainConfig
    from induction_memory.heads.identification import identify as identify
    from induction_memory.interventions.ablations import ablate as ablate
    from induction_memory.interventions.ablations import ablation as ablation
    from induction_memory.interventions.memory_surgery import surgery as surgery
    from induction_memory.interventions.patching import patch as patch
    from induction_memory.model.building import build as build
    from induction_memory.model.config import Architecture as Architecture
    from induction_memory.model.config import ModelConfig as ModelConfig
    from induction_memory.model.constructed import construct as construct
    from induction_memory.model.memories import embedding as embedding
    from induction_memory.model.memories import matrix as matrix
    from induction_memory.paper.auditing import audit as audit
    from induction_memory.paper.reproducing import reproduce as reproduce
    from induction_memory.probes.registry import probe as probe
    from induction_memory.source.measuring import measure as measure
    from induction_memory.task.bigrams import BigramTask as BigramTask
    from induction_memory.task.corpus import Corpus as Corpus
    from induction_memory.task.sampler import sample as sample
    from induction_memory.task.sampler import step_rng as step_rng
    from induction_memory.training.branching import branch as branch
    from induction_memory.training.run import train as train
    from induction_memory.trajectory.series import fetch_revisions as fetch_revisions
    from induction_memory.trajectory.series import revisions as revisions
    from induction_memory.trajectory.thinning import thin as thin
    from induction_memory.trajectory.trajectory import Trajectory as Trajectory
    from induction_memory.trajectory.trajectory import load as load
    from induction_memory.trajectory.verification import verify as verify
    from induction_memory.views.attention_maps import attention as attention
    from induction_memory.views.run_page import report as report
    from induction_memory.views.share import share as share

_NAMES, _find, _ = lazily(__name__, __file__)
__all__ = [*_NAMES, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        with quiet_import():
            return import_module(f"induction_memory.{_MODULES[name]}")
    return _find(name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
