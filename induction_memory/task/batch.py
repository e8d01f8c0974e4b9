"""Sequences of any task: the tokens that a model reads, the outputs that it should predict, and where.

At position t a model predicts `targets[t]` from `tokens[..t]`. Targets are hard (the id of the right output) or
soft (a distribution over outputs). The loss of a batch is a mean of

    - sum_j y_t(j) log p_t(j)        over positions t that are counted,

with y_t the target's distribution: one at the right output if the target is hard.

Over the positions M of a batch a score y has the mean

    r = sum over sequences b of s_b / sum over b of n_b,    s_b = sum of y over M in b,  n_b = |M in b|.

Sequences are independent, positions within one are not. So the standard error is the error of a ratio of sums,

    se^2 = B / (B - 1) * sum_b (s_b - r n_b)^2 / (sum_b n_b)^2.

Random tokens repeated once (`within_context`) are the usual test of induction for models whose task is not known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int, Int64, Shaped
from torch import Tensor

from induction_memory.errors import require
from induction_memory.field_docs import field_docs

Kind = TypeVar("Kind", bound="Batch")


@field_docs
@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences with their targets and groups of positions.

    >>> import torch
    >>> import induction_memory as im
    >>> tokens, everywhere = torch.tensor([[0, 1, 1]]), torch.ones(1, 3, dtype=torch.bool)
    >>> batch = im.task.Batch(tokens, tokens.cumsum(1) % 2, everywhere, {"position": everywhere}, "position")
    >>> batch.targets
    tensor([[0, 1, 0]])
    """

    tokens: Int64[Tensor, "batch pos"]
    """The inputs."""
    targets: Int64[Tensor, "batch pos"] | Float[Tensor, "batch pos output"]
    """The right output of each position, or its distribution. Arbitrary where not counted."""
    counted: Bool[Tensor, "batch pos"]
    """The counted positions, at which the task needs a prediction: the loss on all positions averages these."""
    groups: Mapping[str, Bool[Tensor, "batch pos"]]
    """Named positions, such as `in_context`; a group lies within the counted positions."""
    main: str
    """The group over which accuracies and effects of interventions are measured."""
    latents: Mapping[str, Shaped[Tensor, "batch ..."]] = field(default_factory=dict)
    """Hidden variables that each sequence was drawn with, one row per sequence. No predictor reads them."""

    def __post_init__(self) -> None:
        require(self.main in self.groups, "batch.main", f"one of the groups {', '.join(self.groups)}", repr(self.main))

    @property
    def soft(self) -> bool:
        """Whether the targets are distributions, so that no single output is right."""
        return self.targets.dim() == 3

    def group(self, name: str | None = None) -> Bool[Tensor, "batch pos"]:
        """The positions of a group, by default the main one; `all` means the counted positions."""
        name = self.main if name is None else name
        if name == "all":
            return self.counted
        require(name in self.groups, "group", f"one of all, {', '.join(self.groups)}", repr(name))
        return self.groups[name]

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def __getitem__(self: Kind, rows: slice | Tensor) -> Kind:
        """The chosen sequences: a slice, or a tensor of indices or of booleans."""
        return self._each(lambda values: values[rows])

    def of_group(self, name: str | None = None) -> tuple[Int64[Tensor, "batch m"], "Batch"]:
        """The positions of a group in every sequence, and the batch restricted to them.

        Sequences with fewer than m such positions are padded with other positions, which are not counted.
        """
        name = self.main if name is None else name
        mask = self.group(name)
        most = max(int(mask.sum(-1).max()), 1)
        at = (~mask).int().argsort(dim=-1, stable=True)[:, :most]
        inside = mask.gather(1, at)
        targets = self.targets.gather(1, at[..., None].expand(-1, -1, self.targets.shape[-1]) if self.soft else at)
        return at, Batch(self.tokens.gather(1, at), targets, inside, {name: inside}, name)

    def to(self: Kind, device: torch.device | str) -> Kind:
        """The same batch on a device; itself, if it is there."""
        return self if self.tokens.device == torch.device(device) else self._each(lambda values: values.to(device))

    def _each(self: Kind, change: Any) -> Kind:
        return replace(
            self,
            tokens=change(self.tokens),
            targets=change(self.targets),
            counted=change(self.counted),
            groups={name: change(mask) for name, mask in self.groups.items()},
            latents={name: change(values) for name, values in self.latents.items()},
        )


def scored_groups(batch: Batch) -> list[str]:
    """The groups that have scores: all except first occurrences, whose outputs cannot be known yet."""
    return [name for name in batch.groups if not name.startswith("first")]


def require_tokens(tokens: Int[Tensor, "*lead"], size: int, field: str = "tokens") -> None:
    """Raise an InputError unless all ids lie in a vocabulary of this size."""
    bad = tokens[(tokens < 0) | (tokens >= size)]
    require(len(bad) == 0, field, f"ids of 0 to {size - 1} (the vocabulary)", int(bad[0]) if len(bad) else "")


def masked_mean(
    values: Float[Tensor, "*variant batch pos"], mask: Bool[Tensor, "*#variant batch pos"]
) -> tuple[Float[Tensor, "*variant"], Float[Tensor, "*variant"]]:
    """Mean over the masked positions and its standard error; nan as in `ratio`.

    To average several scores at once, stack them and their masks along an axis before the batch.
    """
    return ratio(torch.where(mask, values, 0.0).sum(-1), mask.sum(-1).to(values.dtype))


def ratio(
    sums: Float[Tensor, "*variant batch"], counts: Float[Tensor, "*#variant batch"]
) -> tuple[Float[Tensor, "*variant"], Float[Tensor, "*variant"]]:
    """The ratio of two sums over sequences, r = sum s_b / sum n_b, and its standard error.

    The error includes the denominator's. r is nan if no position counts. The standard error is nan if all counted
    positions are in one sequence. With counts of 1 these are a mean and its standard error.
    """
    total, batch = counts.sum(-1), sums.shape[-1]
    mean = sums.sum(-1) / total
    if batch < 2:
        return mean, torch.full_like(mean, torch.nan)
    spread = (sums - mean.unsqueeze(-1) * counts).square().sum(-1)
    several = (counts != 0).sum(-1) > 1
    return mean, torch.where(several, (batch / (batch - 1) * spread).sqrt() / total.abs(), torch.nan)


LENGTH = 64
"""Default number of tokens that are repeated; fewer if the context is shorter."""


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
    """Repeated tokens whose sequences fit a model's context."""
    return repeated_tokens(vocab_size, min(LENGTH, n_ctx // 2), batch, torch.Generator().manual_seed(seed))
