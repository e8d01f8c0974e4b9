"""The initial weights, each parameter from a stream of its own, in one of three parametrisations.

                  code (the experiments)     text (Sections 4.1 and 4.2)    unit-embeddings
    W_E, W_pos    N(0, 1)                    N(0, 1/d)                      N(0, 1/d)
    other maps    uniform, variance 1/(3n)   N(0, 1/n)                      uniform, variance 1/(3n)

n is the map's number of inputs (fan-in): d itself in the simplified model. Under `text` every embedding, output
embedding and remapped embedding has norm 1 on average. Under `code` with d = 128 the norms are |w_E| = 11.3,
|Phi_1 w_E| = 3.8 and |w_U| = 0.58. `unit-embeddings` changes the embeddings alone. In all three:

    W_Q           the identity if the configuration says so
    W_pos         sine and cosine if the configuration says so, with the norm of the random embeddings
    LayerNorm     gain 1, bias 0; every other bias 0

A stream is keyed by the seed and the parameter's name, so two models that differ in one part share all the others, and
the initial weights of a run can be computed again from its configuration and its seed.
"""

import math
import zlib
from typing import assert_never

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.model.config import ModelConfig


def initial_weight(name: str, shape: tuple[int, ...], config: ModelConfig, seed: int) -> Float[Tensor, "..."]:
    """The initial value of one parameter, by its name in the HookedTransformer.

    >>> initial_weight("blocks.0.attn.W_Q", (1, 2, 2), ModelConfig(d_model=2, n_ctx=4), seed=0)[0]
    tensor([[1., 0.],
            [0., 1.]])
    """
    kind = name.rsplit(".", 1)[-1]
    if kind == "w":  # LayerNorm's gain
        return torch.ones(shape)
    if kind == "b" or kind.startswith("b_"):
        return torch.zeros(shape)
    if kind == "W_Q" and config.identity_queries:
        return torch.eye(config.d_model).expand(shape)
    if kind == "W_pos" and config.positions == "sinusoidal":
        return _sinusoidal(config)
    stream = generator(seed, name)
    if kind in ("W_E", "W_pos"):
        return torch.randn(shape, generator=stream) * _embedding_scale(config)
    fan_in = config.n_heads * config.head_dimension if kind == "W_O" else shape[-2]
    match config.parametrisation:
        case "text":
            entries = torch.randn(shape, generator=stream)
        case "code" | "unit-embeddings":
            entries = 2 * torch.rand(shape, generator=stream) - 1
        case unknown:
            assert_never(unknown)
    return entries / math.sqrt(fan_in)


def generator(seed: int, name: str) -> torch.Generator:
    """The stream of a seed and a name."""
    entropy = np.random.SeedSequence([seed, zlib.crc32(name.encode())]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(entropy) >> 1)


def _embedding_scale(config: ModelConfig) -> float:
    return 1.0 if config.parametrisation == "code" else config.d_model**-0.5


def _sinusoidal(config: ModelConfig) -> Float[Tensor, "pos d_model"]:
    """sin and cos of t / 10000^(2i/d), interleaved, scaled so that the norm is that of the random embeddings."""
    position = torch.arange(config.n_ctx, dtype=torch.float64)[:, None]
    rate = 10000 ** (-torch.arange(0, config.d_model, 2, dtype=torch.float64) / config.d_model)
    waves = torch.stack([torch.sin(position * rate), torch.cos(position * rate)], dim=-1).flatten(1)
    return (waves * math.sqrt(2) * _embedding_scale(config)).float()
