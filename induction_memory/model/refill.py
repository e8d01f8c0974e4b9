"""One model for a whole series of checkpoints: set up once, its weights then replaced by those of each file.

A TransformerBridge wraps the parameters of a transformers model. Refilling copies each tensor of a checkpoint into the
parameter of its name, and splits joint query-key-value matrices again, since the bridge computes with the parts. Only
architectures for which this is known to be exact are refilled. The first checkpoint is a check: every parameter that
the loader has filled must be a tensor of the files, or a split of one. Other models are booted one by one.
"""

import gc
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from induction_memory.errors import InputError
from induction_memory.model.bridge import boot, has_tokenizer, load_whole

ARCHITECTURES = ("GPTNeoXForCausalLM", "GPT2LMHeadModel", "LlamaForCausalLM", "OlmoForCausalLM", "Olmo2ForCausalLM")
"""Architectures that are refilled. Tests compare each with transformers at several steps."""
PASSING = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache")
"""Fields of config.json that do not change what a model computes."""


class NotRefillableError(Exception):
    """This model, or this file, cannot be used for refilling: boot it instead."""


class Refill:
    """Makes the models of checkpoints one after another, reusing one model where that is exact."""

    def __init__(self) -> None:
        self._model: Any = None
        self._named: dict[str, nn.Parameter] = {}
        self._renamed: dict[str, str] = {}
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
        if not (self._possible and configuration(folder).get("architectures", [None])[0] in ARCHITECTURES):
            return boot(folder)
        try:
            self._set_up(folder, files)
        except NotRefillableError:
            self._possible, self._model, self._named = False, None, {}
            return boot(folder)
        return self._model

    def _fits(self, folder: Path) -> bool:
        """Whether the model is as it was set up, and the checkpoint has its configuration."""
        model = self._model
        untouched = not getattr(model, "compatibility_mode", False) and model.cfg.dtype == torch.float32
        if untouched:
            model.reset_hooks()
        return (
            untouched and configuration(folder) == self._config and (model.tokenizer is None) != has_tokenizer(folder)
        )

    def _set_up(self, folder: Path, files: Sequence[Path]) -> None:
        """Boot the first model around a transformers model whose parameters are known by name, and check a refill."""
        inner = load_whole(folder)
        if inner is None:
            raise NotRefillableError
        self._named = dict(inner.named_parameters())
        self._model = boot(folder, inner)
        self._config = configuration(folder)
        self._match(files)
        self._check(files)

    def _check(self, files: Sequence[Path]) -> None:
        """Every parameter must be a tensor of the files, a split of one, or zero (a bias that the model lacks)."""
        for name, tensor in (pair for path in files for pair in _tensors(path)):
            own = self._renamed.get(name, name)
            if name not in self._ignored and not _same(self._named[own], tensor):
                raise NotRefillableError
        known = {id(p) for p in self._named.values()}
        for value, part in self._splits():
            known.add(id(part))
            if not torch.equal(value, part):
                raise NotRefillableError
        if any(bool(p.any()) for p in self._model.parameters() if id(p) not in known):
            raise NotRefillableError

    def _match(self, files: Sequence[Path]) -> None:
        """Match names in the files with names in the model; the few that differ are matched by their values."""
        stored = {name for path in files for name, _ in _tensors(path, values=False)}
        missing, unknown = set(self._named) - stored, stored - set(self._named)
        renamed: dict[str, str] = {}
        for path in files:
            for name, tensor in _tensors(path) if missing else ():
                if name not in unknown:
                    continue
                equal = [m for m in missing if _same(self._named[m], tensor)]
                if len(equal) == 1 and equal[0] not in renamed.values():
                    renamed[name] = equal[0]
                elif equal:
                    raise NotRefillableError
        if missing - set(renamed.values()):
            raise NotRefillableError
        self._renamed, self._ignored = renamed, frozenset(unknown - set(renamed))

    @torch.no_grad()
    def _fill(self, files: Sequence[Path]) -> None:
        seen: set[str] = set()
        for path in files:
            try:
                for name, tensor in _tensors(path):
                    own = self._renamed.get(name, name)
                    if name in self._ignored:
                        continue
                    if own not in self._named or self._named[own].shape != tensor.shape:
                        raise NotRefillableError
                    self._named[own].copy_(tensor)
                    seen.add(own)
            except (OSError, RuntimeError, ValueError) as error:  # unreadable: `boot` says what is wrong
                raise NotRefillableError from error
        if seen != set(self._named):
            raise NotRefillableError
        for value, part in self._splits():
            part.copy_(value)

    def _splits(self) -> Iterator[tuple[Tensor, nn.Parameter]]:
        """Each part of a joint query-key-value matrix: its value from the whole, and the parameter that holds it."""
        for module in self._model.modules():
            if not hasattr(module, "split_qkv_matrix"):
                continue
            for letter, part in zip("qkv", module.split_qkv_matrix(module.original_component), strict=True):
                own = dict(getattr(module, letter).original_component.named_parameters())
                for name, value in part.named_parameters():
                    yield value.detach(), own[name]


def configuration(folder: Path) -> dict[str, Any]:
    """The fields of config.json that say what a model computes."""
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: expected a readable config.json, got {type(error).__name__}") from error
    return {name: value for name, value in values.items() if name not in PASSING}


def _same(parameter: Tensor, tensor: Tensor) -> bool:
    return parameter.shape == tensor.shape and torch.equal(parameter.detach(), tensor.to(parameter.dtype))


def _tensors(path: Path, values: bool = True) -> Iterable[tuple[str, Tensor]]:
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
    yield from ((name, value) for name, value in stored.items() if isinstance(value, Tensor))
