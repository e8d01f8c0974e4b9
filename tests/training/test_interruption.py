"""Signals, divergence, hostile settings and folders: one clean line, nothing lost, nothing begun that cannot be."""

import os
import shutil
import signal
import threading

import pytest

from induction_memory import files, load, thin, verify
from induction_memory.errors import DivergedError, Error, InputError, Stopped, StorageError
from induction_memory.experiment.run_config import RunConfig
from induction_memory.model.config import ModelConfig
from induction_memory.task.bigrams import BigramTask
from induction_memory.training import run as training_run
from induction_memory.training.branching import branch
from induction_memory.training.run import start, train
from induction_memory.trajectory.writer import Writer
from tests.tiny_runs import MODEL, TASK, tiny
from tests.training.test_resume import Disk, Killed, content, half


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Flush nothing: what a flush does, no process can see."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return start(tiny(), tmp_path_factory.mktemp("runs") / "whole", progress=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_with_one_line_and_it_resumes(number, whole, tmp_path, monkeypatch, knocks):
    record = Writer.record

    def knock(self, step, *rest):
        record(self, step, *rest)
        if step == 6:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "record", knock)
        with pytest.raises(Stopped) as stopped:
            start(tiny(), tmp_path / "run", progress=False)
    knocks["signals"] += 1
    name = signal.Signals(number).name
    assert (
        str(stopped.value) == f"{tmp_path / 'run'}: stopped by {name} at step 6; continue with --resume or resume=True"
    )
    assert stopped.value.number == number
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert not (tmp_path / "run" / ".lock").exists()
    assert verify(tmp_path / "run") == []
    assert content(start(tiny(), tmp_path / "run", resume=True, progress=False).path) == content(whole.path)


def test_resuming_needs_nothing_repeated(whole, tmp_path, monkeypatch):
    from induction_memory.cli.train import train as command

    record = Writer.record

    def stop(self, step, *rest):
        if step == 6:
            raise KeyboardInterrupt
        record(self, step, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "record", stop)
        with pytest.raises(Stopped):
            start(tiny(), tmp_path / "run", progress=False)
    with pytest.raises(InputError, match=r"^PRESET: expected the name of an experiment, or --resume, got none$"):
        command(out=tmp_path / "new", quiet=True)
    command(out=tmp_path / "run", resume=True, quiet=True)
    assert content(tmp_path / "run") == content(whole.path)
    command(out=tmp_path / "run", steps=14, resume=True, quiet=True)
    assert load(tmp_path / "run").steps[-1] == 14
    with pytest.raises(InputError, match=r"^train\.learning_rate: .*; train\.momentum: expected 0\.9, .* got 0\.5$"):
        command(out=tmp_path / "run", set=(("train.learning_rate=0.1", "train.momentum=0.5"),), resume=True, quiet=True)


def test_a_run_that_diverges_says_where_and_keeps_its_last_finite_checkpoint(tmp_path, knocks):
    config = tiny(learning_rate=1e6, checkpoints="every 1", steps=12)
    with pytest.raises(
        DivergedError, match=r"run: the loss is \w+ at step \d+; .*; what was kept before is intact\nwhat to do: "
    ):
        start(config, tmp_path / "run", progress=False)
    knocks["divergences"] += 1
    assert verify(tmp_path / "run") == []
    run = load(tmp_path / "run")
    assert all(value.isfinite().all() for value in run.state(int(run.steps[0])).values())
    assert run.metrics["loss"].notna().all()
    assert len(run.steps) == len(run.metrics)


def test_what_cannot_be_trained_leaves_nothing_on_the_disk(whole, tmp_path):
    wide = start(tiny(ModelConfig(d_model=32, n_ctx=16), steps=1), tmp_path / "wide", progress=False)
    short = RunConfig(BigramTask(length=1, k=1), ModelConfig(d_model=16, n_ctx=16), tiny().train)
    cases = [
        (
            lambda out: start(tiny(grafts=(f"W_O2={wide.path}@1 from 5",)), out),
            r"^train\.grafts: expected .*1, 16, 16",
        ),
        (
            lambda out: branch(whole, 4, out, grafts=[f"W_O2={wide.path}@1"]),
            r"^train\.grafts: expected a matrix",
        ),
        (lambda out: start(tiny(learning_rate=1e39), out), r"^train\.learning_rate: expected a number"),
        (
            lambda out: start(tiny(batch_size=99999999999999), out),
            r"^train\.batch_size: expected batches that",
        ),
        (
            lambda out: start(tiny(ModelConfig(d_model=999_999, n_ctx=16)), out),
            r"^model: expected weights that fit",
        ),
        (lambda out: start(short, out), r"^task: expected sequences with positions that the loss"),
        (lambda out: train(TASK, MODEL, out=out, step=5), r"^step: expected one of "),
        (lambda out: start(tiny(), out / ("x" * 300)), r"^out: expected names of at most 255 bytes, got one of 300$"),
    ]
    for number, (attempt, message) in enumerate(cases):
        out = tmp_path / f"refused {number}"
        with pytest.raises(InputError, match=message) as error:
            attempt(out)
        assert "\n" not in str(error.value)
        assert not out.exists()


@pytest.mark.usefixtures("unchecked")
def test_absurd_settings_are_one_line_and_never_hang():
    config = RunConfig()
    for setting in (
        "train.checkpoints=log 1000000000",
        "train.checkpoints=every 1" + "0" * 5000,
        "train.checkpoints=" + "9" * 400,
        "task.outputs=[null]",
        "task.outputs=" + "[" * 100_000,
        "task.outputs=[1" + "0" * 400 + "]",
        "train.learning_rate=1" + "0" * 400,
        "train.learning_rate=nan",
        "train.batch_size=1" + "0" * 400,
        "train.batch_size=1" + "0" * 5000,
        "train.betas=[1, [2]]",
        "train.freeze=[1]",
        "train.freeze=W_K1: 1" + "0" * 400 + "..",
        "model.d_model=1" + "0" * 400,
        "model.trained=[null]",
        "train.init_seed=1" + "0" * 400,
    ):
        with pytest.raises(InputError) as error:
            config.with_settings([setting])
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 700, setting[:60]


def test_a_read_only_folder_and_one_that_vanishes_are_clear_errors(tmp_path, monkeypatch, knocks):
    def read_only(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "open", read_only)
        with pytest.raises(InputError, match=r"^out: expected a folder that can be made, got .*\(Permission denied\)$"):
            start(tiny(), tmp_path / "run", progress=False)
    (tmp_path / "run").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(training_run, "require_folder", lambda out: out)  # it was writable a moment ago
        patch.setattr(files.os, "open", read_only)
        with pytest.raises(StorageError, match="Permission denied"):
            start(tiny(), tmp_path / "run", progress=False)
    record = Writer.record

    def vanish(self, step, *rest):
        if step == 4:
            shutil.rmtree(self.folder)
        record(self, step, *rest)

    monkeypatch.setattr(Writer, "record", vanish)
    with pytest.raises(StorageError, match=r"the folder .* is gone$") as error:
        start(tiny(), tmp_path / "gone", progress=False)
    assert "intact" not in str(error.value)
    knocks["read-only or vanished folders"] += 3


@pytest.mark.slow
def test_killed_or_out_of_space_at_any_operation_thinning_can_be_done_again(whole, tmp_path, monkeypatch, knocks):
    expected = content(thin(whole, tmp_path / "whole", [0, 12]).path)
    at, done = 0, False

    def kill(name, original, arguments):
        half(name, original, arguments)
        raise Killed

    while not done:
        out = tmp_path / str(at)
        with monkeypatch.context() as patch:
            Disk(patch, at, kill)
            try:
                thin(whole, out, [0, 12])
                done = True
            except Killed:
                knocks["kills of thinning"] += 1
        if not (out / "manifest.json").exists():  # which comes last: with it the folder is whole
            thin(whole, out, [0, 12])
        assert content(out) == expected, f"operation {at}"
        assert verify(out) == []
        at += 1
    assert at > 10


@pytest.mark.slow
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.hard)])
def test_killed_at_any_operation_a_branch_can_be_made_again(every, whole, tmp_path, monkeypatch, knocks):
    expected = content(branch(whole, 8, tmp_path / "whole", freeze=["W_K1"], progress=False).path)
    at, done = 0, False

    def kill(name, original, arguments):
        half(name, original, arguments)
        raise Killed

    while not done:
        out = tmp_path / str(at)
        with monkeypatch.context() as patch:
            Disk(patch, at, kill)
            try:
                branch(whole, 8, out, freeze=["W_K1"], progress=False)
                done = True
            except Killed:
                knocks["kills of branching"] += 1
        branch(whole, 8, out, freeze=["W_K1"], resume="or start", progress=False)
        assert content(out) == expected, f"operation {at}"
        at += every
    assert at > 30


@pytest.mark.slow
def test_a_run_can_be_read_while_it_trains(tmp_path, knocks):
    """Readers in threads, for as long as a trainer writes: right values or nothing yet, never damage."""
    config = tiny(steps=24, checkpoints="every 2", resume_every=3)
    expected = start(config, tmp_path / "expected", progress=False)
    states = {int(step): expected.state(int(step))["blocks.0.attn.W_K"] for step in expected.steps}
    out, over, problems = tmp_path / "run", threading.Event(), []

    def read():
        while not over.wait(0.005):  # the trainer has its turns
            if not (out / "manifest.json").exists():
                continue
            try:
                run = load(out)
                rows = run.metrics
                assert rows.empty or rows["step"].tolist() == list(range(len(rows)))
                if run.steps.size:
                    step = int(run.steps[-1])
                    assert run.stack("W_K1", [step])[0].equal(states[step])
                    assert run.optimizer_state(step)
                knocks["reads while a run trained"] += 1
            except (Error, AssertionError, OSError) as error:
                problems.append(repr(error))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        start(config, out, progress=False)
    finally:
        over.set()
        for reader in readers:
            reader.join()
    assert problems == []
    assert knocks["reads while a run trained"] > 5
