"""Whether a model is still as `build` made it from its configuration.

The hand-written forward of `training/fast` runs on weights and configuration, so it may take a model only if nothing
else decides what the model computes. These are compared with a fresh model of the same configuration:

    every module       its name, its exact type, its plain attributes (act_fn, attn_scale ...) and its buffers
    the configuration  every field of TransformerLens's configuration that a forward pass can read, one for all modules
    hooks              none, on any module or on all of torch's
    forward            not replaced on any module
"""

from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from induction_memory.model.architecture import Architecture
from induction_memory.model.building import skeleton
from induction_memory.model.config import ModelConfig

_NOT_COMPUTED_WITH = {"training", "name", "cfg"}
_OF_THE_WHOLE_MODEL = {"hook_dict", "mod_dict", "is_caching", "context_level", "dataset", "tokenizer"}
_OF_THE_WHOLE_MODEL |= {"trainable", "model_config"}
_ABOUT_TOKENS_AND_INITIALISATION = {"default_prepend_bos", "init_mode", "init_weights", "initializer_range", "seed"}
_ABOUT_TOKENS_AND_INITIALISATION |= {"model_name", "tokenizer_name", "tokenizer_prepends_bos", "device", "n_params"}
_EMPTY = nn.Module()
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def departure(model: nn.Module) -> str | None:
    """How a model differs from what `build` makes; None if it does not."""
    config = getattr(model, "model_config", None)
    if isinstance(config, Architecture):
        return "the model has a configuration of its own, not a ModelConfig"
    if not isinstance(config, ModelConfig):
        return "the model was not made by induction_memory.model.building"
    return departure_from(model, _skeleton(config))


def departure_from(model: nn.Module, expected: nn.Module) -> str | None:
    """How a model differs, apart from its weights, from a fresh one of its configuration; None if it does not."""
    settings, built = vars(model.cfg), vars(expected.cfg)
    for name in sorted((settings.keys() | built.keys()) - _ABOUT_TOKENS_AND_INITIALISATION):
        if settings.get(name) != built.get(name):
            return f"cfg.{name} is {settings.get(name)!r}, not {built.get(name)!r}"
    if hooks_everywhere():
        return "a hook stands at every module of torch"
    found = dict(model.named_modules())
    parts = dict(expected.named_modules())
    for name in sorted(found.keys() ^ parts.keys()):
        return f"the module {name} was {'added' if name in found else 'taken away'}"
    for name, module in found.items():
        reason = _module_departure(module, parts[name], whole=name == "")
        if reason is None and getattr(module, "cfg", model.cfg) is not model.cfg:
            reason = "has a configuration of its own"
        if reason is not None:
            return f"{name or 'the model'} {reason}"
    return None


def hooks_everywhere() -> bool:
    """Whether a hook stands at every module of torch."""
    return bool(_global_forward_hooks or _global_forward_pre_hooks)


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has a hook, of torch or TransformerLens, forward or backward."""
    return any(vars(module)[kind] for kind in _HOOKS)


@lru_cache(maxsize=8)
def _skeleton(config: ModelConfig) -> Any:
    return skeleton(config)


def _module_departure(module: nn.Module, built: nn.Module, whole: bool) -> str | None:
    if type(module) is not type(built):
        return f"is a {type(module).__name__}, not a {type(built).__name__}"
    if has_hooks(module):
        return "has hooks"
    if "forward" in vars(module):
        return "has another forward"
    ignored = _NOT_COMPUTED_WITH | (_OF_THE_WHOLE_MODEL if whole else set())
    own, expected = _attributes(module), _attributes(built)
    for name in sorted((own.keys() | expected.keys()) - ignored):
        if name not in own or name not in expected or (own[name] is not expected[name] and own[name] != expected[name]):
            return f"has another {name}"
    for name in sorted(vars(module).keys() - vars(built).keys() - ignored):
        return f"has another {name}"
    for name, buffer in built.named_buffers(recurse=False):
        value = getattr(module, name)
        if not torch.equal(value.cpu(), buffer):
            return f"has another {name}"
    return None


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Attributes beside torch's own; none for a hook point, whose hooks are compared as hooks."""
    if type(module).__name__ == "HookPoint":
        return {}
    return {name: value for name, value in vars(module).items() if name not in vars(_EMPTY)}
