"""Steps measured in other processes: the same tables to the bit, also when a process is killed in between."""

import json
import os
import shutil
import signal
from pathlib import Path

import pandas as pd
import pytest
import torch

import induction_memory as im
from induction_memory.errors import Error, InputError
from induction_memory.source.elsewhere import _received, _sent
from induction_memory.source.sources import select
from induction_memory.sweep import Workers
from induction_memory.trajectory.search import PACKAGED
from induction_memory.trajectory.series import revisions
from tests.sweep import stubs
from tests.trajectory.series import VOCAB, write_series

STEPS = (0, 1, 2, 4, 8, 16)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return write_series("neox", tmp_path_factory.mktemp("neox"), STEPS)


class KillsOne(Workers):
    """Workers of which the first that reads a checkpoint is killed while it does."""

    def run(self, function, calls, folder, progress=None):
        marked = {name: {**call, "function": f"{__name__}:die_once"} for name, call in calls.items()}
        one = next(iter(marked))
        kept = {name: {**call, "function": calls[name]["function"]} for name, call in calls.items() if name != one}
        arguments = {"mapping": {"function": calls[one]["function"], "given": calls[one]["arguments"]}}
        super().run(function, kept | {one: marked[one] | {"arguments": arguments}}, folder, progress)


class Here:
    """Does in this process what workers are sent."""

    def run(self, function, calls, folder, progress=None):
        for call in calls.values():
            function(**json.loads(json.dumps(call)))


def die_once(at, *, function, given):
    from induction_memory.source.elsewhere import _at

    trace = Path(at.chosen.source.path if hasattr(at.chosen.source, "path") else os.environ["DIED"]) / "died"
    if not trace.exists():
        trace.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return _at(function)(at, **given)


@pytest.mark.slow
def test_tables_of_two_processes_of_which_one_is_killed_are_those_of_one_to_the_bit(
    checkpoints, tmp_path, monkeypatch, capfd
):
    tokens = torch.randint(VOCAB, (4, 12), generator=torch.Generator().manual_seed(0))
    monkeypatch.setenv("DIED", str(tmp_path))
    here, there = (revisions(checkpoints, keep=tmp_path / place) for place in ("here", "there"))
    alone = im.ablate(here, tokens, heads="all", kind=["zero", "mean"], step="all")
    shared = im.ablate(there, tokens, heads="all", kind=["zero", "mean"], step="all", engine=KillsOne(2))
    assert (tmp_path / "died").exists()
    assert "was killed by SIGKILL" in capfd.readouterr().err
    pd.testing.assert_frame_equal(alone, shared, check_exact=True)
    assert len(list((tmp_path / "there").iterdir())) == len(STEPS)


@pytest.mark.parametrize(
    "analysis",
    [
        lambda run, **how: im.patch(run, kind="path", step=[0, 600], **how),
        lambda run, **how: im.ablate(run, heads="all", kind="initial", step=[0, 600], **how),
        lambda run, **how: im.probes.table(run, ["accuracy", "norm_W_O2"], step=[0, 600], **how),
        lambda run, **how: im.heads.identify(run, step=[0, 600], sequences=4, **how).roles,
    ],
    ids=["patch", "ablate", "probes", "heads"],
)
def test_each_analysis_of_a_run_gives_the_same_table(analysis, tmp_path):
    for place in ("here", "there"):
        shutil.copytree(PACKAGED / "induction-small", tmp_path / place / "run")
    alone, shared = analysis(tmp_path / "here" / "run"), analysis(tmp_path / "there" / "run", engine=Here())
    pd.testing.assert_frame_equal(alone, shared, check_exact=True)


def test_what_cannot_be_sent_or_kept_is_refused_in_one_line(unchecked):
    run, engine = PACKAGED / "induction-small", Here()
    with pytest.raises(InputError, match=r"^engine: expected a run or a series on the disk, and measures of this pack"):
        im.ablate(run, kind=lambda run, site: run.at(site), engine=engine)
    with pytest.raises(InputError, match=r"^engine: expected a run or a series on the disk"):
        im.ablate(im.load(run).model(600), im.load(run).task.sample(2, im.task.step_rng(0, 0)), engine=engine)
    with pytest.raises(InputError, match=r"^engine: expected such as im.sweep.Workers\(4\), got 4"):
        select(run, engine=4)


def test_an_error_in_a_worker_is_that_of_the_caller(tmp_path):
    for work, kind, told in (
        (stubs.mistake, InputError, "task.k: expected less"),
        (stubs.crash, Error, "RuntimeError"),
    ):
        with pytest.raises(kind, match=f"^run at step 3: {told}"):
            Workers(1).run(work, {"run at step 3": {"folder": str(tmp_path / "trace")}}, tmp_path, progress=False)


def test_what_is_sent_arrives_as_it_was():
    task = im.load("induction-small").task
    batch = task.sample(2, im.task.step_rng(0, 0))
    for value in ({"a": [1, None, 0.1, "x", True]}, {"empty": {}}, {"step": {"tensor": 1}}):
        assert _received(_sent(value)) == value
    assert _received(_sent(task)) == task
    arrived = _received(_sent(batch))
    assert type(arrived) is type(batch)
    assert arrived.tokens.equal(batch.tokens)
    assert all(arrived.groups[name].equal(batch.groups[name]) for name in batch.groups)
    third = torch.rand(2, 0, 3), torch.rand(3)
    assert all(a.equal(b) and a.dtype == b.dtype for a, b in zip(_received(_sent(third)), third, strict=True))
