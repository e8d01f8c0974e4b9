"""Arbitration between context and global bigrams, against loops over single positions."""

import math

import numpy as np
import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.experiment.presets import preset
from induction_memory.model.config import ModelConfig
from induction_memory.model.constructed import construct
from induction_memory.probes.arbitrating import AT_TRIGGERS, QUESTIONS, arbitration, last_successor, rank, share
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.sampler import sample, step_rng

TASK = BigramTask(length=48, k=2)


@pytest.fixture(scope="module")
def batch():
    return sample(TASK, 12, step_rng(0, 0))


@pytest.fixture(scope="module")
def induction_head():
    return construct(TASK, ModelConfig(d_model=512, n_ctx=48, feed_forward="none"))


def slow(model, task, batch, question, low, high):
    """Hits, positions and bigram hits, one position after the other."""
    predicted = model(batch.tokens).argmax(-1).tolist()
    found = []
    for b, tokens in enumerate(batch.tokens.tolist()):
        for t, token in enumerate(tokens):
            followers = [tokens[s + 1] for s in range(t) if tokens[s] == token]
            count = batch.counts[b, t].item()
            if question in AT_TRIGGERS:
                wanted = batch.targets[b, t].item()
                asked = {"second occurrence": count == 2, "later occurrences": count > 2}.get(question, count >= 2)
            else:
                distinct = len(set(followers))
                asked = count == 0 and (distinct == 1 if question == "copying" else distinct > 1)
                wanted = followers[-1] if followers else 0
            row = task.bigram[token]
            place = sum(other > row[wanted] for other in row)
            if asked and low <= place <= high:
                found.append((b, predicted[b][t] == wanted, int(np.argmax(row)) == wanted))
    return found


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(("label", "low", "high"), [("0", 0, 0), ("1 to 2", 1, 2), ("3 or more", 3, 99)])
def test_each_row_counts_its_positions_one_by_one(induction_head, batch, question, label, low, high):
    table = arbitration(induction_head, batch=batch, task=TASK).set_index(["question", "rank"])
    row, found = table.loc[(question, label)], slow(induction_head, TASK, batch, question, low, high)
    assert row["positions"] == len(found)
    if found:
        assert row["value"] == pytest.approx(np.mean([hit for _, hit, _ in found]))
        assert row["by_bigrams"] == pytest.approx(np.mean([hit for _, _, hit in found]))


def test_a_pure_induction_head_copies_whatever_the_bigrams_say(induction_head):
    table = arbitration(induction_head, task=TASK, sequences=64).set_index(["question", "rank"])
    assert table.loc[("in-context accuracy", "3 or more"), "value"] > 0.9
    assert table.loc[("copying", "3 or more"), "value"] > 0.9


def test_a_model_of_bigrams_alone_copies_its_likeliest_bigram_only():
    model = construct(TASK, leave_out=("W_K1", "W_K2", "W_O2"))
    with torch.no_grad():
        logits = torch.tensor(np.log(TASK.bigram + 1e-9)).float()
        model.pos_embed.W_pos.zero_()
        model.blocks[0].attn.W_O.zero_()
        wanted = torch.linalg.pinv(model.W_E) @ logits @ torch.linalg.pinv(model.W_U)
        model.blocks[1].mlp.W_F.copy_(wanted - torch.eye(len(wanted)))  # the residual stream adds w_E itself
    table = arbitration(model, task=TASK, sequences=32).set_index(["question", "rank"])
    for question in ("copying", "copying, ambiguous"):
        assert table.loc[(question, "0"), "value"] > 0.9
        assert table.loc[(question, "3 or more"), "value"] < 0.1


def test_the_error_is_that_of_a_ratio_over_sequences():
    hits = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 1]], dtype=torch.bool)
    where = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 0, 1]], dtype=torch.bool)
    value, error = share(hits, where)
    n, h = [3, 1, 2], [2, 0, 2]
    p = sum(h) / sum(n)
    expected = math.sqrt(sum((a - p * b) ** 2 for a, b in zip(h, n, strict=True)) * 3 / 2) / sum(n)
    assert (value, error) == (pytest.approx(p), pytest.approx(expected))
    assert all(math.isnan(x) for x in share(hits, torch.zeros_like(where)))


def test_the_last_successor_and_the_rank_are_those_of_a_loop():
    tokens = torch.tensor([[3, 1, 3, 2, 3, 3, 1]])
    assert last_successor(tokens).tolist() == [[0, 0, 1, 0, 2, 3, 3]]
    bigram = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [1.0, 0.0, 0.0]])
    assert rank(bigram, torch.tensor([[0, 1, 2]]), torch.tensor([[2, 0, 1]])).tolist() == [[2, 1, 1]]


def test_a_task_without_global_bigrams_is_refused(induction_head):
    other = preset("copying-any").config.task
    with pytest.raises(InputError, match="task: expected a task with a table of global bigrams"):
        arbitration(induction_head, task=other)
