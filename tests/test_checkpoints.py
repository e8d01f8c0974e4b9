"""The trajectories that ship are whole, and show what they are there to show."""

from pathlib import Path

import pytest

import induction_memory as im

SHIPPED = sorted(path.parent for path in (Path(__file__).parents[1] / "checkpoints").glob("*/manifest.json"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_checksum_of_a_shipped_trajectory_holds(path):
    assert im.verify(path) == []


def test_the_induction_head_is_born_in_the_shipped_run():
    run = im.load("induction-alone")
    recalls = im.probes.recall(run, cached=False)
    accuracy = run.metrics.set_index("step")["accuracy_in_context"]
    assert recalls.loc[200, "W_O2"] == 1
    assert accuracy.loc[291:300].mean() > 0.9
    assert accuracy.loc[491:500].mean() > 0.94
