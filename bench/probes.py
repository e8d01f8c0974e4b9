"""All recall probes on a 200-step trajectory, from disk: one batched pass against a loop over HookedTransformers.

The trajectory has the paper's size (d = 128, T = 256, with W_F) and is written for the occasion. The loop reads each
step, loads it into a HookedTransformer and takes the same probes in plain tensor code: once with a new model a step, as
`run.model` gives it, and once, to compare, with one model whose weights are replaced (what is left there is mostly the
matrix products that every way has to do). Both sides read from a fresh `load`, check what they read, and give the same
numbers.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from bench.sampler import median_seconds
from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.memory import associative, kl_to_model
from induction_memory.model.build import build
from induction_memory.model.config import ModelConfig
from induction_memory.model.memories import embedding, memory
from induction_memory.probes import recall
from induction_memory.task import BigramTask
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.trajectory import load
from induction_memory.trajectory.writer import Origin, ResumePoint, Writer, begin

STEPS = 200


def write_synthetic(folder: Path) -> None:
    """A finished trajectory whose trained weights walk at random."""
    train = TrainConfig(steps=STEPS - 1, checkpoints="every 1", keep_optimizer=False)
    config = RunConfig(BigramTask(), ModelConfig(), train)
    model = build(config.model)
    parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    state = {"momentum": torch.zeros(1)}
    begin(folder, config, Origin(parameters, state, {}), None, None)
    writer = Writer(folder, Manifest.read(folder), config, ResumePoint(0, parameters, state, {}, [], 0, ()))
    generator = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        writer.record(step, {"step": step}, True, parameters, state)
        for name in config.moving_parameters:
            parameters[name] += 0.01 * torch.randn(parameters[name].shape, generator=generator)
    writer.finish()
    writer.close()


def batched(folder: Path) -> pd.DataFrame:
    return recall(load(folder), cached=False)


def probe(model: nn.Module, task: BigramTask) -> dict[str, float]:
    """The paper's probes of one model, in plain tensor code."""
    p, w_E, w_U = (embedding(model, name) for name in ("p", "w_E", "w_U"))
    W_K1, W_K2 = memory(model, "W_K1").mT, memory(model, "W_K2").mT
    positions, tokens = torch.arange(len(p) - 1), torch.arange(len(w_E))
    masked = associative.masked_recall(W_K1, p[1:], p, positions, associative.causal(len(p))[:, 1:])
    found = {
        "W_K1": associative.recall(W_K1, p[1:], p[:-1], positions),
        "W_K1_first64": associative.recall(W_K1, p[1:64], p[:63], positions[:63]),
        "W_K1_causal": masked,
        "W_K2": associative.recall(W_K2, w_E, embedding(model, "Phi_1 w_E"), tokens),
        "W_O2": associative.recall(memory(model, "W_O2"), embedding(model, "W_V2 w_E"), w_U, tokens),
        "W_F_kl": kl_to_model(memory(model, "W_F"), w_E, w_U, torch.tensor(task.bigram).float()),
    }
    return {name: value.item() for name, value in found.items()}


def new_model_each_step(folder: Path) -> pd.DataFrame:
    run = load(folder)
    return pd.DataFrame([probe(run.model(step), run.task) for step in run.steps.tolist()])


def one_model_refilled(folder: Path) -> pd.DataFrame:
    run = load(folder)
    return pd.DataFrame([probe(model, run.task) for _, model in run.models()])


def rows(repeats: int = 5) -> list[dict]:
    """The rows of the benchmark table on probes."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        write_synthetic(folder)
        loops: dict[str, Callable[[Path], pd.DataFrame]] = {
            "a new model each step": new_model_each_step,
            "one model refilled": one_model_refilled,
        }
        together = batched(folder)
        fast = median_seconds(lambda: batched(folder), repeats)
        result = []
        for kind, loop in loops.items():
            assert np.allclose(loop(folder)[together.columns], together, rtol=1e-5)
            baseline = median_seconds(lambda loop=loop: loop(folder), min(repeats, 3))
            result.append(
                {
                    "work": f"all recall probes on {STEPS} steps, from disk ({kind})",
                    "baseline_seconds": baseline,
                    "seconds": fast,
                    "ratio": baseline / fast,
                    "at_least": 5 if loop is new_model_each_step else "",
                    "aim": 10 if loop is new_model_each_step else "",
                }
            )
    return result
