"""What holds of every task that ships, and of a task that is written here."""

import json
import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

import induction_memory as im
from induction_memory.errors import InputError
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.task import protocol
from induction_memory.task.batch import Batch
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.causal import CausalGraph
from induction_memory.task.copying import Copying
from induction_memory.task.factual_recall import FactualRecall
from induction_memory.task.markov import MarkovChains
from induction_memory.task.noisy import NoisyTriggers
from induction_memory.task.predictors import predictions
from induction_memory.task.protocol import NotOfferedError, Task, ask, choose

TASKS = [
    BigramTask(length=20, k=3),
    NoisyTriggers(length=20, k=3),
    NoisyTriggers(length=20, k=2, triggers="random"),
    MarkovChains(length=20),
    MarkovChains(length=20, order=2, symbols=2, pool=5),
    MarkovChains(length=20, soft_targets=True),
    CausalGraph(length=12, symbols=4),
    CausalGraph(length=12, symbols=4, asked="all", graph="binary"),
    FactualRecall(subjects=6, relations=3, answers=2, length=8),
    Copying(alphabet=8, spans=(1, 3)),
]


@protocol.register
@dataclass(frozen=True)
class Parity:
    """The target is the parity of what has been read."""

    name: ClassVar[str] = "parity"
    main: ClassVar[str] = "all positions"
    n_inputs: ClassVar[int] = 2
    n_outputs: ClassVar[int] = 2

    length: int = 8
    weights: tuple[float, ...] = (0.5, 0.5)

    def sample(self, n, rng):
        tokens = torch.from_numpy(rng.choice(2, size=(n, self.length), p=self.weights))
        everywhere = torch.ones_like(tokens, dtype=torch.bool)
        return Batch(tokens, tokens.cumsum(1) % 2, everywhere, {self.main: everywhere}, self.main)


@pytest.mark.parametrize("task", [*TASKS, Parity()], ids=lambda task: f"{task.name}")
def test_a_task_samples_what_it_says_and_comes_back_from_json(task):
    assert isinstance(task, Task)
    batch = task.sample(16, np.random.default_rng(0))
    again = task.sample(16, np.random.default_rng(0))
    assert batch.tokens.shape == (16, task.length)
    assert 0 <= int(batch.tokens.min()) <= int(batch.tokens.max()) < task.n_inputs
    assert torch.equal(batch.tokens, again.tokens)
    assert torch.equal(batch.targets, again.targets)
    assert not torch.equal(batch.tokens, task.sample(16, np.random.default_rng(1)).tokens)
    if batch.soft:
        assert batch.targets.shape == (16, task.length, task.n_outputs)
        torch.testing.assert_close(batch.targets.sum(-1), torch.ones(16, task.length))
    else:
        asked = batch.targets[batch.counted]
        assert 0 <= int(asked.min()) <= int(asked.max()) < task.n_outputs
    assert batch.main == task.main
    for mask in batch.groups.values():
        assert not bool((mask & ~batch.counted).any())
    assert len(batch[:5]) == 5
    assert torch.equal(batch[:5].group(), batch.group()[:5])
    assert protocol.from_dict(json.loads(json.dumps(protocol.to_dict(task)))) == task


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.name}")
def test_what_a_task_offers_fits_its_vocabularies(task):
    batch = task.sample(12, np.random.default_rng(0))
    inputs, outputs = task.labels()
    assert (len(inputs), len(outputs)) == (task.n_inputs, task.n_outputs)
    found = predictions(task.predictors(), batch.tokens, task.n_outputs)
    assert len(found) >= 2
    here = torch.arange(task.length)
    for mask in task.sources(batch).values():
        assert mask.shape == (12, task.length, task.length)
        assert not bool((mask & (here[None, :] > here[:, None])).any())  # nothing to come is attended to
        assert bool(mask.any())
    size = {"token": task.n_inputs, "position": task.length, "output": task.n_outputs}
    for ideal in task.associations().values():
        assert ideal.strength.shape == (size[ideal.outputs], size[ideal.inputs])
    for name, corrupt in task.corruptions().items():
        pairs = corrupt(batch, np.random.default_rng(1))
        here = torch.arange(len(pairs.query))
        assert not torch.equal(pairs.clean.tokens, pairs.corrupted.tokens), name
        assert torch.equal(pairs.clean.tokens[here, pairs.query], pairs.corrupted.tokens[here, pairs.query])
        assert bool(pairs.clean.counted[here, pairs.query].all())
        if pairs.answer is not None:
            assert torch.equal(pairs.answer, pairs.clean.targets[here, pairs.query])


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.name}")
def test_the_last_predictor_is_the_best(task):
    """Its loss on the task's own samples is below that of each simpler one."""
    batch = task.sample(400, np.random.default_rng(3))
    found = predictions(task.predictors(), batch.tokens, task.n_outputs)
    hard = batch.latents["next"] if batch.soft else batch.targets
    losses = []
    for p in found.values():
        log_p = p.gather(-1, hard.unsqueeze(-1)).squeeze(-1).log()
        losses.append(-log_p[batch.counted].mean().item())
    assert losses[-1] == min(losses)
    assert losses[0] > losses[-1] + 0.02 or isinstance(task, MarkovChains)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.name}")
def test_variants_share_the_vocabularies_and_can_be_read_by_the_tasks_own_predictors(task):
    if isinstance(task, FactualRecall):
        return  # it has none
    for name, variant in ask(task, "variants").items():
        assert variant != task or task.name == "bigrams"  # its variants are named by what their outputs are
        assert (variant.n_inputs, variant.n_outputs, variant.length) == (task.n_inputs, task.n_outputs, task.length)
        tokens = variant.sample(4, np.random.default_rng(0)).tokens
        if task.name == "bigrams":
            continue  # other outputs may be impossible under the task's own
        assert list(predictions(task.predictors(), tokens, task.n_outputs)), name


def test_predictors_read_the_prefix_only():
    for task in TASKS:
        tokens = task.sample(8, np.random.default_rng(0)).tokens
        cut = task.length // 2
        for name, predictor in task.predictors().items():
            whole, prefix = predictor(tokens)[:, :cut], predictor(tokens[:, :cut].clone())
            torch.testing.assert_close(whole, prefix, rtol=0, atol=1e-12, msg=f"{task.name}: {name}")


def test_what_a_task_does_not_offer_has_a_one_line_reason():
    with pytest.raises(NotOfferedError, match="the task 'parity' offers no predictors: there is no predictor"):
        ask(Parity(), "predictors")
    with pytest.raises(NotOfferedError, match="facts are memorised"):
        ask(FactualRecall(), "variants")
    with pytest.raises(InputError, match="capability: expected one of labels"):
        ask(Parity(), "magic")
    assert choose(NoisyTriggers(), "variants", "clean").noise == 0
    with pytest.raises(InputError, match=r"variants: expected one of clean \(of the task .*\), got 'dirty'"):
        choose(NoisyTriggers(), "variants", "dirty")


def test_a_task_without_memories_and_predictors_is_measured_by_loss_and_accuracy():
    model = build(ModelConfig.full(d_model=8, n_ctx=8, d_vocab=2), seed=0)
    found = im.probes.table(model, task=Parity())
    assert {"loss", "accuracy"} <= set(found["probe"])


def test_the_batch_that_users_make_has_no_triggers_of_bigrams_and_takes_every_kind_of_ablation_it_can():
    model = build(ModelConfig.full(d_model=8, n_ctx=8, d_vocab=2), seed=0)
    assert im.task.Batch is Batch
    kinds = set(im.ablate(model, Parity().sample(4, np.random.default_rng(0)), heads="all", kind="all")["kind"])
    assert "resample" in kinds
    assert "resample-output" not in kinds


def test_bigrams_stand_in_files_as_they_always_did():
    task = BigramTask(k=2)
    assert protocol.to_dict(task) == task.to_dict()
    assert "name" not in protocol.to_dict(task)
    assert protocol.to_dict(MarkovChains(order=2))["name"] == "markov"
    assert protocol.from_dict({"name": "bigrams", **task.to_dict()}) == task


def test_a_name_that_is_not_registered_is_refused_and_nothing_is_imported():
    before = set(sys.modules)
    with pytest.raises(InputError, match=r"task.name: expected one of bigrams, .* got 'os'"):
        protocol.from_dict({"name": "os"})
    with pytest.raises(InputError, match="did you mean markov"):
        protocol.from_dict({"name": "markow"})
    assert set(sys.modules) == before
    with pytest.raises(InputError, match=r"task.speed: expected one of symbols, order"):
        protocol.from_dict({"name": "markov", "speed": 3})


def test_two_tasks_cannot_share_a_name_and_an_incomplete_one_is_refused():
    with pytest.raises(InputError, match=r"task.name: expected a name that no other task has, got 'markov'"):
        protocol.register(type("Mine", (Parity,), {"name": "markov", "__module__": "mine"}))
    with pytest.raises(InputError, match=r"task 'half': expected sample, length, .*, got no sample, length"):
        protocol.register(type("Half", (), {"name": "half"}))
    with pytest.raises(InputError, match=r"task.name: expected a name in the class"):
        protocol.register(type("Nameless", (), {}))
    with pytest.raises(InputError, match=r"task: expected a registered task"):
        protocol.to_dict(type("Stranger", (Parity,), {"name": "stranger"})())


def test_a_batch_names_its_groups():
    batch = Parity().sample(3, np.random.default_rng(0))
    assert torch.equal(batch.group("all"), batch.counted)
    with pytest.raises(InputError, match=r"group: expected one of all, all positions, got 'global'"):
        batch.group("global")
    with pytest.raises(InputError, match=r"batch.main: expected one of the groups"):
        Batch(batch.tokens, batch.targets, batch.counted, {}, "query")


def test_a_batch_at_a_group_has_its_positions_and_counts_no_others():
    inside = torch.tensor([[False, True, False, True], [False, False, True, False]])
    tokens = torch.arange(8).view(2, 4)
    batch = Batch(tokens, tokens + 10, torch.ones_like(inside), {"late": inside}, "late")
    positions, small = batch.of_group()
    assert positions[0].tolist() == [1, 3]
    assert positions[1, 0] == 2
    assert small.targets[0].tolist() == [11, 13]
    assert small.targets[1, 0] == 16
    assert small.counted.tolist() == small.group("late").tolist() == [[True, True], [True, False]]
    soft = Batch(tokens, torch.rand(2, 4, 3), torch.ones_like(inside), {"late": inside}, "late")
    assert torch.equal(soft.of_group()[1].targets[0], soft.targets[0, [1, 3]])
