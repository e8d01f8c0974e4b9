"""A complete list of the HookedTransformers that the fast path computes exactly. All others use hooks.

Every field of TransformerLens's configuration is in one of four lists: the fast path reads it (or calls the module that
does), it does not affect a forward, it must have one of some values, or it must have its default. A field in none of
them, because a later version of TransformerLens added it, must have its default too. Every module must be of a known
type for its place, without hooks or replaced methods.

Memories can be read from the weights of a model (`unreadable`) if it computes these lines:

    x_1 = w_E(z) + p                                          embeddings as stored
    scores(t, t) ~ (N_1(x) W_Q + b_Q) (N_1(x) W_K + b_K)^T    one norm in front; rotary positions cancel at distance 0
    x + z W_O + b_O                                           the output of heads enters the stream unchanged
    logits = N(x) W_U + b_U

A HookedTransformer is judged by its configuration. A TransformerBridge wraps many architectures. Some of them normalise
queries and keys, some normalise the output of heads, and some scale the embeddings. So a bridge is run on a few tokens,
without the user's hooks, and each line is compared.

`keep` and `asleep` act on TransformerLens's hook points: keep a value, and switch off the user's hooks.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, fields
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from induction_memory.model.memories import ungrouped
from induction_memory.runner.weights import EPS, parameters


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


BENT = ("use_qk_norm", "clip_qkv", "use_normalization_before_and_after", "post_embedding_ln")
"""Fields of TransformerLens's configuration that add an operation between the stream and the matrices."""
NORM_WHAT_THEY_WRITE = ("OlmoeForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM", "GptOssForCausalLM")
"""Values of `original_architecture` for which HookedTransformer computes a different block."""
TOLERANCE = 1e-3
_judged: "WeakKeyDictionary[nn.Module, str | None]" = WeakKeyDictionary()


def unreadable(model: nn.Module) -> str | None:
    """Why memories cannot be read from the weights of a model; None if they can."""
    if any(name == "embed.W_E" for name, _ in model.named_parameters()):
        cfg: Any = model.cfg
        return of_settings({name: getattr(cfg, name, None) for name in (*BENT, "original_architecture")})
    if model not in _judged:
        _judged[model] = _of_bridge(model)
    return _judged[model]


def of_settings(settings: Mapping[str, Any]) -> str | None:
    """Why memories cannot be read from a model with these fields of TransformerLens's configuration, or None."""
    bent = next((name for name in BENT if settings.get(name)), None)
    if settings.get("original_architecture") in NORM_WHAT_THEY_WRITE:
        bent = settings["original_architecture"]
    return None if bent is None else f"needs matrices that read the stream behind one norm, the model has {bent}"


def _of_bridge(bridge: Any) -> str | None:
    """The first line of the module's docstring that this model does not compute."""
    weights = ungrouped(parameters(bridge))
    kept, logits = _activations(bridge)
    needs = "needs a model whose weights by HookedTransformer's names say what it computes, here"
    length = logits.shape[0]
    embedded = weights["embed.W_E"][:length]
    if "pos_embed.W_pos" in weights:
        embedded = embedded + weights["pos_embed.W_pos"][:length]
    if not _equal(kept["blocks.0.hook_resid_pre"], embedded):
        return f"{needs} embeddings are changed before they enter the stream"
    for layer in range(bridge.cfg.n_layers):
        name, attn = f"blocks.{layer}", bridge.blocks[layer].attn
        x = kept[f"{name}.hook_resid_pre"]
        normed = _normed(weights, f"{name}.ln1", x)
        q, k = (_projected(normed, weights[f"{name}.attn.W_{one}"], getattr(attn, f"b_{one}", None)) for one in "QK")
        if not _attends(kept[f"{name}.attn.hook_attn_scores"], q, k):
            return f"{needs} attention scores are not those of W_Q and W_K behind one norm"
        written = torch.einsum("phe,hed->pd", kept[f"{name}.attn.hook_z"], weights[f"{name}.attn.W_O"])
        written = written if getattr(attn, "b_O", None) is None else written + attn.b_O
        if not _equal(kept[f"{name}.hook_resid_post"] - x - kept[f"{name}.hook_mlp_out"], written):
            return f"{needs} what heads write is changed before it enters the stream"
    last = kept[f"blocks.{bridge.cfg.n_layers - 1}.hook_resid_post"]
    if not _equal(logits, _normed(weights, "ln_final", last) @ weights["unembed.W_U"] + bridge.unembed.b_U):
        return f"{needs} logits are not those of W_U behind one norm"
    return None


@torch.no_grad()
def _activations(bridge: Any) -> tuple[dict[str, Tensor], Float[Tensor, "pos vocab"]]:
    """The activations for the comparison, and the logits, on the first tokens of the vocabulary."""
    names = ["hook_resid_pre", "attn.hook_attn_scores", "attn.hook_z", "hook_mlp_out", "hook_resid_post"]
    names = [f"blocks.{layer}.{name}" for layer in range(bridge.cfg.n_layers) for name in names]
    kept: dict[str, Tensor] = {}
    tokens = torch.arange(min(4, bridge.cfg.d_vocab, bridge.cfg.n_ctx), device=bridge.W_E.device)[None]
    with ExitStack() as awake:
        for point in bridge.hook_dict.values():
            awake.enter_context(asleep(point))
        logits = bridge.run_with_hooks(tokens, fwd_hooks=[(name, keep(kept, name)) for name in names])
    return {name: value[0] for name, value in kept.items()}, logits[0]


def _projected(
    x: Float[Tensor, "pos d"], W: Float[Tensor, "head d d_head"], b: Float[Tensor, "group d_head"] | None
) -> Float[Tensor, "pos head d_head"]:
    found = torch.einsum("pd,hde->phe", x, W)
    return found if b is None else found + b.repeat_interleave(len(W) // len(b), dim=0)


def _normed(weights: Mapping[str, Tensor], name: str, x: Float[Tensor, "pos d"]) -> Float[Tensor, "pos d"]:
    if f"{name}.w" not in weights:
        return x
    if f"{name}.b" in weights:
        x = x - x.mean(-1, keepdim=True)
    scale = (x.square().mean(-1, keepdim=True) + weights.get(f"{name}.eps", EPS)).sqrt()
    return x / scale * weights[f"{name}.w"] + weights.get(f"{name}.b", 0)


def _attends(
    given: Float[Tensor, "head query key"], q: Float[Tensor, "pos head d_head"], k: Float[Tensor, "pos head d_head"]
) -> bool:
    """Whether the scores q k^T match `hook_attn_scores`, where some bridges have the attention pattern instead."""
    if bool((given[:, 0, -1] < -1e3).all()):
        return _proportional(given.diagonal(dim1=-2, dim2=-1).T, (q * k).sum(-1))
    scores = torch.einsum("qhe,khe->hqk", q, k) / q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return _equal(given.flatten(1), scores.masked_fill(later, -torch.inf).softmax(-1).flatten(1))


def _equal(a: Float[Tensor, "pos n"], b: Float[Tensor, "pos n"]) -> bool:
    return bool((a - b).norm() <= TOLERANCE * b.norm() + 1e-12)


def _proportional(a: Float[Tensor, "pos head"], b: Float[Tensor, "pos head"]) -> bool:
    """Whether a = c b for one c > 0, the scale of the scores."""
    c = (a * b).sum() / (b * b).sum().clamp_min(1e-30)
    return _equal(a, c * b) and (bool(c > 0) or not bool(b.any()))


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
    "use_attention_sinks",
)
"""Must have their default, like every field that is not listed."""
VALUES: dict[str, Callable[[Any, Any], bool]] = {
    "positional_embedding_type": lambda value, _: value in ("standard", "rotary"),
    "normalization_type": lambda value, _: value in (None, "LN", "LNPre", "RMS", "RMSPre"),
    "dtype": lambda value, _: value in (torch.float32, torch.float64),
    "n_key_value_heads": lambda value, cfg: value in (None, cfg.n_heads),
    "original_architecture": lambda value, _: value not in NORM_WHAT_THEY_WRITE,
}
"""Fields that may have some values besides the default: (value, configuration) -> whether this value is allowed."""

_ATTENDS = {"_attention_dir_override": None, "attn_type": "global", "IGNORE": -torch.inf}
"""Attributes of attention modules that the fast path does not read, with the values that it assumes."""


def objection(model: nn.Module) -> str | None:
    """Why the fast path does not support this model; None if it does."""
    from induction_memory.model.building import HookedTransformer, hooks_everywhere

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
    from induction_memory.model.building import has_hooks

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
