"""devinterp's sampler as the oracle of ours: the same model, loss, minibatches and settings, another implementation.

Its chains run by `SGMCMC.sgld` on a copy of the model, with torch's own gradients of a loss that is written out here.
With our minibatches and our noise, draw by draw, its numbers are ours. With its own noise, the means agree.
"""

import time

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from induction_memory import load
from induction_memory.model.config import ModelConfig
from induction_memory.probes.langevin import Langevin, chain, estimate, minibatches, weights_of_part
from induction_memory.source.sources import select
from induction_memory.training.forward import evaluate
from induction_memory.training.run import start
from tests.tiny_runs import tiny

pytest.importorskip("devinterp", reason="devinterp is not installed: pip install 'induction-memory[devinterp]'")


class Numbers(Dataset):
    """Numbers of minibatches, in the order in which the sampler shall take them."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        return {"input_ids": torch.tensor(self.numbers[index])}


def mean_loss(model, batch):
    """Mean of -log p(target) at the in-context positions: what "trigger-output" means."""
    chosen = batch.groups["in_context"]
    return torch.nn.functional.cross_entropy(model(batch.tokens)[chosen], batch.targets[chosen])


class Problem:
    """One part of a run's last model, its minibatches and their losses at the stored weights."""

    def __init__(self, run, part, sampling):
        self.model, self.batches, self.sampling = (
            run.model(int(run.steps[-1])),
            minibatches(select(run), sampling),
            sampling,
        )
        self.weights, self.masks = weights_of_part(self.model, part)
        with torch.no_grad():
            self.at_centre = [float(mean_loss(self.model, batch)) for batch in self.batches]

    def gradients(self, number):
        found = evaluate(self.model, self.batches[number], "trigger-output")
        return found.loss, found.gradients

    def by_devinterp(self, numbers, noise):
        """n_beta times the excess loss before each of its updates; `noise` is the state of the random numbers."""
        from devinterp.optim import SGMCMC
        from devinterp.slt.sampler import sample_single_chain

        how, excess = self.sampling, []

        def loss_of(copy, data):
            if not excess:
                torch.set_rng_state(noise)
            (number,) = data["input_ids"].tolist()
            loss = mean_loss(copy, self.batches[number])
            excess.append(how.n_beta * (float(loss.detach()) - self.at_centre[number]))
            return loss, {}

        sample_single_chain(
            self.model,
            Numbers(numbers),
            loss_of,
            {name: self.masks.get(name) for name in self.weights},
            num_draws=len(numbers),
            sampling_method=SGMCMC.sgld,
            sampling_method_kwargs={"lr": how.step_size, "nbeta": how.n_beta, "localization": how.localisation},
            batch_size=1,
            shuffle=False,
        )
        return np.array(excess)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("devinterp") / "run"
    start(tiny(ModelConfig(d_model=16, n_ctx=16, n_heads=2, d_head=16)), folder, progress=False)
    return load(folder)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["all", "W_K2 of L2H2"])
def test_with_the_same_noise_devinterp_draws_what_we_draw(run, part):
    how = Langevin(step_size=1e-3, burn_in=5, draws=20, batch_size=8, minibatches=4)
    problem = Problem(run, part, how)
    ours = chain(problem.weights, problem.gradients, torch.tensor(problem.at_centre), how, 7, problem.masks)
    generator = torch.Generator().manual_seed(7)  # as `chain` uses it: first the order, then the noise
    order = torch.randint(how.minibatches, (how.burn_in + how.draws,), generator=generator).tolist()
    theirs = problem.by_devinterp([order[0], *order], generator.get_state())[1 + how.burn_in :]
    assert np.abs(theirs).max() > 1
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=2e-3)


@pytest.mark.hard
@pytest.mark.parametrize("part", ["all", "W_K1", "W_K2", "W_O2"])
def test_with_its_own_noise_devinterp_finds_the_same_coefficient_of_a_shipped_run(part):
    """The table of docs/revisions.md; `-s` shows its rows."""
    how = Langevin()
    problem = Problem(load("induction-alone"), part, how)
    began, means = time.process_time(), []
    for number in range(how.chains):
        generator = torch.Generator().manual_seed(1000 + number)
        order = torch.randint(how.minibatches, (how.burn_in + how.draws,), generator=generator).tolist()
        means.append(problem.by_devinterp(order, generator.get_state())[how.burn_in :].mean())
    theirs, their_error = np.mean(means), np.std(means, ddof=1) / np.sqrt(how.chains)
    between = time.process_time()
    ours, our_error, _ = estimate(problem.weights, problem.gradients, how, problem.masks)
    row = f"{theirs:.2f} ± {their_error:.2f} | {between - began:.0f} | {ours:.2f} ± {our_error:.2f}"
    print(f"\n| {part} | {row} | {time.process_time() - between:.0f} |")
    assert abs(ours - theirs) < 5 * np.hypot(their_error, our_error)
