"""Names of heads (`L2H1`, and `L1H3>L2H1` for a pair, counting from 1) and of memories with a way to read them.

The name of a memory begins with one of those of `associations.py` and may go on, in this order:

    W_K1[a:b]                 positions a to b-1, counted from 0: queries a+1 to b-1, keys a to b-2. A window that goes
                              beyond the sequence is refused
    W_K1_first64              the first 64 positions, or all of them if the sequence is shorter
    W_K1_causal               the query chooses among the keys s <= t; without it among all keys except the last
                              position's, as the authors measured
    W_K1_normed, W_K2_normed  each embedding through the model's own LayerNorms in full, instead of their linear part
                              folded into the matrix. Keys have different norms, so the two recalls differ
    W_K1_raw, W_K2_raw, ...   no LayerNorm at all: the parameters and embeddings as they are. The authors measured this
    W_K1_reversed, ...        the key is given and queries compete: the recall formula as the paper prints it
"""

import re
from dataclasses import dataclass
from typing import Literal


def head_name(layer: int, head: int) -> str:
    """The name of one head.

    >>> head_name(2, 1)
    'L2H1'
    """
    return f"L{layer}H{head}"


def head_names(layers: tuple[int, ...], n_heads: int) -> list[str]:
    """Names along the head axes of these layers, "" for none.

    >>> head_names((1, 2), 2)
    ['L1H1>L2H1', 'L1H1>L2H2', 'L1H2>L2H1', 'L1H2>L2H2']
    """
    names = [""]
    for layer in layers:
        names = [f"{earlier}>L{layer}H{h}".lstrip(">") for earlier in names for h in range(1, n_heads + 1)]
    return names


FIRST = 64  # positions of the paper's smaller window
Norm = Literal["folded", "full", "none"]
_NAME = re.compile(
    r"(?:(?P<first>W_K1)(?P<window>_first64|\[(?P<start>\d{1,9}):(?P<stop>\d{1,9})\])?(?P<causal>_causal)?"
    r"|(?P<second>W_K2)(?P<triggers>_triggers)?|(?P<other>W_O2(?:_spurious)?|W_F))"
    r"(?P<norm>_normed|_raw)?(?P<reversed>_reversed)?"
)


@dataclass(frozen=True)
class Spec:
    """A memory and how it is read: the parts of a name."""

    memory: str
    window: tuple[int, int] | None = None
    """Positions a to b-1 of W_K1; None for all of them."""
    first: int | None = None
    """How many of the first positions of W_K1 to use at most; None for all of them."""
    causal: bool = False
    triggers: bool = False
    norm: Norm = "folded"
    reversed: bool = False

    @classmethod
    def parse(cls, name: str) -> "Spec | None":
        """The memory that a name stands for; None if the name has another form."""
        match = _NAME.fullmatch(name) if isinstance(name, str) else None
        if match is None:
            return None
        window = None if match["start"] is None else (int(match["start"]), int(match["stop"]))
        first = FIRST if match["window"] == f"_first{FIRST}" else None
        norm: Norm = "folded" if match["norm"] is None else "full" if match["norm"] == "_normed" else "none"
        memory = match["first"] or match["second"] or match["other"]
        if norm == "full" and not memory.startswith("W_K"):
            return None
        return cls(memory, window, first, bool(match["causal"]), bool(match["triggers"]), norm, bool(match["reversed"]))
