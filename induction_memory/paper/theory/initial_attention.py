"""Attention at initialisation: near-uniform as the paper says, or not (Sections 4.1 and 5).

The attention a of a query over its t keys has 1 / sum_s a_s^2 effective tokens: t if it is uniform, 1 if it is on one
key. Their share of t, averaged over queries, is measured on untrained models of Figure 3 (d = 128, T = 256) and on
their task, for

    text    embeddings and maps with entries N(0, 1/d), scores as in equation 2
    code    embeddings N(0, 1), uniform maps, scores divided by sqrt(d): what the paper's figures used
"""

from functools import cache

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.experiment.presets import preset
from induction_memory.model.building import initial_weight
from induction_memory.model.config import ModelConfig
from induction_memory.paper.theory.checks import Result, column
from induction_memory.paper.verdicts import at_least, at_most
from induction_memory.runner.choice import runner
from induction_memory.task.sampler import sample, step_rng

PRESETS = {"text": "figure-3-text", "code": "figure-3"}
SEQUENCES, SEEDS = 4, 3


def effective_share(pattern: Float[Tensor, "batch head query key"]) -> Float[Tensor, "batch head query"]:
    """Effective tokens of each query's attention divided by its number of keys: 1 if uniform, 1/t if on one key."""
    return 1 / pattern.square().sum(-1) / torch.arange(1, pattern.shape[-1] + 1)


def initial_attention() -> Result:
    r"""The paper says that "attention scores at initialization are near-uniform" (Section 4.1) and that "the attention
    weights are essentially uniform when $W_K$ are at random initialization" (Section 5). This is true of the text's
    parametrisation. It is not true of the authors' code, which made the paper's figures: there a query attends to about
    a third of its keys, and the largest weight is 13 to 18 times the uniform one. The rows have means over three seeds,
    for the worse of the two layers."""
    table = measured()
    share = {name: _by_layer(table, "share", name) for name in PRESETS}
    largest = {name: _by_layer(table, "largest", name) for name in PRESETS}
    rows = (
        at_least("effective tokens over t, text", 0.9, min(share["text"])),
        at_least("effective tokens over t, code", 0.9, min(share["code"]), slip=True),
        at_most("largest weight of the last query over 1/T, text", 2.0, max(largest["text"])),
        at_most("largest weight of the last query over 1/T, code", 2.0, max(largest["code"]), slip=True),
    )
    return Result(rows, {"models": table})


@cache
def measured() -> pd.DataFrame:
    """One row per parametrisation, seed and layer: effective tokens over t, and the largest weight of the last query
    over 1/T.
    """
    records = []
    for name, chosen in PRESETS.items():
        run = preset(chosen).config
        assert isinstance(run.model, ModelConfig)
        tokens = sample(run.task, SEQUENCES, step_rng(0, 0)).tokens
        for seed in range(SEEDS):
            recording = runner(_weights(run.model, seed), run.model).record(tokens)
            for layer in (1, 2):
                pattern = recording.pattern(layer).double()
                share = effective_share(pattern)[..., 1:].mean().item()
                largest = (pattern[..., -1, :].amax(-1) * pattern.shape[-1]).mean().item()
                records.append({"model": name, "layer": layer, "seed": seed, "share": share, "largest": largest})
    return pd.DataFrame(records)


def _by_layer(table: pd.DataFrame, measure: str, model: str) -> list[float]:
    """The mean over seeds, for each layer."""
    return [float(column(table, measure, model=model, layer=layer).mean()) for layer in (1, 2)]


def _weights(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    return {name: initial_weight(name, shape, config, seed) for name, shape in config.shapes.items()}
