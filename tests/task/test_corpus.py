import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyses.count_corpus import count, to_json
from induction_memory.errors import InputError
from induction_memory.task import Corpus, load_corpus


def test_counts_of_a_short_text_can_be_read_off():
    corpus = Corpus.from_text("abracadabra")
    assert corpus.vocabulary == ("a", "b", "c", "d", "r")
    assert corpus.unigram_counts.tolist() == [5, 2, 1, 1, 2]
    assert corpus.bigram_counts[0].tolist() == [0, 2, 1, 1, 0]  # ab ab ac ad
    assert corpus.unigram[0] == 5 / 11
    assert corpus.bigram[0].tolist() == [0, 0.5, 0.25, 0.25, 0]


@given(st.text(st.sampled_from("abcd \n"), min_size=1, max_size=50))
def test_tables_equal_a_count_by_hand_and_are_probabilities(text: str):
    corpus = Corpus.from_text(text)
    for i, a in enumerate(corpus.vocabulary):
        assert corpus.unigram_counts[i] == text.count(a)
        for j, b in enumerate(corpus.vocabulary):
            assert corpus.bigram_counts[i, j] == sum(pair == (a, b) for pair in pairwise(text))
    np.testing.assert_allclose(corpus.unigram.sum(), 1, atol=1e-12)
    np.testing.assert_allclose(corpus.bigram.sum(1), 1, atol=1e-12)
    assert corpus.decode(corpus.encode(text)) == text


def test_a_token_that_only_ends_the_text_is_followed_by_the_unigram_distribution():
    corpus = Corpus.from_text("aaab")
    assert corpus.bigram[1].tolist() == corpus.unigram.tolist() == [0.75, 0.25]


def test_tokens_of_ones_own_iterable_are_counted_like_characters():
    corpus = Corpus.from_tokens(iter(["the", "cat", "the", "dog"]))
    assert corpus.vocabulary == ("cat", "dog", "the")
    assert corpus.bigram_counts.tolist() == [[0, 0, 1], [0, 0, 0], [1, 1, 0]]
    assert corpus.encode(["dog", "the"]).tolist() == [1, 2]


def test_tiny_shakespeare_ships_with_the_counts_of_its_text():
    corpus = load_corpus("tinyshakespeare")
    assert corpus.size == 65
    assert list(corpus.vocabulary) == sorted(corpus.vocabulary)
    assert corpus.unigram_counts.sum() == 1_115_394
    assert corpus.bigram_counts.sum() == 1_115_393
    assert corpus.vocabulary[int(corpus.unigram_counts.argmax())] == " "
    # Every character but the last one is followed by another, every one but the first is preceded.
    assert (corpus.unigram_counts - corpus.bigram_counts.sum(1)).sum() == 1
    assert (corpus.unigram_counts - corpus.bigram_counts.sum(0)).sum() == 1


def test_the_counting_script_writes_what_loads_again_and_refuses_another_text_of_that_name():
    corpus = count(b"to be or not", "mine")
    assert Corpus.from_dict(json.loads(to_json(corpus))) == corpus
    with pytest.raises(InputError, match="sha256"):
        count(b"to be or not", "tinyshakespeare")


def test_a_text_file_works_as_a_corpus(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_bytes("äb\r\näb".encode())
    corpus = load_corpus(str(path))
    assert corpus == load_corpus(path)
    assert corpus.name == "mine"
    assert corpus.vocabulary == ("\n", "\r", "b", "ä")


def test_bad_corpora_are_refused_in_one_line_that_says_what_is_allowed(tmp_path):
    empty, binary = tmp_path / "empty.txt", tmp_path / "binary.txt"
    empty.write_bytes(b"")
    binary.write_bytes(b"\xff\xfe\x00")
    one, square = np.ones(2, dtype=int), np.ones((2, 2), dtype=int)
    cases = [
        (lambda: Corpus.from_text(""), "corpus: expected a text of at least one token, got an empty one"),
        (lambda: load_corpus(empty), "corpus: expected a text of at least one character, got the empty file"),
        (lambda: load_corpus(binary), "corpus: expected UTF-8 text, got"),
        (lambda: load_corpus("tinyshakspeare"), "corpus: expected 'tinyshakespeare' or the path of a text file, got"),
        (lambda: load_corpus(tmp_path), "corpus: expected 'tinyshakespeare' or the path of a text file, got"),
        (lambda: Corpus("x", ("a", "a"), one, square), "corpus.vocabulary: expected each token once, got ['a'] twice"),
        (lambda: Corpus("x", (), one[:0], square[:0, :0]), "corpus.vocabulary: expected at least one token"),
        (lambda: Corpus("x", ("a",), one, square), "corpus.unigram_counts: expected shape (1,) (the vocabulary)"),
        (lambda: Corpus("x", ("a", "b"), one, -square), "corpus.bigram_counts: expected finite counts of 0 or more"),
        (lambda: Corpus("x", ("a", "b"), 0 * one, square), "corpus.unigram_counts: expected a positive sum, got 0"),
        (lambda: Corpus.from_dict({"name": "x"}), "corpus: expected exactly the keys"),
        (lambda: Corpus.from_text("ab").encode("abc"), "text: expected tokens of the vocabulary 'ab', got 'c'"),
        (lambda: Corpus.from_text("ab").decode([2]), "ids: expected 0 to 1 (the vocabulary), got 2"),
    ]
    for make, message in cases:
        with pytest.raises(InputError) as error:
            make()
        assert str(error.value).startswith(message)
        assert "\n" not in str(error.value)


def test_tables_cannot_be_written_to_and_equal_corpora_are_equal():
    given = np.array([2, 2])
    corpus = Corpus("ab", ("a", "b"), given, np.array([[0, 2], [1, 0]]))
    given[0] = 7
    assert corpus == Corpus.from_text("abab", "ab")
    assert hash(corpus) == hash(Corpus.from_text("abab", "ab"))
    assert corpus != Corpus.from_text("abab", "other")
    for table in (corpus.unigram_counts, corpus.bigram_counts, corpus.unigram, corpus.bigram):
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 0


def test_the_task_package_and_its_config_need_no_torch():
    code = "import sys, induction_memory as im; im.BigramTask(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
