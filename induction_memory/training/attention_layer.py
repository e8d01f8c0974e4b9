"""The four maps around attention, forward and backward, in the form that costs least.

TransformerLens writes q = a W_Q, k = a W_K, v = a W_V, out = sum over heads of (P v) W_O. With one head as wide as the
model, W_Q W_K^T and W_V W_O are matrices no larger than their factors, and the inputs a serve as keys and as values:

    q = a (W_Q W_K^T),  k = v = a,  out = (P a) (W_V W_O)

so that only queries are mapped, of which the last layer may need few. Both gradients follow from those of the
products: with G = d(W_Q W_K^T), dW_Q = G W_K and dW_K = G^T W_Q; with H = d(W_V W_O), dW_V = H W_O^T, dW_O = W_V^T H.

In the first layer, whose input is tokens plus positions, maps are looked up in tables (`lookup.py`), and the product
W_V W_O is applied before P, where it costs nothing. If no gradient of that input is wanted, so are the scores
(`scores.py`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.model.config import ModelConfig
from induction_memory.training.attention import (
    LOG2_E,
    Scores,
    Weighting,
    add_average,
    backward,
    impose,
    weigh,
    write_average,
)
from induction_memory.training.lookup import Table, add_by_row, look_up
from induction_memory.training.queries import Queries
from induction_memory.training.scores import ProductScores, ScoreTables, TableScores
from induction_memory.training.sums import Sums
from induction_memory.training.workspace import Workspace


@dataclass(frozen=True)
class Attended:
    """What the backward of the layer needs."""

    inputs: Tensor
    queries_in: Tensor
    q: Tensor | None
    """None when scores come from tables."""
    k: Tensor
    v: Tensor
    o: Tensor | None
    """P v; None when nothing is applied to it."""
    weightings: tuple[Weighting, ...]
    table_scores: TableScores | None


class AttentionLayer:
    """The attention of one layer, ready for one step: its maps, and which of them learn."""

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
        """What is known of its use: `embedded` has the embeddings if they are the input, `inputs_wanted` if the
        input's gradient is needed, `everywhere` if every position is a query.
        """
        self.prefix = f"blocks.{layer}.attn"
        self.weights = {name: parameters[f"{self.prefix}.{name}"] for name in ("W_Q", "W_K", "W_V", "W_O")}
        self.trained = frozenset(name for name in self.weights if f"{self.prefix}.{name}" in trained)
        self.inputs_wanted = inputs_wanted
        self.embedded = embedded
        self.heads, self.d_model, self.d_head = self.weights["W_Q"].shape
        self.score_scale = LOG2_E / (math.sqrt(self.d_head) if config.scale_scores else 1)
        self.folded = self.heads == 1 and self.d_head >= self.d_model
        self.maps = self._maps()
        self.tables = {
            name: Table(embedded.by_token @ W, embedded.by_position @ W)
            for name, W in self.maps.items()
            if embedded is not None and name != "o"
        }
        self.score_tables: ScoreTables | None = None
        if embedded is not None and self.folded and everywhere and not inputs_wanted:
            self.score_tables = ScoreTables(self.maps["q"], embedded)

    def _maps(self) -> dict[str, Tensor]:
        """The matrices of q, k, v and o; one that is missing is the identity."""
        W_Q, W_K, W_V, W_O = self.weights.values()
        if self.folded:
            output = "v" if self.embedded is not None else "o"
            return {"q": (W_Q[0] @ W_K[0].T) * self.score_scale, output: W_V[0] @ W_O[0]}
        q, k, v = (W.transpose(0, 1).flatten(1) for W in (W_Q, W_K, W_V))
        return {"q": q * self.score_scale, "k": k, "v": v, "o": W_O.flatten(0, 1)}

    @property
    def learns(self) -> bool:
        return bool(self.trained)

    def _wanted(self, name: str) -> bool:
        """Whether the gradient of q, k, v or of the matrix o is needed."""
        factors = {"q": ("W_Q",), "k": ("W_K",), "v": ("W_V",), "o": ("W_O",)}
        if self.folded:
            factors = {"q": ("W_Q", "W_K"), "k": (), "v": ("W_V", "W_O") if "v" in self.maps else ()}
            factors["o"] = () if "v" in self.maps else ("W_V", "W_O")
        return any(factor in self.trained for factor in factors[name])

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
        q, table_scores = None, None
        if self.score_tables is not None:
            asked = tuple(tokens[:, block.rows].flatten() for block in queries.blocks)
            name = f"{self.prefix}.q"
            table_scores = TableScores(self.score_tables, tokens, buffers, sums, name, asked)
        else:
            q = self._project("q", queries_in, queries.choose(tokens), queries.positions, buffers)
        k = self._project("k", inputs, tokens, None, buffers)
        v = self._project("v", inputs, tokens, None, buffers)
        weightings = []
        for head in range(self.heads):
            if pattern is None:
                scores = table_scores or self._product_scores(head, q, k)
                weighting = weigh(scores, len(tokens), queries.blocks, buffers, f"{self.prefix}.{head}")
            else:
                weighting = impose(pattern, queries.blocks)
            weightings.append(weighting)
        o = None
        if "o" in self.maps:
            o = buffers(f"{self.prefix}.o", *queries_in.shape[:2], v.shape[2])
            for head, weighting in enumerate(weightings):
                write_average(weighting, self._head(v, head), self._head(o, head))
            rows = (x.flatten(0, 1) for x in (residual, o))
            torch.addmm(*rows, self.maps["o"], out=out.flatten(0, 1))
        else:
            add_average(weightings[0], v, out.copy_(residual))
        return Attended(inputs, queries_in, q, k, v, o, tuple(weightings), table_scores)

    def _head(self, x: Tensor, head: int) -> Tensor:
        """The columns of one head."""
        return x if self.heads == 1 else x[..., head * self.d_head : (head + 1) * self.d_head]

    def _product_scores(
        self, head: int, q: Tensor | None, k: Tensor, dq: Tensor | None = None, add_dk: Tensor | None = None
    ) -> ProductScores:
        assert q is not None
        columns = (None if x is None else self._head(x, head) for x in (dq, add_dk))
        return ProductScores(self._head(q, head), self._head(k, head), *columns)

    def _project(self, name: str, x: Tensor, tokens: Tensor, positions: Tensor | None, buffers: Workspace) -> Tensor:
        if name not in self.maps:
            return x
        y = buffers(f"{self.prefix}.{name}", *x.shape[:2], self.maps[name].shape[1])
        if self.embedded is None:
            torch.mm(x.flatten(0, 1), self.maps[name], out=y.flatten(0, 1))
        else:
            look_up(self.tables[name], tokens, positions, y)
        return y

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
        """Sum the matrices' gradients; add those of the inputs, as keys and values and as queries, if given.

        Both of the two, or the second, may be `dout` itself. Maps that are looked up leave their inputs' part to the tables.
        """
        if saved.o is not None:
            W_o = self.maps["o"]
            if self._wanted("o"):
                sums(f"{self.prefix}.o", *W_o.shape).addmm_(saved.o.flatten(0, 1).T, dout.flatten(0, 1))
            do = buffers("do", *saved.o.shape)
            torch.mm(dout.flatten(0, 1), W_o.T, out=do.flatten(0, 1))
        elif dout is add_dx:
            do = buffers("do", *dout.shape).copy_(dout)
        else:
            do = dout
        dq, dk, dv = (self._gradient(name, saved, add_dx, buffers) for name in ("q", "k", "v"))
        for head, weighting in enumerate(saved.weightings):
            scores: Scores | None = saved.table_scores if self._wanted("q") else None
            if dq is not None or dk is not None:
                scores = self._product_scores(head, saved.q, saved.k, dq, dk)
            here = (self._head(x, head) for x in (do, saved.v))
            add_dv = None if dv is None else self._head(dv, head)
            if scores is not None or add_dv is not None:
                backward(weighting, *here, buffers=buffers, scores=scores, add_dv=add_dv)
        for name, gradient, x, add_to, positions in (
            ("q", dq, saved.queries_in, add_dx_queries, queries.positions),
            ("k", dk, saved.inputs, add_dx, None),
            ("v", dv, saved.inputs, add_dx, None),
        ):
            if gradient is None or name not in self.maps:
                continue
            if self.embedded is not None:
                where = queries.choose(tokens) if name == "q" else tokens
                shape = self.embedded.by_token.shape[0], self.embedded.by_position.shape[0]
                add_by_row(gradient, where, positions, sums, f"{self.prefix}.{name}", *shape)
                continue
            if self._wanted(name):
                product = sums(f"{self.prefix}.{name}", *self.maps[name].shape)
                product.addmm_(x.flatten(0, 1).T, gradient.flatten(0, 1))
            if add_to is not None:
                add_to.flatten(0, 1).addmm_(gradient.flatten(0, 1), self.maps[name].T)

    def _gradient(self, name: str, saved: Attended, add_dx: Tensor | None, buffers: Workspace) -> Tensor | None:
        """Where the gradient of q, k or v goes: a buffer, the inputs' gradient itself, or nowhere."""
        if not (self._wanted(name) or self.inputs_wanted):
            return None
        if name not in self.maps:
            return add_dx
        activation = getattr(saved, name)
        if activation is None:
            return None
        imposed = saved.weightings[0].imposed
        gradient = buffers(f"d{name}", *activation.shape)
        return gradient if name == "q" and not imposed else gradient.zero_()

    def gradients(self, sums: Sums) -> dict[str, Tensor]:
        """Gradients of the trained parameters, from the sums over the batch."""
        products = {name: self._product(name, sums) for name in self.maps if self._wanted(name)}
        found: dict[str, Tensor] = {}
        W_Q, W_K, W_V, W_O = self.weights.values()
        if self.folded:
            if "q" in products:
                G = products["q"] * self.score_scale
                found |= {"W_Q": (G @ W_K[0])[None], "W_K": (G.T @ W_Q[0])[None]}
            H = products.get("o", products.get("v"))
            if H is not None:
                found |= {"W_V": (H @ W_O[0].T)[None], "W_O": (W_V[0].T @ H)[None]}
        else:
            if "q" in products:
                products["q"] = products["q"] * self.score_scale
            split = {"q": "W_Q", "k": "W_K", "v": "W_V"}
            for name, full in split.items():
                if name in products:
                    by_head = products[name].view(self.d_model, self.heads, self.d_head)
                    found[full] = by_head.transpose(0, 1).contiguous()
            if "o" in products:
                found["W_O"] = products["o"].view_as(W_O)
        return {f"{self.prefix}.{name}": found[name] for name in self.trained}

    def _product(self, name: str, sums: Sums) -> Tensor:
        """Gradient of the matrix behind q, k, v or o."""
        W, key = self.maps[name], f"{self.prefix}.{name}"
        if self.embedded is None or name == "o":
            return sums(key, *W.shape)
        if name == "q" and self.score_tables is not None:
            return self.score_tables.gradient(sums, key)
        by_token = sums(f"{key}.token", self.embedded.by_token.shape[0], W.shape[1])
        by_position = sums(f"{key}.position", self.embedded.by_position.shape[0], W.shape[1])
        return self.embedded.by_token.T @ by_token + self.embedded.by_position.T @ by_position

    def embedding_gradients(self, sums: Sums) -> Table:
        """What the tables of this layer leave to the gradients of the embeddings."""
        assert self.embedded is not None
        token, position = torch.zeros_like(self.embedded.by_token), torch.zeros_like(self.embedded.by_position)
        for name in self.tables:
            W, key = self.maps[name], f"{self.prefix}.{name}"
            token += sums(f"{key}.token", token.shape[0], W.shape[1]) @ W.T
            position += sums(f"{key}.position", position.shape[0], W.shape[1]) @ W.T
        return Table(token, position)
