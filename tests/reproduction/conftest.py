"""Runs at a size that trains in a moment, and what the claims measure without a run, each measured once."""

import functools

import pytest

from induction_memory.paper import measurement, plan
from induction_memory.paper import records as store
from induction_memory.paper.measurement import make_record
from induction_memory.training.run import start


@pytest.fixture(scope="session")
def one_step():
    """Recall after one step, for each setting drawn once."""
    from induction_memory.paper.claims import memories

    return functools.cache(memories.repeated)


@pytest.fixture
def one_step_once(one_step, monkeypatch):
    """Claims read recall after one step as it was drawn the first time."""
    monkeypatch.setattr("induction_memory.paper.claims.memories.repeated", one_step)


def tiny(name: str, seed: int, scale: str):
    """Any preset at a size that trains in a moment."""
    run = plan.with_seed(plan.preset(name).config, seed)
    settings = ["task.length=12", "model.n_ctx=12", "model.d_model=16", "train.batch_size=4", "train.steps=4"]
    return run.with_settings(
        [*settings, "train.threads=1", "train.warmup=0", "train.checkpoints=every 1", "train.freeze=", "train.grafts="]
    )


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(plan, "_config", tiny)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The runs of Figures 4 to 7, trained in this process."""
    folder = tmp_path_factory.mktemp("runs") / "quick"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurement, "BATCHES", 2)
        patch.setattr(measurement, "RESAMPLES", 10)
        for preset in plan.FIGURES[4]:
            job = plan.PaperRun(preset, 0, tiny(preset, 0, "quick"))
            run = start(job.config, folder / job.name, progress=False)
            store.write(make_record(run, job.name), folder / "records" / job.name)
    return folder
