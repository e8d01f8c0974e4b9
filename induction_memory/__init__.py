"""induction_memory: watch an induction head being born.

A toolkit on TransformerLens for the paper "Birth of a Transformer: A Memory Viewpoint" (NeurIPS 2023). The functions
and types that most people need are here, the others in the package's rooms. Each is imported on first use, so importing
the package is quick.
"""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

__version__ = "0.1.0"

if TYPE_CHECKING:
    import induction_memory.errors as errors
    import induction_memory.experiment as experiment
    import induction_memory.heads as heads
    import induction_memory.interventions as interventions
    import induction_memory.interventions.hooks as hooks
    import induction_memory.memory as memory
    import induction_memory.model as model
    import induction_memory.paper as paper
    import induction_memory.probes as probes
    import induction_memory.runner as runner
    import induction_memory.source as source
    import induction_memory.sweep as sweep
    import induction_memory.task as task
    import induction_memory.views.figures as figures
    from induction_memory.interventions.ablations import ablate as ablate
    from induction_memory.interventions.memory_surgery import surgery as surgery
    from induction_memory.interventions.patching import patch as patch
    from induction_memory.model.building import build as build
    from induction_memory.model.config import ModelConfig as ModelConfig
    from induction_memory.model.constructed import construct as construct
    from induction_memory.source.measuring import measure as measure
    from induction_memory.task.bigrams import BigramTask as BigramTask
    from induction_memory.task.sampler import sample as sample
    from induction_memory.training.branching import branch as branch
    from induction_memory.training.run import train as train
    from induction_memory.trajectory.series import revisions as revisions
    from induction_memory.trajectory.thinning import thin as thin
    from induction_memory.trajectory.trajectory import Trajectory as Trajectory
    from induction_memory.trajectory.trajectory import load as load
    from induction_memory.trajectory.verification import verify as verify
    from induction_memory.views.attention_maps import attention as attention
    from induction_memory.views.explanation import why as why
    from induction_memory.views.memory_maps import memory_map as memory_map
    from induction_memory.views.run_page import report as report
    from induction_memory.views.share import share as share

_WHERE, __getattr__, __dir__ = lazily(__name__, __file__)
__all__ = [*_WHERE]  # pyright: ignore[reportUnsupportedDunderAll]
