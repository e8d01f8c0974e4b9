"""The matrices around attention in the cheapest form, and the parameters' gradients from theirs.

TransformerLens writes q = a W_Q, k = a W_K, v = a W_V, out = sum over heads of (P v) W_O. With one head as wide as the
model, W_Q W_K^T and W_V W_O are matrices no larger than their factors, and the inputs a serve as keys and as values:

    q = a (W_Q W_K^T),  k = v = a,  out = (P a) (W_V W_O)

so that only queries are mapped, and the last layer may need only few of them. The factors' gradients follow from those
of the products once per batch: with G = d(W_Q W_K^T), dW_Q = G W_K and dW_K = G^T W_Q; with H = d(W_V W_O),
dW_V = H W_O^T and dW_O = W_V^T H.

In the first layer, whose input is tokens plus positions, maps are looked up in tables (`lookup.py`), and the product
W_V W_O is applied before P, where it costs nothing. If no gradient of that input is needed, the scores are looked up as
well (`attention_scores.py`).
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from induction_memory.model.config import ModelConfig
from induction_memory.training.fast.attention import LOG2_E
from induction_memory.training.fast.attention_scores import ScoreTables
from induction_memory.training.fast.lookup import Table
from induction_memory.training.fast.sums import Sums


class AttentionMaps:
    """Maps of one layer: `maps["q"]` (in bits), "k", "v" and "o"; one that is missing is the identity."""

    def __init__(
        self,
        layer: int,
        config: ModelConfig,
        parameters: Mapping[str, Tensor],
        trained: frozenset[str],
        embedded: Table | None,
        inputs_wanted: bool,
        everywhere: bool,
    ) -> None:
        """`embedded` has the embeddings if they are the layer's input. `inputs_wanted` says that the input's gradient
        is needed, `everywhere` that every position is a query.
        """
        self.prefix = f"blocks.{layer}.attn"
        self.weights = {name: parameters[f"{self.prefix}.{name}"] for name in ("W_Q", "W_K", "W_V", "W_O")}
        self.trained = frozenset(name for name in self.weights if f"{self.prefix}.{name}" in trained)
        self.embedded = embedded
        self.inputs_wanted = inputs_wanted
        self.heads, self.d_model, self.d_head = self.weights["W_Q"].shape
        self.score_scale = LOG2_E / (math.sqrt(self.d_head) if config.scale_scores else 1)
        self.folded = self.heads == 1 and self.d_head >= self.d_model
        self.maps, self.factors = self._folded() if self.folded else self._by_head()
        self.tables = {
            name: Table(embedded.by_token @ W, embedded.by_position @ W)
            for name, W in self.maps.items()
            if embedded is not None and name != "o"
        }
        self.score_tables: ScoreTables | None = None
        if embedded is not None and self.folded and everywhere and not inputs_wanted:
            self.score_tables = ScoreTables(self.maps["q"], embedded)

    def _folded(self) -> tuple[dict[str, Tensor], dict[str, set[str]]]:
        W_Q, W_K, W_V, W_O = self.weights.values()
        output = "o" if self.embedded is None else "v"
        maps = {"q": (W_Q[0] @ W_K[0].T) * self.score_scale, output: W_V[0] @ W_O[0]}
        return maps, {"q": {"W_Q", "W_K"}, output: {"W_V", "W_O"}}

    def _by_head(self) -> tuple[dict[str, Tensor], dict[str, set[str]]]:
        W_Q, W_K, W_V, W_O = self.weights.values()
        q, k, v = (W.transpose(0, 1).flatten(1) for W in (W_Q, W_K, W_V))
        maps = {"q": q * self.score_scale, "k": k, "v": v, "o": W_O.flatten(0, 1)}
        return maps, {"q": {"W_Q"}, "k": {"W_K"}, "v": {"W_V"}, "o": {"W_O"}}

    def learns(self, name: str) -> bool:
        """Whether the gradient of a map is needed."""
        return not self.trained.isdisjoint(self.factors.get(name, ()))

    def wanted(self, name: str) -> bool:
        """Whether the gradient of q, k or v is needed."""
        return self.learns(name) or self.inputs_wanted

    def gradients(self, sums: Sums) -> dict[str, Tensor]:
        """Gradients of the trained parameters, from the sums over the batch."""
        products = {name: self._gradient(name, sums) for name in self.maps if self.learns(name)}
        if "q" in products:
            products["q"] = products["q"] * self.score_scale
        found: dict[str, Tensor] = {}
        W_Q, W_K, W_V, W_O = self.weights.values()
        if self.folded:
            if "q" in products:
                G = products["q"]
                found |= {"W_Q": (G @ W_K[0])[None], "W_K": (G.T @ W_Q[0])[None]}
            H = products.get("o", products.get("v"))
            if H is not None:
                found |= {"W_V": (H @ W_O[0].T)[None], "W_O": (W_V[0].T @ H)[None]}
        else:
            for name, full in (("q", "W_Q"), ("k", "W_K"), ("v", "W_V")):
                if name in products:
                    by_head = products[name].view(self.d_model, self.heads, self.d_head)
                    found[full] = by_head.transpose(0, 1).contiguous()
            if "o" in products:
                found["W_O"] = products["o"].view_as(W_O)
        return {f"{self.prefix}.{name}": found[name] for name in self.trained}

    def _gradient(self, name: str, sums: Sums) -> Tensor:
        """Gradient of a map."""
        W, key = self.maps[name], f"{self.prefix}.{name}"
        if name not in self.tables or self.embedded is None:
            return sums(key, *W.shape)
        if name == "q" and self.score_tables is not None:
            return self.score_tables.gradient(sums, key)
        by_token, by_position = self._by_row(name, sums)
        return self.embedded.by_token.T @ by_token + self.embedded.by_position.T @ by_position

    def _by_row(self, name: str, sums: Sums) -> tuple[Tensor, Tensor]:
        """The sums of `lookup.add_by_row`."""
        table, key = self.tables[name], f"{self.prefix}.{name}"
        return sums(f"{key}.token", *table.by_token.shape), sums(f"{key}.position", *table.by_position.shape)

    def embedding_gradients(self, sums: Sums) -> Table:
        """The gradients of the embeddings that come through the tables."""
        assert self.embedded is not None
        token, position = torch.zeros_like(self.embedded.by_token), torch.zeros_like(self.embedded.by_position)
        for name in self.tables:
            by_token, by_position = self._by_row(name, sums)
            token += by_token @ self.maps[name].T
            position += by_position @ self.maps[name].T
        return Table(token, position)
