"""Memory recall probes (Section 5), for all steps and heads at once.

`model/associations.py` defines the memories and the variants of their names, `memory/recall.py` the measures of their
scores. A probe's name is a memory's name with a suffix for the measure:

    nothing    recall: share of items whose target scores above every rival
    _margin    mean of target minus best rival      _rank   mean place of the target
    _sir       signal to interference               _soft   mean softmax probability of the target, scores not scaled

The feed-forward is measured by the divergence of its prediction from pi_b(j | k), without fixed triggers
(`memory/recall.py`). The prediction is the softmax over j of w_U(j)^T W_F w_E(k), or of the output of a ReLU MLP. Here
LayerNorms are applied in full, because a divergence depends on the scale.

With several heads, W_K1 and W_O2 have one value per head, W_K2 and W_O2_spurious one per pair of heads, such as
`L1H3>L2H1`: layer-2 head 1 reads the output of layer-1 head 3.

`between`: recall between any two sets of embeddings, in any TransformerLens model. The score of output j for input i is
v_j^T W u_i. Matrices and embeddings are tensors or names of `model.memories`, with `^T` for a transpose. Biases are not
part of a memory and are left out. The paper's memories are

    recall(model, "W_O2", inputs="W_V2 w_E", outputs="w_U")
    recall(model, "W_K2^T", inputs="w_E", outputs="Phi_1 w_E")          a query chooses a key

`between_tokens`: recall between chosen tokens through each head's two circuits, in any TransformerLens model or series.
With w_E(i) and w_U(i) the input and output embeddings of the chosen tokens, and W_K<l>, Phi_<l> the memories of a head:

    QK   w_E(j)^T W_K<l>^T w_E(i)     the key token j that the query token i prefers
    OV   w_U(j)^T Phi_<l> w_E(i)      the output token j that attending to token i favours

A circuit recalls token i if its target has the highest score among the chosen tokens. By default the target is token i
itself: QK then finds equal tokens, OV copies. Rotary positions are left out, so QK is the score at distance 0. Norms
are folded as in `model/memories.py`.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.errors import UnsupportedError, require
from induction_memory.memory.association import Association, matching
from induction_memory.memory.recall import Kind, kl, margin, rank, recall, signal_to_interference, soft_recall
from induction_memory.model import memories
from induction_memory.model.associations import TABLE, Spec
from induction_memory.model.memories import Memories, head_names
from induction_memory.probes.registry import Probe
from induction_memory.source.measuring import over_steps
from induction_memory.source.sources import At, Selection, Stack
from induction_memory.task.protocol import offered

SMOOTHING = 0.01  # share of the uniform distribution mixed into pi_b where it must not be zero

Reading = Callable[[Association], Float[Tensor, "*lead"]]
READINGS: dict[str, tuple[Reading, str]] = {
    "": (recall, "recall: share of items that choose their target"),
    "_margin": (lambda a: margin(a).double().mean(-1), "mean of (target's score - best rival's)"),
    "_rank": (lambda a: rank(a).double().mean(-1), "mean place of the target among its candidates, 1 = best"),
    "_sir": (signal_to_interference, "signal to interference: mean target score / rms of the others"),
    "_soft": (soft_recall, "mean softmax probability of the target"),
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
"""Only the recall of these is listed; their other measures exist too."""
PAPER = ("W_K1", "W_K1_first64", "W_K1_causal", "W_K2", "W_K2_triggers", "W_O2", "W_F_kl")
KL: dict[str, tuple[Kind, str]] = {
    "W_F_kl": ("to model", "mean_k KL(pi_b(.|k) || softmax(W_U W_F w_E(k))), as the authors measured it"),
    "W_F_kl_reverse": (
        "from model",
        f"mean_k KL(softmax(W_U W_F w_E(k)) || pi_b + {SMOOTHING} uniform), as the paper writes it",
    ),
    "W_F_kl_raw": ("to model", "W_F_kl without LayerNorms, as the authors measured it where there are any"),
    "W_F_kl_support": (
        "on support",
        "mean_k KL(softmax among the tokens with pi_b(.|k) > 0 || pi_b(.|k)): the paper's, no smoothing",
    ),
}


def recall_probe(memory: str, suffix: str = "", meaning: str = "") -> Probe:
    """The probe for one measure of a memory's scores."""
    reading, what = READINGS[suffix]
    spec = Spec.parse(memory)
    assert spec is not None
    row = TABLE[spec.memory]
    layers = memories.layers_of(row.matrix, row.inputs)
    about = f"{meaning or memory}; {what}"
    return Probe(memory + suffix, about, partial(_read, memory, reading), "weights", layers, "recall")


def named(name: str) -> Probe | None:
    """A recall probe that is not listed: another window of positions, or another combination of suffixes."""
    for suffix in sorted(READINGS, key=len, reverse=True):
        memory = name.removesuffix(suffix)
        spec = Spec.parse(memory) if name.endswith(suffix) else None
        if spec is not None and spec.memory != "W_F":
            return recall_probe(memory, suffix)
    return None


def feed_forward_logits(m: Memories, *, raw: bool = False) -> Float[Tensor, "step i j"]:
    """Row k: W_U F(w_E(k)), the prediction of the last feed-forward alone, through the model's own LayerNorms.

    `raw` leaves the LayerNorms out.
    """
    mlp, norm = f"blocks.{m.n_layers - 1}.mlp", f"blocks.{m.n_layers - 1}.ln2"
    rows = m.embedding("w_E")[:, 0]
    rows = rows if raw else m.normed(norm, rows)
    if f"{mlp}.W_F" in m.weights:
        out = rows @ m.parameter(f"{mlp}.W_F")
    elif f"{mlp}.W_in" in m.weights:
        hidden = torch.relu(_plus(m, rows @ m.parameter(f"{mlp}.W_in"), f"{mlp}.b_in"))
        out = _plus(m, hidden @ m.parameter(f"{mlp}.W_out"), f"{mlp}.b_out")
    else:
        raise UnsupportedError("needs a linear or ReLU feed-forward in the last layer, the model has none")
    return (out if raw else m.normed("ln_final", out)) @ m.parameter("unembed.W_U")


def feed_forward_kl(kind: Kind, stack: Stack, *, raw: bool = False) -> Float[Tensor, " step"]:
    """KL divergence between the feed-forward's prediction and pi_b, averaged over all tokens except fixed triggers."""
    if raw:
        stack.require_weights("blocks.0.ln1.w", "LayerNorms")
    logits = stack.once(("logits of W_F", raw), partial(feed_forward_logits, stack, raw=raw)).double()
    table, triggers = stack.ask("bigram"), offered(stack.task, "fixed_triggers")
    pi_b = torch.tensor(table, device=logits.device)
    if triggers is not None:
        others = torch.tensor(np.setdiff1d(np.arange(len(table)), triggers), device=logits.device)
        logits, pi_b = logits[:, others], pi_b[others]
    return kl(logits, pi_b, kind, smoothing=SMOOTHING if kind == "from model" else 0.0)


def _read(memory: str, reading: Reading, stack: Stack) -> Float[Tensor, "step *head"]:
    return reading(stack.association(memory))


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
        name: Probe(name, about, partial(feed_forward_kl, kind, raw=name.endswith("_raw")), "weights", (), "recall")
        for name, (kind, about) in KL.items()
    }
)


READING_COLUMNS = {"recall": "", "margin": "_margin", "rank": "_rank", "sir": "_sir"}


def between(
    chosen: Selection,
    W: str | Float[Tensor, "d_out d_in"],
    inputs: str | Float[Tensor, "i d_in"],
    outputs: str | Float[Tensor, "j d_out"],
    targets: Int[Tensor, " i"] | None,
) -> pd.DataFrame:
    """Recall through a matrix: one row per step and head."""
    named = [x for x in (W, inputs, outputs) if isinstance(x, str)]
    layers = memories.layers_of(*named)

    def measure(at: At) -> dict[str, pd.DataFrame]:
        matrix, u, v = _matrix(at.stack, W, layers), *(_rows(at.stack, x, layers) for x in (inputs, outputs))
        for rows, side, name in ((u, -1, "inputs"), (v, -2, "outputs")):
            size = matrix.shape[side]
            require(rows.shape[-1] == size, name, f"rows of the matrix's dimension {size}", rows.shape[-1])
        heads = head_names(layers, at.stack.n_heads)
        index = pd.MultiIndex.from_product([at.steps, heads], names=["step", "head"])
        readings = _readings(matching(matrix, u, v, targets), len(at.steps), len(heads))
        return {"table": pd.DataFrame(readings, index=index).reset_index()}

    return over_steps(chosen, measure, size=CHUNK)["table"]


CHUNK = 32  # steps read at once


def _readings(a: Association, n_steps: int, n_heads: int) -> dict[str, np.ndarray]:
    columns = {}
    for name, suffix in READING_COLUMNS.items():
        value = READINGS[suffix][0](a).double().reshape(-1, n_heads)
        columns[name] = value.expand(n_steps, -1).flatten().cpu().numpy()
    return columns


def _matrix(stack: Stack, W: str | Tensor, layers: tuple[int, ...]) -> Float[Tensor, "step *head d_out d_in"]:
    if isinstance(W, Tensor):
        return memories.spread(W.detach()[None, None], layers)
    require(isinstance(W, str), "W", "a matrix or the name of one", repr(W))
    matrix = stack.memory(W.removesuffix("^T"), layers)
    return matrix.mT if W.endswith("^T") else matrix


def _rows(stack: Stack, rows: str | Tensor, layers: tuple[int, ...]) -> Float[Tensor, "step *head n d"]:
    if isinstance(rows, Tensor):
        return memories.spread(rows.detach()[None, None], layers)
    require(isinstance(rows, str), "embeddings", "rows of vectors or their name", repr(rows))
    return stack.embedding(rows, layers)


MOST = 512
"""The largest number of tokens for `tokens="all"`: the first of the vocabulary."""


def between_tokens(
    chosen: Selection, tokens: Iterable[int | str] | Literal["all"], targets: Iterable[int | str] | Tensor | None
) -> pd.DataFrame:
    """Recall through the circuits of heads: one row per step, head and circuit."""
    require(tokens == "all" or not isinstance(tokens, str), "tokens", "several, or 'all'", repr(tokens))
    numbers = None if tokens == "all" else _numbers(chosen.source, tokens, "tokens")
    wanted = None if targets is None else _places(numbers, _numbers(chosen.source, targets, "targets"))

    def measure(at: At) -> dict[str, pd.DataFrame]:
        return {"table": _circuits(at, numbers, wanted)}

    settings = {"token recall": [numbers, wanted]}
    return over_steps(chosen, measure, settings=settings)["table"]


def _circuits(at: At, tokens: Int[Tensor, " i"] | None, targets: Int[Tensor, " i"] | None) -> pd.DataFrame:
    stack = at.stack
    tokens = torch.arange(min(MOST, stack.vocab_size)) if tokens is None else tokens
    allowed = bool((tokens >= 0).all()) and bool((tokens < stack.vocab_size).all())
    require(allowed, "tokens", f"0 to {stack.vocab_size - 1} (the vocabulary)", tokens.tolist())
    parts = []
    for layer in range(1, stack.n_layers + 1):
        layers = (layer,)
        w_E, w_U = (stack.embedding(name, layers)[..., tokens, :] for name in ("w_E", "w_U"))
        circuits = {
            "QK": matching(stack.memory(f"W_K{layer}", layers).mT, w_E, w_E, targets),
            "OV": matching(stack.memory(f"Phi_{layer}", layers), w_E, w_U, targets),
        }
        heads = head_names(layers, stack.n_heads)
        for circuit, association in circuits.items():
            which = pd.DataFrame({"step": at.step, "head": heads, "circuit": circuit})
            parts.append(which.assign(**_readings(association, 1, len(heads))))
    return pd.concat(parts, ignore_index=True).sort_values(["step", "head", "circuit"], ignore_index=True)


def _numbers(source: Any, tokens: Iterable[Any], field: str) -> Int[Tensor, " i"]:
    """The ids of tokens; a text must be one token of the source's tokenizer."""
    numbers = []
    for token in tokens:
        if isinstance(token, str):
            known = getattr(source, "tokenizer", None)
            require(known is not None, field, "numbers of tokens: only a series brings a tokenizer", repr(token))
            found = source.tokenizer()(token, add_special_tokens=False)["input_ids"]
            require(len(found) == 1, field, "texts that are one token each", f"{token!r}, which is {len(found)}")
            numbers.append(int(found[0]))
        else:
            numbers.append(int(token))
    require(len(numbers) >= 2, field, "two or more", len(numbers))
    return torch.tensor(numbers)


def _places(tokens: Int[Tensor, " i"] | None, targets: Int[Tensor, " i"]) -> Int[Tensor, " i"]:
    """The index of each target among the tokens."""
    require(tokens is not None, "targets", "none for all tokens", targets.tolist())
    assert tokens is not None
    places = {token: place for place, token in enumerate(tokens.tolist())}
    for target in targets.tolist():
        require(target in places, "targets", f"some of the tokens {list(places)}", target)
    return torch.tensor([places[target] for target in targets.tolist()])
