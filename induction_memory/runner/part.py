"""A part of a recorded run: so few sequences that they fit the CPU caches. Each part runs shared patches once."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.runner import forward
from induction_memory.runner.components import ARROW
from induction_memory.runner.group import Group
from induction_memory.runner.network import Network
from induction_memory.runner.recording import Recording
from induction_memory.runner.variants import Patch, Variant


@dataclass(eq=False)
class Part:
    """The run of some sequences, and the requested positions in them."""

    recording: Recording
    queries: Int[Tensor, "batch m"] | None
    sequences: slice
    begun: Group | None = None
    """One run, up to the last layer, with the patches that several variants share."""

    def begin(self, network: Network, start: Sequence[Patch], variants: Sequence[Variant]) -> None:
        """Run `start`, the patches before the last layer that the variants share; nothing if it is empty."""
        self.begun = None
        if not start:
            return
        group = Group(network, self.recording, [self._of(start)], self.queries)
        group.sources |= {
            patch.site.split(ARROW)[0] for variant in variants for patch in variant if ARROW in patch.site
        }
        forward.before_last_layer(group)
        self.begun = group

    def logits(self, network: Network, variants: Sequence[Variant]) -> Float[Tensor, "variant batch m vocab"]:
        """The logits of some of these variants."""
        group = Group(network, self.recording, [self._of(variant) for variant in variants], self.queries)
        if self.begun is not None:
            group.go_on_from(self.begun)
        return forward.logits(group)

    def _of(self, variant: Variant) -> Variant:
        """The variant as these sequences see it."""
        return variant if self.sequences == slice(None) else [patch.of(self.sequences) for patch in variant]


def parts(recording: Recording, queries: Int[Tensor, "batch m"] | None, tokens_at_once: int) -> list[Part]:
    """The run in parts of at most `tokens_at_once` tokens, but at least one sequence."""
    batch, length = recording.tokens.shape
    size = max(1, tokens_at_once // length)
    if size >= batch:
        return [Part(recording, queries, slice(None))]
    return [
        Part(recording.of(some), queries if queries is None else queries[some], some)
        for some in (slice(first, first + size) for first in range(0, batch, size))
    ]
