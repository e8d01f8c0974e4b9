"""The training loop: exact updates, honest metrics, and nothing but the step's number to depend on."""

import io
import sys
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from induction_memory import verify
from induction_memory.errors import DivergedError, InputError
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.model.constructed import construct
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.sampler import sample, step_rng
from induction_memory.training import board
from induction_memory.training.board import Board, describe, numbers, require_tracker, tracker
from induction_memory.training.evaluation import plain_evaluate
from induction_memory.training.loop import Metrics, Start, class_mean, recalls, train
from induction_memory.training.optimizer import adamw_update, sgd_update
from induction_memory.training.run import start
from tests.tiny_runs import MODEL, TASK, tiny


def fresh(config=None):
    config = config or tiny()
    return config, build(config.model, config.train.init_seed)


def run(config, model, **more):
    """All snapshots' metrics and copies of the trained weights."""
    names = [config.model.parameters[n] for n in config.model.trained_names]
    history = []
    for snapshot in train(config.task, model, config.train, **more):
        weights = snapshot.parameters()
        history.append((snapshot.metrics, {n: weights[n] for n in names}, snapshot.checkpoint))
    return history


@pytest.mark.parametrize(("momentum", "decay"), [(0.9, 1e-2), (0.0, 0.0), (0.5, 0.1)])
def test_sgd_is_torch_sgd_to_the_bit(momentum, decay):
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(7, 5, generator=generator)
    theirs = torch.nn.Parameter(ours.clone())
    reference = torch.optim.SGD([theirs], lr=0.3, momentum=momentum, weight_decay=decay)
    buffer = torch.zeros_like(ours)
    for _ in range(5):
        gradient = torch.randn(7, 5, generator=generator)
        theirs.grad = gradient.clone()
        reference.step()
        sgd_update(ours, gradient, buffer, 0.3, momentum, decay)
        assert torch.equal(ours, theirs.detach())


def test_adamw_is_torch_adamw_to_the_bit():
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(7, 5, generator=generator)
    theirs = torch.nn.Parameter(ours.clone())
    reference = torch.optim.AdamW([theirs], lr=0.01, betas=(0.8, 0.95), weight_decay=0.1)
    first, second = torch.zeros_like(ours), torch.zeros_like(ours)
    for count in range(1, 6):
        gradient = torch.randn(7, 5, generator=generator)
        theirs.grad = gradient.clone()
        reference.step()
        adamw_update(ours, gradient, first, second, count, 0.01, (0.8, 0.95), 0.1)
        assert torch.equal(ours, theirs.detach())


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_training_is_torch_optim_on_the_models_own_loss(optimizer):
    config, model = fresh(tiny(optimizer=optimizer, steps=4, loss="all", schedule="linear", warmup=2))
    history = run(config, model)

    slow = build(config.model, config.train.init_seed)
    learns = [p for p in slow.parameters() if p.requires_grad]
    settings = {"lr": 1.0, "weight_decay": config.train.weight_decay}
    reference = (
        torch.optim.SGD(learns, momentum=0.9, **settings)
        if optimizer == "sgd"
        else torch.optim.AdamW(learns, **settings)
    )
    for step, rate in enumerate([0.1, 0.2, 0.2, 0.1]):  # up over two steps, then straight down
        reference.param_groups[0]["lr"] = rate
        batch = sample(config.task, config.train.batch_size, step_rng(config.train.data_seed, step))
        loss = torch.nn.functional.cross_entropy(slow(batch.tokens).flatten(0, 1), batch.targets.flatten())
        assert history[step][0].loss == pytest.approx(loss.item(), rel=1e-5)
        reference.zero_grad()
        loss.backward()
        reference.step()
    for name, weights in history[-1][1].items():
        torch.testing.assert_close(weights, slow.get_parameter(name).detach(), rtol=1e-4, atol=1e-5)


def test_every_step_is_measured_on_its_own_fresh_batch_before_its_update():
    config, model = fresh(tiny(steps=5, full_metrics_every=1))
    history = run(config, model)
    assert [metrics.step for metrics, _, _ in history] == list(range(6))
    initial = build(config.model, config.train.init_seed)
    for name, weights in history[0][1].items():
        assert torch.equal(weights, initial.get_parameter(name).detach())
    for step, (metrics, weights, _) in enumerate(history):
        for name, value in weights.items():
            initial.get_parameter(name).data.copy_(value)
        batch = sample(config.task, config.train.batch_size, step_rng(config.train.data_seed, step))
        seen = plain_evaluate(initial, batch, "trigger-output", full_metrics=True)
        assert metrics.loss == pytest.approx(seen.loss, rel=1e-5)
        for name, paper in ((n, p) for p, n in config.model.parameters.items() if p in config.model.trained_names):
            assert metrics.weight_norms[paper] == pytest.approx(weights[name].square().sum().sqrt().item(), rel=1e-6)
            if step < 5:
                assert metrics.gradient_norms[paper] == pytest.approx(seen.gradients[name].norm().item(), rel=1e-3)
    assert set(history[-1][0].gradient_norms.values()) == {None}  # there is no update after the last step


def test_class_means_are_those_of_a_loop_over_positions():
    config, model = fresh()
    batch = sample(config.task, 8, step_rng(5, 0))
    seen = plain_evaluate(model, batch, "all")
    for members, count in ((batch.in_context, 2), (batch.global_, 0), (batch.first_occurrence, 1)):
        chosen = [
            seen.nll[i, t].item()
            for i in range(8)
            for t in range(config.task.length)
            if (batch.counts[i, t] >= 2 if count == 2 else batch.counts[i, t] == count)
        ]
        assert class_mean(seen.nll, members, seen.evaluated) == pytest.approx(np.mean(chosen), rel=1e-6)
    nothing = torch.zeros_like(batch.in_context)
    assert class_mean(seen.nll, nothing, seen.evaluated) is None
    assert class_mean(seen.nll, batch.global_, batch.in_context) is None


def test_classes_that_the_loss_does_not_need_are_measured_every_so_often():
    config, model = fresh(
        tiny(steps=9, full_metrics_every=4, out_of_distribution="bigram", out_of_distribution_every=3)
    )
    history = [metrics for metrics, _, _ in run(config, model)]
    assert [m.step for m in history if m.losses["global"] is not None] == [0, 4, 8, 9]
    assert [m.step for m in history if m.accuracies["global"] is not None] == [0, 4, 8, 9]
    assert all(m.losses["in_context"] == pytest.approx(m.loss) for m in history)
    assert [m.step for m in history if m.out_of_distribution_accuracy is not None] == [0, 3, 6, 9]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_started_in_the_middle_it_goes_on_with_the_same_bits(optimizer):
    config, model = fresh(tiny(optimizer=optimizer, checkpoints="adaptive 6 by 0.1"))
    whole = run(config, model)
    again = build(config.model, config.train.init_seed)
    for snapshot in train(config.task, again, config.train):
        if snapshot.step == 7:
            state = {name: value.clone() for name, value in snapshot.optimizer.items()}
            parameters = snapshot.parameters()
            break
    other = build(config.model, 99)
    for name, value in parameters.items():
        other.get_parameter(name).data.copy_(value)
    rest = run(config, other, start=Start(7, 0, state))
    assert [m.row() for m, _, _ in rest] == [m.row() for m, _, _ in whole[7:]]
    for (_, ours, _), (_, theirs, _) in zip(rest, whole[7:], strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_checkpoints_are_marked_as_the_rule_says():
    config, model = fresh(tiny(checkpoints="every 1 to 2 then every 5"))
    assert [m.step for m, _, kept in run(config, model) if kept] == [0, 1, 2, 5, 10, 12]


def test_a_run_that_diverges_says_at_which_step():
    config, model = fresh(tiny(learning_rate=1e20))
    with pytest.raises(DivergedError, match=r"^the loss is \w+ at step \d+; train\.learning_rate"):
        run(config, model)
    assert all(model.get_parameter(name).requires_grad for name in model.trainable)


def test_recalls_are_full_in_the_constructed_model_and_chance_at_random():
    task = BigramTask(length=24, k=2, triggers="fixed")
    config = ModelConfig(d_model=512, n_ctx=24, feed_forward="none", parametrisation="unit-embeddings")
    assert min(recalls(construct(task, config), task)[name] for name in ("W_K1", "W_O2")) > 0.95
    assert max(recalls(build(MODEL, 0), TASK).values()) < 0.4
    several = ModelConfig.full(d_model=16, n_ctx=16, n_heads=2)
    assert set(recalls(build(several, 0), TASK)) == {"W_K1", "W_K2", "W_O2"}


@pytest.mark.slow
@pytest.mark.parametrize(("terminal", "quiet"), [(True, False), (False, False), (False, True), (True, True)])
def test_progress_is_a_live_line_or_plain_lines_or_nothing(terminal, quiet, monkeypatch):
    config, model = fresh(tiny(steps=40))
    text = io.StringIO()
    monkeypatch.setattr(text, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stderr", text)
    with closing(Board(0, 40, config.task, False if quiet else None)) as board:
        board.note("noted")
        for snapshot in train(config.task, model, config.train):
            board.update(snapshot)
    shown = text.getvalue()
    if quiet:
        assert shown == ""
        return
    assert "noted" in shown
    assert "step 40/40 loss" in shown
    assert "W_K1 0." in shown
    assert "/s" in shown
    if not terminal:
        lines = shown.splitlines()
        assert len(lines) == 22
        assert all("\x1b" not in line and len(line) <= 80 for line in lines)


def test_a_line_of_progress_fits_80_columns():
    metrics = Metrics(123_456, 12.3456, "in_context", {}, {"in_context": 0.987})
    line = describe(metrics, {"W_K1": 0.5, "W_K2": 1.0, "W_O2": 0.25}, 0, 1_000_000, 98_765.0)
    assert line.startswith("step 123456/1000000 loss 12.346 acc 0.99 W_K1 0.50 W_K2 1.00")
    assert line.endswith(" left")
    assert len(line) < 80


def test_tensorboard_gets_the_numbers_and_other_trackers_are_refused(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tracker("tensorboard", tmp_path, {}, 0) as send:
        for step in range(3):
            send(step, {"step": step, "loss": 1.5 * step, "loss_global": None, "checkpoint": True})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(0, 0.0), (1, 1.5), (2, 3.0)]
    assert numbers({"step": 1, "loss": 2.0, "checkpoint": True, "x": None}) == {"loss": 2.0}
    with pytest.raises(InputError, match=r"^log: expected one of tensorboard, wandb, got 'mlflow'$"):
        require_tracker("mlflow")


def test_a_tracker_that_is_not_installed_or_has_no_login_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    config = tiny(steps=1)
    monkeypatch.setattr(board, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^log: expected the package wandb \(pip install .*\), got an installation"):
        start(config, tmp_path / "run", log="wandb")
    monkeypatch.undo()

    def login():
        raise ConnectionError("no key\n  at all")

    monkeypatch.setattr(board, "find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Error=ConnectionError, login=login))
    with pytest.raises(InputError, match=r"^log: expected a working Weights & Biases login, got: no key at all$"):
        start(config, tmp_path / "run", log="wandb")
    assert not (tmp_path / "run").exists()


def test_a_run_logs_every_step_to_tensorboard_inside_its_folder(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = start(tiny(steps=3), tmp_path / "run", log="tensorboard", progress=False)
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    logged = {event.step: event.value for event in events.Scalars("loss")}
    assert logged == pytest.approx(run.metrics.set_index("step")["loss"].to_dict(), rel=1e-6)
    assert verify(run.path) == []
