import pytest
import torch

import induction_memory as im
from induction_memory.errors import InputError
from induction_memory.interventions.memory_surgery import edited, surgery
from induction_memory.memory.edits import pair_scores
from induction_memory.model.associations import associate
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.model.constructed import construct
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.sampler import sample, step_rng

TASK = BigramTask(k=5, triggers="fixed", length=48, outputs_differ=True)
CONFIG = ModelConfig.simplified(d_model=256, n_ctx=48, feed_forward="none")


@pytest.fixture(scope="module")
def model():
    return construct(TASK, CONFIG)


@pytest.fixture(scope="module")
def batch():
    return sample(TASK, 48, step_rng(0, 0))


def damage(table):
    return table.set_index("group")["damage"].to_dict()


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
        a = associate(changed, "W_K2", task=TASK, bare=True)
        pair = torch.tensor([a.number("e", "insert")])
        assert pair_scores(a, pair).item() == pytest.approx(400, rel=1e-4)


def test_an_edit_of_one_head_leaves_the_others_and_the_feed_forward_can_be_edited_too():
    config = ModelConfig.simplified(d_model=16, n_ctx=8)
    model, task = build(config, seed=0), BigramTask(length=8)
    table = surgery(model, sample(task, 4, step_rng(0, 0)), memory="W_F", erase="a->b", task=task)
    assert table["group"].tolist() == ["target", "bystanders", "all"]
    heads = build(ModelConfig.full(d_model=16, n_heads=2, n_ctx=8), seed=0)
    before = heads.W_O[1].clone()
    with edited(heads, task, memory="W_O2", truncate=1, head="L2H2"):
        assert torch.equal(heads.W_O[1, 0], before[0])
        assert torch.linalg.matrix_rank(heads.W_O[1, 1]) == 1
    assert torch.equal(heads.W_O[1], before)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"memory": "W_K3", "erase": "a"}, "memory: expected one of W_K1, W_K2, W_O2, W_F, got 'W_K3'"),
        (
            {"memory": "W_F", "erase": "a->b"},
            "memory: W_F needs a linear feed-forward in the last layer, the model has none",
        ),
        ({"memory": "W_O2", "erase": "#"}, "erase: expected tokens of the vocabulary"),
        ({"memory": "W_K1", "erase": "49"}, "erase: expected positions 1 to 47"),
        ({"memory": "W_K1", "erase": "1->1"}, "erase: expected positions 2 to 48"),
        ({"memory": "W_O2"}, "edit: expected one of erase, insert, swap, project, truncate, transplant, got none"),
        ({"memory": "W_O2", "erase": "a", "truncate": 3}, "got erase, truncate"),
        ({"memory": "W_O2", "truncate": 0}, "truncate: expected a rank of 1 to 256"),
        ({"memory": "W_O2", "swap": "a"}, "swap: expected two names"),
        ({"memory": "W_O2", "erase": "a", "head": "2"}, "head: expected a head of layer 2: L2H1, got '2'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(model, batch, arguments, says):
    with pytest.raises(InputError) as error:
        surgery(model, batch[:2], task=TASK, **arguments)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_by_default_surgery_edits_the_keys_of_the_head_that_carries_the_previous_token():
    """On the shipped run with four heads, layer-1 head 3 is the previous-token head."""
    run = im.load("checkpoints/four-heads")
    batch = sample(run.task, 8, step_rng(3, 0))
    found = surgery(run, batch, memory="W_K2", erase="e")
    assert (found["through"] == "L1H3").all()
    assert (found["head"] == "all").all()
    by_hand = {
        h: damage(surgery(run, batch, memory="W_K2", erase="e", through=f"L1H{h}"))["target"] for h in (1, 2, 3, 4)
    }
    assert damage(found)["target"] == by_hand[3] == max(by_hand.values()) > 0.5
    assert by_hand[1] < 0.2
    named = surgery(run, batch, memory="W_K2", erase="e", through="L1H3", head="L2H4")
    assert named[["head", "through"]].drop_duplicates().to_numpy().tolist() == [["L2H4", "L1H3"]]


def test_an_inserted_pair_is_as_strong_as_the_triggers_are():
    """On the shipped run with fixed triggers; over all tokens the mean score is some nine times smaller."""
    run = im.load("checkpoints/fixed-triggers")
    model = run.model(int(run.steps[-1]))
    a = associate(model, "W_K2", task=run.task, bare=True)
    triggers = torch.tensor(run.task.fixed_triggers.copy())
    among_triggers, overall = a.scores[0, 0].diagonal()[triggers].mean(), a.scores[0, 0].diagonal().mean()
    with edited(model, run.task, memory="W_K2", insert="x->y") as changed:
        b = associate(changed, "W_K2", task=run.task, bare=True)
        inserted = pair_scores(b, torch.tensor([b.number("x->y", "insert")])).item()
    assert inserted == pytest.approx(among_triggers.item(), rel=1e-3)
    assert inserted > 5 * overall.item()


@pytest.mark.parametrize("edit", ["erase", "insert"])
def test_a_key_after_its_query_is_refused(model, batch, edit):
    with pytest.raises(InputError, match=f"{edit}: expected 'key->query' with a key that the query can see"):
        surgery(model, batch, memory="W_K1", task=TASK, **{edit: "9->4"})
    assert len(surgery(model, batch, memory="W_K1", task=TASK, **{edit: "4->4"})) == 3


def test_the_table_says_which_inputs_and_outputs_were_edited(model, batch):
    table = surgery(model, batch, memory="W_O2", erase=["e", "t->a"], task=TASK)
    assert set(table["input"]) == {"e, t"}
    assert set(table["output"]) == {"e, a"}
    whole = surgery(model, batch, memory="W_O2", truncate=3, task=TASK)
    assert set(whole["input"]) == {""}
