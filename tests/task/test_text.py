import pytest

from induction_memory.errors import InputError
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.corpus import Corpus, encode, split
from induction_memory.task.sampler import from_text

VOCABULARIES = {
    "characters": (("a", "b", " "), "ab a", ["a", "b", " ", "a"]),
    "words": (("cat", "the", "a"), "the  cat\na", ["the", "cat", "a"]),
    "words and spaces": (("cat", "the", " "), "the cat", ["the", " ", "cat"]),
    "words that begin with a space": (("the", " the", " cat"), "the cat the", ["the", " cat", " the"]),
    "the longest name": (("a", "ab", "abc", " "), "abcab a", ["abc", "ab", " ", "a"]),
}


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_a_text_is_split_as_the_vocabulary_is_written(kind):
    names, text, tokens = VOCABULARIES[kind]
    assert split(text, names) == tokens
    assert [names[number] for number in encode(text, names)] == tokens


def test_a_token_that_has_no_name_is_refused():
    with pytest.raises(InputError, match="text: expected tokens of the vocabulary 'ab', got 'c'"):
        encode("abc", ("a", "b"))
    with pytest.raises(InputError, match=r"prompt: expected tokens of the vocabulary \('cat', 'the'\), got 'dog'"):
        encode("the dog", ("cat", "the"), "prompt")
    with pytest.raises(InputError, match="got 'd'"):
        encode("the dog", ("the", " "))


def test_a_corpus_of_words_reads_back_what_it_wrote():
    corpus = Corpus.from_tokens(["the", "cat", "saw", "the", "dog", "and", "the", "dog", "saw", "the", "cat"])
    numbers = corpus.encode("the dog saw")
    assert corpus.decode(numbers) == "the dog saw"
    batch = from_text(BigramTask(corpus, k=1, length=8), "the dog saw")
    assert batch.tokens.tolist() == [numbers[:-1].tolist()]
    assert batch.targets.tolist() == [numbers[1:].tolist()]
