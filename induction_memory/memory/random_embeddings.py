"""Random embeddings and how nearly orthonormal they are (Section 4, "Random embeddings", and Appendix A).

Rows u_i with i.i.d. N(0, 1/d) entries satisfy, for i != j and a random W with N(0, 1/d) entries,

    E[u_i^T u_i] = 1,  Var = 2/d          E[u_i^T u_j] = 0,  Var = 1/d
    E[|W x|^2] = |x|^2, Var = 2/d |x|^4   E[x^T W x] = 0,    Var = (d + 2)/d^2 for x drawn as above.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import require


def gaussian_embeddings(
    n: int,
    d: int,
    generator: torch.Generator,
    variance: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> Float[Tensor, "i d_model"]:
    """n rows of i.i.d. N(0, variance) entries; the variance is 1/d unless given, so that norms are near 1."""
    require(n >= 1 and d >= 1, "embeddings", "at least one row and one dimension", (n, d))
    variance = 1 / d if variance is None else variance
    return torch.randn(n, d, generator=generator, dtype=dtype) * variance**0.5


def random_remapping(d: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Float[Tensor, "d d"]:
    """A matrix of i.i.d. N(0, 1/d) entries: what an untrained W_V or W_O does to embeddings."""
    return torch.randn(d, d, generator=generator, dtype=dtype) / d**0.5


@dataclass(frozen=True)
class Orthogonality:
    """How far a set of embeddings is from orthonormal; every field has the leading axes of the embeddings."""

    mean_norm2: Float[Tensor, "*step"]
    "mean of u_i^T u_i"
    std_norm2: Float[Tensor, "*step"]
    "standard deviation of u_i^T u_i"
    rms_overlap: Float[Tensor, "*step"]
    "root mean square of u_i^T u_j over i != j"
    max_overlap: Float[Tensor, "*step"]
    "largest |u_i^T u_j| over i != j (the coherence, when norms are 1)"


def orthogonality(embeddings: Float[Tensor, "*step i d_model"]) -> Orthogonality:
    """Norms and mutual overlaps of one set of embeddings (at least two rows)."""
    require(embeddings.shape[-2] >= 2, "embeddings", "at least two rows", embeddings.shape[-2])
    gram = embeddings @ embeddings.mT
    norm2 = gram.diagonal(dim1=-2, dim2=-1)
    n = gram.shape[-1]
    off = gram - torch.diag_embed(norm2)
    return Orthogonality(
        mean_norm2=norm2.mean(-1),
        std_norm2=norm2.std(-1),
        rms_overlap=(off.square().sum((-2, -1)) / (n * (n - 1))).sqrt(),
        max_overlap=off.abs().amax((-2, -1)),
    )


def cross_overlap(
    first: Float[Tensor, "*step i d_model"], second: Float[Tensor, "*step j d_model"]
) -> Float[Tensor, "*step"]:
    """Root mean square of u_i^T v_j between two sets, e.g. embeddings and their remapped versions."""
    return (first @ second.mT).square().mean((-2, -1)).sqrt()
