"""Training on any task: its groups, its own outputs, soft targets, and the way to the disk and back."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import induction_memory as im
from induction_memory.errors import InputError
from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.task import protocol
from induction_memory.task.batch import Batch
from induction_memory.task.causal import CausalGraph
from induction_memory.task.copying import Copying
from induction_memory.task.factual_recall import FactualRecall
from induction_memory.task.markov import MarkovChains
from induction_memory.task.noisy import NoisyTriggers
from induction_memory.training.evaluation import plain_evaluate
from induction_memory.training.forward import evaluate, supported
from induction_memory.training.run import start
from induction_memory.trajectory.trajectory import load

TASKS = {
    "noisy": NoisyTriggers(length=12, k=2),
    "markov": MarkovChains(length=12),
    "causal": CausalGraph(length=8, symbols=4),
    "recall": FactualRecall(subjects=5, relations=2, answers=3, length=7),
    "copying": Copying(alphabet=6, spans=(1, 3)),
}
MODELS = {
    "simplified": ModelConfig.simplified(d_model=12),
    "full": ModelConfig.full(d_model=12, n_heads=2),
    "norm": ModelConfig.full(d_model=12, layer_norm=True),
}


@protocol.register
@dataclass(frozen=True)
class Last:
    """Say again what stands at the first position; targets that nobody asks for are no outputs."""

    name: ClassVar[str] = "first-again"
    main: ClassVar[str] = "end"
    n_inputs: ClassVar[int] = 5
    n_outputs: ClassVar[int] = 3

    length: int = 6

    def sample(self, n, rng):
        tokens = torch.from_numpy(rng.integers(5, size=(n, self.length)))
        asked = torch.zeros_like(tokens, dtype=torch.bool)
        asked[:, -1] = True
        targets = torch.where(asked, tokens[:, :1] % 3, -100)
        return Batch(tokens, targets, asked, {"end": asked}, "end")


def oracle(model, batch, mask):
    logits = model(batch.tokens)
    value = F.cross_entropy(logits[mask], batch.targets[mask])
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    gradients = torch.autograd.grad(value, [model.get_parameter(name) for name in names], allow_unused=True)
    return value.item(), dict(zip(names, gradients, strict=True)), logits.detach()


@pytest.mark.parametrize("model_config", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("task", [*TASKS.values(), Last()], ids=[*TASKS, "user's"])
def test_both_paths_give_the_loss_and_gradients_of_the_counted_positions(task, model_config):
    model = build(RunConfig.of(task, model_config, TrainConfig()).model, seed=1)
    assert supported(model) is None
    batch = task.sample(9, np.random.default_rng(0))
    for loss, mask in (("all", batch.counted), ("main", batch.group())):
        value, gradients, logits = oracle(model, batch, mask)
        for run in (evaluate, plain_evaluate):
            for full in (False, True):
                found = run(model, batch, loss, micro_batch=4, full_metrics=full)
                assert found.loss == pytest.approx(value, rel=1e-5)
                assert torch.equal(found.evaluated, batch.counted if full else mask)
                right = (logits.argmax(-1) == batch.targets) & found.evaluated
                assert torch.equal(found.correct, right)
                for name, gradient in gradients.items():
                    expected = torch.zeros_like(found.gradients[name]) if gradient is None else gradient
                    torch.testing.assert_close(found.gradients[name], expected, rtol=1e-4, atol=1e-6)


def test_soft_targets_take_the_reference_path_and_its_loss_is_their_cross_entropy():
    task = MarkovChains(length=10, soft_targets=True)
    model = build(RunConfig.of(task, ModelConfig.full(d_model=8), TrainConfig()).model, seed=1)
    batch = task.sample(5, np.random.default_rng(0))
    found = evaluate(model, batch, "all", full_metrics=True)
    expected = F.cross_entropy(model(batch.tokens).flatten(0, 1), batch.targets.flatten(0, 1))
    assert found.loss == pytest.approx(expected.item(), rel=1e-5)
    assert not bool(found.correct.any())


@pytest.mark.parametrize("task", [*TASKS.values(), Last(), MarkovChains(length=9, soft_targets=True)], ids=str)
def test_a_run_on_any_task_is_stored_and_loaded(task, tmp_path):
    train = TrainConfig(steps=3, batch_size=8, loss="all", optimizer="adamw", learning_rate=0.01, checkpoints="every 1")
    config = RunConfig.of(task, ModelConfig.full(d_model=8), train)
    run = start(config, tmp_path / "run", progress=False)
    again = load(tmp_path / "run")
    assert again.task == task
    assert again.config == config
    assert again.steps.tolist() == [0, 1, 2, 3]
    assert torch.equal(again.model(3).unembed.W_U, run.model(3).unembed.W_U)
    batch = task.sample(1, np.random.default_rng(0))
    for group in batch.groups:
        assert f"loss_{group}" in again.metrics
    if batch.soft:
        assert again.metrics[f"accuracy_{batch.main}"].isna().all()
    else:
        assert again.metrics[f"accuracy_{batch.main}"].notna().any()


def test_a_variant_is_measured_on_the_way(tmp_path):
    train = TrainConfig(steps=2, batch_size=8, loss="all", out_of_distribution="clean", out_of_distribution_every=1)
    config = RunConfig.of(TASKS["noisy"], ModelConfig.full(d_model=8), train.replace(learning_rate=0.01))
    run = start(config, tmp_path / "run", progress=False)
    assert run.metrics["out_of_distribution_accuracy"].notna().all()


def test_a_seed_is_that_of_the_command_line_and_excludes_single_seeds(tmp_path):
    model, how = im.ModelConfig(d_model=8), {"steps": 1, "batch_size": 2, "progress": False}
    run = im.train(im.BigramTask(length=8), model, out=tmp_path / "run", seed=2, **how)
    train = run.config.train
    assert (train.init_seed, train.data_seed, train.eval_seed) == (6, 7, 8)
    with pytest.raises(InputError, match="seed: expected either seed or single seeds, got seed and data_seed"):
        im.train(im.BigramTask(length=8), model, out=tmp_path / "other", seed=2, data_seed=1, **how)
