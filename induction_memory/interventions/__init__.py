"""Interventions: ablations, patching, circuits and memory surgery on any TransformerLens model, which is restored
afterwards."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.interventions.ablations import Replacements as Replacements
    from induction_memory.interventions.ablations import register as register
    from induction_memory.interventions.causal import causal_curves as causal_curves
    from induction_memory.interventions.causal import delays as delays
    from induction_memory.interventions.causal import path_effects as path_effects
    from induction_memory.interventions.circuits import discover as discover
    from induction_memory.interventions.memory_surgery import edited as edited
    from induction_memory.interventions.patching import agreement as agreement
    from induction_memory.interventions.patching import attribute as attribute
    from induction_memory.interventions.scores import contrast as contrast

_WHERE, __getattr__, __dir__ = lazily(__name__, __file__)
