"""Memory recall through hooks: v_j^T W u_i as the model's own modules compute it, for any architecture.

One hook puts rows into the residual stream in front of a layer, another one reads what the layer computes from them:

    written            what a head or a feed-forward writes for each u_i. A head reads u_i alone, at one position, so it
                       attends to u_i fully
    attention_scores   the score, before the softmax, that a head gives to the key u_i, `distance` positions before the
                       query v_j
    output_logits      the logits of what a head or a feed-forward writes for u_i, put alone in the last stream

The results include the model's norms, biases, rotary positions and scale of scores. Where the weight algebra of
`model/associations.py` applies, both agree: without norms and biases attention_scores * sqrt(d_head) is v_j^T W_K u_i,
and output_logits are w_U^T W_O W_V u_i. In a model with LayerNorms the scores are those of `W_K2_normed`.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from induction_memory.errors import require
from induction_memory.interventions.hooks import record
from induction_memory.memory.association import Association, Side
from induction_memory.runner.components import Graph, head_of, layer_of
from induction_memory.runner.hooked import Hook
from induction_memory.runner.support import keep

ROWS_AT_ONCE = 4096


def written(model: nn.Module, writer: str, inputs: Float[Tensor, "i d_model"]) -> Float[Tensor, "i d_model"]:
    """What a head (`L1H1`) or a feed-forward (`FF2`) writes when the stream that its layer reads is u_i.

    >>> import induction_memory as im
    >>> model = im.build(im.ModelConfig(d_model=8, n_ctx=4, d_vocab=5))
    >>> written(model, "L1H1", model.W_E).shape
    torch.Size([5, 8])
    """
    return _of_rows(model, writer, inputs, lambda kept, logits: kept)


def output_logits(model: nn.Module, writer: str, inputs: Float[Tensor, "i d_model"]) -> Float[Tensor, "i vocab"]:
    """The logits of what a head or a feed-forward writes for each u_i, with nothing else in the last stream."""
    return _of_rows(model, writer, inputs, lambda kept, logits: logits)


@torch.no_grad()
def attention_scores(
    model: nn.Module,
    head: str,
    keys: Float[Tensor, "i d_model"],
    queries: Float[Tensor, "j d_model"],
    *,
    distance: int = 1,
) -> Float[Tensor, "j i"]:
    """The score of each query v_j for the key u_i in the stream, `distance` positions before it.

    Each of the len(keys) * len(queries) pairs is a separate sequence, so that the distance is the same for all.
    """
    transformer: Any = model
    layer, number = head_of(Graph.of(model).head(head, "head"))
    rows = {"keys": _checked(model, keys, "keys"), "queries": _checked(model, queries, "queries")}
    require(distance >= 1, "distance", "1 or more", distance)
    require(distance < transformer.cfg.n_ctx, "distance", f"less than {transformer.cfg.n_ctx} (n_ctx)", distance)
    j, i = (torch.arange(len(side), device=rows["keys"].device) for side in (queries, keys))
    pairs = torch.cartesian_prod(j, i)
    found = []
    for part in pairs.split(ROWS_AT_ONCE):
        stream = rows["keys"].new_zeros(len(part), distance + 1, keys.shape[-1])
        stream[:, 0], stream[:, -1] = rows["keys"][part[:, 1]], rows["queries"][part[:, 0]]
        kept: dict[str, Tensor] = {}
        points = ("hook_attn_scores", "hook_q", "hook_k")
        _run(model, stream, layer, [(f"blocks.{layer - 1}.attn.{point}", keep(kept, point)) for point in points])
        found.append(_scores(kept, transformer.cfg)[:, number - 1, -1, 0])
    return torch.cat(found).view(len(queries), len(keys))


def as_association(
    name: str, scores: Float[Tensor, "j i"], ideal: Float[Tensor, "j i"], given: Side = "input"
) -> Association:
    """Scores from hooks as an association, for `recall`, `margin`, `rank` and the other readings of `im.memory`."""
    j, i = scores.shape
    return Association(name, scores, torch.eye(i).to(scores), torch.eye(j).to(scores), ideal.to(scores), given)


@torch.no_grad()
def _of_rows(model: Any, writer: str, inputs: Tensor, result: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """`result` of what a writer writes for each row, and of the logits of that output alone."""
    graph = Graph.of(model)
    allowed = [name for name in graph.writers if layer_of(name)]
    require(writer in allowed, "writer", f"one of {', '.join(allowed)}", repr(writer))
    layer, rows = layer_of(writer), _checked(model, inputs, "inputs")
    noting, kept = record(model, [writer])
    alone = [] if writer.startswith("L") else [(f"blocks.{layer - 1}.hook_attn_out", _zero)]
    last = (f"blocks.{graph.n_layers - 1}.hook_resid_post", lambda stream, hook: kept[writer])
    found = []
    for part in rows.split(ROWS_AT_ONCE):
        logits = _run(model, part.unsqueeze(1), layer, [*alone, *noting, last])
        found.append(result(kept[writer], logits)[:, 0])
    return torch.cat(found)


def _scores(kept: dict[str, Tensor], cfg: Any) -> Float[Tensor, "batch head query key"]:
    """The scores before the softmax.

    Some bridges have the attention itself at `hook_attn_scores`, which shows because no later key is masked there. Then
    the scores are q k^T / sqrt(d_head), if their softmax is that attention.
    """
    given = kept["hook_attn_scores"]
    if bool((given[..., 0, -1] < -1e3).all()):
        return given
    q, k = (kept[point].transpose(1, 2) for point in ("hook_q", "hook_k"))
    require(q.shape == k.shape, "model", "one with its attention scores at hook_attn_scores", "one without")
    scores = q @ k.mT / cfg.d_head**0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    same = torch.allclose(scores.masked_fill(later, -torch.inf).softmax(-1), given, atol=1e-5)
    require(same, "model", "one with its attention scores at hook_attn_scores", "one without")
    return scores


def _run(model: Any, stream: Float[Tensor, "batch pos d_model"], layer: int, hooks: list[Hook]) -> Tensor:
    """The logits of a run in which the stream in front of a layer is the given one."""
    tokens = torch.zeros(stream.shape[:2], dtype=torch.long, device=stream.device)
    put = (f"blocks.{layer - 1}.hook_resid_pre", lambda own, hook: stream)
    return model.run_with_hooks(tokens, fwd_hooks=[put, *hooks])


def _checked(model: Any, rows: Tensor, field: str) -> Tensor:
    d = model.cfg.d_model
    require(rows.dim() == 2 and rows.shape[-1] == d, field, f"rows of d_model = {d} numbers", tuple(rows.shape))
    return rows.detach().to(next(model.parameters()))


def _zero(value: Tensor, hook: Any) -> Tensor:
    return torch.zeros_like(value)
