"""Ablation and patching: all cells in one batch, reusing the intact run, against one hooked forward per cell.

Both sides do the whole job, recordings and scores included, on one model at the paper's scale with the same sequences:
the scores are compared before anything is timed.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformer_lens import HookedTransformer

from induction_memory.interventions.ablations import ablate
from induction_memory.interventions.patching import patch_paths
from induction_memory.interventions.scores import Scorer, answer_logit, contrast, effects
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.runner.choice import record
from induction_memory.runner.components import Graph, head_of
from induction_memory.runner.recording import Patch
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.corruptions import Pairs, corrupt
from induction_memory.task.sampler import BigramBatch, sample, step_rng

SEQUENCES = 16
POSITIONS = 32  # of the 256, in the benchmark by head and position


def sites_of(model: HookedTransformer) -> list[str]:
    """Every head, every feed-forward, and what each W_Q, W_K and W_V computes."""
    graph = Graph.of(model)
    return [*graph.heads, *(f"FF{layer}" for layer in graph.feed_forwards), *(i for i in graph.inputs if "." in i)]


def ablate_fast(model: HookedTransformer, batch: BigramBatch) -> Tensor:
    """In-context loss without each part (mean ablation), by `ablate` as everyone calls it."""
    table = ablate(model, batch, components=sites_of(model), kind="mean")
    return torch.tensor(table["in_context_loss"].to_numpy()[1:])


def ablate_hooked(model: HookedTransformer, batch: BigramBatch) -> Tensor:
    """The same, one forward with a hook each."""
    intact, cache = model.run_with_cache(batch.tokens)
    assert isinstance(intact, Tensor)
    scorer = Scorer(intact, batch)
    losses = []
    for site in sites_of(model):
        if site.startswith("FF"):
            name = f"blocks.{int(site[2:]) - 1}.hook_mlp_out"
            function = partial(_replace, value=cache[name].mean((0, 1)))
        else:
            layer, head = head_of(site)
            name = f"blocks.{layer - 1}.attn.hook_{site[-1] if '.' in site else 'z'}"
            function = partial(_replace_head, head=head - 1, value=cache[name][:, :, head - 1].mean((0, 1)))
        logits = model.run_with_hooks(batch.tokens, fwd_hooks=[(name, function)])
        losses.append(scorer(logits)["in_context_loss"])
    return torch.stack(losses)


def positions_fast(model: HookedTransformer, pairs: Pairs) -> Tensor:
    """Effect of every head's output at every position, patched from the corrupted run."""
    runs = contrast(model, pairs)
    here = torch.arange(pairs.clean.tokens.shape[1]).expand_as(pairs.clean.tokens)
    variants = [[Patch(h, runs.end.at(h), here == t)] for h in runs.start.graph.heads for t in range(POSITIONS)]
    return torch.tensor(effects(runs, variants)["logit"].to_numpy())


def positions_hooked(model: HookedTransformer, pairs: Pairs) -> Tensor:
    assert pairs.answer is not None
    _, cache = model.run_with_cache(pairs.corrupted.tokens)
    at, logits = torch.arange(len(pairs.query)), []
    for layer in range(model.cfg.n_layers):
        name = f"blocks.{layer}.attn.hook_z"
        for head in range(model.cfg.n_heads):
            for t in range(POSITIONS):
                hook = (name, partial(_replace_position, head=head, position=t, value=cache[name][:, t, head]))
                out = model.run_with_hooks(pairs.clean.tokens, fwd_hooks=[hook])
                logits.append(answer_logit(out[at, pairs.query].unsqueeze(1), pairs.answer).mean())
    return torch.stack(logits)


def paths_fast(model: HookedTransformer, pairs: Pairs) -> Tensor:
    """Effect of every edge, exactly."""
    return torch.tensor(patch_paths(contrast(model, pairs))["logit"].to_numpy())


def paths_hooked(model: HookedTransformer, pairs: Pairs) -> Tensor:
    assert pairs.answer is not None
    other = record(model, pairs.corrupted.tokens)
    at, logits = torch.arange(len(pairs.query)), []
    with _split_inputs(model):
        for edge in other.graph.edges:
            source, target = edge.split("->")
            hooks = _edge_hooks(model, source, target, other.at(source))
            out = model.run_with_hooks(pairs.clean.tokens, fwd_hooks=hooks)
            logits.append(answer_logit(out[at, pairs.query].unsqueeze(1), pairs.answer).mean())
    return torch.stack(logits)


def _edge_hooks(model: HookedTransformer, source: str, target: str, value: Tensor) -> list:
    """Hooks that note what the source writes and put the difference into the target's input."""
    own: dict[str, Tensor] = {}

    def note(y: Tensor, hook: object) -> None:
        own["y"] = y if source in ("embed", "pos") or source.startswith("FF") else y[:, :, head_of(source)[1] - 1]

    def put(x: Tensor, hook: object) -> Tensor:
        if target == "out" or target.startswith("FF"):
            return x + (value - own["y"])
        x = x.clone()
        x[:, :, head_of(target)[1] - 1] += value - own["y"]
        return x

    writes = {"embed": "hook_embed", "pos": "hook_pos_embed"}.get(source)
    if writes is None and source.startswith("FF"):
        writes = f"blocks.{int(source[2:]) - 1}.hook_mlp_out"
    writes = writes or f"blocks.{head_of(source)[0] - 1}.attn.hook_result"
    if target == "out":
        reads = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    elif target.startswith("FF"):
        reads = f"blocks.{int(target[2:]) - 1}.hook_mlp_in"
    else:
        reads = f"blocks.{head_of(target)[0] - 1}.hook_{target[-1]}_input"
    return [(writes, note), (reads, put)]


def _replace(y: Tensor, hook: object, value: Tensor) -> Tensor:
    return value.expand_as(y)


def _replace_head(z: Tensor, hook: object, head: int, value: Tensor) -> Tensor:
    z[:, :, head] = value
    return z


def _replace_position(z: Tensor, hook: object, head: int, position: int, value: Tensor) -> Tensor:
    z[:, position, head] = value
    return z


@contextmanager
def _split_inputs(model: HookedTransformer):
    flags = ("use_split_qkv_input", "use_attn_result", "use_hook_mlp_in")
    try:
        for flag in flags:
            setattr(model.cfg, flag, True)
        yield
    finally:
        for flag in flags:
            setattr(model.cfg, flag, False)


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def shell_rows(repeats: int = 5) -> list[dict]:
    """`attention` and `ablate` of a shipped run from the shell, against Python that imports torch."""
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            "ablate induction-alone": ("ablate", "induction-alone"),
            "attention induction-alone": ("attention", "induction-alone", "--out", f"{folder}/maps.html"),
        }
        times: dict[str, list[float]] = {name: [] for name in ("torch", *commands)}
        for _ in range(repeats):  # in turns, so that whatever else the machine does meets all
            times["torch"].append(seconds_of(partial(_python, "-c", "import torch")))
            for name, arguments in commands.items():
                times[name].append(seconds_of(partial(_python, "-m", "induction_memory", *arguments)))
    baseline = statistics.median(times["torch"])
    result = []
    for name in commands:
        seconds = statistics.median(times[name])
        row = {"work": f"induction-memory {name} (python -c 'import torch' beside it)", "baseline_seconds": baseline}
        result.append(row | {"seconds": seconds, "ratio": seconds / baseline, "at_least": "<= 2x", "aim": "1.5x"})
    return result


def _python(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


@torch.no_grad()
def rows(repeats: int = 5) -> list[dict]:
    """The benchmark table's rows on ablation and patching."""
    task = BigramTask(k=5, length=256)
    batch = sample(task, SEQUENCES, step_rng(0, 0))
    pairs = corrupt(batch, "trigger", np.random.default_rng(0), query="last")
    simplified, four_heads = build(ModelConfig.simplified()), build(ModelConfig.full(n_heads=4))
    cells, few = "ablation of every head and matrix", f"patching of every head at {POSITIONS} positions"
    jobs = [
        (f"{cells}, simplified", simplified, batch, ablate_fast, ablate_hooked, 3, 4),
        (f"{cells}, 4 heads and ReLU", four_heads, batch, ablate_fast, ablate_hooked, 2.5, 3),
        (f"{few}, simplified", simplified, pairs, positions_fast, positions_hooked, 10, 18),
        ("exact path patching of every edge, simplified", simplified, pairs, paths_fast, paths_hooked, 25, 50),
    ]
    result = []
    for work, model, data, fast, hooked, at_least, aim in jobs:
        torch.testing.assert_close(fast(model, data).float(), hooked(model, data).float(), atol=1e-4, rtol=1e-4)
        slow, quick = [], []
        for _ in range(repeats):  # in turns, so that whatever else the machine does meets both
            quick.append(seconds_of(partial(fast, model, data)))
            slow.append(seconds_of(partial(hooked, model, data)))
        baseline, seconds = statistics.median(slow), statistics.median(quick)
        result.append(
            {
                "work": f"{work} ({SEQUENCES} x 256 tokens)",
                "baseline_seconds": baseline,
                "seconds": seconds,
                "ratio": baseline / seconds,
                "at_least": at_least,
                "aim": aim,
            }
        )
    return result + shell_rows(repeats)
