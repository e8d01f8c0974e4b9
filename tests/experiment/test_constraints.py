"""Freezing, clamping and grafting while a model learns: what is held does not move by a bit."""

import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.experiment.constraints import Clamp, Freeze, Graft
from induction_memory.model.building import build
from induction_memory.training.loop import train
from induction_memory.training.optimizer import sgd_update
from tests.tiny_runs import tiny


def weights_of(config, grafts=None, seed=0):
    """Paper's name -> the matrix at each step, and the optimiser's state before each update."""
    model = build(config.model, seed)
    names, history, states = config.model.parameters, {}, []
    for snapshot in train(config.task, model, config.train, grafts=grafts):
        now = snapshot.parameters()
        for name in (paper for paper, own in names.items() if own in config.moving_parameters):
            history.setdefault(name, []).append(now[names[name]])
        states.append({name: value.clone() for name, value in snapshot.optimizer.items()})
    return {name: torch.stack(values) for name, values in history.items()}, states


def moves(stack):
    """The steps n whose update n changed some bit."""
    return [n for n in range(len(stack) - 1) if not torch.equal(stack[n], stack[n + 1])]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("W_K1", []),
        ("W_K1: ..5", list(range(5, 12))),
        ("W_K1: 5..", list(range(5))),
        ("W_K1: 3..7", [0, 1, 2, 7, 8, 9, 10, 11]),
    ],
)
def test_a_frozen_matrix_does_not_move_by_a_bit(rule, expected, optimizer):
    config = tiny(freeze=(rule,), optimizer=optimizer, weight_decay=0.1)
    stacks, states = weights_of(config)
    assert moves(stacks["W_K1"]) == expected
    assert moves(stacks["W_K2"]) == list(range(12))
    part = "momentum" if optimizer == "sgd" else "first"
    for step, state in enumerate(states):
        frozen_before = step > 0 and step - 1 not in expected
        assert not (frozen_before and state[f"{part}/blocks.0.attn.W_K"].any())


def test_a_matrix_thaws_with_no_momentum():
    config = tiny(freeze=("W_O2: 3..7",), weight_decay=0.1)
    stacks, states = weights_of(config)
    momentum = states[8]["momentum/blocks.1.attn.W_O"]
    thawed, zero = stacks["W_O2"][7].clone(), torch.zeros_like(momentum)
    gradient = momentum - 0.1 * stacks["W_O2"][7]
    sgd_update(thawed, gradient, zero, config.train.learning_rate, 0.9, 0.1)
    torch.testing.assert_close(thawed, stacks["W_O2"][8])


def test_freezing_one_matrix_leaves_the_data_and_the_first_updates_of_others_alone():
    free, _ = weights_of(tiny())
    held, _ = weights_of(tiny(freeze=("W_K1: 5..",)))
    for name in free:
        assert torch.equal(free[name][:6], held[name][:6])
    assert not torch.equal(free["W_K2"][12], held["W_K2"][12])


def test_rules_say_which_updates_they_hold():
    rules = [Freeze.parse("W_K1: 3..5"), Freeze.parse("W_K1: 8.."), Freeze.parse("W_F: ..2")]
    held = [sorted(rule.name for rule in rules if rule.holds(step)) for step in range(10)]
    assert held == [["W_F"], ["W_F"], [], ["W_K1"], ["W_K1"], [], [], [], ["W_K1"], ["W_K1"]]
    assert [Clamp.parse(text).start for text in ("induction@4", "previous-token")] == [4, 0]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Freeze, "W_K1"),
        (Freeze, "W_K1: ..5"),
        (Freeze, "W_K1: 5.."),
        (Freeze, "W_K1: 3..7"),
        (Clamp, "induction"),
        (Clamp, "previous-token@7"),
        (Graft, "W_O2=runs/a@b@300 from 5"),
    ],
)
def test_rules_are_written_as_they_are_read(kind, text):
    assert str(kind.parse(text)) == text
    assert kind.parse(f" {text} ") == kind.parse(text)


def test_under_the_previous_token_clamp_the_keys_of_layer_1_only_decay():
    config = tiny(clamps=("previous-token@4",), momentum=0.0, weight_decay=0.1)
    stacks, _ = weights_of(config)
    W_K1 = stacks["W_K1"]
    for step in range(12):
        decayed = W_K1[step] - 0.2 * 0.1 * W_K1[step]
        assert torch.allclose(W_K1[step + 1], decayed, rtol=0, atol=1e-7) == (step >= 4)


def test_a_graft_replaces_a_matrix_before_its_step_is_measured_and_then_learns():
    donor = torch.full((1, 16, 16), 0.25)
    rule = Graft.parse("W_O2=elsewhere@3 from 6")
    stacks, states = weights_of(tiny(grafts=(str(rule),)), {rule: donor})
    free, _ = weights_of(tiny())
    assert torch.equal(stacks["W_O2"][:6], free["W_O2"][:6])
    assert torch.equal(stacks["W_O2"][6], donor)
    assert not torch.equal(stacks["W_O2"][7], donor)
    assert not states[6]["momentum/blocks.1.attn.W_O"].any()
    held, _ = weights_of(tiny(grafts=(str(rule),), freeze=("W_O2: 6..",)), {rule: donor})
    assert torch.equal(held["W_O2"][6:], donor.expand(7, 1, 16, 16))


def test_a_graft_of_what_does_not_learn_moves_it_once():
    rule = Graft.parse("W_V2=elsewhere@3 from 6")
    stacks, _ = weights_of(tiny(grafts=(str(rule),)), {rule: torch.zeros(1, 16, 16)})
    assert moves(stacks["W_V2"]) == [5]


def test_a_graft_that_is_missing_or_does_not_fit_is_refused():
    rule = Graft.parse("W_O2=elsewhere@3")
    with pytest.raises(InputError, match=r"^grafts: expected a matrix for each of train\.grafts, got none for W_O2="):
        weights_of(tiny(grafts=(str(rule),)))
    with pytest.raises(InputError, match=r"^train\.grafts: expected a matrix of shape \(1, 16, 16\), got \(1, 8, 8\)"):
        weights_of(tiny(grafts=(str(rule),)), {rule: torch.zeros(1, 8, 8)})
