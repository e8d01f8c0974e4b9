"""Which analyses are exact on a foreign model, checked on its own activations.

One forward records the activations, and each line is compared with the model's own weights and norms. The right column
has the analyses that need the line:

    x_1 = embed + pos                                         edges from embeddings, memories
    x_{l+1} - x_l = attn_out + mlp_out                        edges from this layer and those before it
    attn_out = sum over heads of result_h + b_O               edges from heads
    result_h = z_h W_O[h]                                     ablation of heads, where the model has no hook_result
    z = pattern v                                             maps and scores of attention
    the input of each head and feed-forward is x_l            edges into it
    y - N_1(x_l) W_y is the same at all positions             edges into q, k, v, where these have no hook of their own
    x_1 = w_E(z) + p, scores(t, t) ~ q.k, q = N_1(x_l) W_Q + b_Q, k = N_1(x_l) W_K + b_K,
    z W_O + b_O is added to the stream as it is, logits = N(x) W_U + b_U        memories from the weights

Another forward, without the flags that a recording sets, must give equal logits: no dropout, and no hook that the flags
change. Rotary positions cancel at distance 0. If a line does not hold, its analyses are refused, in one sentence with
the largest deviation. So norms after a block, caps, scales, masks, shared keys and replaced methods need no list. The
result is kept with the model until its methods, hooks or mode change. Models that the fast path supports (`support.py`)
need no check.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from induction_memory.errors import InputError, require
from induction_memory.model.memories import Memories, ungrouped
from induction_memory.runner.components import ARROW, Graph, layer_of, shares_keys
from induction_memory.runner.support import asleep
from induction_memory.runner.weights import parameters

logger = logging.getLogger("induction_memory")
RESULT, SPLIT, UNGROUPED = "use_attn_result", "use_split_qkv_input", "ungroup_grouped_query_attention"
POINTS = {
    RESULT: ("attn.hook_result",),
    SPLIT: ("hook_q_input", "hook_k_input", "hook_v_input"),
    "use_hook_mlp_in": ("hook_mlp_in",),
    UNGROUPED: (),
}
"""TransformerLens's flag -> the hook points of a block that it activates."""
RECORDED = ("hook_resid_pre", "attn.hook_q", "attn.hook_k", "attn.hook_v", "attn.hook_attn_scores", "attn.hook_pattern")
RECORDED += ("attn.hook_z", "hook_attn_out", "hook_mlp_out", "hook_resid_post")
"""The hook points of a block that are compared, in addition to the flags'."""
NEEDED = ("resid_pre", "attn.hook_q", "attn.hook_k", "attn.hook_v", "attn.hook_z", "attn_out", "resid_post")
"""Endings of those without which nothing can be recorded."""
Hook = tuple[str, Callable[..., Tensor | None]]
ROWS, QUERIES = 2, 64
"""Number of sequences and query positions that are compared."""


@dataclass(frozen=True, eq=False)
class Check:
    """The lines that do not hold, with the reasons."""

    refused: Mapping[str, str]
    """A component that cannot be patched (`L1H1`), or `L1H1->` and `->FF1` for edges that leave or enter it."""
    summed: bool
    """Whether z W_O + b_O is the output of every layer's attention."""
    split: bool
    """Whether each head has its own inputs (hook_q_input)."""
    maps: str | None
    memories: str | None


_checks: "WeakKeyDictionary[nn.Module, dict[tuple, Check]]" = WeakKeyDictionary()


def checked(model: Any, tokens: Int[Tensor, "batch pos"] | None = None) -> Check:
    """The check of a model with its hooks on some tokens, or without hooks on a few tokens of its vocabulary."""
    awake = tokens is not None and any(point.fwd_hooks for point in model.hook_dict.values())
    known = _checks.setdefault(model, {})
    if _state(model, awake) not in known:
        if tokens is None:
            tokens = torch.arange(min(4, model.cfg.d_vocab, model.cfg.n_ctx))[None]
        found = _check(model, tokens.to(next(model.parameters()).device), awake)
        known[_state(model, awake)] = found  # the first forward of a bridge adds hooks
        for reason in dict.fromkeys(found.refused.values()):
            names = ", ".join(name for name, why in found.refused.items() if why == reason)
            logger.warning("refused for this model: %s, because %s", names, reason)
    return known[_state(model, awake)]


def _state(model: Any, awake: bool) -> tuple:
    """The methods of a model's modules and of their classes, its hooks, and whether it is in training mode."""
    points = set() if awake else {id(point) for point in model.hook_dict.values()}
    modules = list(model.modules())
    methods = {kind: None for module in modules for kind in type(module).__mro__}
    found = [id(method) for kind in methods for method in vars(kind).values() if isinstance(method, FunctionType)]
    for module in modules:
        found += [id(own) for own in vars(module).values() if isinstance(own, FunctionType | MethodType)]
        found += [] if id(module) in points else [*module._forward_hooks, *module._forward_pre_hooks]
    return awake, any(module.training for module in modules), *found


def _check(model: Any, tokens: Tensor, awake: bool) -> Check:
    kept: dict[str, Tensor] = {}
    flags = [flag for flag in POINTS if offers(model, flag)]
    points = [*RECORDED, *(point for flag in flags for point in POINTS[flag])]
    names = [f"blocks.{layer}.{point}" for layer in range(model.cfg.n_layers) for point in points]
    for lost in (name for name in names if name not in model.hook_dict and name.endswith(NEEDED)):
        raise InputError(f"model: expected one with the hook points of a HookedTransformer, got none at {lost}")
    names = [name for name in ("hook_embed", "hook_pos_embed", *names) if name in model.hook_dict]
    with ExitStack() as entered, torch.no_grad():
        for point in () if awake else model.hook_dict.values():
            entered.enter_context(asleep(point))
        again = model(tokens if awake else tokens[:ROWS])[:ROWS, :QUERIES]
        more = entered.enter_context(separated(model, flags))
        hooks = [*more, *((name, _part(kept, name)) for name in names)]
        logits = model.run_with_hooks(tokens, fwd_hooks=hooks)[:ROWS, :QUERIES]
        found = _Comparison(model, kept)
        reason = found.differs("others", logits, again)
        wanted = f"equal logits in two forwards, in the second with {', '.join(flags)} (use eval() if it has dropout)"
        require(reason is None, "model", wanted, str(reason))
        return found.check(tokens[:ROWS, :QUERIES], logits)


def _part(kept: dict[str, Tensor], name: str) -> Callable[..., None]:
    def hook(value: Any, hook: Any) -> None:
        if not isinstance(value, Tensor):
            return
        part = value[:ROWS] if name.endswith("_v") else value[:ROWS, :QUERIES]
        kept[name] = (value[:ROWS, :, :QUERIES] if name.endswith(("_pattern", "_scores")) else part).clone()

    return hook


class _Comparison:
    """The activations of one forward, line by line of the module's docstring."""

    def __init__(self, model: Any, kept: Mapping[str, Tensor]) -> None:
        self.model, self.kept, self.graph = model, kept, Graph.of(model)
        self.tolerance = 1e-3 if next(model.parameters()).dtype in (torch.float32, torch.float64) else 0.05
        points = [f"blocks.{layer}.hook_{letter}_input" for layer in range(self.graph.n_layers) for letter in "qkv"]
        self.refused, self.split = dict[str, str](), all(point in kept for point in points)

    def check(self, tokens: Tensor, logits: Tensor) -> Check:
        maps = written = None
        embeddings = ["hook_embed", "hook_pos_embed"][: 1 + self.graph.positions]
        x_1 = self.at("blocks.0.hook_resid_pre")
        embedded = self.total([self.at(name) for name in embeddings])
        self.refuse(
            ["embed->", "pos->"][: len(embeddings)], "embeddings change before they enter the stream", x_1, embedded
        )
        for layer in range(1, self.graph.n_layers + 1):
            block, name = self.model.blocks[layer - 1], f"blocks.{layer - 1}."
            maps = maps or self.maps(name)
            self.writers(layer, name)
            written = self.heads(layer, block, name) or written
            self.readers(layer, block, name)
        return Check(self.refused, written is None, self.split, maps, self.memories(tokens, logits, written))

    def at(self, name: str) -> Tensor | None:
        return self.kept.get(name)

    def total(self, parts: Sequence[Tensor | None]) -> Tensor | None:
        """The sum, if nothing is missing and all have the same width."""
        widths = {None if part is None else part.shape[-1] for part in parts}
        return None if None in widths or len(widths) > 1 else sum(parts[1:], parts[0])  # pyright: ignore

    def differs(self, what: str, found: Tensor | None, expected: Tensor | None) -> str | None:
        """A sentence with the largest deviation, if it is too large; nan equals nan."""
        if found is None or expected is None:
            return f"{what} (no hook point has it)"
        if found.shape[2:] != expected.shape[2:]:
            return f"{what} (shapes {tuple(found.shape)} and {tuple(expected.shape)})"
        gap = torch.where(found.isnan() & expected.isnan(), 0, found - expected).abs().max()
        worst = float(gap / expected.nan_to_num().abs().max().clamp_min(1e-12))
        return None if worst <= self.tolerance else f"{what} (largest deviation {worst:.2g})"

    def refuse(self, names: Sequence[str], what: str, found: Tensor | None, expected: Tensor | None) -> None:
        reason = self.differs(what, found, expected)
        if reason is not None:
            self.refused |= {name: reason for name in names if name not in self.refused}

    def maps(self, name: str) -> str | None:
        pattern, v, z = (self.at(f"{name}attn.hook_{one}") for one in ("pattern", "v", "z"))
        if pattern is not None and v is not None and v.dim() == 4:
            each = v.repeat_interleave(pattern.shape[1] // v.shape[2], 2)
            v = torch.einsum("bhqk,bkhd->bqhd", pattern, each.to(pattern))
        return self.differs("heads do not read values with the recorded attention", z, v)

    def writers(self, layer: int, name: str) -> None:
        """The output of a layer is added to the stream."""
        before, after = self.at(f"{name}hook_resid_pre"), self.at(f"blocks.{layer}.hook_resid_pre")
        after = self.at(f"{name}hook_resid_post") if layer == self.graph.n_layers else after
        parts = [self.at(f"{name}hook_attn_out")]
        parts += [self.at(f"{name}hook_mlp_out")] if layer in self.graph.feed_forwards else []
        change = None if before is None or after is None else after - before
        earlier = [writer for writer in self.graph.writers if layer_of(writer) <= layer]
        what = f"what is written up to layer {layer} changes before it is added to the stream"
        self.refuse([writer + ARROW for writer in earlier], what, change, self.total(parts))

    def heads(self, layer: int, block: Any, name: str) -> str | None:
        """Why z W_O + b_O is not the output of the attention; if the output of heads is not known, it is refused."""
        out, z, result = (self.at(name + one) for one in ("hook_attn_out", "attn.hook_z", "attn.hook_result"))
        b_O, heads = getattr(block.attn, "b_O", None), self.graph.heads_of(layer)
        bias = [] if b_O is None else [b_O]
        by_weights = None
        if z is not None and z.dim() == 4:
            by_weights = self.total([torch.einsum("bphe,hed->bpd", z, block.attn.W_O.to(z)), *bias])
        what = f"the output of layer {layer}'s attention is not z W_O + b_O"
        reason = self.differs(what, out, by_weights)
        if result is None:
            self.refuse([*heads, *(head + ARROW for head in heads)], what, out, by_weights)
        else:
            what = f"what layer {layer}'s heads write changes before it is added to the stream"
            self.refuse([head + ARROW for head in heads], what, out, self.total([result.sum(2), *bias]))
        return reason

    def readers(self, layer: int, block: Any, name: str) -> None:
        """The inputs of heads and of a feed-forward are the stream."""
        x = self.at(f"{name}hook_resid_pre")
        for letter in "qkv":
            sites = [f"{head}.{letter}" for head in self.graph.heads_of(layer)]
            own, given = self.at(f"{name}attn.hook_{letter}"), self.at(f"{name}hook_{letter}_input")
            if own is None or own.dim() != 4 or own.shape[2] != len(sites):
                reason = "heads share keys and values, and none can be given one of its own"
                self.refused |= {name: reason for site in sites for name in (site, ARROW + site)}
                continue
            what = f"the {letter} of layer {layer} are not computed from the stream"
            if self.split and given is not None:
                each = None if x is None else x[:, :, None].expand_as(given) if given.dim() == 4 else x
                self.refuse([ARROW + site for site in sites], what, given, each)
            elif x is not None:
                plain = torch.stack([projection(block)(letter, head, x) for head in range(len(sites))], dim=2)
                own = own[:, : x.shape[1]]
                what += ", or not linearly"
                self.refuse([ARROW + site for site in sites], what, own, plain + (own - plain)[:, :1])
        if layer in self.graph.feed_forwards:
            parts = [x] if self.graph.parallel else [x, self.at(f"{name}hook_attn_out")]
            what = f"the input of layer {layer}'s feed-forward is not the stream, or has no hook"
            self.refuse([f"{ARROW}FF{layer}"], what, self.at(f"{name}hook_mlp_in"), self.total(parts))

    def memories(self, tokens: Tensor, logits: Tensor, written: str | None) -> str | None:
        """The first line that the model does not compute with its weights."""
        weights = ungrouped(parameters(self.model))
        needs = "needs a model that computes what its weights say, here"
        names = [f"blocks.{layer}.attn.W_{letter}" for layer in range(self.graph.n_layers) for letter in "QKVO"]
        for name in ("embed.W_E", *names, "unembed.W_U"):
            if name not in weights:
                return f"{needs} {name} is missing"
        m, embedded = Memories(weights), [weights["embed.W_E"][tokens]]
        if "pos_embed.W_pos" in weights:
            embedded.append(weights["pos_embed.W_pos"][: tokens.shape[1]])
        x_1, last = self.at("blocks.0.hook_resid_pre"), self.at(f"blocks.{self.graph.n_layers - 1}.hook_resid_post")
        wrong = self.differs("embeddings are changed before they enter the stream", x_1, self.total(embedded))
        for layer, block in enumerate(self.model.blocks[: self.graph.n_layers]):
            name = f"blocks.{layer}."
            normed = m.normed(f"{name}ln1", self.kept[f"{name}hook_resid_pre"])
            q, k = (
                _projected(normed, weights[f"{name}attn.W_{one}"], getattr(block.attn, f"b_{one}", None))
                for one in "QK"
            )
            wrong = wrong or self.attends(self.at(f"{name}attn.hook_attn_scores"), q, k)
        changed = [self.refused[head + ARROW] for head in self.graph.heads if head + ARROW in self.refused]
        wrong = wrong or written or next(iter(changed), None)
        W_U, by_weights = weights["unembed.W_U"], None
        if last is not None and last.shape[-1] == len(W_U):
            by_weights = m.normed("ln_final", last) @ W_U
        by_weights = self.total([by_weights, self.model.unembed.b_U])
        wrong = wrong or self.differs("logits are not those of W_U behind one norm", logits, by_weights)
        return None if wrong is None else f"{needs} {wrong}"

    def attends(self, given: Tensor | None, q: Tensor, k: Tensor) -> str | None:
        """Whether the scores are c q k^T for one c > 0, where each position attends to itself and is not masked."""
        what = "attention scores are not those of W_Q and W_K behind one norm"
        if given is None:
            return self.differs(what, given, None)
        if bool((given[:, :, 0, -1] >= -1e3).any()):  # some bridges have the attention itself at this hook
            later = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).triu(1)
            scores = torch.einsum("bqhe,bkhe->bhqk", q, k) / q.shape[-1] ** 0.5
            return self.differs(what, given[..., : q.shape[1]], scores.masked_fill(later, -torch.inf).softmax(-1))
        found, expected = given.diagonal(dim1=-2, dim2=-1).mT, (q * k).sum(-1)
        seen = found > -1e3
        found, expected = found[seen][None], expected[seen][None]
        c = (found * expected).sum() / (expected * expected).sum().clamp_min(1e-30)
        return self.differs(what, found, expected * c.clamp_min(0))


def _projected(x: Tensor, W: Tensor, b: Tensor | None) -> Float[Tensor, "batch pos head d_head"]:
    found = torch.einsum("bpd,hde->bphe", x, W)
    return found if b is None else found + b.repeat_interleave(len(W) // len(b), dim=0)


Projection = Callable[[str, int, Tensor], Tensor]
"""(q, k or v, head counted from 0, stream) -> what the head computes from the stream, without biases."""


def projection(block: Any) -> Projection:
    """The projections of a layer, with its norm; keys and values have one matrix for each group of heads."""
    norm = getattr(block, "ln1", None)
    plain: Any = nn.Identity() if norm is None else getattr(norm, "original_component", norm)
    matrices = {letter: getattr(block.attn, f"W_{letter.upper()}").detach() for letter in "qkv"}

    def project(letter: str, head: int, x: Tensor) -> Tensor:
        W = matrices[letter]
        return plain(x) @ W[head * len(W) // len(matrices["q"])]

    return project


def offers(model: Any, flag: str) -> bool:
    """Whether a model has a flag: some bridges do not, and none offers separate inputs for heads that share keys."""
    if flag == UNGROUPED:
        return shares_keys(model)
    if flag == SPLIT and shares_keys(model) and not hasattr(model, f"set_{UNGROUPED}"):
        return False
    before = bool(getattr(model.cfg, flag, False))
    try:
        _set(model, flag, True)
    except (NotImplementedError, ValueError, AssertionError):
        return False
    _set(model, flag, before)
    return True


@contextmanager
def separated(model: Any, flags: Sequence[str]) -> Iterator[list[Hook]]:
    """Inside the block the model has these flags, together with the hooks that it gives; user's hooks that only these
    flags activate do not run.
    """
    new, more = [flag for flag in flags if not getattr(model.cfg, flag, False)], list[Hook]()
    with ExitStack() as after:
        for flag in new:
            for layer in range(model.cfg.n_layers):
                for point in POINTS[flag]:
                    after.enter_context(asleep(model.hook_dict.get(f"blocks.{layer}.{point}")))
        for flag in new:
            if flag == UNGROUPED and not hasattr(model, f"set_{flag}"):
                more += after.enter_context(_repeated(model))
                continue
            _set(model, flag, True)
            after.callback(_set, model, flag, False)
        yield more


@contextmanager
def _repeated(bridge: Any) -> Iterator[list[Hook]]:
    """Hooks that give each head of a bridge its own keys and values, where transformers repeats them."""
    heads, groups = bridge.cfg.n_heads, "num_key_value_groups"
    inner = [getattr(block.attn, "original_component", None) for block in bridge.blocks]
    able = [(layer, one) for layer, one in enumerate(inner) if getattr(one, groups, 1) > 1]
    before = [getattr(one, groups) for _, one in able]

    def repeat(value: Tensor, hook: Any) -> Tensor:
        value = value if value.dim() == 4 else value.unflatten(-1, (-1, bridge.cfg.d_head))
        return value.repeat_interleave(heads // value.shape[2], dim=2)

    try:
        for _, one in able:
            setattr(one, groups, 1)
        yield [(f"blocks.{layer}.attn.hook_{letter}", repeat) for layer, _ in able for letter in "kv"]
    finally:
        for (_, one), number in zip(able, before, strict=True):
            setattr(one, groups, number)


def _set(model: Any, flag: str, value: bool) -> None:
    setter = getattr(model, f"set_{flag}", None)
    setattr(model.cfg, flag, value) if setter is None else setter(value)
