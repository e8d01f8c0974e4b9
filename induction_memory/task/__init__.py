"""The in-context bigram task: corpus tables, the task, its sampler and its Bayes-optimal predictor.

Names are resolved when first used, so that a config needs no torch.
"""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.task.bayes import OptimalScores as OptimalScores
    from induction_memory.task.bayes import Prediction as Prediction
    from induction_memory.task.bayes import optimal_scores as optimal_scores
    from induction_memory.task.bayes import predict as predict
    from induction_memory.task.bigrams import BigramTask as BigramTask
    from induction_memory.task.corpus import Corpus as Corpus
    from induction_memory.task.corpus import load_corpus as load_corpus
    from induction_memory.task.sampler import Batch as Batch
    from induction_memory.task.sampler import from_text as from_text
    from induction_memory.task.sampler import make_batch as make_batch
    from induction_memory.task.sampler import sample as sample
    from induction_memory.task.sampler import step_rng as step_rng

_WHERE = {
    "Corpus": "corpus",
    "load_corpus": "corpus",
    "BigramTask": "bigrams",
    "Batch": "sampler",
    "from_text": "sampler",
    "make_batch": "sampler",
    "sample": "sampler",
    "step_rng": "sampler",
    "OptimalScores": "bayes",
    "Prediction": "bayes",
    "optimal_scores": "bayes",
    "predict": "bayes",
}

__getattr__, __dir__ = lazily(__name__, _WHERE)
