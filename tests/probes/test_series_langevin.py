"""Coefficients over a series of others' checkpoints: which weights a part moves, and the closed form nearby."""

import pytest
import torch

from induction_memory import load
from induction_memory.errors import InputError
from induction_memory.model.bridge import boot
from induction_memory.probes.langevin import Langevin, learning_coefficient, weights_of_part
from induction_memory.task.sampler import step_rng
from induction_memory.trajectory.series import revisions
from tests.trajectory.series import write_series

pytestmark = pytest.mark.slow
SAMPLING = Langevin(step_size=1e-4, burn_in=2, draws=4, chains=2, batch_size=2, minibatches=2)


@pytest.fixture(scope="module", params=["neox", "gpt2"])
def series(request, tmp_path_factory):
    return write_series(request.param, tmp_path_factory.mktemp(request.param), [0, 100])


def test_a_head_s_weights_change_that_head_alone(series):
    model = boot(series / "step100")
    tokens = torch.arange(20)[None]
    _, before = model.run_with_cache(tokens)
    for part, hook in (("W_V2 of L2H2", "blocks.1.attn.hook_z"), ("W_Q2 of L2H2", "blocks.1.attn.hook_q")):
        weights, masks = weights_of_part(model, part)
        (name,) = weights
        kept = weights[name].detach().clone()
        with torch.no_grad():
            weights[name] += masks[name]
        changed = (model.run_with_cache(tokens)[1][hook] - before[hook]).abs().sum((0, 1, 3))
        assert (changed > 0).tolist() == [False, True], part
        with torch.no_grad():
            weights[name].copy_(kept)
    weights, masks = weights_of_part(model, "W_O2 of L2H2")
    with torch.no_grad():
        weights["W_O"] *= 1 - masks["W_O"]
    W_O = model.blocks[1].attn.W_O
    assert not W_O[1].any()
    assert W_O[0].any()


def test_all_leaves_out_what_the_forward_does_not_read(series):
    weights, _ = weights_of_part(boot(series / "step0"), "all")
    assert weights
    assert not any(".qkv." in name for name in weights)


def test_a_table_has_a_row_per_step_and_part_and_the_weights_are_put_back(series):
    opened = revisions(series)
    table = learning_coefficient(opened, ["L1H1", "FF1"], loss="in_context", step="all", sampling=SAMPLING)
    assert table["step"].tolist() == [0, 0, 100, 100]
    assert table["part"].tolist() == ["L1H1", "FF1"] * 2
    assert table["value"].notna().all()
    assert (table["n_beta"] == SAMPLING.n_beta).all()
    again = learning_coefficient(opened, ["FF1"], loss="in_context", step="all", sampling=SAMPLING)
    assert again["value"].tolist() == table[table["part"] == "FF1"]["value"].tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parts": ["W_F"]}, "part: expected all, W_K2"),
        ({"parts": ["L3H1"]}, "part: expected layers 1 to 2"),
        ({"parts": ["W_K1 of L2H1"]}, "part: expected a head of the matrix's own layer"),
        ({"loss": "late"}, "group: expected one of all"),
        ({"batch": torch.zeros(2, 8, dtype=torch.long)}, "batch: expected 4 sequences or more"),
    ],
)
def test_mistakes_are_named(series, arguments, message):
    with pytest.raises(InputError, match=message):
        learning_coefficient(revisions(series), **({"sampling": SAMPLING} | arguments))


def test_a_series_of_hooked_transformers_has_coefficients_of_heads_too():
    run = load("induction-small")
    weights, masks = weights_of_part(run.model(step=600), "L2H1")
    assert set(weights) == {f"blocks.1.attn.{name}" for name in ("W_K", "W_O")}
    assert all(mask.all() for mask in masks.values())  # its only head
    batch = run.task.sample(4, step_rng(0, 0))
    series = revisions([(0, run.model(step=0)), (600, run.model(step=600))])
    table = learning_coefficient(
        series, ["W_K2 of L2H1"], batch=batch, loss="in_context", step="all", sampling=SAMPLING
    )
    assert table["step"].tolist() == [0, 600]
    assert table["value"].notna().all()
