"""Tasks: what a sequence is, which positions count, and what an ideal predictor says."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.task.batch import Batch as Batch
    from induction_memory.task.bayes import optimal_scores as optimal_scores
    from induction_memory.task.bayes import predict as predict
    from induction_memory.task.causal import CausalGraph as CausalGraph
    from induction_memory.task.copying import Copying as Copying
    from induction_memory.task.corpus import Corpus as Corpus
    from induction_memory.task.corpus import load_corpus as load_corpus
    from induction_memory.task.corruptions import corrupt as corrupt
    from induction_memory.task.factual_recall import FactualRecall as FactualRecall
    from induction_memory.task.markov import MarkovChains as MarkovChains
    from induction_memory.task.noisy import NoisyTriggers as NoisyTriggers
    from induction_memory.task.protocol import Ideal as Ideal
    from induction_memory.task.protocol import NotOfferedError as NotOfferedError
    from induction_memory.task.protocol import Task as Task
    from induction_memory.task.protocol import ask as ask
    from induction_memory.task.protocol import from_dict as from_dict
    from induction_memory.task.protocol import register as register
    from induction_memory.task.protocol import to_dict as to_dict
    from induction_memory.task.sampler import from_text as from_text
    from induction_memory.task.sampler import make_batch as make_batch
    from induction_memory.task.sampler import step_rng as step_rng

_WHERE, __getattr__, __dir__ = lazily(__name__, __file__)
