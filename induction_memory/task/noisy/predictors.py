"""What readers of the noisy triggers would predict (model in `task.py`).

`bayes` is the optimal one. With P_t(i) the posterior probability that i = z_t is a trigger of the sequence,

    p(z_{t+1} = j | z_1..z_t) = P_t(i) [ p 1{j = tau} + (1 - p) p_o(j) ] + (1 - P_t(i)) pi_b(j | i),

where p_o is the token other than tau that followed i before, and pi_o( . | i) if there was none. The evidence on a
token i is the list of its successors s_1, s_2, ... up to z_t. If i is a trigger, each tau among them has likelihood p,
the first other successor s has (1 - p) pi_o(s | i), and each later one has (1 - p) if it equals s and 0 otherwise.
Fixed triggers are known in advance, so P_t(i) is always one or zero.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.task.bayes import inclusion, marginal, require_possible, trigger_posterior
from induction_memory.task.noisy.sequences import output_place
from induction_memory.task.protocol import Predictor


def predictors(task: Any) -> dict[str, Predictor]:
    """Candidate predictors, from the one that knows least to the Bayes-optimal one.

    `unigram` knows how often each token is a target, if outputs were drawn anew at each occurrence. `distribution only`
    knows the current token alone. It predicts noise and pi_o after a trigger, pi_b after other tokens, weighted by the
    prior probability that the token is a trigger.
    """
    chain = distribution_only(task)
    first = torch.zeros(task.n_inputs, dtype=torch.float64)
    first[:-1] = torch.from_numpy(np.array(task.bigrams.unigram))
    unigram = marginal(first, chain, task.length)
    return {
        "unigram": lambda tokens: unigram.expand(*tokens.shape, -1),
        "distribution only": lambda tokens: chain[tokens],
        "bayes": lambda tokens: bayes(task, tokens),
    }


def distribution_only(task: Any) -> Float[Tensor, "vocab vocab"]:
    """The next token given the current one alone."""
    trigger, other = conditionals(task)
    p = torch.zeros(task.n_inputs, 1, dtype=torch.float64)
    p[:-1, 0] = inclusion(task.bigrams)
    return p * trigger + (1 - p) * other


def conditionals(task: Any) -> tuple[Float[Tensor, "vocab vocab"], Float[Tensor, "vocab vocab"]]:
    """The next token after a trigger of unknown output, and after any other token; row = current token."""
    base, tau, n = task.bigrams, task.noise_token, task.n_inputs
    trigger, other = (torch.zeros(n, n, dtype=torch.float64) for _ in range(2))
    trigger[:tau, :tau] = (1 - task.noise) * torch.from_numpy(np.array(base.output_probabilities))
    trigger[:tau, tau] = task.noise
    other[:tau, :tau] = torch.from_numpy(np.array(base.bigram))
    other[tau, :tau] = torch.from_numpy(np.array(base.unigram))
    return trigger, other


def bayes(task: Any, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos vocab"]:
    """The optimal prediction of the next token after every prefix of every sequence."""
    n, tau = task.n_inputs, task.noise_token
    bad = tokens[(tokens < 0) | (tokens >= n)]
    require(len(bad) == 0, "tokens", f"ids of 0 to {n - 1} (the vocabulary)", bad[:1].tolist())
    trigger, other = conditionals(task)
    place = output_place(tokens, tau)
    known = torch.where(place >= 0, tokens.gather(1, place.clamp(min=0)), -1)
    repeat = (1 - task.noise) * torch.nn.functional.one_hot(known.clamp(min=0), n).to(torch.float64)
    repeat[..., tau] += task.noise
    given_trigger = torch.where((known >= 0).unsqueeze(-1), repeat, trigger[tokens])
    p = posterior(task, tokens, known).unsqueeze(-1)
    return p * given_trigger + (1 - p) * other[tokens]


def posterior(
    task: Any, tokens: Int[Tensor, "batch pos"], known: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch pos"]:
    """P_t(z_t). `known` is the output seen so far after each token, -1 if there was none."""
    n, tau = task.n_inputs, task.noise_token
    pi_q = torch.zeros(n, dtype=torch.float64)
    pi_q[:tau] = torch.from_numpy(np.array(task.bigrams.trigger_probabilities))
    if task.bigrams.fixed_triggers is not None:
        return (pi_q > 0).to(torch.float64)[tokens]
    trigger, other = conditionals(task)
    now, after, before = tokens[:, :-1], tokens[:, 1:], known[:, :-1]
    repeated = (1 - task.noise) * (after == before).to(torch.float64)
    if_trigger = torch.where((before < 0) | (after == tau), trigger[now, after], repeated)
    sums = []
    for likelihood in (if_trigger, other[now, after]):
        steps = torch.zeros(*tokens.shape, n, dtype=torch.float64)
        steps[:, 1:].scatter_(2, now.unsqueeze(-1), likelihood.log().unsqueeze(-1))
        sums.append(steps.cumsum(1))
    found = trigger_posterior(tokens, pi_q, task.k, *sums)
    require_possible(found)
    return found
