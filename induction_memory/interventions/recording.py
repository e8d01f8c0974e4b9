"""One intact run of a model, kept whole: what every component read and wrote.

Recorded through the hooks that every HookedTransformer has, in one forward; the model is left as it was. A head's own
output is z W_O[head], computed when first asked for, so that many heads do not cost their memory in advance.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer

from induction_memory.errors import require
from induction_memory.interventions.components import Graph, head_of

_LAYER_HOOKS = ("hook_resid_pre", "attn.hook_q", "attn.hook_k", "attn.hook_v", "attn.hook_z", "hook_mlp_out")
_LAYER_HOOKS += ("hook_attn_out", "hook_resid_post")
_FIRST_HOOKS = ("hook_embed", "hook_pos_embed")


@dataclass(frozen=True, eq=False)
class Recording:
    """A model, the tokens it ran on, and every activation that a patch may need."""

    model: HookedTransformer
    graph: Graph
    tokens: Int[Tensor, "batch pos"]
    activations: dict[str, Tensor]
    """By TransformerLens's hook names."""
    logits: Float[Tensor, "batch pos vocab"]
    _written: dict[str, Tensor] = field(default_factory=dict)

    def layer(self, layer: int, hook: str) -> Tensor:
        """An activation of a layer counted from 1: `recording.layer(1, "attn.hook_z")`."""
        return self.activations[f"blocks.{layer - 1}.{hook}"]

    def at(self, site: str) -> Float[Tensor, "batch pos d"]:
        """What a writer wrote (`L1H1`, `FF2`, `embed`, `pos`), or a head's queries, keys or values (`L2H1.k`)."""
        if site in ("embed", "pos"):
            return self.activations["hook_embed" if site == "embed" else "hook_pos_embed"]
        if site.startswith("FF"):
            return self.layer(int(site[2:]), "hook_mlp_out")
        layer, head = head_of(site)
        if "." in site:
            return self.layer(layer, f"attn.hook_{site[-1]}")[..., head - 1, :]
        if site not in self._written:
            z = self.layer(layer, "attn.hook_z")[..., head - 1, :]
            self._written[site] = z @ self.model.blocks[layer - 1].attn.W_O[head - 1].detach()
        return self._written[site]


def record(model: HookedTransformer, tokens: Int[Tensor, "batch pos"]) -> Recording:
    """Run the model once, without gradients, and keep what every component read and wrote."""
    require_additive(model)
    longest = f"sequences of 1 to {model.cfg.n_ctx} tokens (the model's n_ctx)"
    require(1 <= tokens.shape[1] <= model.cfg.n_ctx, "tokens", longest, tokens.shape[1])
    wanted = {f"blocks.{layer}.{hook}" for layer in range(model.cfg.n_layers) for hook in _LAYER_HOOKS}
    wanted |= set(_FIRST_HOOKS)
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens, names_filter=lambda name: name in wanted)
    activations = {name: value.detach() for name, value in cache.items()}
    if "hook_pos_embed" in activations:  # one row for all sequences in some models
        activations["hook_pos_embed"] = activations["hook_pos_embed"].expand_as(activations["hook_embed"])
    assert isinstance(logits, Tensor)
    return Recording(model, Graph.of(model), tokens, activations, logits)


def require_additive(model: Any) -> None:
    """Refuse, in one line, a model whose inputs are not sums of what earlier components wrote."""
    require(isinstance(model, HookedTransformer), "model", "a HookedTransformer", type(model).__name__)
    cfg = model.cfg
    grouped = cfg.n_key_value_heads not in (None, cfg.n_heads)
    reasons = {
        f"positions of kind {cfg.positional_embedding_type}": cfg.positional_embedding_type
        not in ("standard", "rotary"),
        "attention that is not causal": cfg.attention_dir != "causal",
        "local attention": cfg.use_local_attn,
        "grouped keys and values": grouped,
        "capped attention scores": cfg.attn_scores_soft_cap > 0,
        "normalisation after a block": cfg.use_normalization_before_and_after,
    }
    for reason, present in reasons.items():
        require(not present, "model", "a causal transformer whose components add to one stream", reason)
