"""The picture of a memory shows the scores of `score_matrix`, boxes its ideal pairs and names what is unexpected."""

import numpy as np
import pytest

import induction_memory as im
from induction_memory.errors import InputError
from induction_memory.probes.association_births import score_matrix


def test_a_map_holds_the_scores_at_each_step():
    drawn = im.memory_map("induction-small", "W_K2", step=[0, 600])
    assert [one.title for one in drawn.maps] == ["W_K2, step 0", "W_K2, step 600"]
    expected = score_matrix("induction-small", "W_K2", step=600)
    shown = drawn.maps[1].table
    assert np.allclose(shown.loc[expected.index, expected.columns], expected)
    assert drawn.maps[1].ideal.sum() == 65


def test_an_inserted_pair_is_named():
    run = im.load("induction-small")
    edit = {"memory": "W_O2", "insert": "a->q", "strength": 30.0}
    with im.interventions.edited(run.model(600), run.task, **edit) as model:
        found = im.memory_map(model, "W_O2", task=run.task).unexpected
    assert found["pair"].iloc[0] == "a->q"
    assert found["score"].iloc[0] == pytest.approx(30, abs=3)


def test_a_map_is_written_in_each_format_and_always_alike(tmp_path):
    drawn = im.memory_map("induction-small", "W_O2")
    for ending in ("png", "pdf", "svg"):
        once, again = (drawn.save(tmp_path / f"{name}.{ending}").read_bytes() for name in ("once", "again"))
        assert once == again
    assert drawn._repr_png_() == (tmp_path / "once.png").read_bytes()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"memory": "W_X"}, "W_X"),
        ({"memory": "W_O2", "head": "L9H1"}, "head: expected one of"),
        ({"memory": "W_O2", "step": 7}, "step"),
    ],
)
def test_mistakes_are_named(how, message):
    with pytest.raises(InputError, match=message):
        im.memory_map("induction-small", **how)
