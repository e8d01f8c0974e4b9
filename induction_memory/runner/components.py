"""The vocabulary of interventions: a transformer as a graph of components that add to one stream.

The input of a component is the sum of the outputs of earlier ones (Section 4.1, "Handling superposition"):

    x_input = sum over the writers before it,    writers: embed, pos, L1H1 ... (heads), FF1 ... (feed-forwards)

so an edge writer -> input is one term of a sum. The inputs are the queries, keys and values of each head (`L2H1.q`,
`L2H1.k`, `L2H1.v`), each feed-forward (`FF2`) and the unembedding (`out`). Layers and heads count from 1, as in the
paper. A *site* is what can be patched, written as a string:

    L1H1               the output of a head, a feed-forward, `embed` or `pos`, for all its readers
    L2H1.k             the keys (queries, values) of a head, after its matrix
    L1H1->L2H1.k       one edge

Some names mean several sites:

    L2, L2.k, L1->L2.k  the heads of a layer
    L1H1->L2H1          all three inputs of a head
    L1H1->direct        the edges to the output and to the last layer's feed-forward, not through later heads
    stream2             the whole stream that layer 2 and all later layers read
    W_K2, W_O2          what the paper's matrix computes: the keys of layer 2, the output of its heads
Lists of names can also contain groups (`heads`, `edges` ...). All names are checked against a graph, without a model.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from induction_memory.errors import InputError, UnsupportedError, nearest, require
from induction_memory.field_docs import field_docs
from induction_memory.model.config import ModelConfig

ARROW = "->"
DIRECT = "direct"
_HEAD = re.compile(r"^L(\d+)(?:H(\d+))?$")
_STREAM = re.compile(r"^stream(\d+)$")
_MATRIX = re.compile(r"^W_([QKVOF]|in|out)(\d*)$")
_MATRIX_SITE = {"Q": ".q", "K": ".k", "V": ".v", "O": ""}


@field_docs
@dataclass(frozen=True)
class Graph:
    """The structure of a model: its writers, its inputs, and the edges between them.

    >>> import induction_memory as im
    >>> graph = im.runner.Graph.of_config(im.ModelConfig())
    >>> graph.writers, graph.resolve("L1->L2.k")
    (('embed', 'pos', 'L1H1', 'L2H1', 'FF2'), ('L1H1->L2H1.k',))
    """

    n_layers: int
    n_heads: int
    feed_forwards: tuple[int, ...]
    """Layers, from 1, that have a feed-forward."""
    positions: bool = True
    """Whether positional embeddings are added to the stream."""
    parallel: bool = False
    """Whether a feed-forward reads the same stream as its layer's heads, without their output."""
    linear: bool = False
    """Whether the feed-forwards are linear: W_F instead of W_in and W_out."""
    refused: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Component that the model's activations do not confirm -> why; `L1H1->` and `->FF1`: edges from it, into it."""

    @classmethod
    def of(cls, model: Any) -> "Graph":
        """The graph of a TransformerLens model."""
        cfg, blocks = model.cfg, len(model.blocks)
        require(blocks >= cfg.n_layers, "model", f"{cfg.n_layers} blocks, as its configuration says", blocks)
        return cls(
            n_layers=cfg.n_layers,
            n_heads=cfg.n_heads,
            feed_forwards=_with_feed_forward(model),
            positions=cfg.positional_embedding_type == "standard",
            parallel=bool(getattr(cfg, "parallel_attn_mlp", False)),
            linear=any(hasattr(getattr(block, "mlp", None), "W_F") for block in model.blocks),
        )

    @classmethod
    def of_config(cls, config: ModelConfig) -> "Graph":
        """The graph of the model that `build` would make."""
        return cls(
            n_layers=config.n_layers,
            n_heads=config.n_heads,
            feed_forwards=tuple(filter(config.has_feed_forward, range(1, config.n_layers + 1))),
            parallel=config.parallel_blocks,
            linear=config.feed_forward == "linear",
        )

    @cached_property
    def heads(self) -> tuple[str, ...]:
        layers, heads = range(1, self.n_layers + 1), range(1, self.n_heads + 1)
        return tuple(f"L{layer}H{head}" for layer in layers for head in heads)

    @cached_property
    def writers(self) -> tuple[str, ...]:
        """embed, pos, then the heads and the feed-forward of each layer."""
        names = ["embed"] + ["pos"] * self.positions
        for layer in range(1, self.n_layers + 1):
            names += [*self.heads_of(layer), *([f"FF{layer}"] if layer in self.feed_forwards else [])]
        return tuple(names)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Everything that reads the stream, in the order of the computation."""
        names = []
        for layer in range(1, self.n_layers + 1):
            names += [f"{head}.{letter}" for head in self.heads_of(layer) for letter in "qkv"]
            names += [f"FF{layer}"] if layer in self.feed_forwards else []
        return (*names, "out")

    @cached_property
    def edges(self) -> tuple[str, ...]:
        """Every edge, `writer->input`."""
        return tuple(
            f"{writer}{ARROW}{name}"
            for name in self.inputs
            for writer in self.writers_before(name)
            if self._refusal(f"{writer}{ARROW}{name}") is None
        )

    @cached_property
    def matrices(self) -> tuple[str, ...]:
        """The paper's names of the matrices inside the layers."""
        names = []
        for layer in range(1, self.n_layers + 1):
            names += [f"W_{letter}{layer}" for letter in "QKVO"]
            if layer not in self.feed_forwards:
                continue
            if self.linear:
                names += ["W_F" if layer == self.n_layers else f"W_F{layer}"]
            else:
                names += [f"W_in{layer}", f"W_out{layer}"]
        return tuple(names)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The residual components at each layer's queries, keys and values, feed-forward and output: `pos->L2.k`."""
        layers = [f"L{layer}.{letter}" for layer in range(1, self.n_layers + 1) for letter in "qkv"]
        targets = [*layers, *(f"FF{layer}" for layer in self.feed_forwards), "out"]
        sources = ["embed"] + ["pos"] * self.positions
        for layer in range(1, self.n_layers + 1):
            sources += [f"L{layer}"] + [f"FF{layer}"] * (layer in self.feed_forwards)
        if self.n_heads == 1:
            sources, targets = ([re.sub(r"^(L\d+)", r"\1H1", name) for name in names] for names in (sources, targets))
        names = [f"{source}{ARROW}{target}" for target in targets for source in sources]
        return tuple(name for name in names if self.allows(name))

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The paths of each head: the direct path, and the queries, keys and values of later heads."""
        names = []
        for head in self.heads:
            readers = [name for name in self.inputs if "." in name and head in self.writers_before(name)]
            names += [f"{head}{ARROW}{DIRECT}", *(f"{head}{ARROW}{name}" for name in readers)]
        return tuple(name for name in names if self.allows(name))

    def heads_of(self, layer: int) -> tuple[str, ...]:
        return self.heads[(layer - 1) * self.n_heads : layer * self.n_heads]

    def writers_before(self, name: str) -> tuple[str, ...]:
        """The writers whose sum an input reads."""
        if name == "out":
            return self.writers
        at_the_end = name.startswith("FF") and not self.parallel
        first = name if at_the_end else self.heads_of(layer_of(name))[0]  # the first writer that it does not read
        return self.writers[: self.writers.index(first)]

    def resolve(self, name: str, field: str = "component") -> tuple[str, ...]:
        """The sites of a name."""
        require(isinstance(name, str), field, "the name of a component", repr(name))
        name = _component(name)
        stream = _STREAM.match(name)
        if stream is not None and 1 <= int(stream[1]) <= self.n_layers:
            sites = self._stream(int(stream[1]))
        else:
            sites = self._edges(name) if ARROW in name else self._nodes(name)
        reasons = [reason for site in sites if (reason := self._refusal(site)) is not None] if self.refused else []
        for reason in reasons[:1]:
            raise UnsupportedError(
                f"{field}: expected what this model's own activations confirm, got {name!r}: {reason}"
            )
        if sites:
            return sites
        known, near = (*self.writers, *self.matrices), ""
        if ARROW in name:
            source, target = name.split(ARROW, 1)
            exist = bool(self._nodes(source)) and bool(self._inputs(target))
            if exist:
                wanted = "a writer that comes before the input"
            else:
                wanted = f"one of {', '.join(self.writers)} {ARROW} one of {', '.join(self.inputs)}"
        else:
            near = nearest(name, (*known, *GROUPS))
            wanted = f"one of {', '.join(known)}, or an edge writer->input"
            wanted += f" ({COUNTED})" if re.match(r"L0|.*H0", name) else ""
        raise InputError(f"{field}: expected {wanted}, got {name!r}{near}")

    def head(self, head: Any, field: str = "heads") -> str:
        """The head's name, if the model has this head."""
        if not isinstance(head, str) or head not in self.heads:
            counted = "" if isinstance(head, str) and "0" not in head else f" ({COUNTED})"
            raise InputError(f"{field}: expected heads out of {', '.join(self.heads)}{counted}, got {head!r}")
        return head

    def parameters(self, name: str) -> dict[str, int | None]:
        """The parameters behind a name -> the head of their slice, counted from 0 (None: the whole parameter).

        For an edge these are the parameters of its source. A feed-forward's are a prefix, `blocks.1.mlp.`.
        """
        matrix = _MATRIX.match(name)
        if matrix is None:
            behind: dict[str, int | None] = {}
            for site in self.resolve(name):
                writer = site.split(ARROW)[0]
                if writer in ("embed", "pos"):
                    behind["embed.W_E" if writer == "embed" else "pos_embed.W_pos"] = None
                elif writer.startswith("FF"):
                    behind[f"blocks.{int(writer[2:]) - 1}.mlp."] = None
                else:
                    layer, head = head_of(writer)
                    for one in ("W_Q", "b_Q", "W_K", "b_K", "W_V", "b_V", "W_O"):
                        behind[f"blocks.{layer - 1}.attn.{one}"] = head - 1
            return behind
        self.resolve(name)
        block = f"blocks.{int(matrix[2] or self.n_layers) - 1}"
        part = "attn" if matrix[1] in "QKVO" else "mlp"
        return {f"{block}.{part}.W_{matrix[1]}": None}

    def _nodes(self, name: str) -> tuple[str, ...]:
        base, _, letter = name.partition(".")
        if name in self.writers:
            return (name,)
        matrix = _MATRIX.match(name)
        if matrix is not None:
            if name not in self.matrices:
                return ()
            layer = int(matrix[2] or self.n_layers)
            if matrix[1] not in _MATRIX_SITE:
                return (f"FF{layer}",)
            return tuple(head + _MATRIX_SITE[matrix[1]] for head in self.heads_of(layer))
        if letter and letter not in ("q", "k", "v"):
            return ()
        return tuple(head + name[len(base) :] for head in self._heads(base))

    def _heads(self, name: str) -> tuple[str, ...]:
        match = _HEAD.match(name)
        if match is None:
            return ()
        heads = self.heads_of(int(match[1])) if match[2] is None else (name,)
        return tuple(head for head in heads if head in self.heads)

    def _inputs(self, name: str) -> tuple[str, ...]:
        if name in self.inputs:
            return (name,)
        if name == DIRECT:
            return tuple(i for i in (f"FF{self.n_layers}", "out") if i in self.inputs)
        base, _, letter = name.partition(".")
        return tuple(f"{head}.{one}" for head in self._heads(base) for one in (letter or "qkv") if one in "qkv")

    def _stream(self, layer: int) -> tuple[str, ...]:
        """The edges from everything before a layer to this layer and everything after it."""
        inputs = self.inputs[self.inputs.index(f"L{layer}H1.q") :]
        return tuple(f"{writer}{ARROW}{name}" for name in inputs for writer in self.writers_before(inputs[0]))

    def _edges(self, name: str) -> tuple[str, ...]:
        source, target = name.split(ARROW, 1)
        return tuple(
            f"{writer}{ARROW}{reader}"
            for writer in self._nodes(source)
            for reader in self._inputs(target)
            if writer in self.writers_before(reader)
        )

    def _refusal(self, site: str) -> str | None:
        """Why a site cannot be patched; None if it can."""
        source, arrow, target = site.partition(ARROW)
        names = (source, source + ARROW, ARROW + target) if arrow else (site,)
        return next((self.refused[name] for name in names if name in self.refused), None)

    def allows(self, name: str) -> bool:
        """Whether all sites of a name can be patched."""
        sites = self._edges(name) if ARROW in name else self._nodes(name)
        return bool(sites) and all(self._refusal(site) is None for site in sites)


def _component(name: str) -> str:
    """The component of a TransformerLens hook name such as `blocks.1.attn.hook_z`; other names are unchanged."""
    if name in ("hook_embed", "hook_pos_embed"):
        return "embed" if name == "hook_embed" else "pos"
    hook = re.fullmatch(r"blocks\.(\d+)\.(?:attn\.)?hook_(\w+)", name)
    named = {"z": "L{}", "result": "L{}", "attn_out": "L{}", "q": "L{}.q", "k": "L{}.k", "v": "L{}.v"}
    named |= {"mlp_out": "FF{}", "resid_pre": "stream{}"}
    return named[hook[2]].format(int(hook[1]) + 1) if hook is not None and hook[2] in named else name


def head_of(site: str) -> tuple[int, int]:
    """(layer, head), from 1, of `L2H1` or `L2H1.k`."""
    match = _HEAD.match(site.partition(".")[0])
    assert match is not None, site
    return int(match[1]), int(match[2])


def layer_of(writer: str) -> int:
    """The layer of a writer, from 1; 0 for the embeddings."""
    if writer in ("embed", "pos"):
        return 0
    return int(writer[2:]) if writer.startswith("FF") else head_of(writer)[0]


def shares_keys(model: Any) -> bool:
    """Whether several heads of a model have the same keys and values."""
    return getattr(model.cfg, "n_key_value_heads", None) not in (None, model.cfg.n_heads)


def _with_feed_forward(model: Any) -> tuple[int, ...]:
    """Layers with a feed-forward; a block without one may have a module that adds zeros."""
    from induction_memory.model.building import NoFeedForward

    layers = () if getattr(model.cfg, "attn_only", False) else range(1, model.cfg.n_layers + 1)
    return tuple(
        layer for layer in layers if not isinstance(getattr(model.blocks[layer - 1], "mlp", None), NoFeedForward)
    )


COUNTED = "L2H1 is blocks.1, head 0 of TransformerLens: names count from 1, as the paper does"
GROUPS = ("heads", "layers", "feed_forward", "embeddings", "matrices", "parts", "edges", "paths")


def component_names(
    graph: Graph, heads: Literal["all"] | Sequence[Any] | None, components: str | Sequence[str] | None
) -> list[str]:
    """The requested names in order, each once and checked, with groups replaced by their members."""
    if heads is None and components is None:
        components = "all"
    names: list[str] = []
    if heads is not None:
        every = isinstance(heads, str) and heads == "all"
        names += _group(graph, "heads") if every else map(graph.head, listed(heads, "heads"))
    for name in [] if components is None else listed(components, "components"):
        require(isinstance(name, str), "components", "names", repr(name))
        names += _group(graph, name) if name in (*GROUPS, "all") else [name]
    for name in names:
        graph.resolve(name)
    require(len(names) > 0, "components", "at least one", "none")
    return list(dict.fromkeys(names))


def _group(graph: Graph, name: str) -> Iterable[str]:
    """The members of a group that can be patched; all of them if none can."""
    match name:
        case "all":
            members = [one for group in GROUPS[:6] for one in _group(graph, group)]
        case "layers":
            members = [f"L{layer}" for layer in range(1, graph.n_layers + 1)] if graph.n_heads > 1 else []
        case "feed_forward":
            members = [f"FF{layer}" for layer in graph.feed_forwards]
        case "embeddings":
            members = ["embed", "pos"] if graph.positions else ["embed"]
        case _:
            members = getattr(graph, name)
    return (list(filter(graph.allows, members)) if graph.refused else members) or members


def listed(names: Any, field: str) -> Sequence[Any]:
    """One name or function as a list of one; an empty list is refused."""
    if isinstance(names, str) or callable(names):
        return [names]
    several = isinstance(names, Sequence) and len(names) > 0
    require(several, field, "a name, or a list of one or more", repr(names))
    return list(names)
