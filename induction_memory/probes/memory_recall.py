"""Memory recall probes (Section 5), for all steps and heads at once.

What each memory associates stands in `model/associations.py`, the variants of its name in `model/memory_names.py`, and
the readings of its scores in `memory/readings.py`. A probe's name is a memory's followed by a reading:

    nothing    recall: share of items whose target scores above every rival
    _margin    mean of target minus best rival      _rank   mean place of the target
    _sir       signal to interference               _soft   mean softmax probability of the target, scores not scaled

The feed-forward is measured by the divergence of its prediction from pi_b(j | k), without fixed triggers
(`memory/divergence.py`). The prediction is the softmax over j of w_U(j)^T W_F w_E(k), or that of a ReLU MLP. LayerNorms
are applied in full there, because a divergence depends on the scale.

With several heads, W_K1 and W_O2 have one value per head, W_K2 and W_O2_spurious one per pair `L1H3>L2H1`: layer-1 head
3 whose output layer-2 head 1 reads.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import UnsupportedError
from induction_memory.memory import readings
from induction_memory.memory.association import Association
from induction_memory.memory.divergence import Kind, kl
from induction_memory.model import axes
from induction_memory.model.associations import TABLE
from induction_memory.model.memories import Memories
from induction_memory.model.memory_names import Spec
from induction_memory.probes.registry import Probe
from induction_memory.subject.stack import Stack

SMOOTHING = 0.01  # share of the uniform distribution in pi_b, where it must not be zero

Reading = Callable[[Association], Float[Tensor, "*lead"]]
READINGS: dict[str, tuple[Reading, str]] = {
    "": (readings.recall, "recall: share of items that choose their target"),
    "_margin": (lambda a: readings.margin(a).double().mean(-1), "mean of (target's score - best rival's)"),
    "_rank": (lambda a: readings.rank(a).double().mean(-1), "mean place of the target among its candidates, 1 = best"),
    "_sir": (readings.signal_to_interference, "signal to interference: mean target score / rms of the others"),
    "_soft": (readings.soft_recall, "mean softmax probability of the target"),
}
LISTED = {
    "W_K1": "p_t^T W_K1 p_s -> s = t-1, all s < T",
    "W_K1_first64": "p_t^T W_K1 p_s -> s = t-1, first 64 positions",
    "W_K1_causal": "p_t^T W_K1 p_s -> s = t-1, keys s <= t",
    "W_K2": "w_E(k)^T W_K2 Phi_1 w_E(k') -> k' = k, all tokens",
    "W_K2_triggers": "w_E(k)^T W_K2 Phi_1 w_E(k') -> k' = k, k and k' in Q",
    "W_O2": "w_U(j)^T W_O2 W_V2 w_E(k) -> j = k",
    "W_O2_spurious": "w_U(j)^T W_O2 W_V2 Phi_1 w_E(k) -> j = k",
}
RECALLED = {
    "W_K1_normed": "W_K1 with the LayerNorm applied to each position",
    "W_K2_normed": "W_K2 with the LayerNorms applied to each embedding",
    "W_K1_raw": "W_K1 without LayerNorm, as the authors measured it",
    "W_K2_raw": "W_K2 without LayerNorms, as the authors measured it",
    "W_O2_raw": "W_O2 without LayerNorms, as the authors measured it",
    "W_K1_reversed": "p_t^T W_K1 p_s -> t = s+1, queries compete, as the paper prints it",
    "W_K2_reversed": "w_E(k)^T W_K2 Phi_1 w_E(k') -> k = k', queries compete, as printed",
}
"""Only the recall of these is listed; their other readings exist too."""
PAPER = ("W_K1", "W_K1_first64", "W_K1_causal", "W_K2", "W_K2_triggers", "W_O2", "W_F_kl")
KL: dict[str, tuple[Kind, str]] = {
    "W_F_kl": ("to model", "mean_k KL(pi_b(.|k) || softmax(W_U W_F w_E(k))), as the authors measured it"),
    "W_F_kl_reverse": (
        "from model",
        f"mean_k KL(softmax(W_U W_F w_E(k)) || pi_b + {SMOOTHING} uniform), as the paper writes it",
    ),
    "W_F_kl_support": (
        "on support",
        "mean_k KL(softmax among the tokens with pi_b(.|k) > 0 || pi_b(.|k)): the paper's, no smoothing",
    ),
}


def recall_probe(memory: str, suffix: str = "", meaning: str = "") -> Probe:
    """The probe that takes one reading of a memory's scores."""
    reading, what = READINGS[suffix]
    spec = Spec.parse(memory)
    assert spec is not None
    row = TABLE[spec.memory]
    layers = axes.layers_of(row.matrix, row.inputs)
    about = f"{meaning or memory}; {what}"
    return Probe(memory + suffix, about, partial(_read, memory, reading), "weights", layers, "recall")


def named(name: str) -> Probe | None:
    """A recall probe that is not listed, for another window of positions or another combination of suffixes."""
    for suffix in sorted(READINGS, key=len, reverse=True):
        memory = name.removesuffix(suffix)
        spec = Spec.parse(memory) if name.endswith(suffix) else None
        if spec is not None and spec.memory != "W_F":
            return recall_probe(memory, suffix)
    return None


def feed_forward_logits(m: Memories) -> Float[Tensor, "step i j"]:
    """Row k: W_U F(w_E(k)), the prediction of the last feed-forward alone, through the model's own LayerNorms."""
    mlp, norm = f"blocks.{m.n_layers - 1}.mlp", f"blocks.{m.n_layers - 1}.ln2"
    rows = m.normed(norm, m.embedding("w_E")[:, 0])
    if f"{mlp}.W_F" in m.weights:
        out = rows @ m.parameter(f"{mlp}.W_F")
    elif f"{mlp}.W_in" in m.weights:
        hidden = torch.relu(_plus(m, rows @ m.parameter(f"{mlp}.W_in"), f"{mlp}.b_in"))
        out = _plus(m, hidden @ m.parameter(f"{mlp}.W_out"), f"{mlp}.b_out")
    else:
        raise UnsupportedError("needs a linear or ReLU feed-forward in the last layer, the model has none")
    return m.normed("ln_final", out) @ m.parameter("unembed.W_U")


def feed_forward_kl(kind: Kind, stack: Stack) -> Float[Tensor, " step"]:
    """Mean over the tokens that are not fixed triggers of the divergence between the feed-forward and pi_b."""
    logits = stack.once("logits of W_F", lambda: feed_forward_logits(stack)).double()
    table, triggers = stack.fact("bigram", "global bigrams"), stack.fact("fixed_triggers", "triggers")
    pi_b = torch.tensor(table, device=logits.device)
    if triggers is not None:
        others = torch.tensor(np.setdiff1d(np.arange(len(table)), triggers), device=logits.device)
        logits, pi_b = logits[:, others], pi_b[others]
    return kl(logits, pi_b, kind, smoothing=SMOOTHING if kind == "from model" else 0.0)


def _read(memory: str, reading: Reading, stack: Stack) -> Float[Tensor, "step *head"]:
    a = stack.association(memory)
    if a.several:
        raise UnsupportedError(f"needs one partner for each item of {memory}, in this task some have several")
    return reading(a)


def _plus(m: Memories, rows: Float[Tensor, "step n d"], bias: str) -> Float[Tensor, "step n d"]:
    return rows + m.parameter(bias).unsqueeze(-2) if bias in m.weights else rows


PROBES = (
    {
        probe.name: probe
        for suffix in READINGS
        for memory, meaning in LISTED.items()
        for probe in [recall_probe(memory, suffix, meaning)]
    }
    | {memory: recall_probe(memory, "", meaning) for memory, meaning in RECALLED.items()}
    | {
        name: Probe(name, about, partial(feed_forward_kl, kind), "weights", (), "recall")
        for name, (kind, about) in KL.items()
    }
)
