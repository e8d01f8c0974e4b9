"""Hypothesis strategies over the task's whole configuration space, on small vocabularies.

The strategies draw plain values and the tests make tasks of them: run-time type checks use `random`, which Hypothesis
does not allow while it draws.
"""

from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from induction_memory import BigramTask
from induction_memory.errors import InputError
from induction_memory.task import Corpus


@st.composite
def corpora(draw: st.DrawFn, max_size: int = 8) -> dict[str, Any]:
    """Tables of every size down to one token, with tokens that never occur and tokens without successors."""
    size = draw(st.integers(1, max_size))
    alphabet = "abcdefghijklmnopqrstuvwxyz"[:size]
    counts = st.integers(0, 4)
    unigram = draw(st.lists(counts, min_size=size, max_size=size).filter(any))
    bigram = draw(st.lists(counts, min_size=size * size, max_size=size * size))
    rows = [bigram[i * size : (i + 1) * size] for i in range(size)]
    return {"name": "given", "vocabulary": list(alphabet), "unigram_counts": unigram, "bigram_counts": rows}


def probabilities(size: int) -> st.SearchStrategy[tuple[float, ...]]:
    """Distributions over `size` tokens, some of their entries zero."""
    weights = st.lists(st.integers(0, 5), min_size=size, max_size=size).filter(any)
    return weights.map(lambda w: tuple(x / sum(w) for x in w))


@st.composite
def task_fields(draw: st.DrawFn, max_size: int = 8) -> dict[str, Any]:
    """Fields of a task that are sound each by itself; together they may still leave a trigger without output."""
    corpus = draw(corpora(max_size))
    n = len(corpus["vocabulary"])
    fields: dict[str, Any] = {"corpus": corpus, "length": draw(st.integers(1, 40)), "k": draw(st.integers(1, n))}
    row = probabilities(n)
    nested = st.lists(row, min_size=n, max_size=n).map(tuple)
    fields["outputs"] = draw(st.one_of(st.sampled_from(["uniform", "bigram"]), row, nested))
    fields["outputs_differ"] = draw(st.booleans())
    fields["output_part"] = draw(st.sampled_from(["all", "train", "test"]))
    fields["output_train_fraction"] = draw(st.sampled_from([0.3, 0.5, 0.7]))
    fields["output_split_seed"] = draw(st.integers(0, 3))
    fields["triggers"] = draw(st.sampled_from(["random", "fixed"]))
    if fields["triggers"] == "random":
        fields["trigger_distribution"] = draw(st.one_of(st.sampled_from(["unigram", "uniform"]), row))
    elif draw(st.booleans()):
        fields["trigger_offset"] = draw(st.integers(0, n - fields["k"]))
    else:
        fields["trigger_characters"] = tuple(draw(st.permutations(corpus["vocabulary"])))[: fields["k"]]
    return fields


def make_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with their corpus made."""
    return {**fields, "corpus": Corpus.from_dict(fields["corpus"])}


def make(fields: dict[str, Any]) -> BigramTask:
    """The task of these fields, or another example where they contradict each other."""
    try:
        return BigramTask(**make_fields(fields))
    except InputError:
        reject()
