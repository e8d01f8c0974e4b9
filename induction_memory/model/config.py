"""A model's architecture as a frozen configuration that can be saved.

`ModelConfig` describes the architectures of the paper (Sections 2 and 4.2, Appendix D), `Architecture` every other
HookedTransformer by TransformerLens's own fields. Both have the same attributes: sizes, the parameters with their
shapes, and which parameters learn.

The simplified model (Section 4.2) is the default: two layers of one head, W_Q = I, embeddings and value maps frozen
at random, one linear feed-forward x + W_F x after the second layer. `ModelConfig.full` is the vanilla transformer of
Figure 2: queries trained, ReLU feed-forward of width 4d in every layer.

Its parameters have the paper's names, then the layer's number, counted from 1: `W_K1` is in `blocks.0`.

    Architecture.of(HookedTransformerConfig(n_layers=3, act_fn="gelu", positional_embedding_type="rotary", ...))

keeps every field of TransformerLens's configuration except the device, the seed of the initialisation (the run's
`init_seed` is used) and the tokenizer. Its parameters have TransformerLens's names: `blocks.0.attn.W_K`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, assert_never

from induction_memory.errors import InputError, require, require_known
from induction_memory.field_docs import field_docs
from induction_memory.fields import as_plain, check_fields, from_plain

FeedForward = Literal["none", "linear", "relu"]
FeedForwardLayers = Literal["last", "all"]
Parametrisation = Literal["code", "text", "unit-embeddings"]
Positions = Literal["random", "sinusoidal"]
LARGEST = 1_000_000
"""The largest allowed value of any size of a model."""


@field_docs
@dataclass(frozen=True)
class ModelConfig:
    """The parts of a model, and which of them learn.

    >>> import induction_memory as im
    >>> im.ModelConfig(d_model=64).feed_forward
    'linear'
    >>> im.ModelConfig.full(d_model=64).feed_forward
    'relu'
    """

    d_model: int = 128
    """Dimension d of the residual stream."""
    n_ctx: int = 256
    """Longest sequence T."""
    d_vocab: int = 65
    """Size N of the vocabulary."""
    d_vocab_out: int | None = None
    """Number of outputs; by default the size of the vocabulary."""
    n_layers: int = 2
    """Number of attention layers."""
    n_heads: int = 1
    """Heads in each layer."""
    d_head: int | None = None
    """Dimension of a head; by default d_model / n_heads."""
    feed_forward: FeedForward = "linear"
    """none, linear (x + W_F x) or relu (a hidden layer of width d_mlp)."""
    feed_forward_layers: FeedForwardLayers = "last"
    """Which layers have the feed-forward: the last one, or all."""
    d_mlp: int | None = None
    """Width of the ReLU feed-forward; by default 4 d_model."""
    layer_norm: bool = False
    """LayerNorm before each attention, each feed-forward and the unembedding."""
    parallel_blocks: bool = False
    """The feed-forward reads the block's input instead of the residual stream after attention."""
    identity_queries: bool = True
    """Fix W_Q = I, so that W_K alone is the key-query memory."""
    scale_scores: bool = True
    """Divide attention scores by sqrt(d_head)."""
    parametrisation: Parametrisation = "code"
    """Initial weights of the authors' code, of the paper's text, or of the code with embeddings of unit norm."""
    positions: Positions = "random"
    """Positional embeddings: random, like the token embeddings, or sine and cosine."""
    tied_output: bool = False
    """Unembed with the token embeddings, W_U = W_E^T."""
    trained: tuple[str, ...] | None = None
    """Names of the parameters that learn. By default all, or, if W_Q = I, every W_K, the last W_O and the
    feed-forward."""

    def __post_init__(self) -> None:
        sizes = ("d_model", "n_ctx", "d_vocab", "n_layers", "n_heads", "d_vocab_out", "d_head", "d_mlp")
        check_fields(self, "model", **dict.fromkeys(sizes, (1, LARGEST)))
        if self.d_head is None:
            allowed = f"a divisor of d_model = {self.d_model}, or a d_head"
            require(self.d_model % self.n_heads == 0, "model.n_heads", allowed, self.n_heads)
        require(
            not self.tied_output or self.n_outputs == self.d_vocab,
            "model.tied_output",
            "false, or as many outputs as tokens",
            f"true with d_vocab_out = {self.d_vocab_out}",
        )
        require(
            not self.identity_queries or self.head_dimension == self.d_model,
            "model.identity_queries",
            f"false, or heads as wide as the model (d_head = d_model = {self.d_model})",
            f"true with d_head = {self.head_dimension}",
        )
        even = self.positions == "random" or self.d_model % 2 == 0
        require(even, "model.d_model", "an even number for sine and cosine positions", self.d_model)
        if self.trained is not None:
            self._check_trained(self.trained)

    def _check_trained(self, trained: tuple[str, ...]) -> None:
        known = self.parameters
        for name in trained:
            allowed = f"names out of {', '.join(known)}"
            require(name in known, "model.trained", allowed, repr(name))
        tied = self.tied_output and "W_U" in trained
        require(not tied, "model.trained", "W_E instead of W_U when the output is tied", "'W_U'")
        queries = self.identity_queries and any(name.startswith("W_Q") for name in trained)
        require(not queries, "model.trained", "no W_Q when identity_queries is true", ", ".join(trained))

    @classmethod
    def simplified(cls, **changes: Any) -> "ModelConfig":
        """The paper's simplified two-layer model (Section 4.2)."""
        return cls(**changes)

    @classmethod
    def full(cls, **changes: Any) -> "ModelConfig":
        """The vanilla transformer: query matrices, ReLU feed-forward in every layer, everything learns."""
        return cls(**{"identity_queries": False, "feed_forward": "relu", "feed_forward_layers": "all"} | changes)

    @property
    def n_outputs(self) -> int:
        return self.d_vocab_out if self.d_vocab_out is not None else self.d_vocab

    @property
    def head_dimension(self) -> int:
        return self.d_head if self.d_head is not None else self.d_model // self.n_heads

    @property
    def mlp_dimension(self) -> int:
        return self.d_mlp if self.d_mlp is not None else 4 * self.d_model

    def feed_forward_of(self, layer: int) -> FeedForward:
        """The feed-forward of a layer, counted from 1."""
        return self.feed_forward if self.feed_forward_layers == "all" or layer == self.n_layers else "none"

    def has_feed_forward(self, layer: int) -> bool:
        """Whether this layer, counted from 1, has a feed-forward with weights."""
        return self.feed_forward_of(layer) != "none"

    @cached_property
    def parameters(self) -> dict[str, str]:
        """The paper's name of every weight -> the name of the parameter in the HookedTransformer."""
        names = {"W_E": "embed.W_E", "W_pos": "pos_embed.W_pos", "W_U": "unembed.W_U"}
        for layer in range(1, self.n_layers + 1):
            block = f"blocks.{layer - 1}"
            for matrix in ("W_Q", "W_K", "W_V", "W_O"):
                names[f"{matrix}{layer}"] = f"{block}.attn.{matrix}"
            if self.layer_norm:
                names |= {f"gamma_attn{layer}": f"{block}.ln1.w", f"beta_attn{layer}": f"{block}.ln1.b"}
            match self.feed_forward_of(layer):
                case "none":
                    continue
                case "linear":
                    names["W_F" if layer == self.n_layers else f"W_F{layer}"] = f"{block}.mlp.W_F"
                case "relu":
                    names |= {f"W_in{layer}": f"{block}.mlp.W_in", f"W_out{layer}": f"{block}.mlp.W_out"}
                case unknown:
                    assert_never(unknown)
            if self.layer_norm:
                names |= {f"gamma_ff{layer}": f"{block}.ln2.w", f"beta_ff{layer}": f"{block}.ln2.b"}
        if self.layer_norm:
            names |= {"gamma_out": "ln_final.w", "beta_out": "ln_final.b"}
        return names

    @cached_property
    def trained_names(self) -> tuple[str, ...]:
        """The paper's names of the parameters that learn, in the order of `parameters`."""
        if self.trained is not None:
            return tuple(name for name in self.parameters if name in self.trained)
        if not self.identity_queries:
            return tuple(name for name in self.parameters if not (self.tied_output and name == "W_U"))
        learns = ("W_K", f"W_O{self.n_layers}", "W_F", "W_in", "W_out")
        return tuple(name for name in self.parameters if name.startswith(learns))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return as_plain(self)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight by its name in the HookedTransformer, without biases and a tied W_U."""
        d, heads, width = self.d_model, self.n_heads, self.head_dimension
        by_kind = {
            "W_E": (self.d_vocab, d),
            "W_pos": (self.n_ctx, d),
            "W_U": (d, self.n_outputs),
            **dict.fromkeys(("W_Q", "W_K", "W_V"), (heads, d, width)),
            "W_O": (heads, width, d),
            "W_F": (d, d),
            "W_in": (d, self.mlp_dimension),
            "W_out": (self.mlp_dimension, d),
            **dict.fromkeys(("w", "b"), (d,)),
        }
        shapes = {name: by_kind[name.rsplit(".", 1)[-1]] for name in self.parameters.values()}
        if self.tied_output:
            del shapes["unembed.W_U"]
        return shapes

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ModelConfig":
        """The inverse of `to_dict`; keys that are not fields are refused."""
        return from_plain(cls, values, "model")

    def replace(self, **changes: Any) -> "ModelConfig":
        return replace(self, **changes)

    def untrained(self) -> "ModelConfig":
        """The same architecture without the choice of what learns."""
        return replace(self, trained=None)


KEY = "hooked_transformer"
"""On the disk, the fields of an `Architecture` are under this key. A model without it is a `ModelConfig`."""
FIXED: dict[str, Any] = {
    "device": "cpu",
    "seed": None,
    "init_weights": True,
    "tokenizer_name": None,
    "tokenizer_prepends_bos": None,
    "dtype": "float32",
    "n_devices": 1,
}
"""Fields with the same value in every model of this package."""


@field_docs
@dataclass(frozen=True)
class Architecture:
    """A HookedTransformer by its configuration, and its frozen parameters.

    >>> from transformer_lens import HookedTransformerConfig
    >>> import induction_memory as im
    >>> given = HookedTransformerConfig(n_layers=1, d_model=8, d_head=8, n_ctx=4, d_vocab=3, act_fn="gelu")
    >>> im.model.Architecture.of(given).n_layers
    1
    """

    settings: tuple[tuple[str, Any], ...]
    """Every field of TransformerLens's configuration with its value: a number, a text, a list of texts, or None."""
    frozen: tuple[str, ...] = ()
    """Parameters that never learn, by TransformerLens's names."""

    @classmethod
    def of(cls, given: Any) -> "Architecture":
        """The architecture of a HookedTransformerConfig, or of a HookedTransformer that matches its configuration.

        A model with hooks or other modules is refused, because they could not be rebuilt from a file.
        """
        try:
            from transformer_lens import HookedTransformer, HookedTransformerConfig
        except ImportError as error:
            allowed = "a ModelConfig: TransformerLens 4 has no HookedTransformer"
            raise InputError(f"model: expected {allowed}, got {_described(given)}") from error

        is_model = type(given) is HookedTransformer
        cfg = given.cfg if is_model else given
        allowed = "a ModelConfig, a HookedTransformer or its HookedTransformerConfig"
        require(type(cfg) is HookedTransformerConfig, "model", allowed, _described(given))
        dtype = str(cfg.dtype).removeprefix("torch.")
        require(dtype == "float32", "model.dtype", "float32", dtype)
        require(cfg.n_devices == 1, "model.n_devices", "1", cfg.n_devices)
        values = {f.name: getattr(cfg, f.name) for f in fields(cfg)} | FIXED
        architecture = cls(tuple((name, _plain(name, value)) for name, value in values.items()))
        if is_model:
            from induction_memory.model.building import as_configured, departure

            reason = departure(given, as_configured(architecture))
            require(reason is None, "model", "a HookedTransformer as its configuration makes it", f"one where {reason}")
        return architecture

    def __getitem__(self, name: str) -> Any:
        """A field of TransformerLens's configuration."""
        return dict(self.settings)[name]

    @property
    def n_ctx(self) -> int:
        return self["n_ctx"]

    @property
    def d_model(self) -> int:
        return self["d_model"]

    @property
    def d_vocab(self) -> int:
        return self["d_vocab"]

    @property
    def n_layers(self) -> int:
        return self["n_layers"]

    @property
    def n_heads(self) -> int:
        return self["n_heads"]

    @property
    def n_outputs(self) -> int:
        return self["d_vocab_out"]

    @property
    def feed_forward(self) -> Literal["none", "other"]:
        """`other` if there are feed-forwards, since they differ from the paper's."""
        return "none" if self["attn_only"] else "other"

    @property
    def layer_norm(self) -> bool:
        return self["normalization_type"] in ("LN", "LNPre")

    @property
    def identity_queries(self) -> bool:
        """False: queries have their own matrix."""
        return False

    @property
    def tied_output(self) -> bool:
        """False: a HookedTransformer always has its own unembedding."""
        return False

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every parameter by its name."""
        return dict(_shapes(self.settings))

    @property
    def parameters(self) -> dict[str, str]:
        """Every parameter's name -> the same name, because the paper has no names for them."""
        return {name: name for name, _ in _shapes(self.settings)}

    @property
    def trained_names(self) -> tuple[str, ...]:
        """The parameters that learn."""
        return tuple(name for name in self.parameters if name not in self.frozen)

    def untrained(self) -> "Architecture":
        """The same architecture without the choice of what learns."""
        return replace(self, frozen=())

    def freezing(self, names: Sequence[str]) -> "Architecture":
        """The same architecture with these parameters, or all parameters of these modules, frozen too."""
        held = frozen_parameters(names, self.parameters)
        return replace(self, frozen=tuple(n for n in self.parameters if n in held or n in self.frozen))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in self.settings}
        return {KEY: values, "frozen": list(self.frozen)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Architecture":
        """The inverse of `to_dict`; fields that the installed TransformerLens does not have are refused."""
        for name in values:
            require_known(name, (KEY, "frozen"), f"model.{name}")
        settings, frozen = values[KEY], values.get("frozen", [])
        require(isinstance(settings, dict), f"model.{KEY}", "fields and their values", repr(settings)[:80])
        names = isinstance(frozen, list) and all(isinstance(name, str) for name in frozen)
        require(names, "model.frozen", "names of parameters", repr(frozen)[:80])
        for name in ("n_layers", "n_heads", "d_model", "n_ctx", "d_vocab", "d_vocab_out"):
            size = settings.get(name)
            whole = isinstance(size, int) and not isinstance(size, bool) and size >= 1
            require(whole, f"model.{KEY}.{name}", "a whole number of at least 1", repr(size)[:80])
        for name, value in FIXED.items():
            require(settings.get(name) == value, f"model.{KEY}.{name}", repr(value), repr(settings.get(name))[:80])
        return cls(tuple((name, _plain(name, value)) for name, value in settings.items()), tuple(frozen))


AnyModel = ModelConfig | Architecture
"""The models that a run can train."""


def model_from_dict(values: Mapping[str, Any]) -> AnyModel:
    """A model's configuration from the disk: an `Architecture` if it has TransformerLens's fields, or a ModelConfig."""
    return Architecture.from_dict(values) if KEY in values else ModelConfig.from_dict(dict(values))


def freeze(model: AnyModel, names: Sequence[str]) -> AnyModel:
    """The model with these parameters, or all parameters of these modules, frozen.

    >>> freeze(ModelConfig(d_model=8), ["blocks.0"]).trained_names
    ('W_K2', 'W_O2', 'W_F')
    """
    if isinstance(model, Architecture):
        return model.freezing(names)
    by_paper = [model.parameters.get(name, name) for name in names]
    held = frozen_parameters(by_paper, tuple(model.parameters.values()))
    return model.replace(trained=tuple(name for name in model.trained_names if model.parameters[name] not in held))


def frozen_parameters(names: Sequence[str], known: Sequence[str] | Mapping[str, Any]) -> frozenset[str]:
    """The parameters of these names. A module's name means all its parameters."""
    listed = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    require(listed, "frozen", "a list of names", repr(names))
    found: set[str] = set()
    for name in names:
        meant = [parameter for parameter in known if parameter == name or parameter.startswith(f"{name}.")]
        require(bool(meant), "frozen", f"parameters or modules out of {', '.join(known)}", repr(name))
        found.update(meant)
    return frozenset(found)


@lru_cache(maxsize=16)
def _shapes(settings: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    from induction_memory.model.building import skeleton

    model = skeleton(Architecture(settings))
    return tuple((name, tuple(parameter.shape)) for name, parameter in model.named_parameters())


def _plain(name: str, value: Any) -> Any:
    """The value if JSON can hold it; a list becomes a tuple."""
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    scalar = value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    if not scalar:
        raise InputError(f"model.{name}: expected a number, a text, a list of texts or none, got {value!r:.80}")
    return value


def _described(given: Any) -> str:
    return repr(given) if given is None or isinstance(given, str | int | float) else f"a {type(given).__name__}"
