"""Prediction probes: loss and accuracy by kind of position, and the distance to the best possible prediction.

With q the model's prediction after z_1..z_t and y = z_{t+1}:

    loss, accuracy    mean of -log q(y), share of argmax q = y; over all positions or one kind of them
    kl_<reference>    mean over positions of KL(reference || q): uniform, unigram pi_u, bigram pi_b( . | z_t), or the
                      Bayes-optimal prediction, the last of the task's predictors
    excess            mean of log p_bayes(y) - log q(y): the loss above the Bayes-optimal one

All probes use counted positions. Kinds that depend on the hidden triggers are the groups of the task's batches
(`loss_<group>`): for in-context bigrams `global` (not a trigger), `first_occurrence`, `in_context` (a trigger from its
second occurrence on), and `occurrence<n>` (the n-th of a trigger). Visible kinds depend on the earlier occurrences of
z_t:

    new               z_t has not occurred before: only global statistics help
    one_successor     the same token followed each occurrence: perhaps a trigger
    many_successors   different tokens have followed: certainly not a trigger

A loss or accuracy is a mean over its kind. Excess and KL to the Bayes-optimal prediction split into contributions of
the visible kinds, which add up to the whole: the sum over the kind divided by the number of all positions. The KL is
the expectation of the excess over the next token, so the two agree up to sampling noise.
"""

import re
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import UnsupportedError
from induction_memory.probes.activations import Activations
from induction_memory.probes.predictors import divergence, predicted
from induction_memory.probes.registry import Probe
from induction_memory.source.sources import Selection
from induction_memory.task.batch import Batch

VISIBLE = ("new", "one_successor", "many_successors")
_KINDS = {
    "": "all positions",
    "_global": "positions whose token is not a trigger",
    "_first_occurrence": "first occurrences of triggers",
    "_in_context": "second and later occurrences of triggers",
    **{f"_occurrence{n}": f"occurrence {n} of triggers" for n in range(1, 6)},
    "_new": "tokens that have not occurred before",
    "_one_successor": "tokens that have had only one successor so far",
    "_many_successors": "tokens that have had different successors",
}
_OCCURRENCE = re.compile(r"occurrence[1-9]\d*")
_REFERENCES = {"uniform": "KL(uniform || q)", "unigram": "KL(pi_u || q)", "bigram": "KL(pi_b(.|z_t) || q)"}


def visible_kind(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """The visible kind of each position, as an index into VISIBLE: new, one successor, or many."""
    n = tokens.shape[1]
    if n == 1:
        return torch.zeros_like(tokens)
    earlier = (tokens[:, :, None] == tokens[:, None, :-1]).tril(-1)
    successor = tokens[:, None, 1:].expand_as(earlier)
    least = successor.masked_fill(~earlier, int(tokens.max()) + 1).amin(-1)
    most = successor.masked_fill(~earlier, -1).amax(-1)
    return torch.where(most < 0, 0, torch.where(least == most, 1, 2))


def positions(a: Activations, kind: str) -> Bool[Tensor, "batch pos"]:
    """The positions of a kind, by its name."""
    batch = a.batch
    if kind in VISIBLE:
        seen = a.of_batch("visible kind", lambda: visible_kind(batch.tokens))
        return a.of_batch(kind, lambda: (seen == VISIBLE.index(kind)) & batch.counted)
    if _OCCURRENCE.fullmatch(kind) and "counts" in batch.latents:
        return a.of_batch(kind, lambda: batch.latents["counts"] == int(kind.removeprefix("occurrence")))
    if kind not in batch.groups:
        raise UnsupportedError(f"needs positions of the group {kind}, the batch has {', '.join(batch.groups)}")
    return batch.groups[kind]


def target_log_probability(log_q: Float[Tensor, "batch pos vocab"], batch: Batch) -> Float[Tensor, "batch pos"]:
    """log q(y) at each position; its expectation where the target y is a distribution."""
    if batch.soft:
        return torch.where(batch.targets > 0, batch.targets * log_q, 0.0).sum(-1)
    targets = torch.where(batch.counted, batch.targets, 0)
    return log_q.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def contribution(a: Activations, values: Float[Tensor, "batch pos"], kind: str = "") -> Float[Tensor, ""]:
    """Sum over the positions of a kind ("" for all) divided by the number of counted positions."""
    values = torch.where(positions(a, kind), values, 0.0) if kind else values
    counted = a.batch.counted
    return values.mean() if counted.all() else values[counted].mean()


def mean_over(what: str, kind: str, a: Activations) -> Float[Tensor, ""]:
    """Mean loss or accuracy over the positions of a kind ("" for all)."""
    values = -_log_probability(a) if what == "loss" else _correct(a)
    if not kind:
        return contribution(a, values)
    places = a.of_batch(f"places {kind}", lambda: positions(a, kind).flatten().nonzero().squeeze(-1))
    if not len(places):
        raise UnsupportedError(f"needs positions of the kind {kind}, the batch has none")
    return values.flatten()[places].mean()


def kl_from(reference: str, a: Activations) -> Float[Tensor, ""]:
    """Mean over positions of KL(reference || q)."""

    def compute() -> Float[Tensor, "#batch #pos vocab"]:
        n, device = a.stack.require_task().n_outputs, a.logits.device
        if reference == "uniform":
            return torch.full((1, 1, n), 1 / n, dtype=torch.float64, device=device)
        table = torch.tensor(a.stack.ask(reference), device=device)
        return table[None, None] if reference == "unigram" else table[a.batch.tokens]

    name = f"reference {reference}"
    return contribution(a, divergence(a, name, a.of_batch(name, compute)))


def kl_from_bayes(kind: str, a: Activations) -> Float[Tensor, ""]:
    """KL(p_bayes || q), or the contribution of a visible kind."""
    name, p = list(predicted(a).items())[-1]
    return contribution(a, divergence(a, name, p), kind)


def bayes_loss(a: Activations) -> Float[Tensor, ""]:
    return -contribution(a, _bayes_log_probability(a))


def excess(kind: str, a: Activations) -> Float[Tensor, ""]:
    """Loss above the Bayes-optimal one, or the contribution of a visible kind."""
    return contribution(a, _bayes_log_probability(a) - _log_probability(a), kind)


def _bayes_log_probability(a: Activations) -> Float[Tensor, "batch pos"]:
    bayes = list(predicted(a).values())[-1]
    return a.of_batch("bayes log p(y)", lambda: target_log_probability(bayes.log(), a.batch))


def _log_probability(a: Activations) -> Float[Tensor, "batch pos"]:
    return a.once("log q(y)", lambda: target_log_probability(a.log_q, a.batch))


def _correct(a: Activations) -> Float[Tensor, "batch pos"]:
    """1 where the right output has the largest logit; nan if the model has diverged."""
    if a.batch.soft:
        raise UnsupportedError("needs one right output for each position, the targets are distributions")
    hit = a.once("correct", lambda: (a.predicted == a.batch.targets).double())
    return hit.masked_fill(a.diverged, torch.nan)


_MEANS = {"loss": "mean of -log q(y) over {}", "accuracy": "share of argmax q = y over {}"}


def mean_probe(what: str, kind: str) -> Probe:
    about = _MEANS[what].format(_KINDS.get(kind) or _described(kind[1:]))
    return Probe(f"{what}{kind}", about, partial(mean_over, what, kind[1:]), "activations", (), "prediction")


def _described(kind: str) -> str:
    n = kind.removeprefix("occurrence")
    return f"occurrence {n} of triggers" if _OCCURRENCE.fullmatch(kind) else f"positions of the group {kind}"


def of_groups(source: Selection) -> list[Probe]:
    """Loss and accuracy over the groups of the source's batch that are not listed."""
    groups = list(source.batch.groups)
    return [mean_probe(what, f"_{group}") for group in groups for what in _MEANS if f"_{group}" not in _KINDS]


_OTHERS = (
    {f"kl_{r}": (f"mean over positions of {formula}", partial(kl_from, r)) for r, formula in _REFERENCES.items()}
    | {
        "kl_bayes": ("mean over positions of KL(p_bayes || q)", partial(kl_from_bayes, "")),
        "bayes_loss": ("mean of -log p_bayes(y): the best possible loss", bayes_loss),
        "excess": ("loss - bayes_loss: mean of log p_bayes(y) - log q(y)", partial(excess, "")),
    }
    | {
        f"{whole}_{kind}": (f"contribution of {_KINDS[f'_{kind}']} to {whole}", partial(measure, kind))
        for whole, measure in (("kl_bayes", kl_from_bayes), ("excess", excess))
        for kind in VISIBLE
    }
)
NUMBERED: dict[str, Callable[[int], Probe]] = {
    f"{what}_occurrence": lambda n, what=what: mean_probe(what, f"_occurrence{n}") for what in _MEANS
}
PROBES = {f"{what}{kind}": mean_probe(what, kind) for what in _MEANS for kind in _KINDS} | {
    name: Probe(name, about, measure, "activations", (), "prediction") for name, (about, measure) in _OTHERS.items()
}
