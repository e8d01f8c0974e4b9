"""Attention probes: where the heads attend (Section 5; the conditional probes are the authors').

With A[t, s] the attention of query t to key s <= t, and z the tokens:

    previous token   A[t, t-1], for t >= 1
    induction        sum of A[t, s] over the s <= t with z_{s-1} = z_t: the tokens after earlier occurrences of z_t. If
                     a task names other keys as its source `induction`, they are used

The mass is this sum; the argmax is whether the most attended key is one of these keys. A head that attends uniformly
gets c_t = (number of these keys) / (t + 1) in both cases, so both are corrected for chance: (mean - mean c) / (1 - mean
c) is 0 for a uniform head and 1 for a perfect head. Induction is measured on the main group of the task (for in-context
bigrams, triggers from their second occurrence on), on all tokens that occurred before, and on the group `global`.

The conditional probes are plain rates. The standard scores use random sequences repeated once, each half of length n:

    repeated_previous    mean of A[t, t-1]
    repeated_induction   mean of A[t, t-n+1] over the second half

Names end with the layer, counted from 1; every head has its value.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import UnsupportedError
from induction_memory.fields import require_integer
from induction_memory.model.memories import head_name
from induction_memory.probes.activations import Activations, mean_where, run_repeated
from induction_memory.probes.registry import Probe
from induction_memory.source.measuring import over_steps
from induction_memory.source.sources import At, select
from induction_memory.task.ideals import induction_keys
from induction_memory.terminal import Progress
from induction_memory.trajectory.search import Steps

_PER_LAYER = {
    "previous_token_mass": "mean_t A[t, t-1], corrected for chance 1/(t+1)",
    "previous_token_argmax": "share of t with argmax_s A[t, s] = t-1, corrected for chance",
    "induction_mass": "mean over triggers of sum_{s: z_{s-1} = z_t} A[t, s], corrected for chance",
    "induction_argmax": "share of triggers whose most attended s has z_{s-1} = z_t, corrected for chance",
    "induction_repeated_mass": "mean over repeated tokens of sum_{s: z_{s-1} = z_t} A[t, s], corrected for chance",
    "induction_repeated_argmax": "share of repeated tokens whose argmax s has z_{s-1} = z_t, corrected for chance",
    "induction_other_mass": "mean over repeated non-triggers of sum_{s: z_{s-1} = z_t} A[t, s], corrected for chance",
    "induction_other_argmax": "share of repeated non-triggers whose argmax s has z_{s-1} = z_t, corrected for chance",
    "entropy": "mean_t of -sum_s A log A, in nats",
    "entropy_share": "mean_t of entropy / log(t+1), 1 = uniform attention",
    "previous_after_trigger": "share of tokens after a trigger whose argmax is the trigger's position",
    "match": "share of triggers (2nd occurrence on) whose most attended s has z_{s-1} = z_t, attending s = 0 a miss",
    "attended_is_target": "share of triggers (2nd occurrence on) whose most attended token is the target",
    "predicted_is_attended": "share of triggers (2nd occurrence on) where the prediction is the most attended token",
    "repeated_previous": "random sequences repeated once: mean of A[t, t-1]",
    "repeated_induction": "random sequences of n tokens repeated once: mean of A[t, t-n+1] over the second half",
}
_PAIR = "previous_where_attended"
SEQUENCES_AT_ONCE = 8  # sequences whose logarithms are computed together, to stay in the CPU cache


def previous_mass(pattern: Float[Tensor, "batch head query key"], back: int = 1) -> Float[Tensor, " head"]:
    """Mean attention of the queries t >= 1 to the previous position, or with `back=0` to their own."""
    return pattern.diagonal(-back, dim1=-2, dim2=-1)[..., 1 - back :].double().mean((0, 2))


def repeated_induction(pattern: Float[Tensor, "batch head query key"]) -> Float[Tensor, " head"]:
    """Mean attention from each token of the second half to the token after its first occurrence, on repeated tokens."""
    n = pattern.shape[-1] // 2
    stripe = pattern.diagonal(1 - n, dim1=-2, dim2=-1)  # entry i is the query n - 1 + i
    return stripe[..., 1:].double().mean((0, 2))


def chance_corrected(observed: Tensor, chance: Tensor) -> Tensor:
    """(observed - chance) / (1 - chance): 0 at chance, 1 at best."""
    return (observed - chance) / (1 - chance)


def previous_token(pattern: Float[Tensor, "batch head query key"], back: int = 1) -> Float[Tensor, " head"]:
    """Mean attention to the previous position, or with `back=0` to the query's own, corrected for chance."""
    return chance_corrected(previous_mass(pattern, back), _chance_of_one_key(pattern.shape[-1]))


def previous_token_argmax(attended: Int[Tensor, "batch head query"]) -> Float[Tensor, " head"]:
    """How often the previous position is the most attended, corrected for chance."""
    n = attended.shape[-1]
    hit = attended[..., 1:] == torch.arange(n - 1, device=attended.device)
    return chance_corrected(hit.double().mean((0, 2)), _chance_of_one_key(n))


def induction(
    pattern: Float[Tensor, "batch head query key"],
    sought: Bool[Tensor, "batch query key"],
    queries: Bool[Tensor, "batch query"],
) -> Float[Tensor, " head"]:
    """Mean over the queries of the attention to the sought keys, corrected for chance."""
    keys = sought[queries].unsqueeze(1).to(pattern.dtype)
    mass = torch.linalg.vecdot(pattern.movedim(1, 2)[queries], keys).double().mean(0)
    return chance_corrected(mass, _chance(sought, queries))


def induction_argmax(
    attended: Int[Tensor, "batch head query"],
    sought: Bool[Tensor, "batch query key"],
    queries: Bool[Tensor, "batch query"],
) -> Float[Tensor, " head"]:
    """How often the most attended key is a sought one, corrected for chance."""
    return chance_corrected(mean_where(_hits(attended, sought), queries), _chance(sought, queries))


def _hits(
    attended: Int[Tensor, "batch head query"], sought: Bool[Tensor, "batch query key"]
) -> Bool[Tensor, "batch head query"]:
    """Whether the most attended key is a sought one."""
    return sought.unsqueeze(1).expand(-1, attended.shape[1], -1, -1).gather(-1, attended.unsqueeze(-1)).squeeze(-1)


def entropy(pattern: Float[Tensor, "batch head query key"], *, share: bool = False) -> Float[Tensor, " head"]:
    """Mean entropy of the attention of t >= 1, in nats or as a share of the largest possible entropy, log(t + 1)."""
    return _mean_entropy(entropies(pattern), share)


def entropies(pattern: Float[Tensor, "batch head query key"]) -> Float[Tensor, "batch head query"]:
    """-sum_s A log A of each query, in nats."""
    least = torch.finfo(pattern.dtype).tiny  # instead of zeros, whose logarithm is not finite
    parts = pattern.split(SEQUENCES_AT_ONCE)
    return torch.cat([some.clamp_min(least).log_().mul_(some).sum(-1).neg_() for some in parts])


def _mean_entropy(nats: Float[Tensor, "batch head query"], share: bool) -> Float[Tensor, " head"]:
    from_second = nats[..., 1:].double()
    if share:
        from_second = from_second / torch.arange(2, nats.shape[-1] + 1, device=nats.device).log()
    return from_second.mean((0, 2))


def _entropy(a: Activations, layer: int, share: bool) -> Float[Tensor, " head"]:
    nats = a.once(f"entropy {layer}", lambda: entropies(a.pattern(layer)))
    return _mean_entropy(nats, share)


def _chance_of_one_key(n: int) -> Float[Tensor, ""]:
    return (1 / torch.arange(2, n + 1, dtype=torch.float64)).mean()


def _chance(sought: Bool[Tensor, "batch query key"], queries: Bool[Tensor, "batch query"]) -> Float[Tensor, ""]:
    seen = torch.arange(1, sought.shape[-1] + 1, dtype=torch.float64, device=sought.device)
    return (sought.sum(-1) / seen)[queries].mean()


def _sought(a: Activations) -> Bool[Tensor, "batch query key"]:
    return a.of_batch("sought", lambda: induction_keys(a.batch, a.stack.task))


def _queries(a: Activations, which: str = "triggers") -> Bool[Tensor, "batch query"]:
    """Positions of tokens that have occurred before: all ("repeated"), or those in the main group or the group
    `global`."""
    repeated = a.of_batch("repeated", lambda: _sought(a).any(-1))
    if which == "repeated":
        return repeated
    if which == "others":
        if "global" not in a.batch.groups:
            raise UnsupportedError(f"needs positions of the group global, the batch has {', '.join(a.batch.groups)}")
        return repeated & a.batch.groups["global"]
    queries = a.of_batch("queries", lambda: a.batch.group() & repeated)
    if not queries.any():
        raise UnsupportedError("needs queries that have occurred before, the batch has none")
    return queries


def _induction(a: Activations, layer: int, which: str, argmax: bool) -> Float[Tensor, " head"]:
    queries, sought = _queries(a, which), _sought(a)
    if argmax:
        found = a.once(f"induction hit {layer}", lambda: _hits(a.attended(layer), sought))
    else:
        found = a.mass(layer, "induction", sought)
    chance = a.of_batch(f"chance {which}", lambda: _chance(sought, queries))
    return chance_corrected(mean_where(found, queries), chance)


def _targets(a: Activations) -> Int[Tensor, "batch query"]:
    """The target of each query; refused if targets are distributions."""
    if a.batch.soft:
        raise UnsupportedError("needs one right output for each position, the targets are distributions")
    return a.batch.targets


def _attended_token(a: Activations, layer: int) -> Int[Tensor, "batch head query"]:
    """The token that each query attends to most; refused if outputs are not input tokens."""
    if a.logits.shape[-1] > a.stack.vocab_size:
        raise UnsupportedError("needs outputs that are tokens, the model has a separate output vocabulary")
    return _token_at(a, a.attended(layer))


def _token_at(a: Activations, positions: Int[Tensor, "batch head query"]) -> Int[Tensor, "batch head query"]:
    return a.batch.tokens.unsqueeze(1).expand_as(positions).gather(-1, positions)


def _match(a: Activations, layer: int) -> Tensor:
    attended = a.attended(layer)
    before = _token_at(a, (attended - 1).clamp(min=0))
    return mean_where((attended > 0) & (before == a.batch.tokens.unsqueeze(1)), _queries(a))


def _previous_after_trigger(a: Activations, layer: int) -> Tensor:
    if "counts" not in a.batch.latents:
        raise UnsupportedError("needs triggers, the batch has none")
    after = torch.zeros_like(a.batch.counted)
    after[:, 1:] = a.batch.latents["counts"][:, :-1] >= 1
    hit = a.attended(layer) == torch.arange(after.shape[1], device=after.device) - 1
    return mean_where(hit, after)


def _previous_where_attended(a: Activations) -> Float[Tensor, "head head2"]:
    first, second = a.attended(1), a.attended(2)
    pairs = []
    for g in range(second.shape[1]):
        at = second[:, g : g + 1].expand_as(first)
        queries = _queries(a) & (second[:, g] > 0)
        pairs.append(mean_where(first.gather(-1, at) == at - 1, queries))
    return torch.stack(pairs, dim=-1)


_MEASURES: dict[str, Callable[[Activations, int], Tensor]] = {
    "previous_token_mass": lambda a, layer: previous_token(a.pattern(layer)),
    "previous_token_argmax": lambda a, layer: previous_token_argmax(a.attended(layer)),
    "induction_mass": partial(_induction, which="triggers", argmax=False),
    "induction_argmax": partial(_induction, which="triggers", argmax=True),
    "induction_repeated_mass": partial(_induction, which="repeated", argmax=False),
    "induction_repeated_argmax": partial(_induction, which="repeated", argmax=True),
    "induction_other_mass": partial(_induction, which="others", argmax=False),
    "induction_other_argmax": partial(_induction, which="others", argmax=True),
    "entropy": partial(_entropy, share=False),
    "entropy_share": partial(_entropy, share=True),
    "previous_after_trigger": _previous_after_trigger,
    "match": _match,
    "attended_is_target": lambda a, layer: mean_where(
        _attended_token(a, layer) == _targets(a).unsqueeze(1), _queries(a)
    ),
    "predicted_is_attended": lambda a, layer: mean_where(
        _attended_token(a, layer) == a.predicted.unsqueeze(1), _queries(a)
    ),
    "repeated_previous": lambda a, layer: previous_mass(a.repeated_pattern(layer)),
    "repeated_induction": lambda a, layer: repeated_induction(a.repeated_pattern(layer)),
}


def in_layer(kind: str, layer: int, a: Activations) -> Float[Tensor, " head"]:
    """A probe of one layer's attention, nan if the model has diverged."""
    value = _MEASURES[kind](a, layer)
    return value if kind.startswith("repeated_") else value.masked_fill(a.diverged, torch.nan)


def attention_probe(kind: str, layer: int) -> Probe:
    about = f"layer {layer}: {_PER_LAYER[kind]}"
    return Probe(f"{kind}{layer}", about, partial(in_layer, kind, layer), "activations", (layer,), "attention")


NUMBERED = {kind: partial(attention_probe, kind) for kind in _PER_LAYER}
PROBES = {f"{kind}{layer}": attention_probe(kind, layer) for kind in _PER_LAYER for layer in (1, 2)} | {
    _PAIR: Probe(
        _PAIR,
        "share of triggers (2nd occurrence on) where layer 1, at the s that layer 2 attends to, attends to s-1",
        lambda a: _previous_where_attended(a).masked_fill(a.diverged, torch.nan),
        "activations",
        (1, 2),
        "attention",
    )
}


def head_scores(
    source: Any, *, step: "Steps" = None, length: int | None = None, progress: "Progress" = None
) -> pd.DataFrame:
    """The standard scores of every head, by default at the last step: head (`L2H1`), previous_token, induction.

    `length` is the number of random tokens that are repeated, by default half the context.

    >>> head_scores("induction-small", length=32)["previous_token"].round(2).tolist()
    [0.8, 0.07]
    """

    def measure(at: At) -> dict[str, pd.DataFrame]:
        cfg, rows = at.model.cfg, []
        longest = cfg.n_ctx // 2
        if length is not None:
            require_integer(length, "length", 2, longest, "half the context")
        for layer, pattern in enumerate(run_repeated(at.model, cfg.n_layers, length), start=1):
            previous, repeated = previous_mass(pattern), repeated_induction(pattern)
            for head in range(cfg.n_heads):
                score = {"previous_token": float(previous[head]), "induction": float(repeated[head])}
                rows.append({"head": head_name(layer, head + 1)} | score)
        return {"table": pd.DataFrame(rows)}

    return over_steps(select(source, step=step, progress=progress), measure, settings={"head scores": length})["table"]
