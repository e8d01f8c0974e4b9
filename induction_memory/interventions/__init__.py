"""Interventions: ablations, patching, circuits and memory surgery on any TransformerLens model, always undone."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.interventions.ablations import ablate as ablate
    from induction_memory.interventions.activation_patching import patch as patch
    from induction_memory.interventions.attribution_patching import agreement as agreement
    from induction_memory.interventions.attribution_patching import attribute as attribute
    from induction_memory.interventions.causal import births as births
    from induction_memory.interventions.causal import causal_trajectory as causal_trajectory
    from induction_memory.interventions.causal import mediation as mediation
    from induction_memory.interventions.circuits import discover as discover
    from induction_memory.interventions.effects import contrast as contrast
    from induction_memory.interventions.replacements import Replacements as Replacements
    from induction_memory.interventions.replacements import ablation as ablation
    from induction_memory.interventions.surgery import edited as edited

_WHERE = {
    "ablate": "ablations",
    "agreement": "attribution_patching",
    "attribute": "attribution_patching",
    "births": "causal",
    "causal_trajectory": "causal",
    "mediation": "causal",
    "discover": "circuits",
    "contrast": "effects",
    "patch": "activation_patching",
    "Replacements": "replacements",
    "ablation": "replacements",
    "edited": "surgery",
}

__getattr__, __dir__ = lazily(__name__, _WHERE)
