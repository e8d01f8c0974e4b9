"""Which HookedTransformers the shortcut computes exactly: a complete list. All others take the hooks.

Every field of TransformerLens's configuration stands in one of four lists: the shortcut reads it (or calls the module
that does), it does not affect what a forward computes, it must have one of some values, or it must have its default. A
field that is in none of them, because a later version of TransformerLens added it, must have its default too. Every
module must be of a type that is known at its place, without hooks and with no method replaced.
"""

import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

import torch
from torch import nn

from induction_memory.model.as_built import has_hooks, hooks_everywhere
from induction_memory.runner.readable import NORM_WHAT_THEY_WRITE


def _names(*lines: str) -> frozenset[str]:
    return frozenset(name for line in lines for name in line.split())


READ = _names(
    # sizes, and what Graph and Network read
    "n_layers d_model n_ctx d_head n_heads d_mlp d_vocab d_vocab_out attn_only parallel_attn_mlp",
    # attention's own attribute attn_scale
    "use_attn_scale attn_scale scale_attn_by_inverse_layer_idx",
    # norms and feed-forwards, which are the model's modules
    "act_fn eps final_rms uses_rms_norm gated_mlp num_experts experts_per_token norm_topk_prob",
    # attention's own apply_rotary
    "rotary_dim rotary_base rotary_base_local rotary_scaling_factor rotary_adjacent_pairs use_NTK_by_parts_rope",
    "NTK_by_parts_low_freq_factor NTK_by_parts_high_freq_factor NTK_by_parts_factor NTK_original_ctx_len use_yarn_rope",
    "yarn_factor yarn_attention_factor yarn_beta_fast yarn_beta_slow yarn_original_max_position_embeddings",
    "yarn_truncate yarn_global_attn_only",
)
"""Read by the shortcut, or by what it calls."""
WITHOUT_SAY = _names(
    # names, initialisation, text, where the model comes from
    "model_name tokenizer_name tokenizer_prepends_bos default_prepend_bos from_checkpoint checkpoint_index",
    "checkpoint_label_type checkpoint_value init_mode init_weights initializer_range seed n_params trust_remote_code",
    "decoder_start_token_id tie_word_embeddings device layer_norm_folding",
    # read only together with a field that must have its default
    "train_seq_length window_size attn_types relative_attention_max_distance relative_attention_num_buckets",
    # more hook points for the same numbers
    "use_attn_result use_split_qkv_input use_attn_in use_hook_mlp_in use_hook_tokens ungroup_grouped_query_attention",
)
"""Do not affect what a forward of tokens computes."""
DEFAULT = _names(
    "use_qk_norm clip_qkv use_logn_attn use_dynamic_ntk_rope use_local_attn n_devices attention_dir post_embedding_ln",
    "load_in_4bit quantization_method use_normalization_before_and_after attn_scores_soft_cap output_logits_soft_cap",
    "use_attention_sinks",
)
"""Must have their default, like every field that is not named here."""
VALUES: dict[str, Callable[[Any, Any], bool]] = {
    "positional_embedding_type": lambda value, _: value in ("standard", "rotary"),
    "normalization_type": lambda value, _: value in (None, "LN", "LNPre", "RMS", "RMSPre"),
    "dtype": lambda value, _: value in (torch.float32, torch.float64),
    "n_key_value_heads": lambda value, cfg: value in (None, cfg.n_heads),
    "original_architecture": lambda value, _: value not in NORM_WHAT_THEY_WRITE,
}
"""Fields that may have some values besides the default: (value, configuration) -> whether this value is allowed."""

_ATTENDS = {"_attention_dir_override": None, "attn_type": "global", "IGNORE": -torch.inf}
"""Attributes of attention modules that the shortcut does not read, with the values that it computes."""


def objection(model: nn.Module) -> str | None:
    """Why the shortcut does not compute this model; None if it does."""
    from induction_memory.model.building import HookedTransformer

    if type(model) is not HookedTransformer:
        return f"a {type(model).__name__}"
    if hooks_everywhere():
        return "a hook at every module of torch"
    return _of_configuration(model.cfg) or _of_modules(model)


def _of_configuration(cfg: Any) -> str | None:
    for field in fields(cfg):
        if field.name in READ or field.name in WITHOUT_SAY:
            continue
        value = getattr(cfg, field.name)
        if field.name in VALUES:
            understood = VALUES[field.name](value, cfg)
        else:
            understood = field.default is not MISSING and value == field.default
        if not understood:
            return f"{field.name} = {value!r}"
    return None


def _of_modules(model: Any) -> str | None:
    if len(model.blocks) != model.cfg.n_layers:
        return f"n_layers = {model.cfg.n_layers} and {len(model.blocks)} blocks"
    for name, module in model.named_modules():
        if type(module) not in _known_at(name, model.cfg.normalization_type is not None):
            return f"{name}, a {type(module).__name__}"
        if shadowed := vars(module).keys() & _methods(type(module)):
            return f"{name or 'the model'} with a {min(shadowed)} of its own"
        if has_hooks(module):
            return f"a hook at {name or 'the model'}"
        if getattr(module, "cfg", model.cfg) is not model.cfg:
            return f"{name} with a configuration of its own"
        for own, usual in _ATTENDS.items():
            if getattr(module, own, usual) != usual:
                return f"{name} with {own} = {getattr(module, own)}"
        for own, parameter in module._parameters.items():
            if parameter is None and type(module) is not nn.Linear:
                return f"{name}.{own} = None"
            if parameter is not None and parameter.dtype not in (torch.float32, torch.float64):
                return f"{name}.{own} = {parameter.dtype}"
    return None


@cache
def _methods(kind: type) -> frozenset[str]:
    return frozenset(name for name in dir(kind) if callable(getattr(kind, name, None)))


def _known_at(name: str, normed: bool) -> frozenset[type]:
    """The types allowed for a module at its place in a model. Inside a feed-forward, any known type is allowed."""
    kinds, place = _known_types(), re.sub(r"^blocks\.\d+", "block", name)
    if place.split(".")[-1].startswith("hook_"):
        return kinds["hook"]
    if place in ("block.ln1", "block.ln2", "ln_final"):
        return kinds["norm"] if normed else kinds["no norm"]
    if place.startswith("block.mlp."):
        return frozenset().union(*kinds.values())
    return kinds.get(place, frozenset())


@cache
def _known_types() -> dict[str, frozenset[type]]:
    from transformer_lens.hook_points import HookPoint

    from induction_memory.model.building import HookedTransformer, LinearFeedForward, NoFeedForward

    if HookedTransformer.__module__.startswith("induction_memory."):
        from induction_memory.model.own_transformer import MODULES

        known = MODULES
    else:
        known = _of_transformer_lens()
    more: dict[str, set[type]] = {
        "": {HookedTransformer},
        "hook": {HookPoint},
        "norm": {nn.Identity},
        "no norm": {nn.Identity},
        "blocks": {nn.ModuleList},
        "block.mlp": {LinearFeedForward, NoFeedForward},
        "inside": {nn.Linear},
    }
    return {place: frozenset(known.get(place, set()) | more.get(place, set())) for place in known.keys() | more.keys()}


def _of_transformer_lens() -> dict[str, set[type]]:
    """The modules of a HookedTransformer of TransformerLens 3.9."""
    from transformer_lens.components.attention import Attention
    from transformer_lens.components.embed import Embed
    from transformer_lens.components.grouped_query_attention import GroupedQueryAttention
    from transformer_lens.components.layer_norm import LayerNorm
    from transformer_lens.components.layer_norm_pre import LayerNormPre
    from transformer_lens.components.mlps.gated_mlp import GatedMLP
    from transformer_lens.components.mlps.mlp import MLP
    from transformer_lens.components.mlps.moe import MoE, MoEGatedMLP
    from transformer_lens.components.pos_embed import PosEmbed
    from transformer_lens.components.rms_norm import RMSNorm
    from transformer_lens.components.rms_norm_pre import RMSNormPre
    from transformer_lens.components.transformer_block import TransformerBlock
    from transformer_lens.components.unembed import Unembed
    from transformer_lens.utilities.typed_module_list import TypedModuleList

    return {
        "embed": {Embed},
        "pos_embed": {PosEmbed},
        "blocks": {TypedModuleList},
        "block": {TransformerBlock},
        "block.attn": {Attention, GroupedQueryAttention},
        "block.mlp": {MLP, GatedMLP, MoE, MoEGatedMLP},
        "norm": {LayerNorm, LayerNormPre, RMSNorm, RMSNormPre},
        "unembed": {Unembed},
    }
