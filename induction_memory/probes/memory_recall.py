"""Memory recall probes (Section 5), for all steps and heads at once.

Each memory has a table of scores, one row an input i, one column a candidate j; recalled is the input whose target
scores strictly above every other candidate:

    W_K1   p_t^T W_K1 p_s                       query t, key s; target s = t - 1
    W_K2   w_E(k)^T W_K2 Phi_1 w_E(k')          query k, key k'; target k' = k
    W_O2   w_U(j)^T W_O2 W_V2 w_E(k)            input k, output j; target j = k
    W_O2_spurious   w_U(j)^T W_O2 W_V2 Phi_1 w_E(k)   what the theory expects to be stored beside it (Appendix B)
    W_F    softmax over j of w_U(j)^T W_F w_E(k) against pi_b(j | k), fixed triggers left out

Names: a memory; then `_first64` or a window `[a:b]` of positions (W_K1), `_triggers` (W_K2 within Q, fixed triggers
only); then `_causal` (W_K1: keys s <= t only; else the query chooses among all keys but the last position's, as the
authors measured it); then nothing for the recall, or `_margin` (mean of target minus best rival), `_rank` (mean place
of the target), `_sir` (signal to interference), `_soft` (mean softmax probability of the target, scores as they are).
A window restricts queries and keys alike.

With several heads, W_K1 and W_O2 have a value a head, W_K2 and W_O2_spurious one a pair "h>g": layer-1 head h whose
output is read by layer-2 head g. Heads are never added up. LayerNorms are folded (`memories`); in W_F_kl they are
applied in full, since a KL depends on the scale.
"""

import re

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import InputError
from induction_memory.probes.stack import Stack, UnsupportedError

FIRST = 64  # positions of the paper's smaller window
SMOOTHING = 0.01  # share of the uniform distribution in pi_b, where it must not be zero

_READINGS = {
    "": "recall: share of inputs whose best candidate is the target",
    "_margin": "mean over inputs of (target's score - best rival's)",
    "_rank": "mean place of the target among its candidates, 1 = best",
    "_sir": "signal to interference: mean target score / rms of the other scores",
    "_soft": "mean softmax probability of the target",
}
_TABLES = {
    "W_K1": "p_t^T W_K1 p_s -> s = t-1, all s < T",
    "W_K1_first64": "p_t^T W_K1 p_s -> s = t-1, first 64 positions",
    "W_K1_causal": "p_t^T W_K1 p_s -> s = t-1, keys s <= t",
    "W_K2": "w_E(k)^T W_K2 Phi_1 w_E(k') -> k' = k, all tokens",
    "W_K2_triggers": "w_E(k)^T W_K2 Phi_1 w_E(k') -> k' = k, k and k' in Q",
    "W_O2": "w_U(j)^T W_O2 W_V2 w_E(k) -> j = k",
    "W_O2_spurious": "w_U(j)^T W_O2 W_V2 Phi_1 w_E(k) -> j = k",
}
PAPER = ("W_K1", "W_K1_first64", "W_K1_causal", "W_K2", "W_K2_triggers", "W_O2", "W_F_kl")
PROBES = {
    table + reading: f"{meaning}; {what}" for reading, what in _READINGS.items() for table, meaning in _TABLES.items()
} | {
    "W_F_kl": "mean_k KL(pi_b(.|k) || softmax(W_U W_F w_E(k))), as the authors measured it",
    "W_F_kl_reverse": f"mean_k KL(softmax(W_U W_F w_E(k)) || pi_b + {SMOOTHING} uniform), as the paper writes it",
    "W_F_kl_support": "mean_k KL(softmax among the tokens with pi_b(.|k) > 0 || pi_b(.|k)): the paper's, no smoothing",
}
PATTERN = re.compile(
    r"(?:(?P<memory>W_K1|W_K2|W_O2)"
    r"(?P<part>_first64|_triggers|_spurious|\[(?P<start>\d+):(?P<stop>\d+)\])?"
    r"(?P<causal>_causal)?(?P<reading>_margin|_rank|_sir|_soft)?"
    r"|(?P<kl>W_F_kl(?:_reverse|_support)?))"
)


def hits(
    table: Float[Tensor, "*step i j"], targets: Int[Tensor, " i"], allowed: Bool[Tensor, "i j"] | None = None
) -> Bool[Tensor, "*step i"]:
    """Which inputs are recalled: every other allowed candidate scores below the target, and none is nan."""
    return at_target(table, targets) > best_rival(table, targets, allowed)


def margins(
    table: Float[Tensor, "*step i j"], targets: Int[Tensor, " i"], allowed: Bool[Tensor, "i j"] | None = None
) -> Float[Tensor, "*step i"]:
    """Target's score minus its best rival's."""
    return at_target(table, targets) - best_rival(table, targets, allowed)


def best_rival(
    table: Float[Tensor, "*step i j"], targets: Int[Tensor, " i"], allowed: Bool[Tensor, "i j"] | None
) -> Float[Tensor, "*step i"]:
    """The greatest score of an input but its target's; nan where one of its scores is.

    Minus infinity is added to what does not compete: a sum over the table is quicker than any choice in it.
    """
    penalty = torch.zeros(table.shape[-2:]).masked_fill(~rivals(table, targets, allowed), -torch.inf)
    return (table + penalty).amax(-1)


def at_target(table: Float[Tensor, "*step i j"], targets: Int[Tensor, " i"]) -> Float[Tensor, "*step i"]:
    """The score of each input at its target."""
    return table.gather(-1, targets.unsqueeze(-1).expand(*table.shape[:-2], -1, 1)).squeeze(-1)


def rivals(
    table: Float[Tensor, "*step i j"], targets: Int[Tensor, " i"], allowed: Bool[Tensor, "i j"] | None
) -> Bool[Tensor, "i j"]:
    """The candidates of each input but its target."""
    n_inputs, n_outputs = table.shape[-2:]
    others = torch.ones(n_inputs, n_outputs, dtype=torch.bool) if allowed is None else allowed.clone()
    others[torch.arange(n_inputs), targets] = False
    return others


def reading(
    kind: str,
    table: Float[Tensor, "*step i j"],
    targets: Int[Tensor, " i"],
    allowed: Bool[Tensor, "i j"] | None = None,
) -> Float[Tensor, "*step"]:
    """One number a table: "" (recall), "_margin", "_rank", "_sir" or "_soft"."""
    if kind == "":
        return hits(table, targets, allowed).double().mean(-1)
    if kind == "_margin":
        return margins(table, targets, allowed).double().mean(-1)
    others = rivals(table, targets, allowed)
    target = at_target(table, targets)
    if kind == "_rank":
        ahead = ~(table < target.unsqueeze(-1)) & others
        return 1 + ahead.sum(-1).double().mean(-1)
    if kind == "_sir":
        interference = table.masked_fill(~others, 0.0).square().sum((-2, -1)) / others.sum()
        return (target.mean(-1) / interference.sqrt()).double()
    candidates = others.clone()
    candidates[torch.arange(len(targets)), targets] = True
    return at_target(table.masked_fill(~candidates, -torch.inf).softmax(-1), targets).double().mean(-1)


def score_table(stack: Stack, memory: str) -> Float[Tensor, "step *head i j"]:
    """All scores of a memory (module docstring): W_K1 has rows t = 1..T-1 and columns s = 0..T-1."""
    return stack.once(f"table of {memory}", lambda: _score_table(stack, memory))


def _score_table(stack: Stack, memory: str) -> Tensor:
    if memory == "W_K1":
        p = stack.embedding("p")[..., : stack.length, :]
        return p[..., 1:, :] @ stack.memory("W_K1") @ p.mT
    stack.require_layers(2)
    if memory == "W_K2":
        asked = stack.embedding("w_E") @ stack.memory("W_K2")
        return asked.unsqueeze(1) @ stack.embedding("Phi_1 w_E").unsqueeze(2).mT
    if memory == "W_O2":
        values = stack.embedding("W_V2 w_E")
        return values @ stack.memory("W_O2").mT @ stack.embedding("w_U").mT
    assert memory == "W_O2_spurious"
    values = stack.embedding("Phi_1 w_E").unsqueeze(2) @ stack.memory("W_V2").unsqueeze(1).mT
    return values @ stack.memory("W_O2").unsqueeze(1).mT @ stack.embedding("w_U").unsqueeze(1).mT


def association(stack: Stack, name: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """The table, the targets and the allowed candidates that a probe's name speaks of."""
    match = PATTERN.fullmatch(name)
    if match is None or match["memory"] is None:
        raise InputError(f"probe: expected W_K1, W_K2 or W_O2 with its variants, got {name!r}")
    memory, part = match["memory"], match["part"]
    fits = {"W_K1": (None, "_first64", "["), "W_K2": (None, "_triggers"), "W_O2": (None, "_spurious")}[memory]
    if (part if part is None or part[0] != "[" else "[") not in fits or (match["causal"] and memory != "W_K1"):
        raise InputError(f"probe: expected a variant that {memory} has, got {name!r}")
    if memory == "W_K1":
        return _previous_position(stack, match)
    if part == "_spurious":
        memory = "W_O2_spurious"
    table = score_table(stack, memory)
    if part == "_triggers":
        triggers = stack.require_task().fixed_triggers
        if triggers is None:
            raise UnsupportedError("needs fixed triggers, the task draws them at random")
        Q = torch.tensor(triggers)
        table = table[..., Q, :][..., Q]
    return table, torch.arange(table.shape[-2]), None


def _previous_position(stack: Stack, match: re.Match[str]) -> tuple[Tensor, Tensor, Tensor | None]:
    start, stop = 0, stack.length
    if match["part"] == "_first64":
        stop = min(FIRST, stop)
    elif match["part"]:
        start, stop = int(match["start"]), min(int(match["stop"]), stop)
    if stop - start < 2:
        raise UnsupportedError(f"needs a window of two or more of the {stack.length} positions")
    rows = slice(start, stop - 1)  # row r is the query t = r + 1
    targets = torch.arange(stop - 1 - start)
    if not match["causal"]:
        return score_table(stack, "W_K1")[..., rows, start : stop - 1], targets, None
    visible = torch.ones(stop - 1 - start, stop - start, dtype=torch.bool).tril(1)
    return score_table(stack, "W_K1")[..., rows, start:stop], targets, visible


def feed_forward_logits(stack: Stack) -> Float[Tensor, "step i j"]:
    """Row k: W_U F(w_E(k)), the prediction of the last feed-forward alone, through the model's own LayerNorms."""
    weights, layer = stack.weights, stack.n_layers - 1
    mlp, rows = f"blocks.{layer}.mlp", weights["embed.W_E"]
    rows = _layer_norm(stack, f"blocks.{layer}.ln2", rows)
    if f"{mlp}.W_F" in weights:
        out = rows @ weights[f"{mlp}.W_F"]
    elif f"{mlp}.W_in" in weights:
        hidden = torch.relu(_plus(rows @ weights[f"{mlp}.W_in"], weights.get(f"{mlp}.b_in")))
        out = _plus(hidden @ weights[f"{mlp}.W_out"], weights.get(f"{mlp}.b_out"))
    else:
        raise UnsupportedError("needs a linear or ReLU feed-forward in the last layer, the model has none")
    logits = _layer_norm(stack, "ln_final", out) @ weights["unembed.W_U"]
    return logits if logits.dim() == 3 else logits[None]


def _plus(rows: Tensor, bias: Tensor | None) -> Tensor:
    return rows if bias is None else rows + bias.unsqueeze(-2)


def _layer_norm(stack: Stack, norm: str, rows: Tensor) -> Tensor:
    if f"{norm}.w" not in stack.weights:
        return rows
    gain, bias = stack.weights[f"{norm}.w"].unsqueeze(-2), stack.weights[f"{norm}.b"].unsqueeze(-2)
    return torch.nn.functional.layer_norm(rows, rows.shape[-1:]) * gain + bias


def feed_forward_kl(stack: Stack, name: str) -> Float[Tensor, " step"]:
    """Mean over the tokens that are no fixed triggers of the KL divergence `name` asks for."""
    logits = stack.once("logits of W_F", lambda: feed_forward_logits(stack)).double()
    task = stack.require_task()
    pi_b = torch.tensor(task.bigram)
    if task.fixed_triggers is not None:
        others = torch.ones(len(pi_b), dtype=torch.bool)
        others[torch.tensor(task.fixed_triggers)] = False
        logits, pi_b = logits[:, others], pi_b[others]
    if name == "W_F_kl":
        return kl(pi_b.log(), logits.log_softmax(-1)).mean(-1)
    if name == "W_F_kl_reverse":
        smoothed = (1 - SMOOTHING) * pi_b + SMOOTHING / pi_b.shape[-1]
        return kl(logits.log_softmax(-1), smoothed.log()).mean(-1)
    possible = logits.masked_fill(pi_b == 0, -torch.inf)
    return kl(possible.log_softmax(-1), pi_b.log()).mean(-1)


def kl(log_p: Float[Tensor, "*#row j"], log_q: Float[Tensor, "*#row j"]) -> Float[Tensor, "*row"]:
    """sum_j p (log p - log q), with 0 log 0 = 0."""
    p = log_p.exp()
    return torch.where(p == 0, 0.0, p * (log_p - log_q)).sum(-1)


def measure(stack: Stack, name: str) -> Float[Tensor, "step *head"]:
    """The value of a recall probe at each step of the stack."""
    if name.startswith("W_F"):
        return feed_forward_kl(stack, name)
    match = PATTERN.fullmatch(name)
    assert match is not None
    return reading(match["reading"] or "", *association(stack, name))
