"""One reading of sources: runs, their folders and names, models; steps; sequences."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.interventions.ablations import ablate
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.probes.tables import table
from induction_memory.source.measuring import measure
from induction_memory.source.sources import SEQUENCES, SEQUENCES_PER_STEP, batch_of_tokens, select
from induction_memory.trajectory.trajectory import load

SMALL = ModelConfig.simplified(d_model=16, n_ctx=12, d_vocab=5)


def tokens_of(seed=0):
    return torch.randint(5, (4, 12), generator=torch.Generator().manual_seed(seed))


def test_a_run_its_folder_and_its_name_are_the_same_subject():
    run = load("induction-alone")
    subjects = [select(source, step=600) for source in (run, run.path, str(run.path), "induction-alone")]
    assert {one.name for one in subjects} == {"induction-alone"}
    for one in subjects:
        assert one.steps.tolist() == [600]
        assert torch.equal(one.batch.tokens, subjects[0].batch.tokens)
    assert len(subjects[0].batch) == SEQUENCES
    assert len(select(run, step=[0, 600]).batch) == SEQUENCES_PER_STEP
    assert select(run, step="all").steps.tolist() == run.steps.tolist()
    assert select(run).steps.tolist() == [600]
    assert select(run, sequences=3).batch.tokens.shape == (3, 256)


def test_each_step_runs_with_its_own_weights():
    run = load("induction-alone")
    tokens = select(run, sequences=2).batch.tokens
    for at in select(run, step=[0, 600]).in_turn():
        torch.testing.assert_close(at.runner.record(tokens).logits, run.model(at.step)(tokens), atol=1e-4, rtol=1e-4)
    hooked = select(run, step=600, via="hooks").at().runner
    assert hooked.via == "hooks"
    torch.testing.assert_close(hooked.record(tokens).logits, run.model(600)(tokens), atol=1e-4, rtol=1e-4)


def test_stacked_weights_are_read_and_cannot_run():
    run = load("induction-alone")
    weights = {name: run.stack(name, [0, 300, 600]) for name in run.moving} | {
        name: run.read_step(name, 0) for name in run.frozen
    }
    some = select(weights, step=[2, 0])
    assert some.steps.tolist() == [0, 2]
    torch.testing.assert_close(some.stack.memory("W_O2")[1], select(run).stack.memory("W_O2")[0])
    with pytest.raises(InputError, match="needs a model to run"):
        _ = some.at().runner


def test_a_measure_of_ones_own_has_the_step_that_was_measured_and_columns_of_numbers():
    weights = measure("induction-small", lambda at: table(at.model, ["W_O2"], task=at.task), step=[0, 600])
    assert weights["step"].tolist() == [0, 600]
    norms = measure("induction-small", lambda at: {"step": -1, "norm": at.model.W_O[1].norm()}, step=[0, 600])
    assert norms["step"].tolist() == [0, 600]
    assert norms["norm"].dtype == float
    with pytest.raises(InputError, match=r"what: norms: expected one number .* got an array of shape \(2,\)"):
        measure("induction-small", lambda at: {"norms": at.model.W_O.flatten(1).norm(dim=-1)}, step=600)


def test_tokens_are_sequences_too():
    model, tokens = build(SMALL), tokens_of()
    by_tokens = ablate(model, tokens, heads="all", kind="mean")
    by_batch = ablate(model, batch_of_tokens(tokens), heads="all", kind="mean")
    assert np.array_equal(by_tokens["kl"], by_batch["kl"])
    batch = batch_of_tokens(torch.tensor([[0, 1, 2, 0, 1, 3]]))
    assert batch.in_context.tolist() == [[False, False, False, True, False]]


def test_hooks_and_shortcut_give_the_same_table():
    model = build(ModelConfig.full(d_model=16, n_ctx=12, d_vocab=5, n_heads=2), seed=1)
    fast, hooked = (ablate(model, tokens_of(), kind="all", via=via) for via in ("fast", "hooks"))
    assert fast["component"].tolist() == hooked["component"].tolist()
    numbers = fast.columns[2:]
    np.testing.assert_allclose(fast[numbers].astype(float), hooked[numbers].astype(float), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"source": 3},
            "the folder or name of either, a TransformerLens model or stacked weights, got 3",
        ),
        (
            {"source": torch.nn.Linear(1, 1)},
            "source: expected a run, a series, the folder or name of either, a TransformerLens model or stacked",
        ),
        ({"source": build(SMALL), "step": 3}, "step: expected none"),
        ({"source": build(SMALL), "step": tokens_of()}, "step: expected a stored step (tokens are given as batch=)"),
        ({"source": "induction-alone", "step": 7.5}, "step: expected"),
        ({"source": "induction-alone", "step": "first"}, "step: expected a stored step"),
        ({"source": "nowhere"}, "run: expected the folder of a trajectory"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(unchecked, arguments, says):
    with pytest.raises(InputError) as error:
        select(**arguments)
    assert says in str(error.value)


def test_a_model_alone_has_no_task_and_runs_on_random_tokens_repeated_once():
    alone = select(build(SMALL))
    with pytest.raises(InputError, match="task: expected the task"):
        alone.require_task()
    tokens = alone.batch.tokens
    assert tokens.shape == (SEQUENCES, 2 * (SMALL.n_ctx // 2) - 1)
    half = SMALL.n_ctx // 2
    assert torch.equal(tokens[:, : half - 1], tokens[:, half:])


@pytest.mark.slow
def test_a_shipped_run_is_ablated_patched_and_shown_without_transformer_lens():
    calls = [
        "im.ablate('induction-alone', kind='mean', components=['heads'])",
        "im.patch('induction-alone', components=['heads'])",
        "im.attention('induction-alone').patterns",
    ]
    lines = [f"{call}; print('transformer_lens' in sys.modules)" for call in calls]
    code = "\n".join(["import sys, induction_memory as im", *lines])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert dict(zip(calls, done.stdout.split(), strict=True)) == dict.fromkeys(calls, "False")
