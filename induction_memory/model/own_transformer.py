"""HookedTransformer for TransformerLens 4, which removed it: the same parameters, hooks and numbers.

TransformerLens 3.9 has the class, and `building.py` takes it from there. With 4.x installed, `building.py` uses this
one: a model on HookedRootModule, which both versions have, for the architectures that `ModelConfig` describes. Its
parameters, hook points and flags have the names of 3.9, so hooks, patches and stored weights mean the same in both.

    x_0 = W_E[z] + W_pos                       hook_embed, hook_pos_embed
    x   = x + attention(ln1(x))                hook_resid_pre, hook_attn_out, hook_resid_mid
    x   = x + mlp(ln2(x))                      hook_mlp_out, hook_resid_post (parallel blocks: both read the same x)
    logits = ln_final(x) W_U + b_U

It reads only tokens. It has no tokenizer, no cache of keys and values, and no folding of weights.
"""

from dataclasses import dataclass
from typing import Any, Literal

import einops
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import ActivationCache, HookedRootModule
from transformer_lens.hook_points import HookPoint

from induction_memory.errors import require


@dataclass
class HookedTransformerConfig:
    """The fields of TransformerLens's configuration that these models use, by its names."""

    n_layers: int
    d_model: int
    n_ctx: int
    d_head: int
    n_heads: int
    d_vocab: int
    d_vocab_out: int
    d_mlp: int | None = None
    act_fn: str = "relu"
    attn_only: bool = False
    normalization_type: str | None = None
    parallel_attn_mlp: bool = False
    use_attn_scale: bool = True
    init_weights: bool = False
    default_prepend_bos: bool = False
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    eps: float = 1e-5
    positional_embedding_type: str = "standard"
    use_attn_result: bool = False
    use_split_qkv_input: bool = False
    use_attn_in: bool = False
    use_hook_mlp_in: bool = False
    original_architecture: str | None = None
    n_key_value_heads: int | None = None

    @property
    def attn_scale(self) -> float:
        return self.d_head**0.5 if self.use_attn_scale else 1.0


class Embed(nn.Module):
    """Rows of W_E."""

    def __init__(self, cfg: HookedTransformerConfig) -> None:
        super().__init__()
        self.W_E = nn.Parameter(torch.empty(cfg.d_vocab, cfg.d_model))

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        return self.W_E[tokens]


class PosEmbed(nn.Module):
    """The first rows of W_pos, for every sequence."""

    def __init__(self, cfg: HookedTransformerConfig) -> None:
        super().__init__()
        self.W_pos = nn.Parameter(torch.empty(cfg.n_ctx, cfg.d_model))

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        return self.W_pos[: tokens.shape[1]].expand(len(tokens), -1, -1)


class LayerNorm(nn.Module):
    """Centre, divide by the standard deviation, scale and shift."""

    def __init__(self, cfg: HookedTransformerConfig) -> None:
        super().__init__()
        self.eps = cfg.eps
        self.w, self.b = nn.Parameter(torch.ones(cfg.d_model)), nn.Parameter(torch.zeros(cfg.d_model))
        self.hook_scale, self.hook_normalized = HookPoint(), HookPoint()

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        x = x - x.mean(-1, keepdim=True)
        scale = self.hook_scale((x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt())
        return self.hook_normalized(x / scale) * self.w + self.b


class Attention(nn.Module):
    """Causal attention; inputs may have a head axis."""

    def __init__(self, cfg: HookedTransformerConfig) -> None:
        super().__init__()
        self.cfg, self.attn_scale = cfg, cfg.attn_scale
        heads, d, d_head = cfg.n_heads, cfg.d_model, cfg.d_head
        self.W_Q, self.W_O = nn.Parameter(torch.empty(heads, d, d_head)), nn.Parameter(torch.empty(heads, d_head, d))
        self.b_Q, self.b_O = nn.Parameter(torch.zeros(heads, d_head)), nn.Parameter(torch.zeros(d))
        self.W_K, self.W_V = (nn.Parameter(torch.empty(heads, d, d_head)) for _ in range(2))
        self.b_K, self.b_V = (nn.Parameter(torch.zeros(heads, d_head)) for _ in range(2))
        self.hook_k, self.hook_q, self.hook_v, self.hook_z = (HookPoint() for _ in range(4))
        self.hook_attn_scores, self.hook_pattern, self.hook_result = (HookPoint() for _ in range(3))

    def forward(
        self, query_input: Tensor, key_input: Tensor, value_input: Tensor
    ) -> Float[Tensor, "batch pos d_model"]:
        q = self.hook_q(_per_head(query_input, self.W_Q, self.b_Q))
        k = self.hook_k(_per_head(key_input, self.W_K, self.b_K))
        v = self.hook_v(_per_head(value_input, self.W_V, self.b_V))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / self.attn_scale
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = self.hook_attn_scores(scores.masked_fill(future, -torch.inf))
        pattern = self.hook_pattern(scores.softmax(-1).nan_to_num(0.0))
        z = self.hook_z(torch.einsum("bkhd,bhqk->bqhd", v, pattern))
        if self.cfg.use_attn_result:
            return self.hook_result(torch.einsum("bqhd,hdm->bqhm", z, self.W_O)).sum(2) + self.b_O
        return F.linear(z.flatten(2), einops.rearrange(self.W_O, "h d m -> m (h d)"), self.b_O)


def _per_head(x: Tensor, W: Float[Tensor, "head d_model d_head"], b: Float[Tensor, "head d_head"]) -> Tensor:
    if x.dim() == 4:
        return torch.einsum("bphm,hmd->bphd", x, W) + b
    flat = F.linear(x, einops.rearrange(W, "h m d -> (h d) m"), b.flatten())
    return flat.unflatten(-1, b.shape)


class MLP(nn.Module):
    """relu(x W_in + b_in) W_out + b_out."""

    def __init__(self, cfg: HookedTransformerConfig) -> None:
        super().__init__()
        assert cfg.d_mlp is not None
        assert cfg.act_fn == "relu", cfg.act_fn
        self.act_fn = F.relu
        self.W_in, self.b_in = nn.Parameter(torch.empty(cfg.d_model, cfg.d_mlp)), nn.Parameter(torch.zeros(cfg.d_mlp))
        self.W_out = nn.Parameter(torch.empty(cfg.d_mlp, cfg.d_model))
        self.b_out = nn.Parameter(torch.zeros(cfg.d_model))
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        hidden = self.hook_post(self.act_fn(self.hook_pre(F.linear(x, self.W_in.T, self.b_in))))
        return F.linear(hidden, self.W_out.T, self.b_out)


class TransformerBlock(nn.Module):
    """Attention and feed-forward, in sequence or parallel."""

    def __init__(self, cfg: HookedTransformerConfig) -> None:
        super().__init__()
        self.cfg = cfg
        norms = cfg.normalization_type is not None
        self.ln1 = LayerNorm(cfg) if norms else nn.Identity()
        if not cfg.attn_only:
            self.ln2 = LayerNorm(cfg) if norms else nn.Identity()
        self.attn = Attention(cfg)
        if not cfg.attn_only:
            self.mlp: nn.Module = MLP(cfg)
        self.hook_attn_in, self.hook_q_input, self.hook_k_input, self.hook_v_input = (HookPoint() for _ in range(4))
        self.hook_mlp_in, self.hook_attn_out, self.hook_mlp_out = (HookPoint() for _ in range(3))
        self.hook_resid_pre, self.hook_resid_post = HookPoint(), HookPoint()
        if not (cfg.attn_only or cfg.parallel_attn_mlp):
            self.hook_resid_mid = HookPoint()

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        before = self.hook_resid_pre(x)
        query, key, value = (self.ln1(one) for one in self._attention_inputs(before))
        written = self.hook_attn_out(self.attn(query_input=query, key_input=key, value_input=value))
        if self.cfg.attn_only:
            return self.hook_resid_post(before + written)
        between = before if self.cfg.parallel_attn_mlp else self.hook_resid_mid(before + written)
        read = self.hook_mlp_in(between.clone()) if self.cfg.use_hook_mlp_in else between
        added = self.hook_mlp_out(self.mlp(self.ln2(read)))
        return self.hook_resid_post(between + written + added if self.cfg.parallel_attn_mlp else between + added)

    def _attention_inputs(self, x: Float[Tensor, "batch pos d_model"]) -> list[Tensor]:
        """What queries, keys and values read; one copy per head if a flag asks for it."""
        apart = einops.repeat(x, "b p d -> b p h d", h=self.cfg.n_heads)
        if self.cfg.use_split_qkv_input:
            return [getattr(self, f"hook_{letter}_input")(apart.clone()) for letter in "qkv"]
        return [self.hook_attn_in(apart.clone())] * 3 if self.cfg.use_attn_in else [x] * 3


class Unembed(nn.Module):
    """x W_U + b_U."""

    def __init__(self, cfg: HookedTransformerConfig) -> None:
        super().__init__()
        self.W_U = nn.Parameter(torch.empty(cfg.d_model, cfg.d_vocab_out))
        self.b_U = nn.Parameter(torch.zeros(cfg.d_vocab_out))
        self.hook_in, self.hook_out = HookPoint(), HookPoint()

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos vocab"]:
        return self.hook_out(F.linear(self.hook_in(x), self.W_U.T, self.b_U))


class HookedTransformer(HookedRootModule):
    """Tokens in, logits out."""

    def __init__(self, cfg: HookedTransformerConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.embed, self.hook_embed = Embed(cfg), HookPoint()
        self.pos_embed, self.hook_pos_embed = PosEmbed(cfg), HookPoint()
        self.blocks = nn.ModuleList(TransformerBlock(cfg) for _ in range(cfg.n_layers))
        self.ln_final = nn.Identity() if cfg.normalization_type is None else LayerNorm(cfg)
        self.unembed = Unembed(cfg)
        self.setup()

    def forward(self, input: Int[Tensor, "batch pos"], return_type: Literal["logits", "loss"] | None = "logits") -> Any:
        require(isinstance(input, Tensor) and input.dim() == 2, "input", "tokens [batch, pos]", type(input).__name__)
        require(input.shape[1] <= self.cfg.n_ctx, "input", f"at most {self.cfg.n_ctx} tokens", input.shape[1])
        require(return_type in ("logits", "loss", None), "return_type", "logits, loss or None", repr(return_type))
        x = self.hook_embed(self.embed(input)) + self.hook_pos_embed(self.pos_embed(input))
        for block in self.blocks:
            x = block(x)
        if return_type is None:
            return None
        logits = self.unembed(self.ln_final(x))
        if return_type == "logits":
            return logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), input[:, 1:].flatten())

    def run_with_cache(self, *inputs: Any, return_cache_object: bool = True, **options: Any) -> Any:
        """The output and the activations, as TransformerLens's ActivationCache."""
        out, cache = super().run_with_cache(*inputs, **options)
        return out, ActivationCache(cache, self) if return_cache_object else cache

    def to(self, *args: Any, print_details: bool = True, **options: Any) -> "HookedTransformer":
        """torch's `to`, which also updates `cfg`. Callers of TransformerLens 3.9 pass `print_details`."""
        super().to(*args, **options)
        self.cfg.device, self.cfg.dtype = str(self.embed.W_E.device), self.embed.W_E.dtype
        return self

    def __getattr__(self, name: str) -> Any:
        """W_Q, W_K, W_V, W_O, W_in, W_out and their biases, stacked over layers; W_E, W_pos, W_U."""
        if name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O"):
            return torch.stack([getattr(block.attn, name) for block in self.blocks])
        if name in ("W_in", "W_out", "b_in", "b_out"):
            return torch.stack([getattr(block.mlp, name) for block in self.blocks])
        if name in ("W_E", "W_pos", "W_U", "b_U"):
            return getattr({"W_E": self.embed, "W_pos": self.pos_embed}.get(name, self.unembed), name)
        return super().__getattr__(name)

    def set_use_attn_result(self, value: bool) -> None:
        self.cfg.use_attn_result = value

    def set_use_split_qkv_input(self, value: bool) -> None:
        self.cfg.use_split_qkv_input = value

    def set_use_attn_in(self, value: bool) -> None:
        self.cfg.use_attn_in = value

    def set_use_hook_mlp_in(self, value: bool) -> None:
        self.cfg.use_hook_mlp_in = value


MODULES: dict[str, set[type]] = {
    "embed": {Embed},
    "pos_embed": {PosEmbed},
    "blocks": {nn.ModuleList},
    "block": {TransformerBlock},
    "block.attn": {Attention},
    "block.mlp": {MLP},
    "norm": {LayerNorm},
    "unembed": {Unembed},
}
"""The module types of this model by their names, for the list of modules that the fast path computes exactly."""
