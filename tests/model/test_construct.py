import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.memory import matching, recall
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.model.constructed import Scales, construct
from induction_memory.model.memories import embedding, matrix
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.ideals import bigram_logits
from induction_memory.task.sampler import sample, step_rng

TASK = BigramTask(k=5, triggers="fixed")
NO_FEED_FORWARD = ModelConfig.simplified(d_model=512, feed_forward="none")


def in_context_accuracy(model, batch) -> tuple[float, float]:
    """Over all sequences, and leaving out those that begin with a trigger (a false match at position 1)."""
    with torch.no_grad():
        correct = model(batch.tokens).argmax(-1) == batch.targets
    later = ~(batch.tokens[:, :1] == batch.triggers).any(-1)
    return correct[batch.in_context].float().mean().item(), correct[later][
        batch.in_context[later]
    ].float().mean().item()


def recalls(model) -> dict[str, float]:
    p, w_E, w_U = (embedding(model, n) for n in ("p", "w_E", "w_U"))
    Q = torch.tensor(sorted(TASK.fixed_triggers.tolist()))
    return {
        "W_K1": recall(matching(matrix(model, "W_K1"), p[:-1], p, torch.arange(1, 256))).item(),
        "W_K2": recall(matching(matrix(model, "W_K2"), embedding(model, "Phi_1 w_E")[Q], w_E, Q)).item(),
        "W_O2": recall(matching(matrix(model, "W_O2"), embedding(model, "W_V2 w_E"), w_U)).item(),
    }


@pytest.fixture(scope="module")
def batch():
    return sample(TASK, 128, step_rng(0, 0))


@pytest.mark.slow
def test_the_construction_solves_the_task_with_perfect_recall(batch):
    model = construct(TASK, NO_FEED_FORWARD)
    assert recalls(model) == {"W_K1": 1, "W_K2": 1, "W_O2": 1}
    accuracy, without_false_matches = in_context_accuracy(model, batch)
    assert accuracy >= 0.98
    assert without_false_matches > 0.995


def test_a_stored_pair_scores_its_scale_in_every_parametrisation():
    for parametrisation in ("code", "text", "unit-embeddings"):
        model = construct(
            TASK,
            NO_FEED_FORWARD.replace(parametrisation=parametrisation, scale_scores=False),
            scales=Scales(W_K1=7.0, W_K2=5.0, W_O2=3.0),
        )
        p = embedding(model, "p")
        stored = matching(matrix(model, "W_K1"), p[:-1], p[1:]).scores.diagonal()
        assert stored.mean().item() == pytest.approx(7, rel=0.02)
        copied = matching(
            matrix(model, "W_O2"), embedding(model, "W_V2 w_E"), embedding(model, "w_U")
        ).scores.diagonal()
        assert copied.mean().item() == pytest.approx(3, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["W_K1", "W_K2", "W_O2"])
def test_without_one_memory_or_with_shuffled_pairs_it_fails(name, batch):
    config = NO_FEED_FORWARD.replace(d_model=256)
    intact, _ = in_context_accuracy(construct(TASK, config), batch[:32])
    missing = construct(TASK, config, leave_out=(name,))
    shuffled = construct(TASK, config, shuffle=(name,))
    assert recalls(missing)[name] == 0
    assert recalls(shuffled)[name] == 0
    for model in (missing, shuffled):
        accuracy, _ = in_context_accuracy(model, batch[:32])
        assert accuracy < intact - 0.4  # a bag of words alone guesses the commonest token, often an output: near 0.5


def test_random_weights_recall_nothing(batch):
    model = build(NO_FEED_FORWARD)
    assert all(value < 0.1 for value in recalls(model).values())
    assert in_context_accuracy(model, batch[:32])[0] < 0.1


def test_the_feed_forward_stores_the_global_bigrams_without_the_fixed_triggers():
    model = construct(TASK, ModelConfig.simplified(d_model=512), scales=Scales(W_F=1.0))
    s = matching(matrix(model, "W_F"), embedding(model, "w_E"), embedding(model, "w_U")).scores.T
    target = torch.tensor(bigram_logits(TASK.bigram, TASK.fixed_triggers, Scales().smoothing)).float()
    assert torch.corrcoef(torch.stack([s.flatten(), target.flatten()]))[0, 1] > 0.8
    assert not target[torch.tensor(TASK.fixed_triggers)].any()
    assert target[0].exp().div(target[0].exp().sum()) == pytest.approx(
        (torch.tensor(TASK.bigram[0]) + 0.01).div((torch.tensor(TASK.bigram[0]) + 0.01).sum()), abs=1e-6
    )


@pytest.mark.hard
def test_with_the_feed_forward_it_still_solves_the_task_at_high_dimension():
    model = construct(TASK, ModelConfig.simplified(d_model=2048))
    assert in_context_accuracy(model, sample(TASK, 64, step_rng(0, 0)))[0] >= 0.97


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: construct(TASK, ModelConfig.full()), "model: expected the simplified architecture"),
        (lambda: construct(TASK, ModelConfig(d_vocab=9)), "model.d_vocab: expected 65 (the task's), got 9"),
        (lambda: construct(TASK, NO_FEED_FORWARD, leave_out=("W_F",)), "construct: expected memories out of W_K1"),
    ],
)
def test_what_cannot_be_constructed_is_refused(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value).startswith(message)
