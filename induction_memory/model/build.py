"""ModelConfig -> HookedTransformer: the only place that makes one.

Row vectors, as in TransformerLens: the block computes x + attention(x), then x + x W_F (linear) or
x + relu(x W_in) W_out. Initialisation (the paper's experiments; variances in FACTS of the released code):

    W_E, W_pos    N(0, 1) entries, or N(0, 1/d)
    other maps    uniform in [-1/sqrt(fan_in), 1/sqrt(fan_in)], no bias
    W_Q           the identity where the configuration says so

Each parameter is drawn from a stream of its own, keyed by seed and name: two models that differ in one part share all
the others.
"""

import math
import warnings
import zlib
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.hook_points import HookPoint

from induction_memory.errors import require
from induction_memory.model.config import ModelConfig


class LinearFeedForward(nn.Module):
    """x W_F, the paper's feed-forward; hooks before and after the map as in any TransformerLens MLP."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.W_F = nn.Parameter(torch.empty(d_model, d_model))
        self.hook_pre = HookPoint()
        self.hook_post = HookPoint()

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        return self.hook_post(self.hook_pre(x) @ self.W_F)


class NoFeedForward(nn.Module):
    """Nothing: zeros added to the stream, so that blocks with and without a feed-forward have the same hooks."""

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        return torch.zeros_like(x)


def build(config: ModelConfig, seed: int = 0) -> HookedTransformer:
    """A HookedTransformer with the weights of `config`, initialised from `seed`.

    `model.trainable` names the parameters that learn; every other one has requires_grad False, the biases (zero)
    included. `model.model_config` is the configuration it was made from.
    """
    require(seed >= 0, "seed", "a whole number of at least 0", seed)
    model = _skeleton(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_initial(name, tuple(parameter.shape), config, seed))
    if config.tied_output:
        model.unembed.W_U = nn.Parameter(model.embed.W_E.data.T)  # a view: the two stay one
    trainable = tuple(config.parameters[name] for name in config.trained_names)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trainable)
    model.trainable = trainable  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    model.model_config = config  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    return model.eval()


def _skeleton(config: ModelConfig) -> HookedTransformer:
    settings = HookedTransformerConfig(
        n_layers=config.n_layers,
        d_model=config.d_model,
        n_ctx=config.n_ctx,
        d_head=config.head_dimension,
        n_heads=config.n_heads,
        d_mlp=config.mlp_dimension,
        d_vocab=config.d_vocab,
        d_vocab_out=config.n_outputs,
        act_fn="relu",
        attn_only=config.feed_forward == "none",
        normalization_type="LN" if config.layer_norm else None,
        parallel_attn_mlp=config.parallel_blocks,
        use_attn_scale=config.scale_scores,
        init_weights=False,
        default_prepend_bos=False,
        device="cpu",
        dtype=torch.float32,
    )
    with _expected_deprecation():
        model = HookedTransformer(settings)
    if config.feed_forward != "none":
        for layer, block in enumerate(model.blocks, start=1):
            if not config.has_feed_forward(layer):
                block.mlp = NoFeedForward()  # pyright: ignore[reportAttributeAccessIssue]
                block.ln2 = nn.Identity()
            elif config.feed_forward == "linear":
                block.mlp = LinearFeedForward(config.d_model)  # pyright: ignore[reportAttributeAccessIssue]
        model.setup()  # names the hooks of the blocks that were changed
    return model


@contextmanager
def _expected_deprecation():
    """Silence the one warning that TransformerLens 3.9 gives for every HookedTransformer."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="HookedTransformer is deprecated", category=DeprecationWarning)
        yield


def _initial(name: str, shape: tuple[int, ...], config: ModelConfig, seed: int) -> Tensor:
    kind = name.rsplit(".", 1)[-1]
    if kind == "w":  # LayerNorm's gain
        return torch.ones(shape)
    if kind == "b" or kind.startswith("b_"):
        return torch.zeros(shape)
    if kind == "W_Q" and config.identity_queries:
        return torch.eye(config.d_model).expand(shape)
    if kind == "W_pos" and config.positions == "sinusoidal":
        return _sinusoidal(config)
    generator = _generator(seed, name)
    if kind in ("W_E", "W_pos"):
        return torch.randn(shape, generator=generator) * _embedding_scale(config)
    fan_in = config.n_heads * config.head_dimension if kind == "W_O" else shape[-2]
    return (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(fan_in)


def remap(model: HookedTransformer, name: str, seed: int) -> None:
    """Draw a parameter again as Gaussian with variance 1/fan_in: a random map that keeps norms (Section 4.1)."""
    parameter = dict(model.named_parameters())[name]
    fan_in = model.cfg.n_heads * model.cfg.d_head if name.endswith("W_O") else parameter.shape[-2]
    with torch.no_grad():
        parameter.copy_(torch.randn(parameter.shape, generator=_generator(seed, f"{name} remap")) / math.sqrt(fan_in))


def _embedding_scale(config: ModelConfig) -> float:
    return 1.0 if config.embedding_variance == "one" else config.d_model**-0.5


def _sinusoidal(config: ModelConfig) -> Float[Tensor, "pos d_model"]:
    """sin and cos of t / 10000^(2i/d), interleaved, scaled so that the norm is that of the random embeddings."""
    position = torch.arange(config.n_ctx, dtype=torch.float64)[:, None]
    rate = 10000 ** (-torch.arange(0, config.d_model, 2, dtype=torch.float64) / config.d_model)
    waves = torch.stack([torch.sin(position * rate), torch.cos(position * rate)], dim=-1).flatten(1)
    return (waves * math.sqrt(2) * _embedding_scale(config)).float()


def _generator(seed: int, name: str) -> torch.Generator:
    entropy: Any = np.random.SeedSequence([seed, zlib.crc32(name.encode())]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(entropy) >> 1)
