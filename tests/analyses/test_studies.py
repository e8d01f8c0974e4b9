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
import birth_laws  # noqa: E402
import capacity  # noqa: E402
import idle_head  # noqa: E402
import rebirth  # noqa: E402
import sinks  # noqa: E402
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


def test_a_birth_lasts_to_the_end_and_one_that_does_not_is_none():
    steps = np.arange(101)
    assert birth_laws.born(np.where(steps >= 40, 1.0, 0.0), 0.5) == 40
    assert birth_laws.born(np.where((steps >= 40) & ~((steps > 60) & (steps < 75)), 1.0, 0.0), 0.5) == 75
    assert np.isnan(birth_laws.born(np.where((steps >= 40) & (steps < 90), 1.0, 0.0), 0.5))


def test_a_power_law_has_its_exponent_over_every_range_and_a_missing_birth_counts_as_the_last_step():
    rows = [(v, s, 300, 0.5, 10 * (1 + s) * v**0.5) for v in (4, 16, 64) for s in (0, 1)]
    table = pd.DataFrame(rows, columns=["value", "seed", "steps", "level", "born"]).assign(factor="length")
    found = birth_laws.exponents(table)
    assert found[["first", "last"]].to_numpy().tolist() == [[4, 16], [4, 64], [16, 64]]
    assert found[["mean", "low", "high", "fit_low", "fit_high"]].to_numpy() == pytest.approx(0.5)
    bound = birth_laws.exponents(table.assign(born=table["born"].mask(table["value"] == 64)))
    assert bound.iloc[2]["missing"] == 2
    assert bound.iloc[2]["mean"] == pytest.approx(np.log((300 / 40) * (300 / 80)) / 2 / np.log(4))
    partial = birth_laws.exponents(table.query("seed == 0 or value < 64"))
    assert partial["seeds"].tolist() == [2, 1, 1]


def test_the_exponents_of_births_follow_from_the_stored_births():
    again = birth_laws.exponents(stored("laws"))
    pd.testing.assert_frame_equal(again.reset_index(drop=True), stored("laws-exponents"), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("scale", ["reduced", "full"])
def test_each_run_of_the_sweep_changes_the_factor_in_its_name_alone(scale):
    planned = im.sweep.read(STUDIES / "sweeps" / f"birth-laws-{scale}.toml").runs
    base = {run.seed: run.config for run in planned if run.name.startswith("preset")}
    changed = {factor: {path} for factor, path in birth_laws.FACTORS.items()}
    changed["length"].add("model.n_ctx")
    for run in planned:
        factor = next((factor for factor in changed if run.name.startswith(factor)), None)
        assert set(run.config.differences(base[run.seed])) == changed.get(factor, set())


def test_a_trigger_is_followed_by_the_token_before_it_and_every_sequence_begins_with_the_start_token():
    task = sinks.Backcopy(32)
    batch = task.sample(200, np.random.default_rng(0))
    assert (batch.tokens[:, 0] == 65).all()
    assert (batch.tokens[:, 1:] < 65).all()
    copied = batch.targets[:, 2:] == batch.tokens[:, 1:-1]
    assert copied[batch.groups["trigger"][:, 2:]].all()
    others = batch.groups["other"]
    drawn = im.BigramTask().bigram[batch.tokens[others], batch.targets[others]]
    assert (drawn > 0).all()
    assert torch.isin(batch.tokens[batch.groups["trigger"]], torch.from_numpy(task.triggers)).all()


def test_without_queries_the_weight_on_the_start_token_is_one_in_the_keys_and_a_zero_value_is_seen(tmp_path):
    task = sinks.Backcopy(8)
    config = im.ModelConfig.full(d_model=16, n_layers=1, layer_norm=True)
    run = im.train(task, config, out=tmp_path / "run", steps=1, batch_size=4, loss="all", progress=False)
    model, batch = run.model(step=0), task.sample(50, np.random.default_rng(0))
    with torch.no_grad():
        model.blocks[0].attn.W_Q[:] = 0
        model.embed.W_E[65] = -model.pos_embed.W_pos[0]
    found = im.measure(model, sinks.sink, batch=batch, progress=False).iloc[0]
    one_in = torch.arange(1, 9).float().reciprocal().expand(50, -1)
    for group in ("trigger", "other"):
        assert found[group] == pytest.approx(float(one_in[batch.groups[group]].mean()), abs=1e-6)
    assert found["before"] == pytest.approx(found["trigger"])
    assert found["value"] == pytest.approx(0, abs=1e-5)


def test_the_first_steps_towards_a_sink_come_out_again(tmp_path):
    again = sinks.measured(tmp_path, "sgd", 0, 64, 60, 64).drop(columns=["loss", "accuracy"])
    found = stored("sinks").query("optimizer == 'sgd' and seed == 0 and step <= 60")
    found = found.reset_index(drop=True)[again.columns]
    pd.testing.assert_frame_equal(again.reset_index(drop=True), found, rtol=1e-2, atol=1e-3)


def test_the_verdicts_on_the_start_token_follow_from_the_stored_runs():
    table = stored("sinks")
    last = table.groupby(["optimizer", "seed"])["step"].max().to_dict()
    assert last == {(optimizer, seed): 1000 for optimizer in sinks.OPTIMIZERS for seed in range(3)}
    end = table.query("step == 1000")
    other, trigger, value = (
        over_seeds(end, ["optimizer"], kind).set_index("optimizer") for kind in ("other", "trigger", "value")
    )
    assert other["low"]["adamw"] > 0.5
    assert trigger["high"]["adamw"] < 0.2
    assert (value["high"] < 0.5).all()
    assert other["low"]["sgd"] > 0.3, "the fourth statement fails"
    for _, own in table.set_index("step").groupby(["optimizer", "seed"]):
        grown = own["other"] >= own["other"].iloc[[0, -1]].mean()
        fallen = own["value"] <= own["value"].iloc[[0, -1]].mean()
        assert abs(grown.idxmax() - fallen.idxmax()) <= 40


def test_where_the_idle_head_looks_comes_out_again(monkeypatch):
    monkeypatch.setattr(idle_head, "RUNS", ("induction-alone",))
    found = stored("idle-head").query("run == 'induction-alone'").reset_index(drop=True)
    pd.testing.assert_frame_equal(idle_head.measure(64), found, rtol=1e-3, atol=1e-5)
