"""Any HookedTransformer as a configuration that can be written down: TransformerLens's own fields, as plain JSON.

    Architecture.of(HookedTransformerConfig(n_layers=3, act_fn="gelu", positional_embedding_type="rotary", ...))

`ModelConfig` describes the architectures of the paper, this class all others. Both have the same attributes: sizes, the
parameters with their shapes, and which of them learn. Parameters go by TransformerLens's names: `blocks.0.attn.W_K`.

Every field of TransformerLens's configuration is kept, except those about one process or about text: the device, the
seed of the initialisation (the run's own `init_seed` is used), and the tokenizer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal

from induction_memory.errors import InputError, require
from induction_memory.field_docs import field_docs
from induction_memory.model.config import ModelConfig

KEY = "hooked_transformer"
"""On the disk, the fields stand under this key. A model without it is a `ModelConfig`."""
FIXED: dict[str, Any] = {
    "device": "cpu",
    "seed": None,
    "init_weights": True,
    "tokenizer_name": None,
    "tokenizer_prepends_bos": None,
    "dtype": "float32",
    "n_devices": 1,
}
"""Fields that have one value for every model of this package."""


@field_docs
@dataclass(frozen=True)
class Architecture:
    """A HookedTransformer by its configuration, and which of its parameters stay as they are.

    >>> from transformer_lens import HookedTransformerConfig
    >>> import induction_memory as im
    >>> given = HookedTransformerConfig(n_layers=1, d_model=8, d_head=8, n_ctx=4, d_vocab=3, act_fn="gelu")
    >>> im.Architecture.of(given).n_layers
    1
    """

    settings: tuple[tuple[str, Any], ...]
    """Every field of TransformerLens's configuration with its value: a number, a text, a list of texts, or None."""
    frozen: tuple[str, ...] = ()
    """Parameters that never learn, by TransformerLens's names."""

    @classmethod
    def of(cls, given: Any) -> "Architecture":
        """The architecture of a HookedTransformerConfig, or of a HookedTransformer that matches its configuration.

        A model with hooks, or with modules of its own, is refused: they could not be made again from a file.
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
            from induction_memory.model.building import departure_from, skeleton

            reason = departure_from(given, skeleton(architecture))
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
        """`other` if there are feed-forwards, which are not those of the paper's models."""
        return "none" if self["attn_only"] else "other"

    @property
    def layer_norm(self) -> bool:
        return self["normalization_type"] in ("LN", "LNPre")

    @property
    def identity_queries(self) -> bool:
        """Queries have a matrix of their own."""
        return False

    @property
    def tied_output(self) -> bool:
        """HookedTransformer always has an unembedding of its own."""
        return False

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every parameter by its name."""
        return dict(_shapes(self.settings))

    @property
    def parameters(self) -> dict[str, str]:
        """Every parameter's name -> the same name, because there is only one."""
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
            require(name in (KEY, "frozen"), f"model.{name}", f"one of {KEY}, frozen", repr(name))
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
"""What a run may train."""


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
    """The parameters that the names stand for. A name is that of a parameter or of a module."""
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
    """A value that JSON can hold; a list as a tuple."""
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    scalar = value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    if not scalar:
        raise InputError(f"model.{name}: expected a number, a text, a list of texts or none, got {value!r:.80}")
    return value


def _described(given: Any) -> str:
    return repr(given) if given is None or isinstance(given, str | int | float) else f"a {type(given).__name__}"
