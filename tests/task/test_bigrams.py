import json
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from induction_memory import BigramTask
from induction_memory.errors import InputError
from induction_memory.task import Corpus
from tests.random_tasks import make, make_fields, task_fields

ABC = Corpus.from_text("aababcabcd")  # a 4, b 3, c 2, d 1; aa ab ba ab bc ca ab bc cd


def fixed_characters(task: BigramTask) -> str:
    assert task.fixed_triggers is not None
    return task.tables.decode(task.fixed_triggers)


def test_the_default_is_the_papers_task():
    task = BigramTask()
    assert (task.vocab_size, task.length, task.k) == (65, 256, 5)
    assert task.fixed_triggers is None
    np.testing.assert_array_equal(task.trigger_probabilities, task.unigram)
    np.testing.assert_allclose(task.output_probabilities, 1 / 65)


def test_fixed_triggers_are_the_most_frequent_tokens_after_the_offset():
    frequent = BigramTask(triggers="fixed", k=5)
    assert fixed_characters(frequent) == " etoa"
    rarer = BigramTask(triggers="fixed", k=5, trigger_offset=5)
    assert fixed_characters(rarer) == "hsrni"


def test_equally_frequent_triggers_are_taken_in_the_order_of_the_vocabulary():
    task = BigramTask(Corpus.from_text("dcba"), triggers="fixed", k=2, trigger_offset=1)
    assert fixed_characters(task) == "bc"


def test_fixed_triggers_may_be_given_by_character():
    task = BigramTask(triggers="fixed", k=2, trigger_characters=("t", "a"))
    assert fixed_characters(task) == "ta"
    assert task.trigger_probabilities[task.fixed_triggers].tolist() == [0.5, 0.5]


def test_arrays_lists_and_strings_serve_as_tuples(unchecked):
    fields: dict[str, Any] = {"trigger_characters": "ta", "outputs": np.full(65, 1 / 65)}
    task = BigramTask(triggers="fixed", k=2, **fields)
    assert task.trigger_characters == ("t", "a")
    assert task.outputs == (1 / 65,) * 65
    assert BigramTask.from_dict(json.loads(json.dumps(task.to_dict()))) == task


def test_outputs_follow_the_chosen_distribution():
    rows = ((0.1, 0.2, 0.3, 0.4), (1.0, 0.0, 0.0, 0.0), (0.0, 0.5, 0.5, 0.0), (0.25, 0.25, 0.25, 0.25))
    np.testing.assert_allclose(BigramTask(ABC, k=1, outputs="bigram").output_probabilities, ABC.bigram)
    np.testing.assert_allclose(BigramTask(ABC, k=1, outputs=rows).output_probabilities, rows)
    np.testing.assert_allclose(BigramTask(ABC, k=1, outputs=rows[0]).output_probabilities, [rows[0]] * 4)


def test_outputs_that_differ_from_the_trigger_share_the_rest_in_proportion():
    task = BigramTask(ABC, k=1, outputs=(0.1, 0.2, 0.3, 0.4), outputs_differ=True)
    np.testing.assert_allclose(task.output_probabilities[3], [1 / 6, 2 / 6, 3 / 6, 0])
    assert (np.diag(task.output_probabilities) == 0).all()


def test_train_and_test_outputs_split_the_vocabulary():
    parts = [BigramTask(output_part=part, output_train_fraction=0.8) for part in ("train", "test")]
    train, test = (task.output_probabilities for task in parts)
    assert ((train[0] > 0) ^ (test[0] > 0)).all()
    assert (train[0] > 0).sum() == 52
    np.testing.assert_allclose(train.sum(1), 1)
    np.testing.assert_allclose(test.sum(1), 1)
    again = BigramTask(output_part="train", output_train_fraction=0.8)
    other = BigramTask(output_part="train", output_train_fraction=0.8, output_split_seed=1)
    np.testing.assert_array_equal(parts[0].output_tokens, again.output_tokens)
    assert (other.output_tokens != again.output_tokens).any()


def test_a_token_that_can_be_no_trigger_may_be_left_without_outputs():
    corpus, only_a, always_b = Corpus.from_text("aab"), (1.0, 0.0), (0.0, 1.0)
    task = BigramTask(corpus, k=1, trigger_distribution=only_a, outputs=always_b, outputs_differ=True)
    assert task.output_probabilities.tolist() == [[0, 1], [0, 0]]


def test_a_text_file_is_read_when_the_task_is_made(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text("aababcabcd")
    task = BigramTask(corpus=str(path), k=2)
    path.unlink()
    assert task.vocabulary == ("a", "b", "c", "d")
    assert BigramTask.from_dict(json.loads(json.dumps(task.to_dict()))) == task


@given(task_fields())
def test_every_task_survives_json_and_has_probabilities_for_tables(fields: dict[str, Any]):
    task = make(fields)
    again = BigramTask.from_dict(json.loads(json.dumps(task.to_dict())))
    assert again == task
    assert hash(again) == hash(task)
    possible = task.trigger_probabilities > 0
    assert possible.sum() >= task.k
    np.testing.assert_allclose(task.trigger_probabilities.sum(), 1, atol=1e-9)
    pi_o = task.output_probabilities
    np.testing.assert_allclose(pi_o[possible].sum(1), 1, atol=1e-9)
    assert (pi_o[:, ~task.output_tokens] == 0).all()
    assert not task.outputs_differ or (np.diag(pi_o) == 0).all()


@given(task_fields())
def test_fields_either_make_a_task_or_a_one_line_error(fields: dict[str, Any]):
    message = ""
    try:
        BigramTask(**make_fields(fields))
    except InputError as error:
        message = str(error)
    assert message == "" or message.startswith("task.")
    assert "\n" not in message


def test_a_task_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        BigramTask().k = 3  # pyright: ignore[reportAttributeAccessIssue]


FOUR = (0.25, 0.25, 0.25, 0.25)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"corpus": "tinyshakespeare", "k": 80}, "task.k: expected 1 to 65 triggers (the vocabulary), got 80"),
        ({"k": 0}, "task.k: expected 1 to 4 triggers (the vocabulary), got 0"),
        ({"k": 2.0}, "task.k: expected 1 to 4 triggers (the vocabulary), got 2.0"),
        ({"length": 0}, "task.length: expected 1 to 1000000 tokens, got 0"),
        ({"corpus": "missing.txt"}, "task.corpus: expected 'tinyshakespeare' or the path of a text file, got 'miss"),
        ({"triggers": "some"}, "task.triggers: expected 'random' or 'fixed', got 'some'"),
        (
            {"trigger_distribution": "zipf"},
            "task.trigger_distribution: expected 'unigram', 'uniform' or a list, got 'zipf'",
        ),
        (
            {"trigger_distribution": (0.5, 0.5)},
            "task.trigger_distribution: expected shape (4,) (the vocabulary), got (2,)",
        ),
        (
            {"trigger_distribution": (0.5, 0.5, 0.5, 0)},
            "task.trigger_distribution: expected probabilities that sum to 1, got a sum of 1.5",
        ),
        (
            {"trigger_distribution": (1.5, -0.5, 0, 0)},
            "task.trigger_distribution: expected probabilities of 0 or more, got -0.5",
        ),
        (
            {"trigger_distribution": (1, 0, 0, 0)},
            "task.trigger_distribution: expected at least 2 tokens of positive probability (task.k), got 1",
        ),
        ({"trigger_distribution": ("a",) * 4}, "task.trigger_distribution: expected 'unigram', 'uniform' or a list"),
        ({"trigger_offset": 1}, "task.trigger_offset: expected none with random triggers (task.triggers), got 1"),
        (
            {"triggers": "fixed", "trigger_offset": 3},
            "task.trigger_offset: expected 0 to 2 (the vocabulary less task.k), got 3",
        ),
        (
            {"triggers": "fixed", "trigger_distribution": "uniform"},
            "task.trigger_distribution: expected the default 'unigram' with fixed triggers (task.triggers), got 'u",
        ),
        (
            {"trigger_characters": ("a", "b")},
            "task.trigger_characters: expected none with random triggers (task.triggers), got ('a', 'b')",
        ),
        (
            {"triggers": "fixed", "trigger_characters": ("a", "z")},
            "task.trigger_characters: expected tokens of the vocabulary 'abcd', got 'z'",
        ),
        (
            {"triggers": "fixed", "trigger_characters": ("a", "a")},
            "task.trigger_characters: expected 2 different ones (task.k), got ('a', 'a')",
        ),
        (
            {"triggers": "fixed", "trigger_characters": ("a",)},
            "task.trigger_characters: expected 2 different ones (task.k), got ('a',)",
        ),
        (
            {"triggers": "fixed", "trigger_characters": ("a", "b"), "trigger_offset": 1},
            "task.trigger_offset: expected 0 with trigger_characters, got 1",
        ),
        ({"outputs": "trigram"}, "task.outputs: expected 'uniform', 'bigram' or a list, got 'trigram'"),
        ({"outputs": (1.0,)}, "task.outputs: expected shape (4,) (the vocabulary), got (1,)"),
        ({"outputs": ()}, "task.outputs: expected shape (4,) (the vocabulary), got (0,)"),
        ({"outputs": (FOUR, FOUR)}, "task.outputs: expected shape (4, 4) (the vocabulary), got (2, 4)"),
        ({"outputs": (FOUR, FOUR, FOUR, (1,))}, "task.outputs: expected numbers of shape (4, 4) (the vocabulary), got"),
        (
            {"outputs": (1, 0, 0, 0), "outputs_differ": True},
            "task.outputs: expected some output for every possible trigger, got none for 'a' under task.outputs_differ",
        ),
        (
            {"outputs": "bigram", "output_part": "train", "output_train_fraction": 0.25},
            "task.outputs: expected some output for every possible trigger, got none for 'a' under "
            "task.output_part='train'",
        ),
        ({"outputs_differ": "yes"}, "task.outputs_differ: expected true or false, got 'yes'"),
        ({"output_part": "dev"}, "task.output_part: expected 'all', 'train' or 'test', got 'dev'"),
        ({"output_train_fraction": 1.0}, "task.output_train_fraction: expected a number between 0 and 1, got 1.0"),
        (
            {"output_part": "train", "output_train_fraction": 0.01},
            "task.output_train_fraction: expected a share of the 4 tokens that leaves some to both parts, got 0.01",
        ),
        ({"output_split_seed": -1}, "task.output_split_seed: expected a whole number of 0 or more, got -1"),
    ],
)
def test_bad_fields_are_refused_in_one_line_with_the_value_and_what_is_allowed(fields, message, unchecked):
    with pytest.raises(InputError) as error:
        BigramTask(**{"corpus": ABC, "k": 2, **fields})
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_unknown_keys_are_refused():
    with pytest.raises(InputError, match=r"task\.K: expected one of corpus, length, k, .*, got 'K'"):
        BigramTask.from_dict({"K": 3})
