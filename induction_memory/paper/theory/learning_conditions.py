"""What makes a memory easy or hard to learn: remarks of Sections 4.1 and 5 and of Appendices D and E, measured.

feature-learning   one gradient step changes what is written by as much in any dimension, in the text's parametrisation
row-space          what W_O2 writes is nearly orthogonal to the row space of W_F
ignored-residual   W_U eps_T, which Appendix B.3 leaves out, is near zero
initial-matrix     W_0 plays a minor role: its scores v^T W_0 u fall like d^{-1/2}, those of stored pairs do not
initial-attention  attention starts near-uniform: in the text's parametrisation, not in that of the authors' code
frequencies        layer normalisation weighs frequent and rare tokens alike
conditioning       learning W_O2 alone is convex, and better conditioned in higher dimension
starved-outputs    outputs drawn from the global bigrams leave little gradient once W_F has learned the bigrams

The attention a of a query over its t keys has 1 / sum_s a_s^2 effective tokens: t if it is uniform, 1 if it is on one
key. Their share of t, averaged over queries, is measured on untrained models of Figure 3 (d = 128, T = 256) and on
their task, for

    text    embeddings and maps with entries N(0, 1/d), scores as in equation 2
    code    embeddings N(0, 1), uniform maps, scores divided by sqrt(d): what the paper's figures used
"""

from functools import cache

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.experiment.presets import preset
from induction_memory.memory import gradients
from induction_memory.memory.random_embeddings import gaussian_embeddings, random_remapping
from induction_memory.model.building import initial_weight
from induction_memory.model.config import ModelConfig
from induction_memory.paper.theory.checks import Result, column, slope
from induction_memory.paper.verdicts import at_least, at_most, known_slip, near
from induction_memory.runner.choice import runner
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.sampler import sample, step_rng

N = 24
STEPS = 150
PRESETS = {"text": "figure-3-text", "code": "figure-3"}
SEQUENCES, SEEDS = 4, 3


def initial_matrix() -> Result:
    r"""Section 4.1 says that $W_0$ "plays a minor role". Gradient descent on Lemma 1's loss takes 150 steps of size 20
    from a Gaussian $W_0$ with entries $\mathcal N(0, 1/d)$, for a deterministic map of 24 tokens. The scores of $W_0$
    alone concentrate around zero like $d^{-1/2}$, those of the stored pairs do not. Taking $W_0$ out of the trained
    matrix changes no prediction from $d = 64$ on."""
    records = []
    for d in (16, 32, 64, 128, 256):
        generator = torch.Generator().manual_seed(d)
        w_E, w_U = gaussian_embeddings(N, d, generator), gaussian_embeddings(N, d, generator)
        W_0 = random_remapping(d, generator)
        W = _descend(W_0, w_E, w_U, torch.full((N,), 1 / N, dtype=torch.float64), normed=False)
        stored = (w_U @ (W - W_0) * w_E).sum(-1)
        kept, without = ((w_E @ M.mT @ w_U.mT).argmax(-1) for M in (W, W - W_0))
        changed = (kept != without).double().mean().item()
        scores = (w_U @ W_0 @ w_E.mT).std().item()
        records.append((d, scores, stored.mean().item(), changed))
    table = pd.DataFrame(records, columns=["d", "W_0", "stored", "changed"])
    d = column(table, "d")
    share = column(table, "W_0") / column(table, "stored")
    rows = (
        near("scores of W_0: log-log slope in d", -0.5, slope(d, column(table, "W_0")), 0.1),
        near("scores of the stored pairs: log-log slope in d", 0.0, slope(d, column(table, "stored")), 0.15),
        at_most("score of W_0 over that of a stored pair, d = 128", 0.1, float(share[3])),
        at_most("predictions that change without W_0, d = 64 and more", 0.0, float(column(table, "changed")[2:].max())),
    )
    return Result(rows, {"dimensions": table})


def feature_learning() -> Result:
    r"""Section 4.1 says that the updates "correspond to a so-called maximal feature learning regime", and Appendix E
    that the slowdown of low dimensions with one step size (Figure 8) comes from "the standard parameterization". One
    gradient step of Lemma 1's loss is taken from a random $W_0$, for a map of 24 tokens, with the same step size in
    every dimension. In the text's parametrisation what it writes, $\|\Delta W x\|$ over $\|W_0 x\|$, does not depend
    on $d$. In that of the authors' code, where $x = W_V w_E$ has a norm of order $\sqrt d$, the change of a score grows
    like $d$, so that a fixed step is too small in low dimensions: this part of the explanation holds. The best step
    sizes of Figure 8's runs do not fall with $d$ ([higher-dimension](reproduction.md#higher-dimension))."""
    records = []
    for d in (64, 128, 256, 512, 1024):
        generator = torch.Generator().manual_seed(d)
        for name in PRESETS:
            x, w_U = gaussian_embeddings(N, d, generator), gaussian_embeddings(N, d, generator)
            W_0 = random_remapping(d, generator)
            if name == "code":  # |w_E|^2 = d before a map of variance 1/(3d), and |w_U|^2 = 1/3
                x, w_U, W_0 = x * (d / 3) ** 0.5, w_U / 3**0.5, W_0 / 3**0.5
            dW = -gradients.token_gradient(W_0, x, w_U, torch.eye(N, dtype=torch.float64) / N)
            written = (x @ dW.mT).norm(dim=-1) / (x @ W_0.mT).norm(dim=-1)
            score = ((x @ dW.mT) * w_U).sum(-1)
            records.append({"model": name, "d": d, "written": written.mean().item(), "score": score.mean().item()})
    table = pd.DataFrame(records)

    def growth(measure: str, model: str) -> float:
        return slope(column(table, "d", model=model), column(table, measure, model=model))

    rows = (
        near("change of W x over W_0 x in one step, text: log-log slope in d", 0.0, growth("written", "text"), 0.1),
        near("change of the right score in one step, text: log-log slope in d", 0.0, growth("score", "text"), 0.1),
        near("change of the right score in one step, code: log-log slope in d", 1.0, growth("score", "code"), 0.1),
    )
    return Result(rows, {"dimensions": table})


def row_space() -> Result:
    r"""Section 4.2 takes the triggers out of $W_F$, because "the output of $W_O^2$ is in the span of output embeddings,
    which are nearly orthogonal to the row space of $W_F$". The row space of $W_F = \sum \log \pi_b(j \mid i) w_U(j)
    w_E(i)^\top$ is spanned by the 65 $w_E(i)$. The gain $\|W_F u\| / \|u\|$ on output embeddings is compared with that
    on token embeddings, with $\log(\pi_b + 0.01)$ centred. It falls like $d^{-1/2}$. At the paper's $d = 128$ it is far
    from zero. In trained models the sentence is not true at all
    ([w-f-reads-w-o2](reproduction.md#w-f-reads-w-o2))."""
    log_b = torch.tensor(BigramTask().bigram).add(0.01).log()
    log_b = log_b - log_b.mean(-1, keepdim=True)
    records = []
    for d in (128, 256, 512, 1024, 2048):
        generator = torch.Generator().manual_seed(d)
        w_E, w_U = (gaussian_embeddings(len(log_b), d, generator) for _ in range(2))
        gains = [(log_b @ w_E @ u.mT).norm(dim=0).mean() for u in (w_U, w_E)]  # w_U is near-orthonormal
        records.append({"d": d, "gain": (gains[0] / gains[1]).item()})
    table = pd.DataFrame(records)
    gain = column(table, "gain")
    rows = (
        near("gain on output over token embeddings: log-log slope in d", -0.5, slope(column(table, "d"), gain), 0.1),
        at_most("gain on output over token embeddings, d = 2048", 0.2, float(gain[-1])),
        known_slip(at_most("gain of W_F on output over token embeddings, d = 128", 0.2, float(gain[0])), "setting"),
    )
    return Result(rows, {"gains": table})


def ignored_residual() -> Result:
    r"""Appendix B.3.1 leaves out "the term $W_U \varepsilon_T$ for simplicity, noting that it is near-zero when $d$ is
    large". $\varepsilon_T = p_T + \Phi_1 \frac1T \sum_s (w_E(z_s) + p_s)$ has norm 1 up to $1/T$, so its logits are of
    size $d^{-1/2}$. The rows have their root mean square over random sequences and the vocabulary."""
    records = []
    for d in (64, 256, 1024):
        generator = torch.Generator().manual_seed(d)
        w_E, p, w_U = (gaussian_embeddings(n, d, generator) for n in (65, 256, 65))
        tokens = torch.randint(65, (32, 256), generator=generator)
        mixed = w_E[tokens].mean(1) + p.mean(0)
        noise = (p[-1] + mixed @ random_remapping(d, generator).mT) @ w_U.mT
        records.append({"d": d, "size": noise.square().mean().sqrt().item()})
    table = pd.DataFrame(records)
    size = column(table, "size")
    rows = (
        near("size of W_U eps_T: log-log slope in d", -0.5, slope(column(table, "d"), size), 0.1),
        at_most("size of W_U eps_T at d = 1024", 0.1, float(size[-1])),
    )
    return Result(rows, {"sizes": table})


def effective_share(pattern: Float[Tensor, "batch head query key"]) -> Float[Tensor, "batch head query"]:
    """Effective tokens of each query's attention divided by its number of keys: 1 if uniform, 1/t if on one key."""
    return 1 / pattern.square().sum(-1) / torch.arange(1, pattern.shape[-1] + 1)


def initial_attention() -> Result:
    r"""Section 4.1 says that "attention scores at initialization are near-uniform", and Section 5 that "the attention
    weights are essentially uniform when $W_K$ are at random initialization". This is true of the text's
    parametrisation. It is not true of the authors' code, which made the paper's figures: there a query attends to about
    a third of its keys, and the largest weight is 13 to 18 times the uniform one. The rows have means over three seeds,
    for the worse of the two layers."""
    table = untrained_attention()

    def by_layer(measure: str, model: str) -> list[float]:
        return [float(column(table, measure, model=model, layer=layer).mean()) for layer in (1, 2)]

    rows = (
        at_least("effective tokens over t, text", 0.9, min(by_layer("share", "text"))),
        known_slip(at_least("effective tokens over t, code", 0.9, min(by_layer("share", "code"))), "setting"),
        at_most("largest weight of the last query over 1/T, text", 2.0, max(by_layer("largest", "text"))),
        known_slip(
            at_most("largest weight of the last query over 1/T, code", 2.0, max(by_layer("largest", "code"))),
            "setting",
        ),
    )
    return Result(rows, {"models": table})


@cache
def untrained_attention() -> pd.DataFrame:
    """One row per parametrisation, seed and layer: effective tokens over t, and the largest weight of the last query
    over 1/T.
    """
    records = []
    for name, chosen in PRESETS.items():
        run = preset(chosen).config
        assert isinstance(run.model, ModelConfig)
        tokens = sample(run.task, SEQUENCES, step_rng(0, 0)).tokens
        for seed in range(SEEDS):
            shapes = run.model.shapes.items()
            weights = {name: initial_weight(name, shape, run.model, seed) for name, shape in shapes}
            recording = runner(weights, run.model).record(tokens)
            for layer in (1, 2):
                pattern = recording.pattern(layer).double()
                share = effective_share(pattern)[..., 1:].mean().item()
                largest = (pattern[..., -1, :].amax(-1) * pattern.shape[-1]).mean().item()
                records.append({"model": name, "layer": layer, "seed": seed, "share": share, "largest": largest})
    return pd.DataFrame(records)


def frequencies() -> Result:
    r"""Appendix D hopes that LayerNorm weighs "frequent and infrequent tokens" similarly. The same descent is run for
    300 steps of size 1 from a random $W_0$ with $d = 128$, on tokens of frequency $\propto 1/k$. It is run with and
    without the normalisation $Wx / \|Wx\|$ before $W_U$ (times 8, so that the normalised logits can be large). The
    weight of a token is the score $w_U(k)^\top W w_E(k)$ of its pair. It grows with the frequency in both cases, less
    with the normalisation, which also keeps the norms $\|W w_E(k)\|$ near 1. After 1,500 steps the difference is small
    (1.31 against 1.40). The setting was chosen after these outcomes were known, so the rows are an example and do not
    settle the sentence. [weighs-alike](reproduction.md#weighs-alike) has rows over seeds, at several step sizes and
    equal losses. There the sentence holds for small steps. The gradient is orthogonal to $Wx$, so gradient flow keeps
    $\|Wx\|$. A finite step of size $\eta$ lengthens it by $\eta^2 \|\nabla\|^2$, most for frequent tokens, and large
    steps therefore favour these more than descent without normalisation does."""
    generator = torch.Generator().manual_seed(7)
    w_E, w_U = gaussian_embeddings(N, 128, generator), gaussian_embeddings(N, 128, generator)
    W_0 = random_remapping(128, generator)
    weight = 1 / torch.arange(1, N + 1, dtype=torch.float64)
    weight = weight / weight.sum()
    tables, ratio, norm = [], {}, {}
    for name, normed in (("without", False), ("with", True)):
        W = _descend(W_0, w_E, w_U, weight, normed=normed, steps=300, eta=1.0)
        written = w_E @ W.mT
        score = (written * w_U).sum(-1)
        ratio[name] = _ratio(written, w_U).item()
        norm[name] = written.norm(dim=-1).mean().item()
        tables.append(pd.DataFrame({"normalisation": name, "frequency": weight.numpy(), "score": score.numpy()}))
    grown = {eta: float(frequency_ratios(eta)["grown"].to_numpy().mean()) for eta in (0.25, 16.0)}
    rows = (
        at_least("score of the most frequent quarter over the rarest, without LayerNorm", 1.2, ratio["without"]),
        at_most("the same with LayerNorm, over that without", 0.9, ratio["with"] / ratio["without"]),
        at_most("mean norm of what is written, with LayerNorm over without", 0.5, norm["with"] / norm["without"]),
        near("mean |W w_E(k)| at a loss of 0.1 over its start, step size 1/4, six draws", 1.0, grown[0.25], 0.05),
        at_least("the same at step size 16", 2.0, grown[16.0]),
    )
    return Result(rows, {"scores": pd.concat(tables, ignore_index=True)})


@cache
def frequency_ratios(eta: float, seeds: int = 6, level: float = 0.1) -> pd.DataFrame:
    """Weight of the most frequent quarter of the tokens over that of the rarest, with LayerNorm divided by without.

    One row per seed. `stored` compares the scores w_U(k)^T W w_E(k). `read` compares the scores after the
    normalisation, if there is one, as the logits see them. Both descents stop at the first step at which the loss is at
    most `level`; nan if that does not happen within 4,000 / eta steps. `grown` is the mean of |W w_E(k)| at the end of
    the normalised descent, over that at its start.
    """
    weight = 1 / torch.arange(1, N + 1, dtype=torch.float64)
    drawn = []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        draws = (gaussian_embeddings(N, 128, generator) for _ in range(2))
        drawn.append((*draws, random_remapping(128, generator)))
    w_E, w_U, W_0 = map(torch.stack, zip(*drawn, strict=True))
    normed, plain = (
        w_E @ _descend(W_0, w_E, w_U, weight / weight.sum(), normed=n, steps=int(4000 / eta), eta=eta, level=level).mT
        for n in (True, False)
    )
    size, without = normed.norm(dim=-1, keepdim=True), _ratio(plain, w_U)
    grown = (size / (w_E @ W_0.mT).norm(dim=-1, keepdim=True)).mean((-1, -2))
    found = {"stored": _ratio(normed, w_U) / without, "read": _ratio(normed / size, w_U) / without, "grown": grown}
    return pd.DataFrame({name: values.numpy() for name, values in found.items()})


def conditioning(batches: int = 4) -> Result:
    r"""Appendix E: "we hypothesize that higher dimension makes the problem better conditioned". It does. The Hessian of
    $W_O^2$'s loss at $W = 0$ is $\frac1N W_U^\top (I - \frac1N 1 1^\top) W_U \otimes E[x x^\top]$ with $x = \frac1t
    \sum_s W_V^2 w_E(z_s)$ at in-context positions of tiny Shakespeare. The rows compare its condition number on its
    range (the 64 and 65 largest eigenvalues of the two factors, or $d$ where there are fewer) with that of exactly
    orthonormal embeddings, mean over four draws."""
    task = BigramTask()
    batch = sample(task, 32 * batches, step_rng(0, 0))
    counts = torch.nn.functional.one_hot(batch.tokens, task.vocab_size).cumsum(1).double()
    f = (counts / torch.arange(1, task.length + 1).unsqueeze(-1))[batch.in_context]
    second = f.mT @ f / len(f)
    ideal = _condition(torch.eye(task.vocab_size, dtype=torch.float64), second)
    records = []
    for d in (96, 128, 256, 512, 1024):
        found = []
        for seed in range(4):
            generator = torch.Generator().manual_seed(seed)
            V = gaussian_embeddings(task.vocab_size, d, generator) @ random_remapping(d, generator).mT
            w_U = gaussian_embeddings(task.vocab_size, d, generator)
            found.append(_condition(w_U, second, V))
        records.append({"d": d, "condition": float(np.exp(np.mean(np.log(found)))) / ideal})
    table = pd.DataFrame(records)
    condition = column(table, "condition")
    rows = (
        at_least("condition number at d = 128 over that at d = 1024", 10.0, float(condition[1] / condition[-1])),
        at_most("largest ratio from one d to the next higher one", 1.0, float((condition[1:] / condition[:-1]).max())),
        at_most("condition number at d = 1024 over that of orthonormal embeddings", 10.0, float(condition[-1])),
    )
    return Result(rows, {"condition": table})


def starved_outputs() -> Result:
    r"""Appendix E: bigram outputs "are already well predicted using global statistics", hence the gradient signal on
    them "may not propagate". The signal is smaller, but does not vanish. Once $W_F$ has learned the bigrams, $\hat p =
    \pi_b(\cdot \mid q)$, and every gradient carries the error vector $\hat p - e_o$. Its size is compared for triggers
    drawn from $\pi_u$ and outputs from $\pi_b(\cdot \mid q)$ or uniform, in exact sums over all pairs. For bigram
    outputs the mean error given the trigger is exactly zero: only the context can tell more."""
    task = BigramTask()
    pi_u, pi_b = torch.tensor(task.unigram), torch.tensor(task.bigram)
    n = len(pi_u)
    outputs = {"uniform": torch.full_like(pi_b, 1 / n), "bigram": pi_b}
    squared = 1 - 2 * pi_b + pi_b.square().sum(-1, keepdim=True)  # |pi_b(.|q) - e_o|^2
    records = []
    for name, law in outputs.items():
        mean_error = ((law - pi_b).square().sum(-1).sqrt() * pi_u).sum()
        error = (pi_u.unsqueeze(-1) * law * squared.sqrt()).sum()
        missed = (pi_u.unsqueeze(-1) * law * (1 - pi_b)).sum()
        records.append((name, error.item(), missed.item(), mean_error.item()))
    table = pd.DataFrame(records, columns=["outputs", "error", "missed", "mean error"])
    error, missed, mean_error = (table[kind].tolist() for kind in ("error", "missed", "mean error"))
    rows = (
        at_most("error |p_hat - e_o|, bigram over uniform outputs", 0.95, error[1] / error[0]),
        at_most("1 - p_hat(o), bigram over uniform outputs", 0.95, missed[1] / missed[0]),
        at_most("length of the mean error given the trigger, bigram outputs", 1e-12, mean_error[1]),
        at_least("the same for uniform outputs", 0.1, mean_error[0]),
    )
    return Result(rows, {"errors": table})


def _descend(
    W: Float[Tensor, "*seed d d"],
    w_E: Float[Tensor, "*seed i d"],
    w_U: Float[Tensor, "*seed i d"],
    weight: Float[Tensor, " i"],
    *,
    normed: bool,
    steps: int = STEPS,
    eta: float = 20.0,
    level: float = 0.0,
) -> Float[Tensor, "*seed d d"]:
    """Gradient descent on the cross-entropy of the map i -> i, of each seed until its loss is at most `level`.

    Where the level is not reached, the matrix is nan.
    """
    done = torch.zeros(W.shape[:-2], dtype=torch.bool)
    for _ in range(steps):
        W = W.detach().requires_grad_()
        hidden = w_E @ W.mT
        if normed:
            hidden = 8 * hidden / hidden.norm(dim=-1, keepdim=True)
        loss = -(weight * (hidden @ w_U.mT).log_softmax(-1).diagonal(dim1=-2, dim2=-1)).sum(-1)
        (gradient,) = torch.autograd.grad(loss.sum(), W)
        done = loss.detach() <= level
        if level and done.all():
            break
        W = torch.where(done[..., None, None], W, W - eta * gradient)
    return torch.where(done[..., None, None], W, torch.nan).detach() if level else W.detach()


def _ratio(written: Float[Tensor, "*seed i d"], w_U: Float[Tensor, "*seed i d"]) -> Float[Tensor, "*seed"]:
    """The mean score of the most frequent quarter of the tokens over that of the rarest."""
    score = (written * w_U).sum(-1)
    return score[..., : N // 4].mean(-1) / score[..., -(N // 4) :].mean(-1)


def _condition(w_U: Float[Tensor, "i d"], second: Float[Tensor, "i i"], V: Float[Tensor, "i d"] | None = None) -> float:
    """Condition number of the Kronecker product on its range: the product of its factors' condition numbers."""
    n = len(w_U)
    centred = w_U - w_U.mean(0)
    inputs = second if V is None else _root(second) @ V @ V.mT @ _root(second)
    outer = torch.linalg.eigvalsh(centred @ centred.mT).flip(0)[: min(n - 1, w_U.shape[1])]
    inner = torch.linalg.eigvalsh(inputs).flip(0)[: min(n, w_U.shape[1])]
    return (outer[0] / outer[-1] * inner[0] / inner[-1]).item()


def _root(matrix: Float[Tensor, "i i"]) -> Float[Tensor, "i i"]:
    """The symmetric square root."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp(min=0).sqrt() @ vectors.mT
