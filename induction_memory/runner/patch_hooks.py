"""The patches of a variant as TransformerLens hooks, in the order of the computation.

With `amount` a, and y what the given model, with the user's hooks, computes at a site,

    writer or q, k, v of a head     y  <-  y + a (value - y)
    edge writer -> input            x_input  <-  x_input + a (value - y_writer)
"""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from induction_memory.runner.components import ARROW, Graph, head_of
from induction_memory.runner.projections import Projection
from induction_memory.runner.variants import Patch, Variant

Hook = tuple[str, Callable[..., Tensor | None]]

_changed: MutableMapping[Tensor, dict[str, Tensor]] = WeakTensorKeyDictionary()
"""z of a layer in a forward pass -> head -> how far earlier lists of hooks have changed this head's output."""


def patch_hooks(
    graph: Graph, variant: Variant, W_O: Sequence[Tensor] = (), projected: Sequence[Projection] = ()
) -> list[Hook]:
    """The patches of a variant as hooks for `run_with_hooks`, in the order of the computation.

    A head's output is patched at `hook_result`. With the layers' W_O given, it is computed from `hook_z` instead, and
    the change is added at `hook_attn_out`. With the layers' projections given, edges into heads change their queries,
    keys and values (`projections.py`).
    """
    written: dict[str, Tensor] = {}
    nodes: dict[str, list[Patch]] = {}
    edges: dict[str, list[tuple[str, Patch]]] = {}
    for patch in variant:
        source, arrow, target = patch.site.partition(ARROW)
        if arrow:
            edges.setdefault(target, []).append((source, patch))
        else:
            nodes.setdefault(source, []).append(patch)
    sources = {source for patches in edges.values() for source, _ in patches}

    def write(name: str, value: Tensor) -> Tensor:
        for patch in nodes.get(name, ()):
            value = _blended(value, patch)
        written[name] = value
        return value

    def read(name: str, stream: Tensor) -> Tensor:
        for source, patch in edges.get(name, ()):
            stream = stream + (_blended(written[source], patch) - written[source])
        return stream

    hooks: list[Hook] = []

    def add(point: str, names: Sequence[str], function: Callable[[str, Tensor], Tensor], by_head: bool) -> None:
        used = [name for name in names if (name in edges if function is read else name in nodes or name in sources)]
        if used:
            hooks.append((point, _by_head(function, used) if by_head else _whole(function, used[0])))

    add("hook_embed", ["embed"], write, False)
    add("hook_pos_embed", ["pos"], write, False)
    for layer in range(1, graph.n_layers + 1):
        block, heads = f"blocks.{layer - 1}", graph.heads_of(layer)
        for letter in "qkv":
            inputs = [f"{head}.{letter}" for head in heads]
            if projected:
                used = [name for name in inputs if name in edges]
                hooks += _by_projection(block, letter, projected[layer - 1], read, used) if used else []
            else:
                add(f"{block}.hook_{letter}_input", inputs, read, True)
            add(f"{block}.attn.hook_{letter}", inputs, write, True)
        if W_O:
            used = [head for head in heads if head in nodes or head in sources]
            hooks += _by_z(block, W_O[layer - 1], write, used) if used else []
        else:
            add(f"{block}.attn.hook_result", heads, write, True)
        add(f"{block}.hook_mlp_in", [f"FF{layer}"], read, False)
        add(f"{block}.hook_mlp_out", [f"FF{layer}"], write, False)
    add(f"blocks.{graph.n_layers - 1}.hook_resid_post", ["out"], read, False)
    return hooks


def _whole(function: Callable[[str, Tensor], Tensor], name: str) -> Callable[..., Tensor]:
    return lambda value, hook: function(name, value)


def _by_head(function: Callable[[str, Tensor], Tensor], names: Sequence[str]) -> Callable[..., Tensor]:
    def hook(value: Tensor, hook: Any) -> Tensor:
        parts = list(value.unbind(2))
        for name in names:
            head = head_of(name)[1] - 1
            parts[head] = function(name, parts[head])
        return torch.stack(parts, dim=2)

    return hook


def _by_z(block: str, W_O: Tensor, write: Callable[[str, Tensor], Tensor], heads: Sequence[str]) -> list[Hook]:
    """Hooks that patch outputs of some heads of a block, computed from z and the changes by earlier lists of hooks."""
    changes: list[Tensor] = []

    def note(z: Tensor, hook: Any) -> None:
        changes.clear()
        earlier = _changed.setdefault(z, {})
        for head in heads:
            own = z[:, :, head_of(head)[1] - 1] @ W_O[head_of(head)[1] - 1]
            own = own + earlier[head] if head in earlier else own
            changes.append(write(head, own) - own)
            earlier[head] = earlier[head] + changes[-1] if head in earlier else changes[-1]

    return [(f"{block}.attn.hook_z", note), (f"{block}.hook_attn_out", lambda out, hook: out + sum(changes))]


def _by_projection(
    block: str, letter: str, projection: Projection, read: Callable[[str, Tensor], Tensor], inputs: Sequence[str]
) -> list[Hook]:
    """Hooks that change the queries, keys and values that some heads of a block compute from the stream."""
    noted: list[Tensor] = []

    def note(stream: Tensor, hook: Any) -> None:
        noted[:] = [stream]

    def change(name: str, own: Tensor) -> Tensor:
        return own + projection.change(letter, head_of(name)[1] - 1, noted[0], read(name, noted[0]))

    return [(f"{block}.hook_resid_pre", note), (f"{block}.attn.hook_{letter}", _by_head(change, inputs))]


def _blended(own: Tensor, patch: Patch) -> Tensor:
    value, where = patch.value, None if patch.where is None else patch.where.unsqueeze(-1)
    batch = max(len(own), len(value), 1 if where is None else len(where))
    own, value = own.expand(batch, -1, -1), value.expand(batch, own.shape[1], -1)
    return patch.blend(own, value, where)
