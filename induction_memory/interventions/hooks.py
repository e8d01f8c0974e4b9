"""Interventions as lists of TransformerLens hooks, for `run_with_hooks` and `model.hooks`, beside your own hooks.

    hooks = im.hooks.ablate(model, "L1H1", kind="mean", batch=batch)
    model.run_with_hooks(tokens, fwd_hooks=hooks + mine)

Lists that change the same component act in the order of `fwd_hooks`, each on the result of the previous one. They are
the patches of `runner/hooked.py`, which defines every intervention of this package. Components have the names of
`runner/components.py`. No flag of the model has to be set, except for edges into heads (`use_split_qkv_input`, if the
model offers it) and into feed-forwards (`use_hook_mlp_in`).

Memory recall through hooks computes v_j^T W u_i with the model's own modules, for any architecture. One hook puts rows
into the residual stream in front of a layer; another reads the layer's result:

    written            the output of a head or a feed-forward for each u_i. The sequence has one position, so a head
                       attends fully to u_i
    attention_scores   the score, before the softmax, that a head gives to the key u_i, `distance` positions before the
                       query v_j
    output_logits      the logits of the output of a head or a feed-forward for u_i, with nothing else in the last
                       stream

The results include the model's norms, biases, rotary positions and scale of scores. Where the weight algebra of
`model/associations.py` applies, both agree: without norms and biases attention_scores * sqrt(d_head) is v_j^T W_K u_i,
and output_logits are w_U^T W_O W_V u_i. In a model with LayerNorms the scores are as in `W_K2_normed`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from induction_memory.errors import require, require_known
from induction_memory.fields import require_integer, require_seed
from induction_memory.interventions.ablations import Kind, Replacements
from induction_memory.memory.association import Association, Side
from induction_memory.runner.checked import RESULT, SPLIT, UNGROUPED, Hook, checked, projection
from induction_memory.runner.choice import runner
from induction_memory.runner.components import ARROW, Graph, head_of, layer_of, shares_keys
from induction_memory.runner.hooked import patch_hooks
from induction_memory.runner.recording import Patch
from induction_memory.runner.support import keep, objection
from induction_memory.source.sources import Sequences, select

__all__ = [
    "ablate",
    "as_association",
    "attention_scores",
    "clamp",
    "edit",
    "output_logits",
    "patch",
    "record",
    "written",
]
ROWS_AT_ONCE = 4096


def __dir__() -> list[str]:
    return __all__


def ablate(
    model: nn.Module,
    component: str,
    *,
    batch: "Sequences",
    kind: "Kind" = "mean",
    initial: "Mapping[str, Tensor] | nn.Module | None" = None,
    seed: int = 0,
) -> list[Hook]:
    """Hooks that ablate a component like `im.ablate`; the replacement is computed on `batch`.

    With `zero` and `mean` they work on sequences of any number and length, with other kinds only on `batch`.

    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> model, batch = run.model(step=600), run.task.sample(4, im.task.step_rng(0, 0))
    >>> hooks = im.hooks.ablate(model, "L1H1", kind="mean", batch=batch)
    >>> model.run_with_hooks(batch.tokens, fwd_hooks=hooks).shape
    torch.Size([4, 256, 65])
    """
    require_seed(seed)
    sequences = select(model, batch=batch).at().batch
    recording = runner(model).record(sequences.tokens)
    return _hooks(model, Replacements(recording, sequences, initial, seed).patches(component, kind))


def patch(
    model: nn.Module,
    component: str,
    *,
    tokens: Int[Tensor, "batch pos"],
    where: Bool[Tensor, "batch pos"] | None = None,
) -> list[Hook]:
    """Hooks that replace a component's activations by its activations on `tokens`, everywhere or at `where`.

    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> model, batch, other = run.model(step=600), *(run.task.sample(4, im.task.step_rng(0, n)) for n in (0, 1))
    >>> model.set_use_split_qkv_input(True)  # only for edges into queries, keys and values
    >>> hooks = im.hooks.patch(model, "L1H1->L2H1.k", tokens=other.tokens)
    >>> model.run_with_hooks(batch.tokens, fwd_hooks=hooks).shape
    torch.Size([4, 256, 65])
    """
    other = runner(model).record(tokens)
    fits = where is None or (isinstance(where, Tensor) and where.dtype == torch.bool and where.shape == tokens.shape)
    require(fits, "where", f"true or false for each of the tokens {tuple(tokens.shape)}", repr(where))
    sites = other.graph.resolve(component)
    return _hooks(model, [Patch(site, other.at(site.split(ARROW)[0]), where) for site in sites])


def clamp(model: nn.Module, component: str, value: Float[Tensor, " d"] | float) -> list[Hook]:
    """Hooks that set a component's activation to one vector, or all its coordinates to one number.

    >>> import induction_memory as im
    >>> model = im.build(im.ModelConfig(d_model=16, n_ctx=8), seed=0)
    >>> tokens = im.BigramTask(length=8).sample(2, im.task.step_rng(0, 0)).tokens
    >>> hooks, noted = im.hooks.record(model, ["L1H1"])
    >>> logits = model.run_with_hooks(tokens, fwd_hooks=[*im.hooks.clamp(model, "L1H1", 0.5), *hooks])
    >>> noted["L1H1"].round(decimals=4).unique()
    tensor([0.5000])
    """
    fixed = torch.as_tensor(value, dtype=torch.float32)

    def hold(own: Tensor) -> Tensor:
        require(fixed.dim() == 0 or fixed.shape == own.shape[-1:], "value", f"{own.shape[-1]} numbers", fixed.shape)
        return fixed.to(own).expand_as(own)

    return edit(model, component, hold)


def edit(model: nn.Module, component: str, function: Callable[[Tensor], Tensor]) -> list[Hook]:
    """Hooks that replace a component's activation [batch, pos, d] by a function of it.

    >>> import induction_memory as im
    >>> model = im.build(im.ModelConfig(d_model=16, n_ctx=8), seed=0)
    >>> tokens = im.BigramTask(length=8).sample(2, im.task.step_rng(0, 0)).tokens
    >>> positive = im.hooks.edit(model, "L2H1", lambda written: written.clamp(min=0))
    >>> hooks, noted = im.hooks.record(model, ["L2H1"])
    >>> logits = model.run_with_hooks(tokens, fwd_hooks=[*positive, *hooks])
    >>> noted["L2H1"].min()
    tensor(0.)
    """
    require(callable(function), "function", "a function of an activation", repr(function))
    sites = runner(model).graph.resolve(component)
    return _hooks(model, [_Edit(site, torch.zeros(1, 1, 1), function=function) for site in sites])


def record(model: nn.Module, components: Sequence[str]) -> tuple[list[Hook], dict[str, Tensor]]:
    """Hooks that record outputs of components (or heads' queries, keys and values), and the dictionary that they fill.

    Put them after hooks that change a component, to record the changed values.

    >>> import induction_memory as im
    >>> model = im.build(im.ModelConfig(d_model=16, n_ctx=8), seed=0)
    >>> hooks, noted = im.hooks.record(model, ["L1H1", "L2H1.k"])
    >>> tokens = im.BigramTask(length=8).sample(2, im.task.step_rng(0, 0)).tokens
    >>> logits = model.run_with_hooks(tokens, fwd_hooks=hooks)
    >>> {name: tuple(value.shape) for name, value in noted.items()}
    {'L1H1': (2, 8, 16), 'L2H1.k': (2, 8, 16)}
    """
    kept: dict[str, Tensor] = {}

    def note(site: str) -> Callable[[Tensor], Tensor]:
        def keep(own: Tensor) -> Tensor:
            kept[site] = own.detach().clone()
            return own

        return keep

    graph = runner(model).graph
    sites = [site for name in components for site in graph.resolve(name)]
    for site in sites:
        require(ARROW not in site, "components", "writers, or queries, keys and values of heads", repr(site))
    return _hooks(model, [_Edit(site, torch.zeros(1, 1, 1), function=note(site)) for site in sites]), kept


def written(model: nn.Module, writer: str, inputs: Float[Tensor, "i d_model"]) -> Float[Tensor, "i d_model"]:
    """The output of a head (`L1H1`) or a feed-forward (`FF2`) if its layer reads the stream u_i.

    >>> import induction_memory as im
    >>> model = im.build(im.ModelConfig(d_model=8, n_ctx=4, d_vocab=5))
    >>> im.hooks.written(model, "L1H1", model.W_E).shape
    torch.Size([5, 8])
    """
    return _of_rows(model, writer, inputs, lambda kept, logits: kept)


def output_logits(model: nn.Module, writer: str, inputs: Float[Tensor, "i d_model"]) -> Float[Tensor, "i vocab"]:
    """The logits of the output of a head or a feed-forward for each u_i, with nothing else in the last stream.

    >>> import induction_memory as im
    >>> model = im.build(im.ModelConfig(d_model=8, n_ctx=4, d_vocab=5))
    >>> im.hooks.output_logits(model, "L2H1", model.W_E).shape
    torch.Size([5, 5])
    """
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

    >>> import induction_memory as im
    >>> model = im.build(im.ModelConfig(d_model=8, n_ctx=4, d_vocab=5))
    >>> im.hooks.attention_scores(model, "L2H1", model.W_E, model.W_E[:3], distance=2).shape
    torch.Size([3, 5])
    """
    transformer: Any = model
    layer, number = head_of(runner(model).graph.head(head, "head"))
    rows = {"keys": _checked(model, keys, "keys"), "queries": _checked(model, queries, "queries")}
    require_integer(distance, "distance", 1, transformer.cfg.n_ctx - 1)
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
    """Scores from hooks as an association, for `recall`, `margin`, `rank` and the other measures of `im.memory`.

    >>> import induction_memory as im
    >>> scores = torch.tensor([[2.0, 0.0], [3.0, 1.0]])  # only the second input has its largest score at its target
    >>> im.memory.recall(im.hooks.as_association("two pairs", scores, torch.eye(2)))
    tensor(0.5000, dtype=torch.float64)
    """
    j, i = scores.shape
    return Association(name, scores, torch.eye(i).to(scores), torch.eye(j).to(scores), ideal.to(scores), given)


@dataclass(frozen=True)
class _Edit(Patch):
    """A patch whose value is a function of the activation."""

    function: Callable[[Tensor], Tensor] = lambda own: own

    def applied(self, own: Tensor, rows: Tensor | None = None) -> Tensor:
        return self.function(own)


def _hooks(model: Any, patches: Sequence[Patch]) -> list[Hook]:
    graph, check = Graph.of(model), None if objection(model) is None else checked(model)
    summed, split = (True, True) if check is None else (check.summed, check.split)
    for patch in patches:
        source, _, target = patch.site.rpartition(ARROW)
        written, read = source or target, target if source else ""
        flags = [RESULT] if written in graph.heads and not summed else []
        flags += [SPLIT] if "." in read and split else ["use_hook_mlp_in"] if read.startswith("FF") else []
        flags += [UNGROUPED] if target.endswith((".k", ".v")) and shares_keys(model) else []
        for flag in flags:
            ready = getattr(model.cfg, flag, False)
            require(ready, "model", f"set_{flag}(True) for hooks at {patch.site}", "it unset")
    W_O = [block.attn.W_O.detach() for block in model.blocks] if summed else []
    return patch_hooks(graph, patches, W_O, () if split else tuple(map(projection, model.blocks)))


@torch.no_grad()
def _of_rows(model: Any, writer: str, inputs: Tensor, result: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """result(output, logits) for each row: a writer's output, and the logits of this output alone."""
    graph = runner(model).graph
    allowed = [name for name in graph.writers if layer_of(name)]
    require_known(writer, allowed, "writer")
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

    Some bridges have the attention pattern at `hook_attn_scores`; there later keys are not masked, which shows it. Then
    the scores are q k^T / sqrt(d_head), after a check that their softmax gives this pattern.
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
    """The logits of a run in which `stream` replaces the residual stream before a layer."""
    tokens = torch.zeros(stream.shape[:2], dtype=torch.long, device=stream.device)
    put = (f"blocks.{layer - 1}.hook_resid_pre", lambda own, hook: stream)
    return model.run_with_hooks(tokens, fwd_hooks=[put, *hooks])


def _checked(model: Any, rows: Tensor, field: str) -> Tensor:
    d = model.cfg.d_model
    require(isinstance(rows, Tensor), field, "a tensor", type(rows).__name__)
    require(rows.dim() == 2 and rows.shape[-1] == d, field, f"rows of d_model = {d} numbers", tuple(rows.shape))
    return rows.detach().to(next(model.parameters()))


def _zero(value: Tensor, hook: Any) -> Tensor:
    return torch.zeros_like(value)
