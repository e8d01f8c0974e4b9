"""Probes: a model, a trajectory or stacked weights -> named scores in tidy tables, for all steps at once."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.probes.arbitrating import arbitration as arbitration
    from induction_memory.probes.association_births import births as births
    from induction_memory.probes.association_births import score_matrix as score_matrix
    from induction_memory.probes.association_births import trends as trends
    from induction_memory.probes.attention import head_scores as head_scores
    from induction_memory.probes.emergence import birth_order as birth_order
    from induction_memory.probes.emergence import change_points as change_points
    from induction_memory.probes.emergence import lead_lag as lead_lag
    from induction_memory.probes.langevin import Langevin as Langevin
    from induction_memory.probes.langevin import calibrate as calibrate
    from induction_memory.probes.langevin import learning_coefficient as learning_coefficient
    from induction_memory.probes.lens import logit_lens as logit_lens
    from induction_memory.probes.predictors import predictor_distances as predictor_distances
    from induction_memory.probes.predictors import predictor_mixture as predictor_mixture
    from induction_memory.probes.predictors import predictor_phases as predictor_phases
    from induction_memory.probes.registry import register as register
    from induction_memory.probes.tables import PATTERNS as PATTERNS
    from induction_memory.probes.tables import names as names
    from induction_memory.probes.tables import recall as recall
    from induction_memory.probes.tables import table as table
    from induction_memory.probes.tables import wide as wide
    from induction_memory.probes.weight_size import spectrum as spectrum
    from induction_memory.probes.why import reasons as reasons

_WHERE, __getattr__, __dir__ = lazily(__name__, __file__)
