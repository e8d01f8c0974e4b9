"""Edges into heads of a model that does not offer the heads' own inputs (some bridges).

Where a head's queries, keys and values are linear in the normalised stream, y = norm(x) W + b, an edge that changes the
stream of one input from x to x' changes y by

    (norm(x') - norm(x)) W

which is added at `hook_q`, `hook_k` or `hook_v`. A short sequence is run first to check that the model is linear there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from induction_memory.errors import InputError
from induction_memory.runner.hook_points import keep


@dataclass(frozen=True, eq=False)
class Projection:
    """How a layer computes queries, keys and values from the stream."""

    norm: Callable[[Tensor], Tensor]
    matrices: Mapping[str, Float[Tensor, "head d_model d_head"]]
    """q, k and v."""

    def change(
        self, letter: str, head: int, before: Float[Tensor, "batch pos d"], after: Float[Tensor, "batch pos d"]
    ) -> Float[Tensor, "batch pos d_head"]:
        """The change of a head's queries, keys or values; heads count from 0."""
        return (self.norm(after) - self.norm(before)) @ self.matrices[letter][head]


def projections(model: Any) -> tuple[Projection, ...]:
    """The projections of each layer; an InputError if queries, keys and values are not linear in the normed stream."""
    kept: dict[str, Tensor] = {}
    names = [
        f"blocks.{layer}.{point}"
        for layer in range(model.cfg.n_layers)
        for point in ("hook_resid_pre", "attn.hook_q", "attn.hook_k", "attn.hook_v")
    ]
    tokens = torch.arange(min(4, model.cfg.n_ctx, model.cfg.d_vocab), device=next(model.parameters()).device)[None]
    with torch.no_grad():
        model.run_with_hooks(tokens, fwd_hooks=[(name, keep(kept, name)) for name in names])
        return tuple(_of_block(block, f"blocks.{layer}", kept) for layer, block in enumerate(model.blocks))


def _of_block(block: Any, name: str, kept: Mapping[str, Tensor]) -> Projection:
    norm = getattr(block, "ln1", None)
    plain: Any = nn.Identity() if norm is None else getattr(norm, "original_component", norm)
    found = Projection(plain, {letter: getattr(block.attn, f"W_{letter.upper()}").detach() for letter in "qkv"})
    stream = kept[f"{name}.hook_resid_pre"]
    for letter, W in found.matrices.items():
        own = kept[f"{name}.attn.hook_{letter}"]
        fits = own.dim() == 4 and own.shape[2] == W.shape[0]
        without_bias = torch.einsum("bpd,hde->bphe", plain(stream), W) if fits else own
        bias = own - without_bias  # the same at every position, if the map is linear
        if not fits or not torch.allclose(bias, bias[:, :1].expand_as(bias), atol=1e-4):
            raise InputError(
                "model: expected one that offers use_split_qkv_input for patches of these sites, "
                f"or whose {letter} are linear in the normalised stream, got neither in {name}"
            )
    return found
