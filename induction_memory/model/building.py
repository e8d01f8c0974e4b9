"""ModelConfig or Architecture -> HookedTransformer: only this module depends on the version of TransformerLens.

Row vectors, as in TransformerLens: the block computes x + attention(x), then x + x W_F (linear) or
x + relu(x W_in) W_out. The initial weights are those of `initial.py`. An Architecture has TransformerLens's own modules
and initialisation.
"""

import math
import warnings
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, assert_never

import torch
from jaxtyping import Float
from torch import Tensor, nn

from induction_memory.errors import InputError, require
from induction_memory.lazy import quiet_import
from induction_memory.model.architecture import KEY, AnyModel, Architecture
from induction_memory.model.initial import generator, initial_weight
from induction_memory.task.fields import require_seed

if TYPE_CHECKING:  # type checkers see 3.9
    from transformer_lens import HookedTransformer, HookedTransformerConfig
    from transformer_lens.components.mlps.mlp import MLP as MLP
    from transformer_lens.hook_points import HookPoint
else:
    with quiet_import():
        from transformer_lens.hook_points import HookPoint

        try:
            from transformer_lens import HookedTransformer, HookedTransformerConfig
            from transformer_lens.components.mlps.mlp import MLP as MLP
        except ImportError:  # TransformerLens 4 removed them
            from induction_memory.model.own_transformer import MLP as MLP
            from induction_memory.model.own_transformer import HookedTransformer, HookedTransformerConfig


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
    """Adds zeros to the stream, so that blocks with and without a feed-forward have the same hooks."""

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        return torch.zeros_like(x)


def build(config: AnyModel, seed: int = 0) -> HookedTransformer:
    """A HookedTransformer with the weights of `config`, initialised from `seed`.

    `model.trainable` names the parameters that learn; every other one has requires_grad False, the biases (zero)
    included. `model.model_config` is the configuration it was made from.

    >>> from induction_memory.model.config import ModelConfig
    >>> build(ModelConfig(d_model=16, n_ctx=8), seed=0).W_K.shape
    torch.Size([2, 1, 16, 16])
    """
    require(isinstance(config, AnyModel), "config", "a ModelConfig", repr(config))
    require_seed(seed)
    if isinstance(config, Architecture):
        model = _hooked(config, seed)
    else:
        model = skeleton(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(initial_weight(name, tuple(parameter.shape), config, seed))
        if config.tied_output:
            model.unembed.W_U = nn.Parameter(model.embed.W_E.data.T)  # a view: the two stay one
    trainable = tuple(config.parameters[name] for name in config.trained_names)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trainable)
    model.trainable = trainable  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    model.model_config = config  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    return model.eval()


def skeleton(config: AnyModel) -> HookedTransformer:
    """The model of a configuration, with weights that are not yet filled in."""
    if isinstance(config, Architecture):
        return _hooked(config, None)
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
            match config.feed_forward_of(layer):
                case "none":
                    block.mlp = NoFeedForward()  # pyright: ignore[reportAttributeAccessIssue]
                    block.ln2 = nn.Identity()
                case "linear":
                    block.mlp = LinearFeedForward(config.d_model)  # pyright: ignore[reportAttributeAccessIssue]
                case "relu":
                    pass  # TransformerLens's own
                case unknown:
                    assert_never(unknown)
        model.setup()  # names the hooks of the blocks that were changed
    return model


def _hooked(config: Architecture, seed: int | None) -> HookedTransformer:
    """The HookedTransformer of an architecture, initialised by TransformerLens from `seed`, or not at all.

    The random state of the caller's process stays as it is.
    """
    if HookedTransformer.__module__.startswith("induction_memory."):
        got = "TransformerLens 4, which removed HookedTransformer"
        raise InputError(f"model: expected TransformerLens 3.9 for a HookedTransformer of one's own, got {got}")
    known = {f.name for f in fields(HookedTransformerConfig)}
    settings: dict[str, Any] = {n: list(v) if isinstance(v, tuple) else v for n, v in config.settings}
    for name in settings:
        allowed = "fields of TransformerLens's configuration (another version may have written it)"
        require(name in known, f"model.{KEY}.{name}", allowed, repr(name))
    settings |= {"dtype": torch.float32, "init_weights": seed is not None}
    with _expected_deprecation(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0 if seed is None else generator(seed, KEY).initial_seed())
        return HookedTransformer(HookedTransformerConfig(**settings))


@contextmanager
def _expected_deprecation():
    """Silence the one warning that TransformerLens 3.9 gives for every HookedTransformer."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="HookedTransformer is deprecated", category=DeprecationWarning)
        yield


def remap(model: HookedTransformer, name: str, seed: int) -> None:
    """Draw a parameter again as Gaussian with variance 1/fan_in: a random map that keeps norms (Section 4.1)."""
    parameter = dict(model.named_parameters())[name]
    fan_in = model.cfg.n_heads * model.cfg.d_head if name.endswith("W_O") else parameter.shape[-2]
    with torch.no_grad():
        parameter.copy_(torch.randn(parameter.shape, generator=generator(seed, f"{name} remap")) / math.sqrt(fan_in))
