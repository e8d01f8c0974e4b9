"""Three independent votes on the role of a head: from its weights, its attention and its effects.

Roles:  previous-token   writes to each position the token before it
        current-token    writes to each position its own token, which a later head uses as its query
        induction        attends to the tokens that followed the query's token before, and writes them to the output

weights     the smaller of two recalls, corrected for chance, because a role needs both memories:
            key-query     previous: p_t^T W_K p_s -> s = t-1, keys s <= t
                          current: s = t there, or w_E(k)^T W_K w_E(k') -> k' = k, the better of the two
                          induction: the match a^T W_K b -> same token, with a = w_E(k) or Phi_h w_E(k) and
                          b = Phi_h' w_E(k), best over earlier heads h, h'
            value-output  previous (current): the match of a later head, with Phi w_E(k) as b (a); best over later heads
                          induction: w_U(j)^T Phi w_E(k) -> j = k
attention   mean attention to the previous position, to the own position, to the tokens after earlier occurrences;
            corrected for chance
            Weights and attention use the first 64 positions, as the paper's probe of W_K1 does: later ones are learned
            late, if ever. If a task names other keys (its sources `parent` and `induction`), these are used. If it
            names no source `induction`, no head has that role.
causes      the head's Shapley share of the effect of all heads by the role's route: through later heads' keys
            (previous-token), through their queries (current-token), or on the output (induction); 0 if a head has no
            such route, or if the heads together have no effect; nan if their effect is not known
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import UnsupportedError
from induction_memory.heads.games import ValueFunction
from induction_memory.memory.association import Association, causal, matching
from induction_memory.memory.recall import recall
from induction_memory.model.memories import Memories
from induction_memory.probes import attention
from induction_memory.task.ideals import after_same_context, sources_of

ROLES = ("previous-token", "current-token", "induction")
ROUTE_OF = {"previous-token": "k", "current-token": "q", "induction": "out"}
EARLY = 64  # first positions that are measured
TOKENS = 256  # tokens of a large vocabulary whose recall is measured


def votes(v: ValueFunction, shares: pd.DataFrame, known: bool = True) -> pd.DataFrame:
    """One row per head, vote and role: the score and, for the weights, the two recalls of which it is the minimum.

    `known`: there are enough sequences to know whether the heads have an effect (sharing.py).
    """
    try:
        sources = None if v.task is None else sources_of(v.task, v.batch)
    except UnsupportedError:  # the task names no sources
        sources = None
    parents = None if sources is None else sources.get("parent")
    runner, heads = v.recording.runner, v.recording.graph.heads
    key_query = value_output = np.full((len(heads), len(ROLES)), np.nan)  # unknown: not readable, or diverged
    if runner.refusal is None and all(bool(weight.isfinite().all()) for weight in runner.weights.values()):
        before = None if parents is None else parents[0]
        read, written = weight_recalls(runner.weights, chosen_tokens(v.batch.tokens), v.batch.tokens.shape[1], before)
        key_query, value_output = read.flatten(0, 1).numpy(), written.flatten(0, 1).numpy()
    attended = attention_scores(v, sources).flatten(0, 1).numpy()
    by_route = shares.pivot_table(index="head", columns="game", values="effect", dropna=False)
    effects = by_route.reindex(index=list(heads), columns=list(ROUTE_OF.values())).fillna(0.0).to_numpy()
    if not known:
        effects = np.full(effects.shape, np.nan)  # this vote abstains
    if sources is not None and "induction" not in sources:
        for scores in (key_query, attended, effects):
            scores[:, ROLES.index("induction")] = 0
    rows = []
    for i, head in enumerate(heads):
        for r, role in enumerate(ROLES):
            both = float(key_query[i, r]), float(value_output[i, r])
            rows.append((head, "weights", role, float(np.minimum(*both)), *both))
            rows.append((head, "attention", role, float(attended[i, r]), np.nan, np.nan))
            rows.append((head, "causes", role, float(effects[i, r]), np.nan, np.nan))
    return pd.DataFrame(rows, columns=["head", "vote", "role", "score", "key_query", "value_output"])


def weight_recalls(
    weights: Mapping[str, Tensor],
    tokens: Int[Tensor, " n"],
    length: int,
    before: Bool[Tensor, "query key"] | None = None,
) -> tuple[Float[Tensor, "layer head role"], Float[Tensor, "layer head role"]]:
    """Recall of the key-query and of the value-output memory of every head for every role, corrected for chance.

    nan for memories that a model cannot have: positions without positional embeddings, copies with a separate output
    vocabulary. `before` is the key of a previous-token head for each query, by default the position before.
    """
    m = Memories(weights)
    w_E, w_U = m.embedding("w_E")[0, 0, tokens], m.embedding("w_U")[0, 0]
    w_U = w_U[tokens] if len(w_U) == m.vocab_size else None
    p = m.embedding("p")[0, 0, : min(length, EARLY)] if "pos_embed.W_pos" in m.weights else None
    n_layers, n_heads = m.n_layers, m.n_heads
    key_query = torch.full((n_layers, n_heads, len(ROLES)), torch.nan, dtype=torch.float64)
    value_output = torch.zeros_like(key_query)
    written: list[Tensor] = []  # [n, d] of each earlier head: Phi_h w_E
    for layer in range(n_layers):
        W_K, Phi = m.memory(f"W_K{layer + 1}")[0], m.memory(f"Phi_{layer + 1}")[0]
        for head in range(n_heads):
            key_query[layer, head, 1] = _above_chance(matching(W_K[head], w_E, w_E, given="output"))
            if p is not None:
                earlier_key, own = _positions(W_K[head], p, before)
                key_query[layer, head, 0] = earlier_key
                key_query[layer, head, 1] = max(own, float(key_query[layer, head, 1]))
            key_query[layer, head, 2] = 0.0
            copied = torch.nan if w_U is None else _above_chance(matching(Phi[head], w_E, w_U))
            value_output[layer, head, 2] = copied
            if written:  # match: recall of a^T W_K b -> same token, for queries a and keys b of every set
                a, b = torch.stack([w_E, *written]).unsqueeze(1), torch.stack(written)
                match = _above_chance(matching(W_K[head], b, a, given="output")).cpu()
                key_query[layer, head, 2] = match.max()
                earlier = value_output[:layer].view(-1, len(ROLES))
                earlier[:, 0] = torch.maximum(earlier[:, 0], match.amax(0))
                earlier[:, 1] = torch.maximum(earlier[:, 1], match[1:].amax(1))
        written += (w_E @ Phi.mT).unbind()
    return key_query, value_output


def attention_scores(
    v: ValueFunction, sources: Mapping[str, Bool[Tensor, "batch query key"]] | None = None
) -> Float[Tensor, "layer head role"]:
    """Chance-corrected attention of every head for every role."""
    named = sources or {}
    sought = named.get("induction", after_same_context(v.batch.tokens))
    queries = v.batch.group() & sought.any(-1)
    parent = named.get("parent")
    layers = []
    for layer in range(1, v.recording.graph.n_layers + 1):
        pattern = v.recording.pattern(layer)
        early = pattern[..., :EARLY, :EARLY]
        if parent is None:
            previous = attention.previous_token(early)
        else:
            previous = attention.induction(early, parent[:, :EARLY, :EARLY], parent.any(-1)[:, :EARLY])
        own = attention.previous_token(early, back=0)
        scores = [previous, own, attention.induction(pattern, sought, queries)]
        layers.append(torch.stack(scores, dim=-1))
    return torch.stack(layers).cpu()


def chosen_tokens(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, " n"]:
    """The tokens of a batch, at most TOKENS of them, spread evenly."""
    present = tokens.unique()
    if len(present) <= TOKENS:
        return present
    return present[torch.linspace(0, len(present) - 1, TOKENS).long()]


def _above_chance(a: Association) -> Float[Tensor, "*set"]:
    """Recall of each item among all candidates, corrected for the chance 1/n."""
    n = a.table.shape[-1]
    return attention.chance_corrected(recall(a), torch.tensor(1 / n, dtype=torch.float64)) if n > 1 else recall(a)


def _positions(
    W_K: Float[Tensor, "d d"], p: Float[Tensor, "t d"], before: Bool[Tensor, "query key"] | None = None
) -> tuple[float, float]:
    """Two recalls of the queries t >= 1 among the keys s <= t: of the key t-1, and of the key t.

    Both are corrected for the chance 1/(t+1). `before` has other keys in place of t-1, one per query; queries without
    one are left out.
    """
    n = len(p)
    one_in = 1 / torch.arange(2, n + 1, dtype=torch.float64)
    recalls = []
    for offset in (0, 1):  # row r is the query r + 1
        ideal = torch.ones(n - 1, n, device=p.device).triu(offset).tril(offset)
        if offset == 0 and before is not None:
            ideal = before[1:n, :n].to(ideal)
        chance = one_in[ideal.any(-1).cpu()].mean()
        a = Association("W_K", W_K, p, p[1:], ideal, "output", allowed=causal(n, p.device)[1:])
        recalls.append(float(attention.chance_corrected(recall(a), chance)))
    return recalls[0], recalls[1]
