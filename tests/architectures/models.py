"""Models that others could have made: configurations of TransformerLens, and small Hugging Face families, at random.

Keys and values that heads share are repeated in the `twin`, so that plain code can change them for one head.
"""

import copy

import torch

VOCAB, CONTEXT, LENGTH = 29, 24, 14
SIZES = {"n_layers": 2, "d_model": 32, "n_ctx": CONTEXT, "d_head": 8, "n_heads": 4, "d_mlp": 64, "d_vocab": VOCAB}
SIZES |= {"act_fn": "relu", "normalization_type": "LN", "device": "cpu", "seed": 0}
ROTARY = {"positional_embedding_type": "rotary", "rotary_dim": 8}
LOCAL = {"use_local_attn": True, "window_size": 4, "attn_types": ["local", "global"]}
CONFIGURATIONS = {
    "no norm": {"normalization_type": None},
    "LN": {},
    "LNPre": {"normalization_type": "LNPre"},
    "RMS": {"normalization_type": "RMS"},
    "RMSPre": {"normalization_type": "RMSPre"},
    "LN and RMS last": {"final_rms": True},
    "odd eps": {"eps": 0.3},
    "odd eps, RMSPre": {"eps": 0.3, "normalization_type": "RMSPre"},
    "norms after the block": {"use_normalization_before_and_after": True, "normalization_type": "RMS"},
    "norm after embeddings": {"post_embedding_ln": True},
    "norms of queries and keys": {"use_qk_norm": True, "normalization_type": "RMS"},
    "rotary": ROTARY,
    "rotary in part": ROTARY | {"rotary_dim": 4},
    "rotary pairs side by side": ROTARY | {"rotary_adjacent_pairs": True},
    "shortformer": {"positional_embedding_type": "shortformer"},
    "alibi": {"positional_embedding_type": "alibi"},
    "shared keys": {"n_key_value_heads": 2},
    "one key for all": {"n_key_value_heads": 1},
    "shared keys, rotary, RMS": ROTARY | {"n_key_value_heads": 2, "normalization_type": "RMS"},
    "shared keys, LNPre": {"n_key_value_heads": 2, "normalization_type": "LNPre"},
    "no scale": {"use_attn_scale": False},
    "another scale": {"attn_scale": 1.7},
    "scale by layer": {"scale_attn_by_inverse_layer_idx": True},
    "cap of scores": {"attn_scores_soft_cap": 2.0},
    "cap of logits": {"output_logits_soft_cap": 2.0},
    "clipped": {"clip_qkv": 0.3},
    "sinks": {"use_attention_sinks": True},
    "parallel": {"parallel_attn_mlp": True},
    "parallel, RMSPre, rotary": ROTARY | {"parallel_attn_mlp": True, "normalization_type": "RMSPre"},
    "local": LOCAL,
    "local, shared keys": LOCAL | {"n_key_value_heads": 2},
    "both directions": {"attention_dir": "bidirectional"},
    "attention only": {"attn_only": True},
    "gated": {"gated_mlp": True, "act_fn": "silu", "normalization_type": "RMS"},
    "experts": {"num_experts": 3, "experts_per_token": 2, "act_fn": "silu", "normalization_type": "RMS"},
    "gelu, other outputs": {"act_fn": "gelu", "d_vocab_out": VOCAB},
    "double precision": {"dtype": torch.float64},
    "one layer": {"n_layers": 1},
}


def tokens_of(batch=4, vocab=VOCAB):
    """Sequences whose second half repeats the first, one longer than what is read."""
    tokens = torch.randint(2, vocab, (batch, LENGTH + 1), generator=torch.Generator().manual_seed(3))
    tokens[:, LENGTH // 2 :] = tokens[:, : LENGTH + 1 - LENGTH // 2].clone()
    return tokens


@torch.no_grad()
def hooked(name):
    """The HookedTransformer of a configuration with random weights, and the one in which no keys are shared."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    settings = SIZES | CONFIGURATIONS[name]
    model = HookedTransformer(HookedTransformerConfig(**settings)).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter_name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        gain = parameter_name.endswith(".w")
        scale = 0.3 if parameter.dim() == 1 or ".b_" in parameter_name else 0.35
        parameter.copy_(1 + 0.3 * drawn if gain else drawn if "W_E" in parameter_name else scale * drawn)
    groups = settings.get("n_key_value_heads")
    if groups is None:
        return model, model
    twin = HookedTransformer(HookedTransformerConfig(**settings | {"n_key_value_heads": None})).eval()
    own = dict(model.named_parameters())
    for parameter_name, parameter in twin.named_parameters():
        shared = own.get(parameter_name.replace(".attn.", ".attn._")) if ".attn." in parameter_name else None
        one = own[parameter_name] if shared is None else shared.repeat_interleave(SIZES["n_heads"] // groups, 0)
        parameter.copy_(one)
    return model, twin


_OLD = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
_NEW = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_NEW |= {"max_position_embeddings": CONTEXT}
_ALONE, _SHARED = {"num_key_value_heads": 4}, {"num_key_value_heads": 2}
_SCALED = {"residual_multiplier": 0.5, "embedding_multiplier": 3.0, "logits_scaling": 2.0, "attention_multiplier": 0.7}
FAMILIES = {
    "gpt2": _OLD,
    "gptj": _OLD | {"rotary_dim": 4},
    "gpt_neo": _NEW
    | {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gpt_neox": _NEW,
    "gpt_neox, one after the other": _NEW | {"use_parallel_residual": False},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "falcon": _NEW | {"multi_query": True},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": CONTEXT},
    "codegen": _OLD | {"rotary_dim": 4},
    "llama": _NEW | _SHARED,
    "mistral": _NEW | _SHARED | {"sliding_window": 5, "head_dim": 8},
    "mixtral": _NEW | _SHARED | {"num_local_experts": 3, "num_experts_per_tok": 2, "head_dim": 8},
    "qwen2": _NEW | _ALONE,
    "qwen3": _NEW | _SHARED | {"head_dim": 8},
    "gemma": _NEW | {"num_key_value_heads": 1, "head_dim": 8},
    "gemma2": _NEW | _SHARED | {"head_dim": 8, "sliding_window": 6},
    "gemma3_text": _NEW | _SHARED | {"head_dim": 8, "sliding_window": 6},
    "olmo": _NEW | _ALONE,
    "olmo2": _NEW | _ALONE,
    "opt": _NEW | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "opt, narrow embeddings": _NEW | {"ffn_dim": 64, "word_embed_proj_dim": 16},
    "phi": _NEW,
    "phi3": _NEW | _ALONE | {"original_max_position_embeddings": CONTEXT},
    "stablelm": _NEW | _ALONE,
    "granite": _NEW | _SHARED | _SCALED,
    "granite, residuals alone": _NEW | _SHARED | {"residual_multiplier": 0.5, "attention_multiplier": 8**-0.5},
    "cohere": _NEW | _ALONE,
}


@torch.no_grad()
def transformer(name):
    """The model of a family with random weights, and the one in which no keys are shared."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = FAMILIES[name] | {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = AutoConfig.for_model(name.partition(",")[0], **sizes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter += torch.randn(parameter.shape, generator=generator) * (0.3 if parameter.dim() == 1 else 0.25)
    shared = getattr(config, "multi_query", False)  # all heads of Falcon share one, behind the queries of all
    if getattr(config, "num_key_value_heads", 4) in (4, None) and not shared:
        return model, model
    alone = copy.deepcopy(config)
    if shared:
        alone.multi_query = False
    groups, alone.num_key_value_heads = getattr(config, "num_key_value_heads", 1), 4
    twin = AutoModelForCausalLM.from_config(alone, attn_implementation="eager").eval()
    own = dict(model.named_parameters())
    for parameter_name, parameter in twin.named_parameters():
        value = own[parameter_name]
        if value.shape != parameter.shape and shared:
            *queries, key, values = value.split(config.hidden_size // 4)
            value = torch.cat([part for query in queries for part in (query, key, values)])
        elif value.shape != parameter.shape:
            value = value.unflatten(0, (groups, -1)).repeat_interleave(4 // groups, 0).flatten(0, 1)
        parameter.copy_(value)
    return model, twin
