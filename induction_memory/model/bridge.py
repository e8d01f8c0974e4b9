"""Checkpoints that somebody else trained: a local Hugging Face folder as a TransformerLens model.

TransformerBridge loads any architecture that it knows, and its logits equal transformers' to 1e-6. This module
works around four habits of the libraries: they draw a missing tensor at random, they look on the network for missing
files, some need a tokenizer in the folder, and models hold references to themselves, so only a garbage collection frees
them.

`Refill` reuses one model for a whole series: it is set up once, then each checkpoint's weights replace the previous
ones.

A TransformerBridge wraps the parameters of a transformers model. Refilling copies each tensor of a checkpoint into the
parameter of its name, and splits joint query-key-value matrices again, since the bridge computes with the parts. Only
architectures for which this is known to be exact are refilled; other models are booted one by one. The first checkpoint
is also a check: every parameter that the loader has filled must be a tensor of the files, or a part of one.
"""

import gc
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from induction_memory.errors import InputError, UnsupportedError, require

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def boot(folder: Path, inner: nn.Module | None = None) -> nn.Module:
    """The model in a folder with config.json and weights, on the CPU in float32; nothing is fetched.

    `inner` is the transformers model of the folder, if it is loaded already.
    """
    from transformer_lens.model_bridge import TransformerBridge

    gc.collect()
    own = has_tokenizer(folder)
    inner = load_whole(folder) if inner is None else inner
    with reading(folder):
        logits = None if inner is None else _logits(inner)  # the bridge changes its modules
        tokenizer = None if own else _stand_in()
        model = TransformerBridge.boot_transformers(str(folder), device="cpu", hf_model=inner, tokenizer=tokenizer)
        off = 0.0 if logits is None else float((_logits(model.eval()) - logits).abs().max() / logits.abs().max())
    if logits is None:
        logging.getLogger("induction_memory").warning("%s: its logits were not compared with transformers'", folder)
    if off > TOLERANCE:
        wanted = "a model whose logits in TransformerBridge are those of transformers"
        raise UnsupportedError(f"{folder}: expected {wanted}, got a largest deviation of {off:.2g}")
    if not own:
        model.tokenizer = None
    return model.eval()


TOLERANCE = 1e-3
"""The largest deviation of a bridge's logits, relative to the largest logit."""


@torch.no_grad()
def _logits(model: Any) -> Tensor:
    """Logits on the first tokens of the vocabulary."""
    cfg: Any = getattr(model, "config", None) or model.cfg
    found = model(torch.arange(min(16, cfg.vocab_size if hasattr(cfg, "vocab_size") else cfg.d_vocab))[None])
    return getattr(found, "logits", found)


ONLY_FILES = {"local_files_only": True, "trust_remote_code": False}
"""Arguments of every call that reads a folder with transformers: fetch nothing, and run no code of the folder."""


_BUFFERS = ("attention.bias", "attn.bias", "masked_bias", "inv_freq")
"""Endings of tensors that older versions of transformers stored and that can be computed."""


def load_whole(folder: Path) -> nn.Module | None:
    """The transformers model in a folder; refused if any of its weights is not in the files.

    None if it is not a causal language model: the bridge knows other classes too.
    """
    from transformers import AutoModelForCausalLM

    _require_readable(folder)
    how: Any = {"dtype": torch.float32, "attn_implementation": "eager", "output_loading_info": True}
    try:
        with reading(folder):
            loaded: Any = AutoModelForCausalLM.from_pretrained(folder, **how, **ONLY_FILES)
    except InputError as error:
        if "Unrecognized configuration class" in str(error.__cause__):
            return None
        raise
    model, found = loaded
    lost = sorted(map(str, found["missing_keys"]))
    require(not lost, str(folder), "files with all tensors of the model", f"none with {', '.join(lost[:3])}")
    more = sorted(name for name in map(str, found["unexpected_keys"]) if not name.endswith(_BUFFERS))
    require(not more, str(folder), "files with tensors of the model alone", f"also {', '.join(more[:3])}")
    return model


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Inside the block: offline, and an error of transformers, safetensors or TransformerLens becomes one line."""
    with offline():
        try:
            yield
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise InputError(f"{folder}: expected a model that TransformerBridge can load, got: {reason}") from error


LAYERS, MOST_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 1000


def _require_readable(folder: Path) -> None:
    """Refuse a checkpoint if its configuration or a weight file cannot be read."""
    for path in sorted(folder.iterdir()):
        require(path.is_file() or path.is_dir(), str(path), "a file", "a pipe, a device or a broken link")
    config = configuration(folder)
    layers = max((config[name] for name in LAYERS if isinstance(config.get(name), int)), default=0)
    require(layers <= MOST_LAYERS, str(folder), f"at most {MOST_LAYERS} layers", layers)
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: expected a safetensors file, got {str(error).splitlines()[0]}") from error


def _stand_in() -> Any:
    """A tokenizer of one word, because TransformerBridge refuses some architectures without a tokenizer."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"?": 0}, unk_token="?")))


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder contains a tokenizer."""
    return any((folder / name).exists() for name in _TOKENIZER_FILES)


@contextmanager
def offline() -> Iterator[None]:
    """Inside the block: no network and no progress bars of the Hugging Face libraries."""
    import transformers.utils.logging as bars
    from huggingface_hub import constants

    before, shown = constants.HF_HUB_OFFLINE, bars.is_progress_bar_enabled()
    constants.HF_HUB_OFFLINE = True
    bars.disable_progress_bar()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
        if shown:
            bars.enable_progress_bar()


ARCHITECTURES = ("GPTNeoXForCausalLM", "GPT2LMHeadModel", "LlamaForCausalLM", "OlmoForCausalLM", "Olmo2ForCausalLM")
"""Architectures that are refilled. Tests compare each with transformers at several steps."""
PASSING = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache")
"""Fields of config.json that do not change what a model computes."""


class NotRefillableError(Exception):
    """This model, or this file, cannot be used for refilling: boot it instead."""


class Refill:
    """Make the models of checkpoints one after another, with one reused model where that is exact."""

    def __init__(self) -> None:
        self._model: Any = None
        self._named: dict[str, nn.Parameter] = {}
        self._ignored: frozenset[str] = frozenset()
        self._config: dict[str, Any] = {}
        self._possible = True

    def load(self, folder: Path, files: Sequence[Path]) -> nn.Module:
        """The model of one checkpoint. The model that the previous call returned must no longer be used."""
        if self._possible and self._model is not None and self._fits(folder):
            try:
                self._fill(files)
                return self._model
            except NotRefillableError:
                pass
        self._model, self._named = None, {}
        gc.collect()
        if not (self._possible and _architecture(folder) in ARCHITECTURES):
            return boot(folder)
        try:
            self._set_up(folder, files)
        except NotRefillableError:
            self._possible, self._model, self._named = False, None, {}
            return boot(folder)
        return self._model

    def _fits(self, folder: Path) -> bool:
        """Whether the model is unchanged since its setup and the checkpoint has its configuration."""
        model = self._model
        untouched = not getattr(model, "compatibility_mode", False) and model.cfg.dtype == torch.float32
        if untouched:
            model.reset_hooks()
        return (
            untouched and configuration(folder) == self._config and (model.tokenizer is None) != has_tokenizer(folder)
        )

    def _set_up(self, folder: Path, files: Sequence[Path]) -> None:
        """Boot the first model around a transformers model, whose parameters have known names, and check a refill."""
        inner = load_whole(folder)
        if inner is None:
            raise NotRefillableError
        self._named = dict(inner.named_parameters())
        self._model = boot(folder, inner)
        self._config = configuration(folder)
        self._match(inner, files)
        self._check(files)

    def _check(self, files: Sequence[Path]) -> None:
        """Every parameter must be a tensor of the files, a split of one, or zero (a bias that the model lacks)."""
        for name, tensor in (pair for path in files for pair in tensors_in(path)):
            if name not in self._ignored and not _same(self._named[name], tensor):
                raise NotRefillableError
        known = {id(p) for p in self._named.values()}
        for value, part in self._splits():
            known.add(id(part))
            if not torch.equal(value, part):
                raise NotRefillableError
        if any(bool(p.any()) for p in self._model.parameters() if id(p) not in known):
            raise NotRefillableError

    def _match(self, inner: nn.Module, files: Sequence[Path]) -> None:
        """Refuse files without some parameter, or with tensors that are neither buffers nor tied to a parameter."""
        stored = {name for path in files for name, _ in tensors_in(path, values=False)}
        more = stored - set(self._named)
        self._ignored = frozenset(name for name in more if name.endswith(_BUFFERS) or name in inner.state_dict())
        if more - self._ignored or set(self._named) - stored:
            raise NotRefillableError

    @torch.no_grad()
    def _fill(self, files: Sequence[Path]) -> None:
        seen: set[str] = set()
        for path in files:
            try:
                for name, tensor in tensors_in(path):
                    if name in self._ignored:
                        continue
                    if name not in self._named or self._named[name].shape != tensor.shape:
                        raise NotRefillableError
                    self._named[name].copy_(tensor)
                    seen.add(name)
            except (OSError, RuntimeError, ValueError) as error:  # unreadable: `boot` says what is wrong
                raise NotRefillableError from error
        if seen != set(self._named):
            raise NotRefillableError
        for value, part in self._splits():
            part.copy_(value)

    def _splits(self) -> Iterator[tuple[Tensor, nn.Parameter]]:
        """Each part of a joint query-key-value matrix: how to cut it from the whole, and the parameter that holds
        it."""
        for module in self._model.modules():
            if not hasattr(module, "split_qkv_matrix"):
                continue
            for letter, part in zip("qkv", module.split_qkv_matrix(module.original_component), strict=True):
                own = dict(getattr(module, letter).original_component.named_parameters())
                for name, value in part.named_parameters():
                    yield value.detach(), own[name]


def configuration(folder: Path) -> dict[str, Any]:
    """The fields of config.json that affect what a model computes."""
    path = folder / "config.json"
    require(path.is_file(), str(path), "a file", "none")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: expected a readable config.json, got {type(error).__name__}") from error
    require(isinstance(values, dict), str(path), "fields by name", type(values).__name__)
    return {name: value for name, value in values.items() if name not in PASSING}


def _architecture(folder: Path) -> str | None:
    named = configuration(folder).get("architectures")
    return named[0] if isinstance(named, list) and named and isinstance(named[0], str) else None


def _same(parameter: Tensor, tensor: Tensor) -> bool:
    return parameter.shape == tensor.shape and torch.equal(parameter.detach(), tensor.to(parameter.dtype))


def tensors_in(path: Path, values: bool = True) -> Iterable[tuple[str, Tensor]]:
    """The tensors of a file one by one; without `values`, empty ones."""
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    yield name, file.get_tensor(name) if values else torch.empty(0)
        except SafetensorError as error:
            raise InputError(f"{path}: expected a safetensors file, got {error}") from error
        return
    stored: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    named = stored.items() if isinstance(stored, dict) else ()
    yield from ((name, value) for name, value in named if isinstance(value, Tensor))
