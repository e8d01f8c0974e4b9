"""The Bayes-optimal predictor of the in-context bigram task (Section 3; model in `bigrams.py`).

It knows pi_u, pi_b, pi_q, pi_o and K, but not the triggers of the sequence. After z_1..z_t, with i = z_t and P_t(i) the
posterior probability that i is a trigger of this sequence, it predicts

    p(z_{t+1} = j | z_1..z_t) = P_t(i) p_o(j) + (1 - P_t(i)) pi_b(j | i),

where p_o is pi_o( . | i) at the first occurrence of i. Later, p_o is 1 at the token that followed i before.

The evidence on a token i is the list of its successors s_1, s_2, ... up to z_t. Its likelihood is

    pi_o(s_1 | i) 1{s_1 = s_2 = ...} if i is a trigger,      prod_n pi_b(s_n | i) if it is not,

The prior over the sets of K triggers comes from draws from pi_q without replacement: `trigger_posterior.py` has the
posterior. Fixed triggers are the case where only K tokens have positive pi_q.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.task.batch import masked_mean, require_tokens
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.protocol import Predictor
from induction_memory.task.sampler import BigramBatch
from induction_memory.task.trigger_posterior import member_probability, race


@field_docs
@dataclass(frozen=True)
class Prediction:
    """The optimal prediction at each position, and the probability of a trigger, in float64.

    >>> import induction_memory as im
    >>> task = im.BigramTask(k=2, length=32)
    >>> best = im.task.predict(task, task.sample(1, im.task.step_rng(0, 0)).tokens)
    >>> best.trigger_posterior[0, :4].round(decimals=2)
    tensor([0.0900, 0.1200, 0.0500, 0.3200], dtype=torch.float64)
    """

    probabilities: Float[Tensor, "batch pos vocab"]
    """Distribution of the next token."""
    trigger_posterior: Float[Tensor, "batch pos"]
    """Probability that the current token is a trigger of its sequence."""


@field_docs
@dataclass(frozen=True)
class Score:
    """Mean loss and accuracy over some positions. Errors are standard errors between sequences."""

    loss: float
    """Mean of -log p(target), in nats."""
    loss_error: float
    accuracy: float
    """Share of positions whose most probable token is the target."""
    accuracy_error: float
    positions: int
    """How many positions; with none, the other numbers are nan."""


@field_docs
@dataclass(frozen=True)
class OptimalScores:
    """The best possible loss and accuracy on a batch, by kind of position.

    >>> import induction_memory as im
    >>> task = im.BigramTask(k=2, length=32)
    >>> best = im.task.optimal_scores(task, task.sample(16, im.task.step_rng(0, 0)))
    >>> round(best.global_.loss, 2), round(best.first_occurrence.loss, 2)
    (2.48, 5.44)
    """

    overall: Score
    in_context: Score
    global_: Score
    first_occurrence: Score


def predict(task: BigramTask, tokens: Int[Tensor, "batch pos"]) -> Prediction:
    """The optimal prediction of the next token after every prefix of every sequence.

    >>> import induction_memory as im
    >>> task = im.BigramTask(k=2, length=32)
    >>> best = im.task.predict(task, task.sample(1, im.task.step_rng(0, 0)).tokens)
    >>> best.probabilities.shape
    torch.Size([1, 32, 65])
    """
    n = task.vocab_size
    require_tokens(tokens, n)
    pi_b, pi_o, pi_q = map(_table, (task.bigram, task.output_probabilities, task.trigger_probabilities))
    log_trigger, log_other, followed = evidence(tokens, pi_b.log(), pi_o.log())
    posterior = trigger_posterior(tokens, pi_q, task.k, log_trigger, log_other)
    require_possible(posterior)

    seen = (followed >= 0).unsqueeze(-1)
    repeat = torch.nn.functional.one_hot(followed.clamp(min=0), n).to(torch.float64)
    given_trigger = torch.where(seen, repeat, pi_o[tokens])
    p = posterior.unsqueeze(-1)
    return Prediction(p * given_trigger + (1 - p) * pi_b[tokens], posterior)


def evidence(
    tokens: Int[Tensor, "batch pos"], log_pi_b: Float[Tensor, "vocab vocab"], log_pi_o: Float[Tensor, "vocab vocab"]
) -> tuple[Float[Tensor, "batch pos vocab"], Float[Tensor, "batch pos vocab"], Int[Tensor, "batch pos"]]:
    """Log-likelihood of each token's successors so far if it is a trigger, and if it is not.

    The third value is the token that followed the current token's first occurrence, -1 if this is the first.
    """
    batch, pos = tokens.shape
    n = len(log_pi_b)
    now, after = tokens[:, :-1], tokens[:, 1:]
    places = torch.arange(pos).expand(batch, pos)
    first = torch.full((batch, n), pos).scatter_reduce(1, tokens, places, "amin").gather(1, tokens)
    is_first = first == places
    followed = tokens.gather(1, (first + 1).clamp(max=pos - 1)).masked_fill(is_first, -1)

    repeats = torch.where(after == followed[:, :-1], 0.0, -torch.inf).to(torch.float64)
    if_trigger = torch.where(is_first[:, :-1], log_pi_o[now, after], repeats)
    sums = []
    for increment in (if_trigger, log_pi_b[now, after]):
        steps = torch.zeros(batch, pos, n, dtype=torch.float64)
        steps[:, 1:].scatter_(2, now.unsqueeze(-1), increment.unsqueeze(-1))
        sums.append(steps.cumsum(1))
    return sums[0], sums[1], followed


def require_possible(posterior: Float[Tensor, "batch pos"]) -> None:
    """Raise an InputError that names the first prefix of probability zero."""
    for row, position in posterior.isnan().nonzero()[:1].tolist():
        require(False, "tokens", "sequences that the task can produce", f"sequence {row}, impossible at {position}")


def trigger_posterior(
    tokens: Int[Tensor, "batch pos"],
    pi_q: Float[Tensor, " vocab"],
    k: int,
    log_trigger: Float[Tensor, "batch pos vocab"],
    log_other: Float[Tensor, "batch pos vocab"],
) -> Float[Tensor, "batch pos"]:
    """P_t(z_t), zero for tokens that pi_q excludes; nan where the prefix has probability zero."""
    possible = pi_q > 0
    number = torch.where(possible, possible.cumsum(0) - 1, 0)[tokens]
    p = member_probability(race(pi_q[possible], k), log_trigger[..., possible], log_other[..., possible], number)
    contradicted = (log_other[..., ~possible] == -torch.inf).any(-1)
    return torch.where(possible[tokens] | p.isnan(), p, 0.0).masked_fill(contradicted, torch.nan)


def inclusion(task: BigramTask) -> Float[Tensor, " vocab"]:
    """Probability that each token is a trigger, before any of the sequence is seen."""
    tokens = torch.arange(task.vocab_size)[None]
    nothing = torch.zeros(1, task.vocab_size, task.vocab_size, dtype=torch.float64)
    return trigger_posterior(tokens, _table(task.trigger_probabilities), task.k, nothing, nothing).squeeze(0)


def in_weights(task: BigramTask) -> Float[Tensor, "vocab vocab"]:
    """The next token from the current one alone: P(i is a trigger) pi_o( . | i) + P(i is not) pi_b( . | i)."""
    p = inclusion(task)[:, None]
    return p * _table(task.output_probabilities) + (1 - p) * _table(task.bigram)


def marginal(
    first: Float[Tensor, " vocab"], chain: Float[Tensor, "vocab vocab"], length: int
) -> Float[Tensor, " vocab"]:
    """How often each token is a target: the mean over t = 1..T of `first` times the t-th power of `chain`."""
    total, now = torch.zeros_like(first), first
    for _ in range(length):
        now = now @ chain
        total = total + now
    return total / length


def predictors(task: BigramTask) -> dict[str, Predictor]:
    """Candidate predictors, from the simplest to the Bayes-optimal one.

    `unigram` knows how often each token is a target (as if outputs were drawn anew at each occurrence). `in-weights`
    knows the current token alone, with the prior that it is a trigger. `bayes` reads the whole context.
    """
    chain = cache(lambda: in_weights(task))
    unigram = cache(lambda: marginal(_table(task.unigram), chain(), task.length))
    return {
        "unigram": lambda tokens: unigram().expand(*tokens.shape, -1),
        "in-weights": lambda tokens: chain()[tokens],
        "bayes": lambda tokens: predict(task, tokens).probabilities,
    }


def _table(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array))


def optimal_scores(task: BigramTask, batch: BigramBatch) -> OptimalScores:
    """Loss and accuracy of the optimal prediction on a batch: a reference for models.

    >>> import induction_memory as im
    >>> task = im.BigramTask(k=2, length=32)
    >>> best = im.task.optimal_scores(task, task.sample(16, im.task.step_rng(0, 0)))
    >>> round(best.in_context.loss, 2), round(best.in_context.accuracy, 2)
    (0.37, 0.88)
    """
    probabilities = predict(task, batch.tokens).probabilities
    loss = -probabilities.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1).log()
    right = (probabilities.argmax(-1) == batch.targets).to(torch.float64)
    masks = (torch.ones_like(batch.global_), batch.in_context, batch.global_, batch.first_occurrence)
    scores = []
    for mask in masks:
        (mean_loss, loss_error), (accuracy, accuracy_error) = masked_mean(loss, mask), masked_mean(right, mask)
        errors = loss_error.item(), accuracy_error.item()
        scores.append(Score(mean_loss.item(), errors[0], accuracy.item(), errors[1], int(mask.sum())))
    return OptimalScores(*scores)
