import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.interventions.associations import association
from induction_memory.interventions.edits import pair_scores, project, set_scores, truncate
from induction_memory.interventions.surgery import edited, surgery
from induction_memory.model.build import build
from induction_memory.model.config import ModelConfig
from induction_memory.model.construct import construct
from induction_memory.model.memories import embedding, memory
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.sampler import sample, step_rng

TASK = BigramTask(k=5, triggers="fixed", length=48, outputs_differ=True)
CONFIG = ModelConfig.simplified(d_model=256, n_ctx=48, feed_forward="none")


def random_pairs(n=4, d=16, heads=2):
    generator = torch.Generator().manual_seed(0)
    W, u, v = (torch.randn(shape, generator=generator) for shape in ((heads, d, d), (heads, n, d), (heads, n, d)))
    return W, u, v


@pytest.fixture(scope="module")
def model():
    return construct(TASK, CONFIG)


@pytest.fixture(scope="module")
def batch():
    return sample(TASK, 48, step_rng(0, 0))


def damage(table):
    return table.set_index("group")["damage"].to_dict()


def test_one_pair_is_set_by_the_rank_one_edit_written_by_hand():
    W, u, v = random_pairs(n=1, heads=1)
    missing = 3 - v[0, 0] @ W[0] @ u[0, 0]
    by_hand = W[0] + missing * torch.outer(v[0, 0], u[0, 0]) / (v.square().sum() * u.square().sum())
    torch.testing.assert_close(set_scores(W, u, v, torch.full((1, 1), 3.0))[0], by_hand, atol=1e-5, rtol=1e-5)


def test_every_pair_gets_its_score_and_the_change_is_the_smallest():
    W, u, v = random_pairs()
    wanted = torch.tensor([[0.0, 1, 2, 3], [4, 5, 6, 7]])
    new = set_scores(W, u, v, wanted)
    torch.testing.assert_close(pair_scores(new, u, v), wanted, atol=1e-3, rtol=1e-4)
    change = (new - W)[0]
    generator = torch.Generator().manual_seed(1)
    other = torch.randn(16, 16, generator=generator)
    tangent = project(other[None], u[:1], v[:1], complement=True)[0]  # moves no score
    assert (change * tangent).sum().abs() < 1e-3  # so the change has nothing of it


def test_projections_add_up_and_the_ideal_memory_is_its_own():
    W, u, v = random_pairs()
    inside, outside = project(W, u, v), project(W, u, v, complement=True)
    torch.testing.assert_close(inside + outside, W)
    torch.testing.assert_close(pair_scores(outside, u, v), torch.zeros(2, 4), atol=1e-3, rtol=0)
    ideal = v.mT @ u
    torch.testing.assert_close(project(ideal, u, v), ideal, atol=1e-3, rtol=1e-3)


def test_truncation_keeps_the_largest_singular_values():
    W, _, _ = random_pairs()
    assert torch.linalg.matrix_rank(truncate(W, 3)).tolist() == [3, 3]
    torch.testing.assert_close(truncate(W, 16), W, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["W_K1", "W_K2", "W_O2"])
def test_with_identity_queries_a_memory_is_the_papers(model, name):
    place = association(model, name, TASK)
    torch.testing.assert_close(place.W[0], memory(model, name))
    inputs = {"W_K1": "p", "W_K2": "Phi_1 w_E", "W_O2": "W_V2 w_E"}[name]
    outputs = {"W_K1": "p", "W_K2": "w_E", "W_O2": "w_U"}[name]
    torch.testing.assert_close(place.inputs[0], embedding(model, inputs))
    torch.testing.assert_close(place.outputs[0], embedding(model, outputs))


def test_scores_of_pairs_are_attention_scores_with_heads_and_layer_norm():
    """Where the norms are one, x_q W_Q (x_k W_K)^T by hand."""
    model = build(ModelConfig.full(d_model=16, n_heads=2, n_ctx=8, layer_norm=True), seed=0)
    task = BigramTask(length=8)
    place = association(model, "W_K1", task)
    p = model.W_pos - model.W_pos.mean(-1, keepdim=True)
    for head in (0, 1):
        by_hand = (p @ model.W_Q[0, head]) @ (p @ model.W_K[0, head]).T
        here = place.outputs[head] @ place.W[head] @ place.inputs[head].T
        torch.testing.assert_close(here, by_hand.detach(), atol=1e-5, rtol=1e-4)


def test_erasing_a_triggers_pair_breaks_that_trigger_and_spares_the_others(model, batch):
    hurt = damage(surgery(model, batch, memory="W_K2", erase="e", task=TASK))
    assert hurt["target"] > 0.6
    assert abs(hurt["bystanders"]) < 0.02


def test_erasing_an_output_breaks_the_positions_that_need_it_alone(model, batch):
    output = TASK.vocabulary[int(batch.outputs[0, 0])]
    hurt = damage(surgery(model, batch, memory="W_O2", erase=output, task=TASK))
    assert hurt["target"] > 0.6
    assert abs(hurt["bystanders"]) < 0.02


def test_erasing_a_position_breaks_triggers_that_stood_there(model, batch):
    hurt = damage(surgery(model, batch, memory="W_K1", erase=[str(t) for t in range(1, 11)], task=TASK))
    assert hurt["target"] > 0.4
    assert hurt["target"] > 3 * hurt["bystanders"]


def test_swapping_two_outputs_makes_each_the_answer_for_the_other(model, batch):
    i, j = batch.targets[batch.in_context].bincount().topk(2).indices.tolist()
    a, b = TASK.vocabulary[i], TASK.vocabulary[j]
    with edited(model, TASK, memory="W_O2", swap=f"{a}->{b}") as changed, torch.no_grad():
        predicted = changed(batch.tokens).argmax(-1)
    where = batch.in_context & (batch.targets == i)
    assert (predicted[where] == j).float().mean() > 0.6


def test_the_ideal_span_suffices_and_nothing_works_without_it(model, batch):
    assert damage(surgery(model, batch, memory="W_O2", project=True, task=TASK))["all"] < 0.02
    assert damage(surgery(model, batch, memory="W_O2", project="complement", task=TASK))["all"] > 0.6


def test_a_transplant_from_another_model_is_its_matrix(model, batch):
    donor = construct(TASK, CONFIG, leave_out=["W_K1"])
    assert damage(surgery(model, batch, memory="W_K1", transplant=donor, task=TASK))["all"] > 0.6
    assert damage(surgery(donor, batch, memory="W_K1", transplant=model, task=TASK))["all"] < -0.6


def test_inserting_gives_a_pair_the_strength_asked_for():
    model = construct(TASK, CONFIG, leave_out=["W_K2"])
    with edited(model, TASK, memory="W_K2", insert="e", strength=400.0) as changed:
        place = association(changed, "W_K2", TASK)
        pair = place.parse("e", "insert")
        assert pair_scores(place.W, *place.rows([pair])).item() == pytest.approx(400, rel=1e-4)


def test_an_edit_of_one_head_leaves_the_others_and_the_feed_forward_can_be_edited_too():
    config = ModelConfig.simplified(d_model=16, n_ctx=8)
    model, task = build(config, seed=0), BigramTask(length=8)
    table = surgery(model, sample(task, 4, step_rng(0, 0)), memory="W_F", erase="a->b", task=task)
    assert table["group"].tolist() == ["target", "bystanders", "all"]
    heads = build(ModelConfig.full(d_model=16, n_heads=2, n_ctx=8), seed=0)
    before = heads.W_O[1].clone()
    with edited(heads, task, memory="W_O2", truncate=1, head=2):
        assert torch.equal(heads.W_O[1, 0], before[0])
        assert torch.linalg.matrix_rank(heads.W_O[1, 1]) == 1
    assert torch.equal(heads.W_O[1], before)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"memory": "W_K3", "erase": "a"}, "memory: expected one of W_K1, W_K2, W_O2, W_F, got 'W_K3'"),
        ({"memory": "W_F", "erase": "a->b"}, "memory: expected a model with a linear feed-forward for W_F"),
        ({"memory": "W_O2", "erase": "#"}, "erase: expected tokens of the vocabulary"),
        ({"memory": "W_K1", "erase": "49"}, "erase: expected positions 1 to 48"),
        ({"memory": "W_K1", "erase": "48"}, "erase: expected a position that has a next one"),
        ({"memory": "W_O2"}, "edit: expected one of erase, insert, swap, project, truncate, transplant, got none"),
        ({"memory": "W_O2", "erase": "a", "truncate": 3}, "got erase, truncate"),
        ({"memory": "W_O2", "truncate": 0}, "truncate: expected a rank of 1 to 256"),
        ({"memory": "W_O2", "swap": "a"}, "swap: expected two names"),
        ({"memory": "W_O2", "erase": "a", "head": 2}, "head: expected 1 to 1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(model, batch, arguments, says):
    with pytest.raises(InputError) as error:
        surgery(model, batch[:2], task=TASK, **arguments)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
