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
from induction_memory.source.sources import SEQUENCES, SEQUENCES_PER_STEP, batch_of_tokens, subject
from induction_memory.trajectory.trajectory import load

SMALL = ModelConfig.simplified(d_model=16, n_ctx=12, d_vocab=5)


def tokens_of(seed=0):
    return torch.randint(5, (4, 12), generator=torch.Generator().manual_seed(seed))


def test_a_run_its_folder_and_its_name_are_the_same_subject():
    run = load("induction-alone")
    subjects = [subject(source, step=600) for source in (run, run.path, str(run.path), "induction-alone")]
    assert {one.name for one in subjects} == {"induction-alone"}
    for one in subjects:
        assert one.steps.tolist() == [600]
        assert torch.equal(one.batch.tokens, subjects[0].batch.tokens)
    assert len(subjects[0].batch) == SEQUENCES
    assert len(subject(run, step=[0, 600]).batch) == SEQUENCES_PER_STEP
    assert subject(run, step="all").steps.tolist() == run.steps.tolist()
    assert subject(run).steps.tolist() == [600]
    assert subject(run, sequences=3).batch.tokens.shape == (3, 256)


def test_each_step_runs_with_its_own_weights():
    run = load("induction-alone")
    tokens = subject(run, sequences=2).batch.tokens
    for step, runner in subject(run, step=[0, 600]).each():
        torch.testing.assert_close(runner.record(tokens).logits, run.model(step)(tokens), atol=1e-4, rtol=1e-4)
    hooked = subject(run, step=600, via="hooks").runner()
    assert hooked.via == "hooks"
    torch.testing.assert_close(hooked.record(tokens).logits, run.model(600)(tokens), atol=1e-4, rtol=1e-4)


def test_stacked_weights_are_read_and_cannot_run():
    run = load("induction-alone")
    weights = {name: run.stack(name, [0, 300, 600]) for name in run.source.moving} | {
        name: run.source.read_frozen(name) for name in run.source.frozen
    }
    some = subject(weights, step=[2, 0])
    assert some.steps.tolist() == [0, 2]
    torch.testing.assert_close(some.stack.memory("W_O2")[1], subject(run).stack.memory("W_O2")[0])
    with pytest.raises(InputError, match="needs a model to run"):
        some.runner()


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
            "the folder of either, a TransformerLens model or stacked weights, got 3",
        ),
        (
            {"source": torch.nn.Linear(1, 1)},
            "source: expected a trajectory, a series, the folder of either, a TransformerLens model or stacked",
        ),
        ({"source": build(SMALL), "step": 3}, "step: expected none"),
        ({"source": "induction-alone", "step": 7.5}, "step: expected"),
        ({"source": "induction-alone", "step": "first"}, "step: expected a stored step"),
        ({"source": "nowhere"}, "run: expected the folder of a trajectory"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(unchecked, arguments, says):
    with pytest.raises(InputError) as error:
        subject(**arguments)
    assert says in str(error.value)


def test_a_model_alone_has_neither_task_nor_sequences():
    alone = subject(build(SMALL))
    with pytest.raises(InputError, match="batch: expected sequences of the task"):
        _ = alone.batch
    with pytest.raises(InputError, match="task: expected the task"):
        _ = alone.task


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
