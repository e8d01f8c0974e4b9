"""The studies: what ships follows from the stored measurements, and each measure has a case that is known."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import induction_memory as im

STUDIES = Path(__file__).parents[2] / "analyses" / "studies"
sys.path.insert(0, str(STUDIES))
import capacity  # noqa: E402
import rebirth  # noqa: E402
import spikes  # noqa: E402
import theory_against_training  # noqa: E402
import waiting  # noqa: E402
from over_seeds import over_seeds, slopes  # noqa: E402  (scripts of analyses/, which is no package)

RUN = "induction-small"


def stored(name):
    return pd.read_csv(STUDIES / "results" / f"{name}.csv")


def test_the_first_seed_of_capacity_comes_out_again():
    found = stored("capacity-errors").query("seed == 0 and scheme != 'samples'")
    again = capacity.errors(1, sorted(found["size"].unique())).query("scheme != 'samples'")
    assert again["error"].to_numpy() == pytest.approx(found["error"].to_numpy(), abs=0.01)


def test_the_exponents_follow_from_the_stored_errors():
    again = over_seeds(slopes(stored("capacity-errors"), ["scheme", "seed"], "size", "error"), ["scheme"])
    pd.testing.assert_frame_equal(again, stored("capacity-exponents"), rtol=1e-4)


def test_an_interval_over_equal_seeds_has_no_width_and_a_single_seed_has_none():
    table = pd.DataFrame({"case": list("aab"), "value": [2.0, 2.0, 1.0]})
    same, single = over_seeds(table, ["case"]).to_dict("records")
    assert (same["low"], same["high"]) == (2, 2)
    assert np.isnan(single["low"])


def test_a_spike_is_counted_once_and_a_falling_loss_has_none():
    assert spikes.spikes(np.array([1, 2, 3, 1, 2, 0.9]))["spikes"] == 2
    assert spikes.spikes(np.array([3, 2, 2.5, 1]))["spikes"] == 0


def test_descent_on_one_memory_learns_it_and_comes_out_as_stored():
    again = spikes.alone("equal", 64, 200, 0)
    row = stored("spikes").query("memory == 'equal, d = 64' and step_size == 200 and seed == 0")
    assert again["loss"] == pytest.approx(row["loss"].item(), rel=0.05)
    assert again["recall"] == row["recall"].item() == 1


def test_an_update_in_the_predicted_direction_is_all_of_it_and_a_random_one_is_at_chance():
    generator = torch.Generator().manual_seed(0)
    for u, v, ideal, pairs in theory_against_training.predictions(im.load(RUN)).values():
        predicted = im.memory.store(u, v, ideal)
        random = torch.randn(predicted.shape, generator=generator)
        for W, direction, most in ((predicted, 1, 1), (random, 0, 0.03)):
            found = im.memory.alignment(im.memory.Association("mine", W, u, v, ideal))
            assert float(found) == pytest.approx(direction, abs=0.05)
            assert float(im.memory.explained(im.memory.Association("mine", W, u, v, pairs))) <= most + 1e-6


def test_a_permuted_memory_recalls_the_next_output_and_not_its_own():
    run = im.load(RUN)
    u, v = (run.embedding(name, [0]).reshape(-1, 128) for name in ("W_V2 w_E", "w_U"))
    W = waiting.permuted(run, "W_O2", 600)
    shifted = im.memory.matching(W, u, v, (torch.arange(65) + 1) % 65)
    assert float(im.memory.recall(shifted)) == 1
    assert float(im.memory.recall(im.memory.matching(W, u, v))) < 0.1


def test_a_birth_that_did_not_happen_counts_as_the_last_step():
    rows = [(0, "nothing", "", "W_K2", 60.0), (0, "W_O2", "final", "W_K2", 50.0), (0, "W_O2", "wrong", "W_K2", np.nan)]
    table = pd.DataFrame(rows, columns=["seed", "given", "kind", "matrix", "born"]).assign(recall=0.0)
    moved = waiting.moves(table, 200).set_index("kind")
    assert moved["mean"].to_dict() == {"final": -10, "wrong": 140}
    assert moved["missing"].to_dict() == {"final": 0, "wrong": 1}


def test_the_erased_associations_are_the_most_frequent_the_median_and_the_rarest_that_both_recall():
    frequency = pd.DataFrame({"frequency": [0.1, 0.4, 0.3, 0.2]}, index=list("abcd"))
    births = {"W_K2": frequency.assign(birth=[50, 50, 60, np.nan]), "W_O2": frequency.assign(birth=[10, 20, 30, 40])}
    assert rebirth.chosen(births, 100) == ["b", "c", "a"]
