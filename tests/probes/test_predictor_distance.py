"""Distance to each predictor, on models whose predictions are known."""

import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.probes.predictors import predictor_distances, predictor_mixture, predictor_phases
from induction_memory.task.copying import Copying
from induction_memory.task.markov import MarkovChains
from induction_memory.task.predictors import Phase
from induction_memory.training.run import start
from induction_memory.trajectory.trajectory import load

TASK = MarkovChains(symbols=2, length=12)
TRAIN = TrainConfig(steps=2, batch_size=8, loss="all", learning_rate=0.01, checkpoints="every 1")


class Says(torch.nn.Module):
    """A model that says what a predictor says."""

    def __init__(self, predictor):
        super().__init__()
        self.predictor, self.anywhere = predictor, torch.nn.Parameter(torch.zeros(1))
        self.run_with_hooks = None  # as a model of TransformerLens has it

    def forward(self, tokens):
        return self.predictor(tokens).clamp(min=1e-30).log()


@pytest.mark.slow
def test_a_model_that_is_a_predictor_is_at_no_distance_from_it_alone():
    for name, predictor in TASK.predictors().items():
        table = predictor_distances(Says(predictor), task=TASK, sequences=16)
        assert list(table) == ["1-gram", "2-gram"]
        assert table.loc[0, name] == pytest.approx(0, abs=1e-12)
        assert table.drop(columns=name).to_numpy().min() > 0.01
        mixture = predictor_mixture(Says(predictor), task=TASK, sequences=16)
        assert mixture.loc[0, name] == pytest.approx(1, abs=0.01)
        assert predictor_phases(Says(predictor), task=TASK, sequences=16) == [Phase(name, 0, 0)]


def test_a_variant_tells_a_shortcut_from_an_induction_head_and_has_a_predictor_of_its_own():
    task = Copying(alphabet=8, spans=(1, 3))
    shortcut = Says(task.predictors()["shortcut"])
    same = predictor_distances(shortcut, task=task, sequences=32)
    assert same.loc[0, "shortcut"] == same.loc[0, "induction"] == 0
    other = predictor_distances(shortcut, task=task, variant="elsewhere", sequences=32)
    assert other.loc[0, "shortcut"] == 0
    assert other.loc[0, "induction"] > 10
    assert other.loc[0, "own induction"] == other.loc[0, "induction"]


def test_every_stored_step_of_a_run_has_a_row(tmp_path):
    run = start(RunConfig.of(TASK, ModelConfig.full(d_model=8), TRAIN), tmp_path / "run", progress=False)
    table = predictor_distances(run, sequences=16, group="chain")
    assert table.index.tolist() == [0, 1, 2]
    last = predictor_distances(run.model(2), task=TASK, sequences=16, group="chain")
    assert table.loc[2].tolist() == pytest.approx(last.loc[0].tolist())
    assert predictor_distances(run, sequences=16, step=[1]).index.tolist() == [1]


def test_what_cannot_be_measured_is_refused():
    model = build(RunConfig.of(TASK, ModelConfig.full(d_model=8), TRAIN).model)
    with pytest.raises(InputError, match="task: expected the task of the sequences"):
        predictor_distances(model)
    with pytest.raises(InputError, match="group: expected one of all, chain, start, got 'global'"):
        predictor_distances(model, task=TASK, group="global")
    with pytest.raises(InputError, match="variants: expected one of peaked"):
        predictor_distances(model, task=TASK, variant="sharp")


def test_a_run_is_taken_by_its_name_or_folder_too():
    by_name = predictor_distances("markov-1", step=[0], sequences=4)
    assert by_name.equals(predictor_distances(load("markov-1"), step=[0], sequences=4))
    assert list(predictor_mixture("markov-1", step=[0], sequences=4)) == list(by_name)
