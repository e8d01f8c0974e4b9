"""What each matrix of an induction head associates: the one place that builds an `Association` from weights.

    memory          matrix   inputs u            outputs v        ideal pairs (equations 7, 8)  given
    W_K1            W_K1     keys p_s            queries p_t      t-1 -> t                      query
    W_K2            W_K2     keys Phi_1 w_E(k)   queries w_E(k)   k -> k, k a trigger           query
    W_O2            W_O2     W_V2 w_E(k)         w_U(k)           k -> k                        input
    W_O2_spurious   W_O2     W_V2 Phi_1 w_E(k)   w_U(k)           k -> k                        input
    W_K3            W_K3     keys Phi_2 w_E(k)   queries w_E(k)   as W_K2                       query
    W_O3            W_O3     W_V3 w_E(k)         w_U(k)           as W_O2                       input
    W_F             W_F      w_E(k)              w_U(j)           k -> j, k not a fixed trigger input

W_K3 and W_O3 belong to an induction head in layer 3 whose previous-token head is in layer 2. Keys that layer 1 wrote
are read by `probes.recall(model, "W_K3^T", inputs="w_E", outputs="Phi_1 w_E")`.

The ideal pairs are the task's (`Task.associations`, `task/ideals.py`); the table has the pairs of in-context bigrams.
Without a task they are t-1 -> t and k -> k. A trigger is a token of the support of pi_q: of the set Q if triggers are
fixed, any token that can be drawn if they are random. Recall of W_K2 counts every token, also those that the ideal
memory does not store. `W_K2_triggers` restricts both sides to Q, as the authors do for fixed triggers. W_O2_spurious
holds the pairs that the theory expects in W_O2 besides the ideal ones (Appendix B). The name of a memory begins with a
name of the table. These parts may follow, in this order:

    W_K1[a:b]                 positions a to b-1, counted from 0: queries a+1 to b-1, keys a to b-2. A window that goes
                              beyond the sequence is refused
    W_K1_first64              the first 64 positions, or all of them if the sequence is shorter
    W_K1_causal               the query chooses among the keys s <= t; without it among all keys except the last
                              position's, as the authors measured
    W_K1_normed, W_K2_normed  each embedding through the model's own LayerNorms in full, instead of their linear part
                              folded into the matrix. Keys have different norms, so the two recalls differ
    W_K1_raw, W_K2_raw, ...   no LayerNorm at all: the parameters and embeddings as they are. The authors measured this
    W_K1_reversed, ...        recall fixes the key and queries compete: the recall formula as the paper prints it

Heads are never summed: W_K1, W_O2 and W_O3 have one matrix per head, W_K2, W_K3 and W_O2_spurious one table per pair of
heads, such as `L1H3>L2H1`: layer-2 head 1 reads the output of layer-1 head 3.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from induction_memory.errors import UnsupportedError, require, require_known
from induction_memory.memory.association import Association, Side, causal
from induction_memory.memory.recall import signal_to_interference
from induction_memory.model import memories
from induction_memory.model.memories import Memories, Norm, has_step_axis, head_names, weights_of
from induction_memory.task.protocol import Task, ask, offered


@dataclass(frozen=True)
class Row:
    """One memory of the table above."""

    matrix: str
    inputs: str
    outputs: str
    given: Side
    positions: bool = False
    """Whether its items are positions (otherwise tokens)."""
    like: str | None = None
    """The memory whose ideal pairs are used if the task names none for this matrix."""


TABLE = {
    "W_K1": Row("W_K1", "p", "p", "output", positions=True),
    "W_K2": Row("W_K2", "Phi_1 w_E", "w_E", "output"),
    "W_O2": Row("W_O2", "W_V2 w_E", "w_U", "input"),
    "W_O2_spurious": Row("W_O2", "W_V2 Phi_1 w_E", "w_U", "input"),
    "W_K3": Row("W_K3", "Phi_2 w_E", "w_E", "output", like="W_K2"),
    "W_O3": Row("W_O3", "W_V3 w_E", "w_U", "input", like="W_O2"),
    "W_F": Row("W_F", "w_E", "w_U", "input"),
}
MEMORIES = ("W_K1", "W_K2", "W_O2", "W_F")
FIRST = 64  # positions in the paper's smaller window
_NAME = re.compile(
    r"(?:(?P<first>W_K1)(?P<window>_first64|\[(?P<start>\d{1,9}):(?P<stop>\d{1,9})\])?(?P<causal>_causal)?"
    r"|(?P<second>W_K[23])(?P<triggers>_triggers)?|(?P<other>W_O2(?:_spurious)?|W_O3|W_F))"
    r"(?P<norm>_normed|_raw)?(?P<reversed>_reversed)?"
)


@dataclass(frozen=True)
class Spec:
    """The name of a memory, parsed: the memory, and how it is read."""

    memory: str
    window: tuple[int, int] | None = None
    """Positions a to b-1 of W_K1; None for all of them."""
    first: int | None = None
    """Use at most this many first positions of W_K1; None for all of them."""
    causal: bool = False
    triggers: bool = False
    norm: Norm = "folded"
    reversed: bool = False

    @classmethod
    def parse(cls, name: str) -> "Spec | None":
        """The memory of this name; None if the name has another form."""
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


def associate(
    source: Any, what: str, *, task: Task | None = None, bare: bool = False, through: str | None = None
) -> Association:
    """The memory `what` of a model or of (stacked) weights; its leading axes are step, then the heads.

    `bare=True` keeps the stored parameter as W and moves W_Q and the LayerNorms' linear part into the embeddings, so
    that an edit can be written back (`written`). W_K2's keys are then the output of one layer-1 head: `through`, by
    default the head that carries the information (`carrier`).
    """
    m = source if isinstance(source, Memories) else Memories(weights_of(source))
    if bare:
        require_known(what, MEMORIES, "memory")
    spec = Spec.parse(what)
    if spec is None:
        require_known(what, TABLE, "memory", f"{', '.join(TABLE)} or a variant of one of them")
        raise AssertionError(what)
    _require_memory(m, spec)
    if bare:
        a = _bare(m, what, task, through)
    else:
        key = "association", spec.memory, spec.norm, task
        if key not in m.kept:
            m.kept[key] = _whole(m, spec.memory, spec.norm, task)
        a = m.kept[key]
    if spec.memory == "W_K1":
        a = _window(a, spec)
    if spec.triggers:
        Q = offered(required(task), "fixed_triggers")
        if Q is None:
            raise UnsupportedError("needs fixed triggers, the task draws them at random or has none")
        chosen = torch.tensor(Q.copy(), device=a.ideal.device)
        a = a.at(chosen, chosen)
    return (a.reversed() if spec.reversed else a).at(name=what)


def written(a: Association, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameter that holds a bare association's matrix, in TransformerLens's orientation."""
    name = parameter_of(a.name, weights)
    W, stored = a.W.mT, weights[name]
    W = W if has_step_axis(name, stored) else W[0]
    require(W.shape == stored.shape, a.name, f"a bare association, of shape {tuple(stored.shape)}", tuple(W.shape))
    return {name: W}


def parameter_of(memory: str, weights: Mapping[str, Tensor]) -> str:
    """TransformerLens's name of the parameter behind a memory."""
    if memory == "W_F":
        return f"blocks.{Memories(weights).n_layers - 1}.mlp.W_F"
    return f"blocks.{int(memory[-1]) - 1}.attn.{memory[:-1]}"


def carrier(source: Any, task: Task | None = None, *, head: str | None = None) -> str:
    """The layer-1 head through which the previous token reaches W_K2's keys.

    It is the head with the largest signal-to-interference ratio of the ideal pairs, averaged over all layer-2 heads or
    taken for one `head`. Recall would mislead: where layer-2 heads share the work, each recalls few tokens, and chance
    decides which layer-1 head comes out best.
    """
    a = associate(source, "W_K2", task=task)
    clear = signal_to_interference(replace(a, asked=None))[-1].nan_to_num(-torch.inf)  # [earlier, head]
    earlier, own = head_names((1,), len(clear)), head_names((2,), len(clear))
    if head is not None:
        require_known(head, own, "head")
        clear = clear[:, own.index(head)].unsqueeze(-1)
    return earlier[int(clear.mean(-1).argmax())]


def required(task: Task | None) -> Task:
    """The task; without one, an error that says why it is needed."""
    if task is None:
        raise UnsupportedError("needs the task (pass task=...), which the model does not store")
    return task


def _whole(m: Memories, memory: str, norm: Norm, task: Task | None) -> Association:
    """A memory with all its inputs and outputs; W_K1 with queries from the second position on."""
    row = TABLE[memory]
    layers = memories.layers_of(row.matrix, row.inputs)
    W = m.memory(row.matrix, layers, fold=norm == "folded")
    u, v = m.embedding(row.inputs, layers, norm), m.embedding(row.outputs, layers, norm)
    if norm == "full":
        reader = f"blocks.{int(memory[-1]) - 1}.ln1"
        u, v = m.normed(reader, u), m.normed(reader, v)
    return _labelled(m, memory, W, u, v, layers, task)


def _bare(m: Memories, memory: str, task: Task | None, through: str | None) -> Association:
    """The stored parameter as W; W_Q and the LayerNorms' linear part in the embeddings."""
    row, name = TABLE[memory], parameter_of(memory, m.weights)
    W, u, v = m.parameter(name).mT, m.embedding(row.inputs), m.embedding(row.outputs)
    if memory == "W_F":
        u = m.centred(name.replace("mlp.W_F", "ln2"), u)
        return _labelled(m, memory, W, u[:, 0], v[:, 0], (), task)
    if memory == "W_K2":
        names = head_names((1,), m.n_heads)
        chosen = carrier(m, task) if through is None else through
        require(chosen in names, "through", f"a head of layer 1: {', '.join(names)}", repr(through))
        u = u[:, names.index(chosen)].unsqueeze(1)
    if memory.startswith("W_K"):
        norm = name.replace("attn.W_K", "ln1")
        u, v = m.centred(norm, u), m.centred(norm, v) @ m.parameter(name.replace("W_K", "W_Q"))
    return _labelled(m, memory, W, u, v, memories.layers_of(row.matrix), task)


def _labelled(
    m: Memories, memory: str, W: Tensor, u: Tensor, v: Tensor, layers: tuple[int, ...], task: Task | None
) -> Association:
    """The association with its ideal pairs, its heads and the names of its items."""
    row = TABLE[memory]
    input_names, output_names = ((), ()) if task is None else token_names(task, row.outputs == "w_U")
    ideal = None
    if task is not None or memory == "W_F":
        stored = ask(required(task), "associations")
        ideal = stored.get(row.matrix, stored.get(row.like or row.matrix))
        if ideal is None:
            raise UnsupportedError(f"needs a task whose associations name {row.matrix}, got {', '.join(stored)}")
    strength, asked = (None, None) if ideal is None else (ideal.strength, ideal.asked)
    if row.positions:
        n = u.shape[-2] if task is None else min(u.shape[-2], task.length)
        u, v = u[..., :n, :], v[..., 1:n, :]
        input_names, output_names = tuple(range(1, n + 1)), tuple(range(2, n + 1))
        strength = None if strength is None else strength[1:n, :n]  # output t - 1 is the query t
    pairs = torch.eye(v.shape[-2], u.shape[-2]) if strength is None else torch.tensor(strength).float()
    expected = v.shape[-2], u.shape[-2]
    require(pairs.shape == expected, memory, f"pairs of shape {expected} from the task", tuple(pairs.shape))
    heads = tuple(head_names(layers, m.n_heads))
    also = None if asked is None else torch.tensor(asked).to(W.device)
    return Association(memory, W, u, v, pairs.to(W), row.given, also, None, heads, input_names, output_names)


def token_names(task: Task, outputs: bool = True) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of input tokens and of outputs (without `outputs`, of input tokens twice); numbers if there are no
    names."""
    numbers = tuple(map(str, range(task.n_inputs))), tuple(map(str, range(task.n_outputs)))
    read, said = offered(task, "labels") or numbers
    return tuple(read), tuple(said if outputs else read)


def _window(a: Association, spec: Spec) -> Association:
    """W_K1 among the positions of a window; row r of `a` is the query r + 1, column s the key s."""
    length = a.inputs.shape[-2]
    start, stop = (0, min(spec.first or length, length)) if spec.window is None else spec.window
    if stop - start < 2 or stop > length:
        raise UnsupportedError(f"needs a window of two or more of the {length} positions, got [{start}:{stop}]")
    _ = a.scores  # computed once for all windows
    queries = slice(start, stop - 1)
    if spec.causal:
        return a.at(slice(start, stop), queries, allowed=causal(length, a.ideal.device)[1:])
    return a.at(slice(start, stop - 1), queries)


def _require_memory(m: Memories, spec: Spec) -> None:
    """Refuse a memory that these weights do not have, and say why."""
    if spec.memory == "W_K1":
        m.require_weights("pos_embed.W_pos", "learned positions")
    elif spec.memory == "W_F":
        m.require_weights(parameter_of("W_F", m.weights), "a linear feed-forward in the last layer")
    else:
        m.require_layers(max(memories.layers_of(TABLE[spec.memory].matrix)))
    if spec.norm != "folded":
        m.require_weights("blocks.0.ln1.w", "LayerNorms")
