"""Random tokens repeated once: the usual test of induction, for models whose task is not known."""

import torch
from jaxtyping import Int
from torch import Tensor

LENGTH = 64
"""Default number of tokens in the half that is repeated; fewer if the context is shorter."""


def repeated_tokens(
    vocab_size: int, length: int, batch: int, generator: torch.Generator
) -> Int[Tensor, "batch twice_length"]:
    """Sequences of `length` uniformly random tokens, each repeated once.

    >>> tokens = repeated_tokens(50, 3, 2, torch.Generator().manual_seed(0))
    >>> bool((tokens[:, :3] == tokens[:, 3:]).all())
    True
    """
    once = torch.randint(vocab_size, (batch, length), generator=generator)
    return torch.cat([once, once], dim=1)


def within_context(vocab_size: int, n_ctx: int, batch: int, seed: int = 0) -> Int[Tensor, "batch pos"]:
    """Repeated tokens that fit the context of a model."""
    return repeated_tokens(vocab_size, min(LENGTH, n_ctx // 2), batch, torch.Generator().manual_seed(seed))
