"""Probes: a model, a trajectory or stacked weights -> named scores in tidy tables, for all steps at once."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.probes.atlas import births as births
    from induction_memory.probes.atlas import score_matrix as score_matrix
    from induction_memory.probes.atlas import trends as trends
    from induction_memory.probes.between import recall_between as recall_between
    from induction_memory.probes.catalogue import PATTERNS as PATTERNS
    from induction_memory.probes.catalogue import names as names
    from induction_memory.probes.emergence import birth_order as birth_order
    from induction_memory.probes.emergence import change_points as change_points
    from induction_memory.probes.emergence import lead_lag as lead_lag
    from induction_memory.probes.langevin import Sampling as Sampling
    from induction_memory.probes.langevin import calibrate as calibrate
    from induction_memory.probes.langevin import learning_coefficient as learning_coefficient
    from induction_memory.probes.predictor_distance import predictor_distances as predictor_distances
    from induction_memory.probes.predictor_distance import predictor_mixture as predictor_mixture
    from induction_memory.probes.predictor_distance import predictor_phases as predictor_phases
    from induction_memory.probes.preferring import arbitration as arbitration
    from induction_memory.probes.series_langevin import series_coefficient as series_coefficient
    from induction_memory.probes.standard_scores import head_scores as head_scores
    from induction_memory.probes.tidy import recall as recall
    from induction_memory.probes.tidy import table as table
    from induction_memory.probes.tidy import wide as wide
    from induction_memory.probes.token_circuits import token_recall as token_recall
    from induction_memory.probes.weight_size import spectrum as spectrum

_WHERE = {
    "arbitration": "preferring",
    "births": "atlas",
    "score_matrix": "atlas",
    "trends": "atlas",
    "head_scores": "standard_scores",
    "recall_between": "between",
    "birth_order": "emergence",
    "change_points": "emergence",
    "lead_lag": "emergence",
    "learning_coefficient": "langevin",
    "calibrate": "langevin",
    "Sampling": "langevin",
    "series_coefficient": "series_langevin",
    "names": "catalogue",
    "PATTERNS": "catalogue",
    "recall": "tidy",
    "table": "tidy",
    "wide": "tidy",
    "predictor_distances": "predictor_distance",
    "predictor_mixture": "predictor_distance",
    "predictor_phases": "predictor_distance",
    "spectrum": "weight_size",
    "token_recall": "token_circuits",
}

__getattr__, __dir__ = lazily(__name__, _WHERE)
