"""The attention of one layer, from its input to its output and back.

TransformerLens writes q = a W_Q, k = a W_K, v = a W_V, out = sum over heads of (P v) W_O, with P = softmax(q k^T). With
one head as wide as the model, W_Q W_K^T and W_V W_O are matrices no larger than their factors, and the inputs a serve
as keys and as values:

    q = a (W_Q W_K^T),  k = v = a,  out = (P a) (W_V W_O)

so only queries are mapped, and the last layer may need few of them. In the backward pass, each map y = x W gives
dW = x^T dy and dx = dy W^T. The products' gradients give the factors' gradients once per batch: with
G = d(W_Q W_K^T), dW_Q = G W_K and dW_K = G^T W_Q; with H = d(W_V W_O), dW_V = H W_O^T and dW_O = W_V^T H.

In the first layer, whose input is tokens plus positions, maps are looked up in tables. There W_V W_O is applied before
P, which costs nothing. If the gradient of that input is not needed, the scores are looked up as well (`attention.py`).
"""

import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.model.config import ModelConfig
from induction_memory.training.fast.attention import (
    LOG2_E,
    ProductScores,
    Scores,
    ScoreTables,
    Table,
    average,
    backward,
    impose,
    weigh,
)
from induction_memory.training.fast.micro_batches import Piece, QueryBlock, Sums, Workspace


class AttentionLayer:
    """`maps` has "q" (in bits), "k", "v" and "o"; a missing one is the identity. `learning` names the maps whose
    gradient is needed.
    """

    def __init__(
        self,
        layer: int,
        config: ModelConfig,
        parameters: Mapping[str, Tensor],
        trained: frozenset[str],
        embedded: Table | None,
        inputs_wanted: bool,
        blocks: tuple[QueryBlock, ...] | None,
    ) -> None:
        """`embedded` has the embeddings if they are the layer's input. `inputs_wanted`: the input's gradient is needed.
        `blocks` are the query blocks if every position is a query.
        """
        self.prefix = f"blocks.{layer}.attn"
        self.weights = {name: parameters[f"{self.prefix}.{name}"] for name in ("W_Q", "W_K", "W_V", "W_O")}
        self.trained = {name for name in self.weights if f"{self.prefix}.{name}" in trained}
        self.embedded, self.inputs_wanted = embedded, inputs_wanted
        self.heads, self.d_model, self.d_head = self.weights["W_Q"].shape
        self.score_scale = LOG2_E / (math.sqrt(self.d_head) if config.scale_scores else 1)
        self.folded = self.heads == 1 and self.d_head >= self.d_model
        W_Q, W_K, W_V, W_O = self.weights.values()
        if self.folded:
            output = "o" if embedded is None else "v"
            self.maps = {"q": (W_Q[0] @ W_K[0].T) * self.score_scale, output: W_V[0] @ W_O[0]}
            factors = {"q": {"W_Q", "W_K"}, output: {"W_V", "W_O"}}
        else:
            q, k, v = (W.transpose(0, 1).flatten(1) for W in (W_Q, W_K, W_V))
            self.maps = {"q": q * self.score_scale, "k": k, "v": v, "o": W_O.flatten(0, 1)}
            factors = {"q": {"W_Q"}, "k": {"W_K"}, "v": {"W_V"}, "o": {"W_O"}}
        self.learning = {name for name in self.maps if factors[name] & self.trained}
        self.wanted = {"q", "k", "v"} if inputs_wanted else self.learning
        """Which of q, k and v need a gradient."""
        self.tables: dict[str, Table] = {}
        if embedded is not None:
            self.tables = {name: embedded.times(W) for name, W in self.maps.items() if name != "o"}
        self.score_tables: ScoreTables | None = None
        if embedded is not None and self.folded and blocks is not None and not inputs_wanted:
            self.score_tables = ScoreTables(self.maps["q"], embedded, blocks, f"{self.prefix}.q")

    def forward(
        self,
        a: Float[Tensor, "batch pos d_model"],
        a_queries: Float[Tensor, "batch query d_model"],
        piece: Piece,
        pattern: Float[Tensor, "batch query key"] | None,
        residual: Float[Tensor, "batch query d_model"],
        out: Float[Tensor, "batch query d_model"],
    ) -> Callable[[Tensor, Tensor | None, Tensor | None], None]:
        """Write residual + attention to `out`; `pattern` replaces the softmax.

        It returns `back(dout, add_dx, add_dx_queries)`, which sums the maps' gradients and adds the inputs' gradients
        to `add_dx` (as keys and values) and `add_dx_queries`. The second, or both, may be `dout` itself. For looked-up
        maps the tables hold the inputs' gradients.
        """
        tokens, buffers, queried = piece.tokens, piece.buffers, piece.choose(piece.tokens)
        q = None
        if self.score_tables is None:
            q = self._project("q", a_queries, queried, piece.positions, buffers)
        k = self._project("k", a, tokens, None, buffers)
        v = self._project("v", a, tokens, None, buffers)
        weights = []
        for head in range(self.heads):
            if pattern is None:
                weights.append(weigh(self._scores(head, q, k), piece, f"{self.prefix}.{head}"))
            else:
                weights.append(impose(pattern, piece))
        W_o, o = self.maps.get("o"), None
        if W_o is None:
            average(weights[0], v, out.copy_(residual), piece, add=True)
        else:
            o = buffers(f"{self.prefix}.o", *a_queries.shape[:2], v.shape[2])
            for head in range(self.heads):
                average(weights[head], self._head(v, head), self._head(o, head), piece)
            torch.addmm(residual.flatten(0, 1), o.flatten(0, 1), W_o, out=out.flatten(0, 1))

        def back(dout: Tensor, add_dx: Tensor | None, add_dx_queries: Tensor | None) -> None:
            if o is None:  # copied if dout is also add_dx, which changes while dout is still needed
                do = buffers("do", *dout.shape).copy_(dout) if dout is add_dx else dout
            else:
                rows, W_o = dout.flatten(0, 1), self.maps["o"]
                if "o" in self.learning:
                    piece.sums(f"{self.prefix}.o", *W_o.shape).addmm_(o.flatten(0, 1).T, rows)
                do = torch.mm(rows, W_o.T, out=buffers("do", len(rows), len(W_o))).view_as(o)
            dq = dk = dv = None
            if pattern is None:
                dq = None if q is None or "q" not in self.wanted else buffers("dq", *q.shape)
                if "k" in self.wanted:  # into a buffer, or into the inputs' gradient itself
                    dk = buffers("dk", *k.shape).zero_() if "k" in self.maps else add_dx
            if "v" in self.wanted:
                dv = buffers("dv", *v.shape).zero_() if "v" in self.maps else add_dx
            for head in range(self.heads):
                scores = None
                if dq is not None or dk is not None or (pattern is None and q is None and "q" in self.learning):
                    scores = self._scores(head, q, k, dq, dk)
                add_dv = None if dv is None else self._head(dv, head)
                if scores is not None or add_dv is not None:
                    do_head, v_head = self._head(do, head), self._head(v, head)
                    backward(weights[head], do_head, v_head, piece, scores=scores, add_dv=add_dv)
            self._map_backward("q", dq, a_queries, queried, piece.positions, add_dx_queries, piece.sums)
            self._map_backward("k", dk, a, tokens, None, add_dx, piece.sums)
            self._map_backward("v", dv, a, tokens, None, add_dx, piece.sums)

        return back

    def _project(self, name: str, x: Tensor, tokens: Tensor, positions: Tensor | None, buffers: Workspace) -> Tensor:
        """The rows of q, k or v."""
        if name not in self.maps:
            return x
        W = self.maps[name]
        y = buffers(f"{self.prefix}.{name}", *x.shape[:2], W.shape[1])
        if name in self.tables:
            self.tables[name].look_up(tokens, positions, y)
        else:
            torch.mm(x.flatten(0, 1), W, out=y.flatten(0, 1))
        return y

    def _head(self, x: Tensor, head: int) -> Tensor:
        """The columns of one head."""
        return x if self.heads == 1 else x[..., head * self.d_head : (head + 1) * self.d_head]

    def _scores(
        self, head: int, q: Tensor | None, k: Tensor, dq: Tensor | None = None, add_dk: Tensor | None = None
    ) -> Scores:
        if q is None:
            assert self.score_tables is not None
            return self.score_tables
        dq, add_dk = (None if x is None else self._head(x, head) for x in (dq, add_dk))
        return ProductScores(self._head(q, head), self._head(k, head), dq, add_dk)

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
        """From the gradient of q, k or v, add up the gradient of its map and the gradient of its inputs."""
        if dy is None or name not in self.maps:
            return
        W, key = self.maps[name], f"{self.prefix}.{name}"
        if name in self.tables:
            self.tables[name].add_gradient(dy, tokens, positions, sums, key)
            return
        if name in self.learning:
            sums(key, *W.shape).addmm_(x.flatten(0, 1).T, dy.flatten(0, 1))
        if add_dx is not None:
            add_dx.flatten(0, 1).addmm_(dy.flatten(0, 1), W.T)

    def gradients(self, sums: Sums) -> dict[str, Tensor]:
        """Gradients of the trained parameters, from the sums over the batch."""
        products: dict[str, Tensor] = {}
        for name in self.learning:
            W, key = self.maps[name], f"{self.prefix}.{name}"
            if name not in self.tables or self.embedded is None:
                products[name] = sums(key, *W.shape)
            elif name == "q" and self.score_tables is not None:
                products[name] = self.score_tables.gradient(sums)
            else:
                total, embedded = self.tables[name].gradient(sums, key), self.embedded
                products[name] = embedded.by_token.T @ total.by_token + embedded.by_position.T @ total.by_position
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

    def embedding_gradients(self, sums: Sums) -> Table:
        """The gradients of the embeddings through the tables."""
        assert self.embedded is not None
        token, position = torch.zeros_like(self.embedded.by_token), torch.zeros_like(self.embedded.by_position)
        for name, table in self.tables.items():
            total = table.gradient(sums, f"{self.prefix}.{name}")
            token += total.by_token @ self.maps[name].T
            position += total.by_position @ self.maps[name].T
        return Table(token, position)
