"""Random embeddings and how nearly orthonormal they are (Section 4, "Random embeddings", and Appendix A).

Rows u_i with i.i.d. N(0, 1/d) entries satisfy, for i != j and a random W with N(0, 1/d) entries,

    E[u_i^T u_i] = 1,  Var = 2/d          E[u_i^T u_j] = 0,  Var = 1/d
    E[|W x|^2] = |x|^2, Var = 2/d |x|^4   E[x^T W x] = 0,    Var = (d + 2)/d^2 for x drawn as above.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import require


def gaussian_embeddings(
    n: int, d: int, generator: torch.Generator, variance: float | None = None, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "i d_model"]:
    """n rows of i.i.d. N(0, variance) entries; the default variance 1/d makes norms near 1."""
    require(n >= 1 and d >= 1, "embeddings", "at least one row and one dimension", (n, d))
    variance = 1 / d if variance is None else variance
    return torch.randn(n, d, generator=generator, dtype=dtype) * variance**0.5


def random_remapping(d: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Float[Tensor, "d d"]:
    """A matrix of i.i.d. N(0, 1/d) entries: what an untrained W_V or W_O does to embeddings."""
    return torch.randn(d, d, generator=generator, dtype=dtype) / d**0.5
