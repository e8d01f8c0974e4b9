"""Run a model with some of its parts replaced: many patched runs in one batch, nothing computed twice.

A patch puts a value at a site (the vocabulary is in components.py): with `amount` a and the run's own activation y,

    writer or q, k, v of a head     y  <-  y + a (value - y)
    edge writer -> input            x_input  <-  x_input + a (value - y_writer)

and everything downstream is recomputed with the model's own weights and modules. A *variant* is a set of patches. The
variants of a call are stacked on a new first axis; up to the first patched place everything is read from the recording
of the intact run, later only what has changed is computed:

- an edge into the keys of a head costs those keys, that head's attention and what follows;
- a patch of a few positions recomputes queries, keys and values there only, in the layer that reads it first;
- where the logits are wanted at some queries only, the last layer computes those rows only.

It equals the HookedTransformer with hooks, one forward a variant, to float32's rounding, and differentiates in
`amount`.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.runner.components import ARROW, head_of
from induction_memory.runner.patched_run import PatchedRun
from induction_memory.runner.patches import Patch, Variant
from induction_memory.runner.recording import Recording

TOKENS_AT_ONCE = 4096  # of all variants in one pass: enough to fill the multiplications, few enough for the caches


def run(
    recording: Recording, variants: Sequence[Variant], *, queries: Int[Tensor, "batch m"] | None = None
) -> Iterator[tuple[list[int], Float[Tensor, "variant batch m vocab"]]]:
    """Logits of every variant, in groups: (which variants, their logits). At all positions, or at `queries` only.

    The groups put together variants that first differ at the same place; each is as large as memory should hold.
    """
    known = {*recording.graph.writers, *recording.graph.inputs[:-1], *recording.graph.edges}
    depth: dict[int, list[int]] = defaultdict(list)
    for index, variant in enumerate(variants):
        for patch in variant:
            assert patch.site in known, f"no site {patch.site}"
        depth[min((_depth(recording, patch) for patch in variant), default=0)].append(index)
    at_once = max(1, TOKENS_AT_ONCE // recording.tokens.numel())
    for _, indices in sorted(depth.items()):
        for start in range(0, len(indices), at_once):
            chosen = indices[start : start + at_once]
            yield chosen, PatchedRun(recording, [variants[i] for i in chosen], queries).logits()


def logits(
    recording: Recording, variants: Sequence[Variant], *, queries: Int[Tensor, "batch m"] | None = None
) -> Float[Tensor, "variant batch m vocab"]:
    """The logits of every variant in the order given, all in memory."""
    require(len(variants) > 0, "variants", "at least one", 0)
    parts: dict[int, Tensor] = {}
    for indices, group in run(recording, variants, queries=queries):
        parts |= dict(zip(indices, group, strict=True))
    return torch.stack([parts[i] for i in range(len(variants))])


def _depth(recording: Recording, patch: Patch) -> int:
    """Where in the computation a patch first matters; sites that read or write at one place share a number."""
    inputs = recording.graph.inputs
    if ARROW in patch.site:
        name = patch.site.split(ARROW)[1]
    elif "." in patch.site:
        name = patch.site
    else:  # a writer matters from the first input that reads it
        name = next(name for name in inputs if patch.site in recording.graph.writers_before(name))
    place = 3 * recording.graph.n_layers
    if name != "out":
        layer = int(name[2:]) if name.startswith("FF") else head_of(name)[0]
        place = 3 * layer - 2 if name.startswith("FF") else 3 * layer - 3
    return place
