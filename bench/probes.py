"""All recall probes on a 200-step trajectory, from disk: one batched pass against a loop over HookedTransformers.

The trajectory has the paper's size (d = 128, T = 256, with W_F) and is written for the occasion. The loop reads each
step, loads it into a HookedTransformer and takes the same probes in plain tensor code: once with a new model per step,
as `run.model` gives it, and once, to compare, with one model whose weights are replaced, where matrix products that
every way needs take most of the time. Both sides read from a fresh `load`, check what they read, and give the same
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
from induction_memory import BigramTask
from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.memory import kl
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.model.memories import embedding, matrix
from induction_memory.probes import recall
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.trajectory import load
from induction_memory.trajectory.writer import Origin, ResumePoint, Writer, begin

STEPS = 200


def write_synthetic(folder: Path, steps: int = STEPS, d_model: int = ModelConfig.d_model) -> None:
    """A finished trajectory whose trained weights walk at random."""
    train = TrainConfig(steps=steps - 1, checkpoints="every 1", keep_optimizer=False)
    config = RunConfig(BigramTask(), ModelConfig(d_model=d_model), train)
    model = build(config.model)
    parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    state = {"momentum": torch.zeros(1)}
    begin(folder, config, Origin(parameters, state, {}, parameters), None, None)
    writer = Writer(folder, Manifest.read(folder), config, ResumePoint(0, parameters, state, {}, [], 0, ()))
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        writer.record(step, {"step": step}, True, parameters, state)
        for name in config.moving_parameters:
            parameters[name] += 0.01 * torch.randn(parameters[name].shape, generator=generator)
    writer.finish()


def batched(folder: Path) -> pd.DataFrame:
    return recall(load(folder))


def probe(model: nn.Module, task: BigramTask) -> dict[str, float]:
    """The paper's probes of one model, in plain tensor code."""
    p, w_E, w_U = (embedding(model, name) for name in ("p", "w_E", "w_U"))
    positions, tokens = (
        p[1:] @ matrix(model, "W_K1") @ p.T,
        w_E @ matrix(model, "W_K2") @ embedding(model, "Phi_1 w_E").T,
    )
    hidden = torch.ones(len(p), len(p), dtype=torch.bool).triu(1)[1:]
    found = {
        "W_K1": diagonal_wins(positions[:, :-1]),
        "W_K1_first64": diagonal_wins(positions[:63, :63]),
        "W_K1_causal": diagonal_wins(positions.masked_fill(hidden, -torch.inf)),
        "W_K2": diagonal_wins(tokens),
        "W_O2": diagonal_wins(w_E @ matrix(model, "Phi_2").T @ w_U.T),
        "W_F_kl": kl((w_E @ matrix(model, "W_F").T @ w_U.T).double(), torch.tensor(task.bigram), "to model"),
    }
    return {name: float(value) for name, value in found.items()}


def diagonal_wins(table: torch.Tensor) -> torch.Tensor:
    """Share of rows i whose entry i is the largest."""
    return (table.argmax(-1) == torch.arange(len(table))).double().mean()


def new_model_each_step(folder: Path) -> pd.DataFrame:
    run = load(folder)
    return pd.DataFrame([probe(run.model(step), run.task) for step in run.steps.tolist()])


def one_model_refilled(folder: Path) -> pd.DataFrame:
    run = load(folder)
    return pd.DataFrame([probe(model, run.task) for _, model in run.items()])


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
