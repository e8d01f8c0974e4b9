"""One intact run of a model, kept whole: what every component read and wrote.

    x_1 = w_E(z_t) + p_t,    x'_l = x_l + sum over heads of z W_O + b_O,    x_{l+1} = x'_l + FF_l(x'_l or x_l)

computed with the model's own weights and modules and kept under the names that HookedTransformer's hooks have: it is
`run_with_cache` without what patches do not need, and a test holds the two equal. A head's own output is z W_O[head],
computed when first asked for, so that many heads do not cost their memory in advance.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer

from induction_memory.errors import require
from induction_memory.runner.components import Graph, head_of
from induction_memory.runner.layers import attend, combine, project, rotated, unembed


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


@torch.no_grad()
def record(model: HookedTransformer, tokens: Int[Tensor, "batch pos"]) -> Recording:
    """Run the model once, without gradients, and keep what every component read and wrote."""
    require_additive(model)
    longest = f"sequences of 1 to {model.cfg.n_ctx} tokens (the model's n_ctx)"
    require(1 <= tokens.shape[1] <= model.cfg.n_ctx, "tokens", longest, tokens.shape[1])
    graph = Graph.of(model)
    kept = {"hook_embed": model.embed(tokens)}
    x = kept["hook_embed"]
    if graph.positions:
        kept["hook_pos_embed"] = model.pos_embed(tokens).expand_as(x)
        x = x + kept["hook_pos_embed"]
    for layer, block in enumerate(model.blocks, start=1):
        x = _layer(block, x, f"blocks.{layer - 1}.", kept, layer in graph.feed_forwards, graph.parallel)
    return Recording(model, graph, tokens, kept, unembed(model, x))


def _layer(
    block: Any, x: Float[Tensor, "batch pos d"], name: str, kept: dict[str, Tensor], feed_forward: bool, parallel: bool
) -> Float[Tensor, "batch pos d"]:
    attention, normed = block.attn, block.ln1(x)
    kept[name + "hook_resid_pre"] = x
    q, k, v = project(normed, attention, "qkv")
    kept.update({f"{name}attn.hook_q": q, f"{name}attn.hook_k": k, f"{name}attn.hook_v": v})
    z = attend(attention, rotated(attention, q[None]), rotated(attention, k[None]), v[None])[0]
    out = combine(attention, z)
    kept[name + "attn.hook_z"], kept[name + "hook_attn_out"] = z, out
    after = x + out
    if feed_forward:
        fed = block.mlp(block.ln2(x if parallel else after))
        kept[name + "hook_mlp_out"] = fed
        after = after + fed
    kept[name + "hook_resid_post"] = after
    return after


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
        "a norm of the embeddings": cfg.post_embedding_ln,
        "capped logits": cfg.output_logits_soft_cap > 0,
    }
    for reason, present in reasons.items():
        require(not present, "model", "a causal transformer whose components add to one stream", reason)
