"""Which HookedTransformers the fast path computes exactly. All others use hooks.

The fields of TransformerLens's configuration in `ANY` are read by the fast path or by modules that it calls, or they do
not affect a forward of tokens. All others must have their default, also those that a later version of TransformerLens
adds, and every module must be as the configuration makes it (`model/building.py`): without hooks, and with no method
replaced. A check of activations (`checked.py`) is not enough here: a cap or a clip may not show in one forward.

`keep` and `asleep` act on TransformerLens's hook points: keep a value, and switch off the user's hooks.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from induction_memory.model.config import Architecture, ModelConfig


def keep(kept: dict[str, Tensor], name: str) -> Callable[..., None]:
    """A hook that keeps a copy of the value under this name."""

    def hook(value: Tensor, hook: Any) -> None:
        kept[name] = value.detach().clone()

    return hook


@contextmanager
def asleep(point: Any) -> Iterator[None]:
    """Inside the block, the hook point does not run its hooks."""
    if point is None:
        yield
        return
    own = point._forward_hooks
    try:
        point._forward_hooks = OrderedDict()
        yield
    finally:
        point._forward_hooks = own


ANY = """
n_layers d_model n_ctx d_head n_heads n_key_value_heads d_mlp d_vocab d_vocab_out attn_only parallel_attn_mlp act_fn eps
normalization_type final_rms uses_rms_norm gated_mlp num_experts experts_per_token norm_topk_prob use_attn_scale
attn_scale scale_attn_by_inverse_layer_idx positional_embedding_type rotary_dim rotary_base rotary_base_local
rotary_scaling_factor rotary_adjacent_pairs use_NTK_by_parts_rope NTK_by_parts_low_freq_factor
NTK_by_parts_high_freq_factor NTK_by_parts_factor NTK_original_ctx_len use_yarn_rope yarn_factor yarn_attention_factor
yarn_beta_fast yarn_beta_slow yarn_original_max_position_embeddings yarn_truncate yarn_global_attn_only
original_architecture from_checkpoint checkpoint_index checkpoint_label_type checkpoint_value trust_remote_code
decoder_start_token_id tie_word_embeddings layer_norm_folding train_seq_length window_size attn_types
relative_attention_max_distance relative_attention_num_buckets use_attn_result use_split_qkv_input use_attn_in
use_hook_mlp_in use_hook_tokens ungroup_grouped_query_attention
""".split()  # noqa: SIM905
"""The fields that may have another value than the default."""
NORM_WHAT_THEY_WRITE = ("OlmoeForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM", "GptOssForCausalLM")
"""Values of `original_architecture` for which HookedTransformer computes a different block."""

_CAPPED = re.compile("soft_?cap|clip|clamp|limit")
"""Settings of caps and clips, which a forward need not reach, in a bridge's or a transformers configuration."""
_LIBRARIES = ("torch", "transformers", "transformer_lens")
"""Whose functions a bridge is made of. Functions of others may do in patched runs what no intact run shows."""


def objection(model: Any) -> str | None:
    """Why the fast path does not support this model; None if it does."""
    from induction_memory.model.building import HookedTransformer, as_configured, departure

    cfg = model.cfg
    if type(model) is not HookedTransformer:
        return f"it is a {type(model).__name__}"
    if getattr(getattr(model, "tokenizer", None), "padding_side", None) == "left":
        return "its tokenizer pads on the left, where the padding is masked"
    if isinstance(getattr(model, "model_config", None), ModelConfig):
        return departure(model)
    wrong = {
        "positional_embedding_type": cfg.positional_embedding_type not in ("standard", "rotary"),
        "normalization_type": cfg.normalization_type not in (None, "LN", "LNPre", "RMS", "RMSPre"),
        "n_key_value_heads": cfg.n_key_value_heads not in (None, cfg.n_heads),
        "original_architecture": cfg.original_architecture in NORM_WHAT_THEY_WRITE,
    }
    for name in filter(wrong.get, wrong):
        return f"cfg.{name} is {getattr(cfg, name)!r}"
    usual = as_configured(Architecture.of(type(cfg)(**{name: getattr(cfg, name) for name in ANY})))
    kinds = {name: parameter.dtype for name, parameter in model.named_parameters()}
    other = (f"another {name}" for name, parameter in usual.named_parameters() if kinds.get(name) != parameter.dtype)
    return departure(model, usual) or next(other, None)


def is_bridge(model: Any) -> bool:
    """Whether a model is TransformerLens's TransformerBridge, without importing it."""
    return type(model).__name__ == "TransformerBridge" and type(model).__module__.startswith("transformer_lens.")


def bridge_objection(model: Any) -> str | None:
    """Why the maps of a bridge are not even tried; None if a comparison of activations decides."""
    inner: Any = getattr(model.original_model, "config", None)
    settings = vars(model.cfg) | (inner.to_dict() if hasattr(inner, "to_dict") else {})
    for name, value in settings.items():
        if _CAPPED.search(name) and value not in (None, False, 0, -1):
            return f"{name} is {value!r}"
    if next(model.parameters()).dtype not in (torch.float32, torch.float64):
        return "it has half precision"
    if any(point.fwd_hooks for point in model.hook_dict.values()):
        return "it has hooks"
    modules = list(model.modules())
    own = [value for module in modules for value in vars(module).values()]
    own += [
        value for kind in {kind for module in modules for kind in type(module).__mro__} for value in vars(kind).values()
    ]
    own += [value for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks) for value in hooks.values()]
    for value in own:
        function = getattr(value, "__func__", value)
        if isinstance(function, FunctionType) and str(function.__module__).split(".")[0] not in _LIBRARIES:
            return f"it has the function {function.__qualname__} of {function.__module__}"
    return None
