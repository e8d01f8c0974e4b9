"""The attention of one layer, from its input to its output and back, with the maps of `attention_maps.py`.

    q = a_q W_q,  k = a W_k,  v = a W_v,      out = sum over heads of softmax(q k^T) v W_o

where a is the input at every position and a_q the input at the queries. Backward, each map y = x W gives dW = x^T dy
and dx = dy W^T, or sums by token and by position if the map is looked up in tables.

The matrices around attention in the cheapest form, and the parameters' gradients from theirs.

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
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.model.config import ModelConfig
from induction_memory.training.fast.attention import (
    LOG2_E,
    ProductScores,
    Scores,
    ScoreTables,
    TableScores,
    Weighting,
    add_average,
    backward,
    impose,
    weigh,
    write_average,
)
from induction_memory.training.fast.lookup import Table, add_by_row, look_up
from induction_memory.training.fast.queries import Queries
from induction_memory.training.fast.workspace import Sums, Workspace


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


@dataclass(frozen=True)
class Attended:
    """What the backward of the layer needs."""

    inputs: Tensor
    queries_in: Tensor
    q: Tensor | None
    """None if the scores come from tables."""
    k: Tensor
    v: Tensor
    o: Tensor | None
    """P v; None if no map follows it."""
    weightings: tuple[Weighting, ...]
    table_scores: TableScores | None


@dataclass(frozen=True)
class AttentionLayer:
    """Attention with given maps."""

    maps: AttentionMaps

    def forward(
        self,
        inputs: Float[Tensor, "batch pos d_model"],
        queries_in: Float[Tensor, "batch query d_model"],
        tokens: Int[Tensor, "batch pos"],
        queries: Queries,
        pattern: Float[Tensor, "batch query key"] | None,
        residual: Float[Tensor, "batch query d_model"],
        out: Float[Tensor, "batch query d_model"],
        buffers: Workspace,
        sums: Sums,
    ) -> Attended:
        """Write residual + attention to `out`; `pattern` takes the place of the softmax."""
        prefix, W_o = self.maps.prefix, self.maps.maps.get("o")
        q, table_scores = None, None
        if self.maps.score_tables is None:
            q = self._project("q", queries_in, queries.choose(tokens), queries.positions, buffers)
        else:
            table_scores = TableScores.of(self.maps.score_tables, tokens, queries.blocks, buffers, sums, f"{prefix}.q")
        k = self._project("k", inputs, tokens, None, buffers)
        v = self._project("v", inputs, tokens, None, buffers)
        weightings = []
        for head in range(self.maps.heads):
            if pattern is not None:
                weightings.append(impose(pattern, queries.blocks))
                continue
            scores = table_scores or self._product_scores(head, q, k)
            weightings.append(weigh(scores, len(tokens), queries.blocks, buffers, f"{prefix}.{head}"))
        if W_o is None:
            add_average(weightings[0], v, out.copy_(residual))
            return Attended(inputs, queries_in, q, k, v, None, tuple(weightings), table_scores)
        o = buffers(f"{prefix}.o", *queries_in.shape[:2], v.shape[2])
        for head, weighting in enumerate(weightings):
            write_average(weighting, self._head(v, head), self._head(o, head))
        torch.addmm(residual.flatten(0, 1), o.flatten(0, 1), W_o, out=out.flatten(0, 1))
        return Attended(inputs, queries_in, q, k, v, o, tuple(weightings), table_scores)

    def backward(
        self,
        dout: Float[Tensor, "batch query d_model"],
        saved: Attended,
        tokens: Int[Tensor, "batch pos"],
        queries: Queries,
        add_dx: Float[Tensor, "batch pos d_model"] | None,
        add_dx_queries: Float[Tensor, "batch query d_model"] | None,
        buffers: Workspace,
        sums: Sums,
    ) -> None:
        """Sum the maps' gradients; add the inputs' gradients to `add_dx` (keys and values) and `add_dx_queries`.

        `add_dx_queries`, or both, may be `dout` itself. Maps that are looked up leave their inputs' gradients to the
        tables.
        """
        do = self._output_backward(dout, saved, add_dx, buffers, sums)
        dq, dk, dv = (self._gradient(name, saved, add_dx, buffers) for name in ("q", "k", "v"))
        for head, weighting in enumerate(saved.weightings):
            scores: Scores | None = saved.table_scores if self.maps.learns("q") else None
            if dq is not None or dk is not None:
                scores = self._product_scores(head, saved.q, saved.k, dq, dk)
            add_dv = None if dv is None else self._head(dv, head)
            if scores is not None or add_dv is not None:
                here = self._head(do, head), self._head(saved.v, head)
                backward(weighting, *here, buffers, scores=scores, add_dv=add_dv)
        self._map_backward("q", dq, saved.queries_in, queries.choose(tokens), queries.positions, add_dx_queries, sums)
        self._map_backward("k", dk, saved.inputs, tokens, None, add_dx, sums)
        self._map_backward("v", dv, saved.inputs, tokens, None, add_dx, sums)

    def _head(self, x: Tensor, head: int) -> Tensor:
        """The columns of one head."""
        width = self.maps.d_head
        return x if self.maps.heads == 1 else x[..., head * width : (head + 1) * width]

    def _product_scores(
        self, head: int, q: Tensor | None, k: Tensor, dq: Tensor | None = None, add_dk: Tensor | None = None
    ) -> ProductScores:
        assert q is not None
        columns = (None if x is None else self._head(x, head) for x in (dq, add_dk))
        return ProductScores(self._head(q, head), self._head(k, head), *columns)

    def _project(self, name: str, x: Tensor, tokens: Tensor, positions: Tensor | None, buffers: Workspace) -> Tensor:
        """The rows of q, k or v."""
        if name not in self.maps.maps:
            return x
        W = self.maps.maps[name]
        y = buffers(f"{self.maps.prefix}.{name}", *x.shape[:2], W.shape[1])
        if name in self.maps.tables:
            look_up(self.maps.tables[name], tokens, positions, y)
        else:
            torch.mm(x.flatten(0, 1), W, out=y.flatten(0, 1))
        return y

    def _output_backward(
        self, dout: Tensor, saved: Attended, add_dx: Tensor | None, buffers: Workspace, sums: Sums
    ) -> Float[Tensor, "batch query d_value"]:
        """The gradient of P v."""
        if saved.o is None:  # copied if dout is also add_dx, which changes while dout is still needed
            return buffers("do", *dout.shape).copy_(dout) if dout is add_dx else dout
        W_o, rows = self.maps.maps["o"], dout.flatten(0, 1)
        if self.maps.learns("o"):
            sums(f"{self.maps.prefix}.o", *W_o.shape).addmm_(saved.o.flatten(0, 1).T, rows)
        return torch.mm(rows, W_o.T, out=buffers("do", len(rows), len(W_o))).view_as(saved.o)

    def _gradient(self, name: str, saved: Attended, add_dx: Tensor | None, buffers: Workspace) -> Tensor | None:
        """The tensor for the gradient of q, k or v: a buffer, the inputs' gradient itself, or None."""
        activation = getattr(saved, name)
        if activation is None or not self.maps.wanted(name):
            return None
        if name not in self.maps.maps:
            return add_dx
        gradient = buffers(f"d{name}", *activation.shape)
        written = name == "q" and not saved.weightings[0].imposed
        return gradient if written else gradient.zero_()

    def _map_backward(
        self,
        name: str,
        dy: Tensor | None,
        x: Tensor,
        tokens: Tensor,
        positions: Tensor | None,
        add_dx: Tensor | None,
        sums: Sums,
    ) -> None:
        """From the gradient of q, k or v: sum the gradient of its map, and add that of its inputs."""
        if dy is None or name not in self.maps.maps:
            return
        W, key = self.maps.maps[name], f"{self.maps.prefix}.{name}"
        if name in self.maps.tables:
            table = self.maps.tables[name]
            add_by_row(dy, tokens, positions, sums, key, len(table.by_token), len(table.by_position))
            return
        if self.maps.learns(name):
            sums(key, *W.shape).addmm_(x.flatten(0, 1).T, dy.flatten(0, 1))
        if add_dx is not None:
            add_dx.flatten(0, 1).addmm_(dy.flatten(0, 1), W.T)
