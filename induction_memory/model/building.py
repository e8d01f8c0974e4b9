"""A HookedTransformer from its configuration: modules, initial weights, and a check for later changes.

Only this module and `own_transformer.py` depend on the version of TransformerLens. Row vectors, as in TransformerLens:
the block computes x + attention(x), then x + x W_F (linear) or x + relu(x W_in) W_out. An `Architecture` has
TransformerLens's own modules and initialisation.

The initial weights of a `ModelConfig`, in one of three parametrisations. Each parameter has its own random stream.

                  code (the experiments)     text (Sections 4.1 and 4.2)    unit-embeddings
    W_E, W_pos    N(0, 1)                    N(0, 1/d)                      N(0, 1/d)
    other maps    uniform, variance 1/(3n)   N(0, 1/n)                      uniform, variance 1/(3n)

n is the map's number of inputs (fan-in), which is d in the simplified model. Under `text` every embedding, output
embedding and remapped embedding has norm 1 on average. Under `code` with d = 128 the norms are |w_E| = 11.3, |Phi_1
w_E| = 3.8 and |w_U| = 0.58. `unit-embeddings` is `code` with other embeddings. In all three, LayerNorms have gain 1 and
every bias is 0; if the configuration says so, W_Q is the identity and W_pos sine and cosine.

A stream is keyed by the seed and the parameter's name, so two models that differ in one part share all the others, and
the initial weights of a run can be computed again from its configuration and its seed.

`departure` describes how a model differs from what `build` makes: in the type, attributes, buffers, hooks or forward of
a module, or in a field of the configuration that a forward pass can read. The hand-written forward of `training/fast`
sees only weights and configuration, so it accepts only models without such a difference.
"""

import math
import warnings
import zlib
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from induction_memory.errors import InputError, require
from induction_memory.fields import require_seed
from induction_memory.lazy import quiet_import
from induction_memory.model.config import KEY, AnyModel, Architecture, ModelConfig


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
    embedding_scale = 1.0 if config.parametrisation == "code" else config.d_model**-0.5
    if kind == "W_pos" and config.positions == "sinusoidal":
        return _sinusoidal(config, embedding_scale)
    stream = generator(seed, name)
    if kind in ("W_E", "W_pos"):
        return torch.randn(shape, generator=stream) * embedding_scale
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
    """The random generator of a seed and a parameter's name."""
    entropy = np.random.SeedSequence([seed, zlib.crc32(name.encode())]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(entropy) >> 1)


def _sinusoidal(config: ModelConfig, scale: float) -> Float[Tensor, "pos d_model"]:
    """sin and cos of t / 10000^(2i/d), interleaved; `scale` gives them the norm of the random embeddings."""
    position = torch.arange(config.n_ctx, dtype=torch.float64)[:, None]
    rate = 10000 ** (-torch.arange(0, config.d_model, 2, dtype=torch.float64) / config.d_model)
    waves = torch.stack([torch.sin(position * rate), torch.cos(position * rate)], dim=-1).flatten(1)
    return (waves * math.sqrt(2) * scale).float()


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


def build(config: "AnyModel", seed: int = 0) -> HookedTransformer:
    """A HookedTransformer with the weights of `config`, initialised from `seed`.

    `model.trainable` names the parameters that learn; all others, also the biases (zero), have requires_grad False.
    `model.model_config` is its configuration.

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
            model.unembed.W_U = nn.Parameter(model.embed.W_E.data.T)  # a view, so both stay the same parameter
    trainable = tuple(config.parameters[name] for name in config.trained_names)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trainable)
    model.trainable = trainable  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    model.model_config = config  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    return model.eval()


@torch.no_grad()
def fill(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy the tensors of a state into the parameters of the same names."""
    for name, parameter in model.named_parameters():
        if name in state:
            parameter.copy_(state[name])


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

    The global random state does not change.
    """
    if HookedTransformer.__module__.startswith("induction_memory."):
        got = "TransformerLens 4, which removed HookedTransformer"
        raise InputError(f"model: expected TransformerLens 3.9 for your own HookedTransformer, got {got}")
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
    """Redraw a parameter as Gaussian with variance 1/fan_in: a random map that preserves norms (Section 4.1)."""
    parameter = dict(model.named_parameters())[name]
    fan_in = model.cfg.n_heads * model.cfg.d_head if name.endswith("W_O") else parameter.shape[-2]
    with torch.no_grad():
        parameter.copy_(torch.randn(parameter.shape, generator=generator(seed, f"{name} remap")) / math.sqrt(fan_in))


_NOT_COMPUTED_WITH = {"training", "name", "cfg", "alibi"}
"""Attributes that say nothing about what is computed, or are made from the configuration in the first forward."""
_OF_THE_WHOLE_MODEL = {"hook_dict", "mod_dict", "is_caching", "context_level", "dataset", "tokenizer"}
_OF_THE_WHOLE_MODEL |= {"trainable", "model_config"}
_ABOUT_TOKENS_AND_INITIALISATION = {"default_prepend_bos", "init_mode", "init_weights", "initializer_range", "seed"}
_ABOUT_TOKENS_AND_INITIALISATION |= {"model_name", "tokenizer_name", "tokenizer_prepends_bos", "device", "n_params"}
_OF_TORCH = vars(nn.Module()).keys()


def departure(model: nn.Module, expected: nn.Module | None = None) -> str | None:
    """How a model differs from `expected` (by default from what `build` makes), apart from its weights; None if it
    does not."""
    config = getattr(model, "model_config", None)
    if expected is None:
        if isinstance(config, Architecture):
            return "the model's configuration is not a ModelConfig"
        if not isinstance(config, ModelConfig):
            return "the model was not made by induction_memory.model.building"
        expected = as_configured(config)
    assert expected is not None
    settings, built = vars(model.cfg), vars(expected.cfg)
    for name in sorted((settings.keys() | built.keys()) - _ABOUT_TOKENS_AND_INITIALISATION):
        if settings.get(name) != built.get(name):
            return f"cfg.{name} is {settings.get(name)!r}, not {built.get(name)!r}"
    if hooks_everywhere():
        return "torch has a global hook on every module"
    found = dict(model.named_modules())
    parts = dict(expected.named_modules())
    for kind in dict.fromkeys(map(type, found.values())):
        if (method := _replaced(kind)) is not None:
            return f"the class {kind.__name__} has another {method}"
    for name in sorted(found.keys() ^ parts.keys()):
        return f"the module {name} was {'added' if name in found else 'taken away'}"
    for name, module in found.items():
        reason = _module_departure(module, parts[name], whole=name == "")
        if reason is None and getattr(module, "cfg", model.cfg) is not model.cfg:
            reason = "has a different configuration"
        if reason is not None:
            return f"{name or 'the model'} {reason}"
    return None


def hooks_everywhere() -> bool:
    """Whether torch has a global hook on every module."""
    return bool(_global_forward_hooks or _global_forward_pre_hooks)


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has a hook, of torch or TransformerLens, forward or backward."""
    own = vars(module)
    forward = own["_forward_hooks"] or own["_forward_pre_hooks"]
    return bool(forward or own["_backward_hooks"] or own["_backward_pre_hooks"])


@lru_cache(maxsize=8)
def as_configured(config: AnyModel) -> Any:
    """The skeleton of a configuration, to compare with."""
    return skeleton(config)


def _replaced(kind: type) -> str | None:
    """The name of a method that was replaced on a class: it is defined in another module than the class."""
    for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:  # transformers adds methods to torch's own
        for name, own in vars(base).items():
            if isinstance(own, FunctionType) and own.__module__ != base.__module__:
                return name
    return None


def _module_departure(module: nn.Module, built: nn.Module, whole: bool) -> str | None:
    if type(module) is not type(built):
        return f"is a {type(module).__name__}, not a {type(built).__name__}"
    if has_hooks(module):
        return "has hooks"
    if "forward" in vars(module):
        return "has another forward"
    ignored = _NOT_COMPUTED_WITH | (_OF_THE_WHOLE_MODEL if whole else set())
    own, expected = vars(module), vars(built)
    names = own.keys() - expected.keys()
    if type(module) is not HookPoint:  # its hooks have already been compared
        names |= expected.keys() - _OF_TORCH
    for name in sorted(names - ignored):
        if name not in own or name not in expected or (own[name] is not expected[name] and own[name] != expected[name]):
            return f"has another {name}"
    for name, buffer in built.named_buffers(recurse=False):
        value = getattr(module, name)
        if not torch.equal(value.cpu(), buffer):
            return f"has another {name}"
    return None
