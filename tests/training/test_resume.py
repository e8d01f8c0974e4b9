"""Killed, cut off or out of space at any moment, a run goes on to the same bits as one that was never stopped."""

import errno
import json
import os
import random
import shutil
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from induction_memory import files, load, thin, verify
from induction_memory.errors import DamagedError, InputError, StorageError
from induction_memory.experiment.constraints import Graft
from induction_memory.model.config import ModelConfig
from induction_memory.training.branching import branch
from induction_memory.training.run import resume, start
from induction_memory.trajectory.lock import tidy
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.writer import Origin, Writer, begin, lengthen, resume_point
from tests.tiny_runs import tiny

pytestmark = pytest.mark.slow


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a finished run; of the manifest all but when it was made, and in how much time."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    manifest = json.loads(files.pop("manifest.json"))
    for name in ("created", "seconds", "seal"):
        del manifest[name]
    return files | {"manifest": json.dumps(manifest).encode()}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Flush nothing here: what a flush does, no process can see. The real training processes do flush."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


# The writer alone, fed with made-up weights: fast enough to be stopped at each of its operations.

CONFIG = tiny(
    ModelConfig(d_model=16, n_ctx=16, trained=("W_O2",)),
    steps=4,
    checkpoints="every 1 to 1 then every 3",
    resume_every=2,
    keep_optimizer=False,
    grafts=("W_V2=x@1 from 2",),
)
SHAPE = (1, 16, 16)


def made_up(kind: str, step: int) -> dict[str, torch.Tensor]:
    names = [n for n in CONFIG.moving_parameters if kind == "weights" or "W_V" not in n]
    prefix = "" if kind == "weights" else "momentum/"
    generator = torch.Generator().manual_seed(step)
    return {prefix + name: torch.randn(SHAPE, generator=generator) for name in names}


def write_run(folder: Path) -> None:
    """What a training process does to its folder, from wherever it stands."""
    folder.mkdir(exist_ok=True)
    if not (folder / "manifest.json").exists():
        frozen = {"embed.W_E": torch.ones(65, 16)}
        grafts = {Graft.parse("W_V2=x@1 from 2"): torch.zeros(SHAPE)}
        origin = Origin(frozen | made_up("weights", 0), made_up("optimizer", 0), grafts, None)
        begin(folder, CONFIG, origin, "made up", 1)
    manifest = Manifest.read(folder)
    if manifest.finished:
        tidy(folder)
        return
    point = resume_point(folder, manifest, CONFIG)
    for name, value in (made_up("weights", point.step) | made_up("optimizer", point.step)).items():
        assert torch.equal((point.parameters | point.optimizer)[name], value)
    writer = Writer(folder, manifest, CONFIG, point)
    for step in range(point.step, CONFIG.train.steps + 1):
        kept = step in CONFIG.train.checkpoint_rule.fixed
        row = {"step": step, "loss": step / 3}
        writer.record(step, row, kept, made_up("weights", step), made_up("optimizer", step))
    writer.finish()


class Killed(BaseException):
    pass


OPERATIONS = {"write": files, "fsync": os, "replace": os}


class Disk:
    """Counts the operations on the disk, and does something else in place of one of them."""

    def __init__(self, monkeypatch, at=None, instead=None):
        self.count = 0
        for name, module in OPERATIONS.items():
            self._wrap(monkeypatch, name, module, getattr(module, name), at, instead)

    def _wrap(self, monkeypatch, name, module, original, at, instead):
        def operation(*arguments):
            number, self.count = self.count, self.count + 1
            if number == at:
                instead(name, original, arguments)
            self.before(name, arguments)
            original(*arguments)

        monkeypatch.setattr(module, name, operation)

    def before(self, name, arguments):
        pass


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made up") / "whole"
    write_run(folder)
    return content(folder)


@pytest.fixture(scope="module")
def operations(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        write_run(tmp_path_factory.mktemp("made up") / "counted")
    assert disk.count > 60, disk.count
    return disk.count


def half(name, original, arguments):
    """Half of a write reaches the disk; anything else does not happen."""
    if name == "write":
        descriptor, data = arguments
        os.write(descriptor, memoryview(data)[: len(data) // 2])


def test_killed_at_any_operation_the_writer_goes_on_to_the_same_bits(whole, operations, tmp_path, monkeypatch, knocks):
    def kill(name, original, arguments):
        half(name, original, arguments)
        raise Killed

    for at in range(operations):
        folder = tmp_path / str(at)
        with monkeypatch.context() as patch:
            Disk(patch, at, kill)
            with pytest.raises(Killed):
                write_run(folder)
        knocks["kills of training and compaction"] += 1
        write_run(folder)
        assert content(folder) == whole, f"operation {at}"


def no_space(name, original, arguments):
    half(name, original, arguments)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_at_any_operation_is_one_clear_error_and_the_run_goes_on_later(
    whole, operations, tmp_path, monkeypatch, knocks
):
    for at in range(operations):
        folder = tmp_path / str(at)
        with monkeypatch.context() as patch:
            Disk(patch, at, no_space)
            with pytest.raises(StorageError) as caught:
                write_run(folder)
        knocks["full disks"] += 1
        message = str(caught.value)
        assert str(folder) in message
        assert os.strerror(errno.ENOSPC) in message
        assert "\n" not in message
        assert not list(folder.rglob("*.part"))
        write_run(folder)
        assert content(folder) == whole, f"operation {at}"


class PowerCut(Disk):
    """A disk that, when the power fails, has lost what was not flushed: bytes of files, and names of folders."""

    def __init__(self, monkeypatch, at, chance):
        self.safe: dict[str, int] = {}
        self.renamed: list[tuple[Path, bytes | None]] = []
        self.chance = chance
        super().__init__(monkeypatch, at, self.cut)

    def before(self, name, arguments):
        if name == "replace":
            source, target = arguments
            self.safe[str(target)] = self.safe.pop(str(source))
            self.renamed.append((target, target.read_bytes() if target.exists() else None))
            return
        path = os.readlink(f"/proc/self/fd/{arguments[0]}")
        if name == "write":
            self.safe.setdefault(path, 0)
        elif Path(path).is_dir():
            self.renamed = [(target, old) for target, old in self.renamed if str(target.parent) != path]
        else:
            self.safe[path] = os.fstat(arguments[0]).st_size

    def cut(self, name, original, arguments):
        for path, safe in self.safe.items():
            if Path(path).exists() and os.stat(path).st_size > safe:
                kept = Path(path).read_bytes()
                lost = len(kept) - safe
                rest = self.chance.choice(
                    [b"", kept[safe : safe + lost // 2], bytes(lost), self.chance.randbytes(lost)]
                )
                Path(path).write_bytes(kept[:safe] + rest)
        for target, old in reversed(self.renamed):
            if self.chance.random() < 0.5:
                target.unlink() if old is None else target.write_bytes(old)
        raise Killed


def test_a_power_cut_at_any_operation_loses_nothing_that_cannot_be_done_again(
    whole, operations, tmp_path, monkeypatch, knocks
):
    chance = random.Random(0)
    for at in range(operations):
        folder = tmp_path / str(at)
        with monkeypatch.context() as patch:
            PowerCut(patch, at, chance)
            with pytest.raises(Killed):
                write_run(folder)
        knocks["power cuts"] += 1
        write_run(folder)
        assert content(folder) == whole, f"operation {at}"


def test_a_full_disk_stops_a_real_run_which_then_resumes(tmp_path, monkeypatch):
    config = tiny(optimizer="adamw", learning_rate=0.01)
    expected = content(start(config, tmp_path / "whole", progress=False).path)

    with monkeypatch.context() as patch:
        Disk(patch, 200, no_space)
        with pytest.raises(StorageError, match="No space left on device; what was kept before is intact"):
            start(config, tmp_path / "full", progress=False)
    assert load(tmp_path / "full").steps.size > 1
    assert verify(tmp_path / "full") == []
    assert content(start(config, tmp_path / "full", resume=True, progress=False).path) == expected


def stopped(config, folder, monkeypatch, at, make=start):
    """A run in `folder` that was interrupted at a step."""

    def stop(self, step, *rest):
        if step == at:
            raise KeyboardInterrupt
        record(self, step, *rest)

    record = Writer.record
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "record", stop)
        with pytest.raises(KeyboardInterrupt):
            make(config, folder, progress=False)


def test_adaptive_checkpoints_are_the_same_after_a_kill(tmp_path, monkeypatch):
    config = tiny(checkpoints="every 1 to 2 then adaptive 6 by 0.05", learning_rate=0.5, resume_every=1)
    expected = content(start(config, tmp_path / "whole", progress=False).path)
    assert load(tmp_path / "whole").steps.size > 5
    for at in (3, 7, 9):
        stopped(config, tmp_path / str(at), monkeypatch, at)
        assert content(start(config, tmp_path / str(at), resume=True, progress=False).path) == expected


def test_a_killed_branch_resumes_without_its_parent_or_what_it_grafted(tmp_path, monkeypatch):
    parent = start(tiny(), tmp_path / "parent", progress=False)
    grafts = [f"W_O2={tmp_path / 'parent'}@12 from 7"]
    expected = content(branch(parent, 4, tmp_path / "whole", grafts=grafts, progress=False).path)

    def make(config, folder, progress):
        branch(parent, 4, folder, grafts=grafts, progress=progress)

    stopped(None, tmp_path / "killed", monkeypatch, 6, make)
    shutil.move(tmp_path / "parent", tmp_path / "gone")
    assert content(resume(tmp_path / "killed", progress=False).path) == expected


def test_a_damaged_latest_state_is_passed_over_and_said(tmp_path, monkeypatch, capsys):
    config = tiny(keep_optimizer=False, resume_every=1)
    start(config, tmp_path / "whole", progress=False)
    stopped(config, tmp_path / "run", monkeypatch, 9)
    latest = tmp_path / "run" / "latest.safetensors"
    flipped = bytearray(latest.read_bytes())
    flipped[-5] ^= 1
    latest.write_bytes(flipped)
    with pytest.raises(DamagedError, match=r"got no state to resume from \(.*latest\.safetensors: .* flipped bits"):
        start(config, tmp_path / "run", resume=True, progress=False)
    kept = tiny(resume_every=1)
    stopped(kept, tmp_path / "kept", monkeypatch, 9)
    shutil.copy(latest, tmp_path / "kept" / "latest.safetensors")
    done = start(kept, tmp_path / "kept", resume=True)
    assert "latest.safetensors: expected what was written, got the state of another run" in capsys.readouterr().err
    assert done.metrics.equals(load(tmp_path / "whole").metrics)


def test_a_damaged_or_missing_step_is_computed_again(tmp_path, monkeypatch, capsys):
    config = tiny()
    expected = content(start(config, tmp_path / "whole", progress=False).path)
    for name in ("00000002", "00000008"):
        stopped(config, tmp_path / name, monkeypatch, 9)
        step = tmp_path / name / "steps" / f"{name}.safetensors"
        flipped = bytearray(step.read_bytes())
        flipped[-5] ^= 1
        step.write_bytes(flipped) if name == "00000002" else step.unlink()
        assert content(start(config, tmp_path / name, resume=True).path) == expected
        assert f"{name}.safetensors: expected what was written, got" in capsys.readouterr().err


def test_a_step_damaged_while_training_is_not_carried_over(tmp_path, monkeypatch):
    def damage(self):
        step = self.folder / "steps" / "00000002.safetensors"
        flipped = bytearray(step.read_bytes())
        flipped[-5] ^= 1
        step.write_bytes(flipped)
        finish(self)

    finish = Writer.finish
    monkeypatch.setattr(Writer, "finish", damage)
    with pytest.raises(DamagedError, match=r"00000002\.safetensors: expected what was written, got flipped bits in"):
        start(tiny(), tmp_path / "run", progress=False)
    monkeypatch.undo()
    assert verify(start(tiny(), tmp_path / "run", resume=True, progress=False).path) == []


def listing(folder: Path) -> list[tuple[str, int, int]]:
    return sorted((str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in folder.rglob("*") if p.name != ".lock")


def test_what_cannot_be_is_one_line_and_nothing_is_written(tmp_path, monkeypatch):
    config = tiny()
    stopped(config, tmp_path / "run", monkeypatch, 9)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    before = listing(tmp_path)
    cases = [
        (
            lambda: start(config, tmp_path / "run"),
            r"^out: expected a new or an empty folder \(or --resume, resume=True, to go on\)",
        ),
        (lambda: start(config, tmp_path / "other", resume=True), r"^out: expected a new or an empty folder, got"),
        (
            lambda: start(config, tmp_path / "new", resume=True),
            r"^out: expected the folder of a run to resume, got .*new",
        ),
        (
            lambda: start(tiny(learning_rate=0.1), tmp_path / "run", resume=True),
            r"^train\.learning_rate: expected 0\.2, as in the run to resume, got 0\.1$",
        ),
        (lambda: start(config, tmp_path / "new", log="mlflow"), "^log: expected one of tensorboard, wandb, got"),
        (lambda: start(tiny(grafts=("W_O2=none@3",)), tmp_path / "new"), r"^run: expected the folder of a trajectory"),
        (lambda: start(tiny(device="cuda"), tmp_path / "new"), r"^train\.device: expected cpu"),
        (lambda: start(config, tmp_path / "other" / "thesis.tex"), r"^out: expected a folder, got"),
    ]
    for attempt, message in cases:
        with pytest.raises(InputError, match=message):
            attempt()
    assert listing(tmp_path) == before


def test_the_time_of_training_is_that_of_all_its_parts_without_the_breaks(tmp_path, monkeypatch):
    folder, now = tmp_path / "run", time.time()
    stopped(tiny(), folder, monkeypatch, 9)
    os.utime(folder / "manifest.json", (now - 500, now - 500))
    os.utime(folder / "metrics.jsonl", (now - 400, now - 400))
    begun = time.monotonic()
    start(tiny(), folder, resume=True, progress=False)
    second = Manifest.read(folder).seconds
    assert second is not None
    assert 100 < second < 100.1 + time.monotonic() - begun
    begun = time.monotonic()
    start(tiny(steps=16), folder, resume=True, progress=False)
    third = Manifest.read(folder).seconds
    assert third is not None
    assert second < third < second + time.monotonic() - begun


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    config = tiny(steps=2)
    run = start(config, tmp_path / "run", progress=False)
    before = content(run.path)
    assert content(start(config, tmp_path / "run", resume=True, progress=False).path) == before
    fresh = start(config, tmp_path / "new", resume="or start", progress=False)
    assert content(fresh.path) == before


@pytest.mark.parametrize("keep_optimizer", [True, False])
@pytest.mark.parametrize("first", [8, 9])  # with and without a checkpoint of the longer run there
def test_a_run_goes_on_to_more_steps_with_the_bits_of_one_that_had_them_from_the_start(
    first, keep_optimizer, tmp_path, monkeypatch
):
    def config(steps):
        return tiny(steps=steps, keep_optimizer=keep_optimizer, freeze=("W_K1: 3..",))

    expected = content(start(config(15), tmp_path / "long", progress=False).path)
    start(config(first), tmp_path / "finished", progress=False)
    stopped(config(first), tmp_path / "killed", monkeypatch, 6)
    for name in ("finished", "killed"):
        assert content(start(config(15), tmp_path / name, resume=True, progress=False).path) == expected
        assert verify(tmp_path / name) == []

    start(config(first), tmp_path / "lengthened and killed", progress=False)
    longer = partial(start, resume=True)
    stopped(config(15), tmp_path / "lengthened and killed", monkeypatch, first + 1, longer)
    assert verify(tmp_path / "lengthened and killed") == []
    assert content(resume(tmp_path / "lengthened and killed", progress=False).path) == expected


def test_killed_at_any_operation_of_lengthening_a_run_goes_on(tmp_path, monkeypatch, knocks):
    short, long = (tiny(steps=steps, checkpoints="every 2") for steps in (2, 3))
    start(short, tmp_path / "short", progress=False)
    expected = content(start(long, tmp_path / "long", progress=False).path)
    at, whole = 0, False

    def kill(name, original, arguments):
        half(name, original, arguments)
        raise Killed

    while not whole:
        folder = tmp_path / str(at)
        shutil.copytree(tmp_path / "short", folder)
        with monkeypatch.context() as patch:
            Disk(patch, at, kill)
            try:
                lengthen(folder, Manifest.read(folder), long, None)
                whole = True
            except Killed:
                knocks["kills of lengthening"] += 1
                assert load(folder).metrics.shape[0] == 3
                assert load(folder).steps.tolist() == [0, 2]
                assert verify(folder) == []
        assert content(start(long, folder, resume=True, progress=False).path) == expected, f"operation {at}"
        at += 1
    assert at > 10


def test_what_would_not_be_the_same_run_is_not_lengthened(tmp_path):
    def refuses(reason, make=start, **train):
        folder = tmp_path / reason.replace("'", "")
        make(tiny(steps=8, **train), folder, progress=False)
        before = listing(folder)
        said = f"^train\\.steps: expected 8, as in the run to resume, got 12: {reason}\\nwhat to do: "
        with pytest.raises(InputError, match=said):
            start(tiny(steps=12, **train), folder, resume=True, progress=False)
        assert listing(folder) == before

    def without_optimizer(config, folder, progress):
        thin(start(config, tmp_path / "whole", progress=progress), folder)

    def thinned(config, folder, progress):
        thin(start(config, tmp_path / "grafted", progress=progress), folder, keep_optimizer=True)

    refuses("its cosine decay ends at step 8", schedule="cosine")
    refuses("with more steps, 'log 3' keeps other steps before 8", checkpoints="log 3")
    refuses("it was kept without its optimiser's state", without_optimizer)
    refuses("it was kept without the matrices of its grafts", thinned, grafts=(f"W_O2={tmp_path / 'whole'}@8 from 5",))
    with pytest.raises(InputError, match=r"^train\.steps: expected 8, as in the run to resume, got 6(\n|$)"):
        start(tiny(steps=6), tmp_path / "whole", resume=True, progress=False)


@pytest.mark.parametrize("kept", ["last", True])
def test_a_thinned_copy_with_the_optimisers_state_is_lengthened_to_the_bits_of_the_uninterrupted_run(tmp_path, kept):
    short, long = (tiny(steps=steps, checkpoints="every 2") for steps in (8, 14))
    expected = start(long, tmp_path / "long", progress=False)
    thin(start(short, tmp_path / "short", progress=False), tmp_path / "copy", [0, 4, 8], keep_optimizer=kept)
    found = start(long, tmp_path / "copy", resume=True, progress=False)
    assert found.steps.tolist() == [0, 4, 8, 10, 12, 14]
    for step in found.steps.tolist():
        for name, value in expected.state(step).items():
            assert torch.equal(found.state(step)[name], value)
    ours, theirs = (run.metrics.drop(columns=["checkpoint"]) for run in (found, expected))
    same = [name for name in theirs if "seconds" not in name and "crc32" not in name]
    assert ours[same].equals(theirs[same])
    assert verify(tmp_path / "copy") == []


def test_a_copy_that_shipped_without_its_optimisers_state_is_not_lengthened(tmp_path):
    shutil.copytree(load("induction-alone").path, tmp_path / "copy")
    longer = load(tmp_path / "copy").config.with_settings(["train.steps=700"])
    with pytest.raises(InputError, match="got 700: some of its steps were left out"):
        start(longer, tmp_path / "copy", resume=True, progress=False)


def test_a_damaged_run_is_not_lengthened(tmp_path):
    folder = start(tiny(steps=4), tmp_path / "run", progress=False).path
    flipped = bytearray((folder / "frozen.safetensors").read_bytes())
    flipped[-5] ^= 1
    (folder / "frozen.safetensors").write_bytes(flipped)
    before = listing(folder)
    with pytest.raises(DamagedError, match=r"frozen\.safetensors: expected what was written, got flipped bits"):
        start(tiny(steps=6), folder, resume=True, progress=False)
    assert listing(folder) == before


def test_a_run_that_was_opened_before_it_was_lengthened_says_so(tmp_path):
    folder = start(tiny(steps=4), tmp_path / "run", progress=False).path
    read, unread = load(folder), load(folder)
    assert read.steps.tolist() == [0, 1, 2, 3, 4]
    start(tiny(steps=8), folder, resume=True, progress=False)
    for attempt in (lambda: read.state(2), lambda: read.stack("W_O2"), lambda: read.metrics, lambda: unread.steps):
        with pytest.raises(InputError, match="run: expected the run as it was opened, got more steps: load it again"):
            attempt()


def test_runs_and_branches_are_not_mistaken_for_one_another(tmp_path):
    parent = start(tiny(), tmp_path / "parent", progress=False)
    branch(parent, 4, tmp_path / "branch", progress=False)
    branch(parent, 0, tmp_path / "whole branch", progress=False)
    cases = [
        (lambda: branch(parent, 3, tmp_path / "branch", resume=True), "a branch from step 3, got a branch from step 4"),
        (lambda: branch(parent, 4, tmp_path / "parent", resume=True), "a branch from step 4, got a run from step 0"),
        (lambda: start(tiny(), tmp_path / "branch", resume=True), "a run from its beginning, got a branch from step 4"),
        (lambda: start(tiny(), tmp_path / "whole branch", resume=True), "a run .* got a branch from step 0"),
    ]
    for attempt, message in cases:
        with pytest.raises(InputError, match=f"^out: expected {message} in "):
            attempt()
    assert branch(parent, 4, tmp_path / "branch", steps=14, resume=True, progress=False).steps[-1] == 14


def test_a_lengthened_run_has_the_command_that_lengthened_it(tmp_path):
    start(tiny(steps=2), tmp_path / "run", progress=False, command="train for two steps")
    start(tiny(steps=3), tmp_path / "run", resume=True, progress=False, command="train for three")
    assert Manifest.read(tmp_path / "run").command == "train for three"
