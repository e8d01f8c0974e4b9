"""One layer as the shortcut computes it.

    q, k, v = N_1(x) W[head] + b[head]        N_1: the norm in front of the attention, or nothing
    out     = sum over heads of z W_O[head] + b_O

Every function takes any number of leading axes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.runner.tail import unless_zero

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer, in TransformerLens's orientation (rows)."""

    attention: Mapping[str, Tensor]
    """W_Q, W_K, W_V [head, d_model, d_head], W_O [head, d_head, d_model], and the biases b_Q ... b_O."""
    scale: float
    """What attention scores are divided by."""
    norm: Map
    """The norm in front of the attention."""
    feed_forward: Map | None
    """The feed-forward with its norm; None if the layer has none."""
    rotary: Map | None = None
    """Turns queries or keys [batch, pos, head, d_head] by their position; None without rotary positions."""
    _stacked: dict[str, tuple[str, Tensor, Tensor | None]] = field(default_factory=dict, repr=False)

    @property
    def W_O(self) -> Float[Tensor, "head d_head d_model"]:
        return self.attention["W_O"]

    def project(
        self, x: Float[Tensor, "*lead d_model"], letters: str
    ) -> tuple[Float[Tensor, "*lead head d_head"], ...]:
        """Queries, keys or values of a normed stream, as the letters say, in one multiplication.

        A matrix that is the identity, like the paper's W_Q, is not multiplied.
        """
        free, W, b = self._matrices(letters)
        return self._split(x, letters, F.linear(x, W, b) if len(free) < len(letters) else None)

    def project_embedded(
        self,
        x: Float[Tensor, "batch pos d_model"],
        tokens: Int[Tensor, "batch pos"],
        tables: tuple[Float[Tensor, "vocab d_model"], Float[Tensor, "n_ctx d_model"]],
        letters: str,
    ) -> tuple[Float[Tensor, "batch pos head d_head"], ...]:
        """The same for x = W_E[token] + W_pos[position], by multiplying the tables instead of x."""
        (W_E, W_pos), (free, W, b) = tables, self._matrices(letters)
        if len(free) == len(letters):
            return self._split(x, letters, None)
        read = F.embedding(tokens, F.linear(W_E, W)).add_(F.linear(W_pos[: tokens.shape[1]], W, b))
        return self._split(x, letters, read)

    def _split(
        self, x: Float[Tensor, "*lead d_model"], letters: str, multiplied: Float[Tensor, "*lead d"] | None
    ) -> tuple[Float[Tensor, "*lead head d_head"], ...]:
        """One tensor per letter: x itself if the matrix is the identity, otherwise a part of one multiplication."""
        free, shape = self._matrices(letters)[0], self.attention["b_Q"].shape
        parts = iter(() if multiplied is None else multiplied.chunk(len(letters) - len(free), dim=-1))
        return tuple(x.unsqueeze(-2) if letter in free else next(parts).unflatten(-1, shape) for letter in letters)

    def _matrices(self, letters: str) -> tuple[str, Tensor, Tensor | None]:
        if letters not in self._stacked:
            self._stacked[letters] = self._stack(letters)
        return self._stacked[letters]

    def project_head(self, x: Float[Tensor, "*lead d_model"], letter: str, head: int) -> Float[Tensor, "*lead d_head"]:
        """`project` for one head and one letter."""
        if letter in self._free:
            return x
        return x @ self.attention[f"W_{letter.upper()}"][head] + self.attention[f"b_{letter.upper()}"][head]

    def combine(self, z: Float[Tensor, "*lead head d_head"]) -> Float[Tensor, "*lead d_model"]:
        """sum over heads of z W_O[head], and b_O."""
        return F.linear(z.flatten(-2), self.W_O.flatten(0, 1).T, self._b_O)

    @property
    def writes_one_head(self) -> bool:
        """Whether the layer's output is that of a single head: it has one head and no bias."""
        return len(self.W_O) == 1 and self._b_O is None

    def rotated(
        self, x: Float[Tensor, "variant batch pos head d_head"]
    ) -> Float[Tensor, "variant batch pos head d_head"]:
        """Queries or keys of all positions as attention compares them."""
        return x if self.rotary is None else self.rotary(x.flatten(0, 1)).view_as(x)

    @cached_property
    def _b_O(self) -> Tensor | None:
        return unless_zero(self.attention["b_O"])

    @cached_property
    def _free(self) -> str:
        """The letters whose matrix is the identity."""
        return "".join(
            letter
            for letter in "qkv"
            if _is_identity(self.attention[f"W_{letter.upper()}"], self.attention[f"b_{letter.upper()}"])
        )

    def _stack(self, letters: str) -> tuple[str, Tensor, Tensor | None]:
        """The letters whose matrix is the identity, and the stacked matrices and biases of the other letters."""
        weights = {one: (self.attention[f"W_{one.upper()}"], self.attention[f"b_{one.upper()}"]) for one in letters}
        free = "".join(letter for letter in letters if letter in self._free)
        rest = [weights[letter] for letter in letters if letter not in free]
        if not rest:
            return free, torch.empty(0), None
        bias = unless_zero(torch.cat([b.flatten() for _, b in rest]))
        return free, torch.cat([W.mT.flatten(0, 1) for W, _ in rest]), bias


def _is_identity(W: Float[Tensor, "head d_model d_head"], b: Float[Tensor, "head d_head"]) -> bool:
    if len(W) > 1 or W.shape[1] != W.shape[2] or W[0, 0, 0] != 1 or b.any():
        return False
    return torch.equal(W[0], torch.eye(W.shape[1], dtype=W.dtype, device=W.device))
