"""Local learning coefficients against the closed form on quadratic losses, and on a tiny run."""

import math

import pandas as pd
import pytest
import torch

from induction_memory import load
from induction_memory.errors import DivergedError, InputError
from induction_memory.model.config import ModelConfig
from induction_memory.probes import langevin as llc
from induction_memory.training.run import start
from tests.tiny_runs import tiny

SAMPLING = llc.Langevin(step_size=2e-3, n_beta=50, localisation=20, burn_in=300, draws=1500, chains=4, minibatches=3)


def quadratic(curvatures):
    """A loss 1/2 sum h w^2 plus an offset per minibatch, at w* = 0."""
    weights = {"w": torch.zeros(len(curvatures))}
    h = torch.tensor(curvatures)

    def gradients(minibatch):
        w = weights["w"]
        return float((h * w * w).sum() / 2) + 10.0 * minibatch, {"w": h * w}

    return weights, gradients


def expected(curvatures, sampling=SAMPLING):
    return sum(sampling.n_beta * h / (sampling.n_beta * h + sampling.localisation) for h in curvatures) / 2


@pytest.mark.parametrize("curvatures", [[1.0, 1.0, 1.0, 1.0], [4.0, 0.1, 0.0, 0.0]])
def test_a_quadratic_loss_has_its_closed_form(curvatures):
    weights, gradients = quadratic(curvatures)
    value, error, centre = llc.estimate(weights, gradients, SAMPLING)
    assert value == pytest.approx(expected(curvatures), abs=max(4 * error, 0.1))
    assert error < 0.15
    assert centre == pytest.approx(10.0)  # the offsets 0, 10, 20: they do not reach the value, which is paired


def test_only_what_the_mask_allows_moves_and_all_comes_back():
    weights, gradients = quadratic([1.0, 1.0])
    seen = []

    def watching(minibatch):
        seen.append(weights["w"].clone())
        return gradients(minibatch)

    value, error, _ = llc.estimate(weights, watching, SAMPLING, {"w": torch.tensor([1.0, 0.0])})
    assert value == pytest.approx(expected([1.0]), abs=max(4 * error, 0.1))
    assert torch.stack(seen)[:, 1].eq(0).all()
    assert weights["w"].eq(0).all()


def test_a_chain_that_diverges_is_an_error_and_not_a_number():
    weights, gradients = quadratic([1e6])
    with pytest.raises(DivergedError, match="as far from the stored ones as usual"):
        llc.estimate(weights, gradients, SAMPLING)
    assert weights["w"].eq(0).all()


@pytest.mark.parametrize("field", ["step_size", "n_beta", "localisation"])
def test_settings_that_make_no_sense_are_refused(field):
    for value in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match=field):
            llc.Langevin(**{field: value})


QUICK = llc.Langevin(step_size=1e-4, burn_in=2, draws=5, chains=2, batch_size=4, minibatches=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llc") / "run"
    start(tiny(ModelConfig(d_model=16, n_ctx=16, n_heads=2, d_head=16, feed_forward="linear")), folder, progress=False)
    return load(folder)


def test_matrices_and_heads_of_a_run_have_their_coefficients(run):
    table = llc.learning_coefficient(run, ["all", "W_K2", "L2H1", "W_K2 of L2H1"], sampling=QUICK)
    assert table["part"].tolist() == ["all", "W_K2", "L2H1", "W_K2 of L2H1"]
    assert set(table["step"]) == {run.steps[-1]}
    assert table["value"].notna().all()
    again = llc.learning_coefficient(run, ["W_K2"], sampling=QUICK)
    assert again["value"].item() == table["value"].iloc[1]


def test_one_head_moves_its_own_slice_only(run):
    model = run.model(int(run.steps[-1]))
    weights, masks = llc.weights_of_part(model, "W_K2 of L2H2")
    (name,) = weights
    assert name == "blocks.1.attn.W_K"
    assert masks[name][0].eq(0).all()
    assert masks[name][1].eq(1).all()


@pytest.mark.parametrize("part", ["W_Q9", "L7H1", "L2H9", "L0H1", "W_K2 of nothing"])
def test_a_part_that_is_not_there_is_refused(run, part):
    with pytest.raises(InputError, match="part: expected"):
        llc.learning_coefficient(run, [part], sampling=QUICK)


def test_a_calibration_names_the_settings_that_diverge(run):
    table = llc.calibrate(run, "W_O2", n_betas=(1.0, 1e30), step_sizes=(1e-4,), sampling=QUICK)
    assert math.isfinite(table["value"].iloc[0])
    assert math.isnan(table["value"].iloc[1])
    assert "smaller step_size" in table["note"].iloc[1]


@pytest.mark.hard
def test_the_output_memory_of_a_shipped_run_has_the_coefficient_that_another_package_finds():
    """0.37 +- 0.04 by devinterp 2.0.1 with these settings (unit: nats), step 600 of induction-alone."""
    row = llc.learning_coefficient(load("induction-alone"), ["W_O2"], step=600).iloc[0]
    assert row["value"] == pytest.approx(0.40, abs=0.12)


def test_a_plateau_is_where_the_next_smaller_step_size_gives_the_same(run, monkeypatch):
    values = {
        (1.0, 1e-4): 2.0,
        (1.0, 2e-4): 2.1,
        (1.0, 4e-4): 3.0,
        (5.0, 1e-4): 9.0,
        (5.0, 2e-4): 9.0,
        (5.0, 4e-4): 9.5,
    }

    def known(run, parts, *, step, sampling):
        value = values[sampling.n_beta, sampling.step_size]
        return pd.DataFrame({"value": [value], "value_se": [0.1]})

    monkeypatch.setattr(llc, "learning_coefficient", known)
    table = llc.calibrate(run, n_betas=(1.0, 5.0), step_sizes=(4e-4, 1e-4, 2e-4))
    assert table["step_size"].tolist() == [4e-4, 1e-4, 2e-4] * 2
    assert table["plateau"].tolist() == [False, False, True, True, False, True]
