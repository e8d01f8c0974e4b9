"""The trajectories that ship are whole, and show what they are there to show."""

from pathlib import Path

import numpy as np
import pytest

import induction_memory as im
from induction_memory.probes.prediction import VISIBLE
from induction_memory.task.bayes import optimal_scores
from induction_memory.task.sampler import sample, step_rng

SHIPPED = sorted(path.parent for path in (Path(__file__).parents[2] / "checkpoints").glob("*/manifest.json"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_checksum_of_a_shipped_trajectory_holds(path):
    assert im.verify(path) == []


def test_the_induction_head_is_born_in_the_shipped_run():
    run = im.load("induction-alone")
    recalls = im.probes.recall(run)
    accuracy = run.metrics.set_index("step")["accuracy_in_context"]
    assert recalls.loc[200, "W_O2"] == 1
    assert accuracy.loc[291:300].mean() > 0.9
    assert accuracy.loc[491:500].mean() > 0.94


@pytest.mark.slow
def test_no_step_of_the_shipped_run_beats_the_bayes_optimal_predictor_and_the_excess_splits():
    run = im.load("induction-alone")
    batch = sample(run.task, 48, step_rng(11, 0))
    steps = run.steps[[0, len(run.steps) // 2, -1]]
    found = im.probes.wide(im.probes.table(run, "prediction", step=steps, batch=batch))
    best = optimal_scores(run.task, batch).overall
    np.testing.assert_allclose(found["bayes_loss"], best.loss)
    assert (found["loss"] > best.loss - 3 * best.loss_error).all()
    for whole in ("excess", "kl_bayes"):
        np.testing.assert_allclose(sum(found[f"{whole}_{kind}"] for kind in VISIBLE), found[whole])
    np.testing.assert_allclose(found["excess"], found["loss"] - found["bayes_loss"])
