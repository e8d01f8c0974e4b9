"""A complete list of the HookedTransformers that the fast path computes exactly. All others use hooks.

Every field of TransformerLens's configuration is in one of four lists: the fast path reads it (or calls the module that
does), it does not affect a forward, it must have one of some values, or it must have its default. A field in none of
them, because a later version of TransformerLens added it, must have its default too. Every module must be as the
configuration makes it (`model/building.py`): without hooks, and with no method replaced.

`keep` and `asleep` act on TransformerLens's hook points: keep a value, and switch off the user's hooks.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from typing import Any

from torch import Tensor

from induction_memory.errors import InputError
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


NORM_WHAT_THEY_WRITE = ("OlmoeForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM", "GptOssForCausalLM")
"""Values of `original_architecture` for which HookedTransformer computes a different block."""


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
"""Read by the fast path, or by the modules that it calls."""
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
"""Do not affect a forward of tokens."""
DEFAULT = _names(
    "use_qk_norm clip_qkv use_logn_attn use_dynamic_ntk_rope use_local_attn n_devices attention_dir post_embedding_ln",
    "load_in_4bit quantization_method use_normalization_before_and_after attn_scores_soft_cap output_logits_soft_cap",
    "use_attention_sinks dtype",
)
"""Must have their default, like every field that is not listed."""
VALUES: dict[str, Callable[[Any, Any], bool]] = {
    "positional_embedding_type": lambda value, _: value in ("standard", "rotary"),
    "normalization_type": lambda value, _: value in (None, "LN", "LNPre", "RMS", "RMSPre"),
    "n_key_value_heads": lambda value, cfg: value in (None, cfg.n_heads),
    "original_architecture": lambda value, _: value not in NORM_WHAT_THEY_WRITE,
}
"""Fields that may have some values besides the default: (value, configuration) -> whether this value is allowed."""


def objection(model: Any) -> str | None:
    """Why the fast path does not support this model; None if it does."""
    from induction_memory.model.building import HookedTransformer, as_configured, departure

    bridge = is_bridge(model)
    if type(model) is not HookedTransformer and not bridge:
        return f"a {type(model).__name__}"
    if getattr(getattr(model, "tokenizer", None), "padding_side", None) == "left":
        return "a tokenizer that pads on the left, where the padding is masked"
    reason = _of_configuration(model.cfg, ("n_key_value_heads",) if bridge else ())
    if bridge:
        hooks = "hooks" if any(point.fwd_hooks for point in model.hook_dict.values()) else None
        return reason or hooks
    if reason is not None or isinstance(getattr(model, "model_config", None), ModelConfig):
        return reason or departure(model)
    try:
        usual = as_configured(Architecture.of(model)).named_parameters()
    except InputError as error:
        return str(error).partition("one where ")[2] or str(error)
    kinds = {name: parameter.dtype for name, parameter in model.named_parameters()}
    return next((f"another {name}" for name, parameter in usual if kinds.get(name) != parameter.dtype), None)


def is_bridge(model: Any) -> bool:
    """Whether a model is TransformerLens's TransformerBridge, without importing it."""
    return type(model).__name__ == "TransformerBridge" and type(model).__module__.startswith("transformer_lens.")


def _of_configuration(cfg: Any, free: Collection[str]) -> str | None:
    for field in fields(cfg):
        if field.name in READ or field.name in WITHOUT_SAY or field.name in free:
            continue
        value = getattr(cfg, field.name)
        if field.name in VALUES:
            understood = VALUES[field.name](value, cfg)
        else:
            understood = field.default is not MISSING and value == field.default
        if not understood:
            return f"{field.name} = {value!r}"
    return None
