"""Whether memories can be read from the weights of a model: it must compute the following with them.

    x_1 = w_E(z) + p                                          embeddings as they are stored
    scores(t, t) ~ (N_1(x) W_Q + b_Q) (N_1(x) W_K + b_K)^T    one norm in front; rotary positions cancel at distance 0
    x + z W_O + b_O                                           what heads write enters the stream as it is
    logits = N(x) W_U + b_U

A HookedTransformer is judged by its configuration. A TransformerBridge wraps many architectures. Some of them normalise
queries and keys, some normalise what the heads write, and some scale the embeddings. So a bridge is run on a few
tokens, without the user's hooks, and each line is compared.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from induction_memory.model.grouped import ungrouped
from induction_memory.runner.hook_points import asleep, keep
from induction_memory.runner.parameters import EPS, parameters

BENT = ("use_qk_norm", "clip_qkv", "use_normalization_before_and_after", "post_embedding_ln")
"""Fields of TransformerLens's configuration that put something between the stream and the matrices."""
NORM_WHAT_THEY_WRITE = ("OlmoeForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM", "GptOssForCausalLM")
"""Values of `original_architecture` for which HookedTransformer computes another block."""
TOLERANCE = 1e-3
_judged: "WeakKeyDictionary[nn.Module, str | None]" = WeakKeyDictionary()


def unreadable(model: nn.Module) -> str | None:
    """Why no memories can be read from the weights of a model; None where they can."""
    if any(name == "embed.W_E" for name, _ in model.named_parameters()):
        cfg: Any = model.cfg
        return of_settings({name: getattr(cfg, name, None) for name in (*BENT, "original_architecture")})
    if model not in _judged:
        _judged[model] = _of_bridge(model)
    return _judged[model]


def of_settings(settings: Mapping[str, Any]) -> str | None:
    """Why no memories can be read from a model with these fields of TransformerLens's configuration, or None."""
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
    """The activations that are compared, and the logits, on the first tokens of the vocabulary."""
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
    """Whether the scores q k^T are those at `hook_attn_scores`, where some bridges have the attention itself."""
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
