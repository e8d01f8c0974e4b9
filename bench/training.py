"""One training step at the paper's scale: the fast path against a plain HookedTransformer forward and autograd.

A step draws a batch (512 sequences of 256 tokens, K = 5 random triggers), finds the loss and its gradients, and updates
the weights by SGD with momentum and weight decay. Both sides draw, and update, in the same way. The baseline takes the
whole batch through the model at once, as a plain training script does; in pieces of 64 sequences it is less slow, and a
row of its own says by how much.

The share of peak takes the multiplications that the model as written cannot do without (causal halves only, nothing for
frozen parameters, only the queries that the loss asks for) and divides by the time of a step and by the rate of a large
fp32 matrix product measured in the same run. The fast path does part of that work by tables instead.

Both sides take turns, so that a busy machine is busy for both. Peak memory is that of a fresh process that trains a few
steps, imports included.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from induction_memory import BigramTask, sample
from induction_memory.experiment.train_config import Loss
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.task import step_rng
from induction_memory.training.evaluation import Evaluation, plain_evaluate
from induction_memory.training.forward import evaluate

BATCH, TASK = 512, BigramTask(length=256, k=5)
PEAK_SIZE = 2048

STEPS: dict[str, tuple[ModelConfig, Loss, float, tuple[int, int]]] = {
    "no W_F, trigger-output loss": (ModelConfig.simplified(feed_forward="none"), "trigger-output", 46e9, (7, 10)),
    "W_F, loss on all tokens": (ModelConfig.simplified(), "all", 105e9, (4, 6)),
}
FULL: dict[str, tuple[ModelConfig, Loss]] = {
    "full, ReLU": (ModelConfig.full(), "all"),
    "full, ReLU, LayerNorm, 4 heads": (ModelConfig.full(layer_norm=True, n_heads=4), "all"),
}

MEMORY_SCRIPT = """
from pathlib import Path
from bench.training import STEPS, fast, stepper
for config, loss, *_ in STEPS.values():
    step = stepper(config, loss, fast)
    for _ in range(3):
        step()
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(int(status["VmHWM"].split()[0]) / 1e6)
"""
# getrusage would not do: its maximum survives exec, and the parent of the process is large.


def fast(model: nn.Module, batch, loss: Loss) -> Evaluation:
    return evaluate(model, batch, loss)


def plain(model: nn.Module, batch, loss: Loss) -> Evaluation:
    return plain_evaluate(model, batch, loss, micro_batch=BATCH)


def plain_in_pieces(model: nn.Module, batch, loss: Loss) -> Evaluation:
    return plain_evaluate(model, batch, loss, micro_batch=64)


def stepper(config: ModelConfig, loss: Loss, evaluation: Callable[..., Evaluation]) -> Callable[[], None]:
    """A function that does one training step of a fresh model, with its data."""
    model, rng = build(config, seed=0), step_rng(1, 0)
    learnt = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.SGD(learnt.values(), lr=0.2, momentum=0.9, weight_decay=1e-4)

    def step() -> None:
        found = evaluation(model, sample(TASK, BATCH, rng), loss)
        for name, gradient in found.gradients.items():
            learnt[name].grad = gradient
        optimizer.step()

    return step


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_rate() -> Callable[[], float]:
    """A function that measures floating-point operations a second in a large product."""
    a, b, out = (torch.randn(PEAK_SIZE, PEAK_SIZE) for _ in range(3))
    return lambda: 2 * PEAK_SIZE**3 / min(seconds(lambda: torch.mm(a, b, out=out)) for _ in range(5))


def in_turns(repeats: int, **work: Callable[[], float]) -> dict[str, float]:
    """Median result of each, after one turn that is not counted."""
    turns = [{name: run() for name, run in work.items()} for _ in range(repeats + 1)]
    return {name: median(turn[name] for turn in turns[1:]) for name in work}


def timed(step: Callable[[], None]) -> Callable[[], float]:
    return lambda: seconds(step)


def rows(repeats: int = 5) -> list[dict]:
    """The benchmark table's rows on training."""
    found = []
    for name, (config, loss, operations, (at_least, aim)) in STEPS.items():
        sides = {side.__name__: timed(stepper(config, loss, side)) for side in (plain, plain_in_pieces, fast)}
        took = in_turns(repeats, peak=peak_rate(), **sides)
        times = {"baseline_seconds": took["plain"], "seconds": took["fast"]}
        share = operations / took["fast"] / took["peak"]
        pieces = {"baseline_seconds": took["plain_in_pieces"], "seconds": took["fast"]}
        found += [
            {"work": f"training step, {name}", "at_least": f"{at_least}x", "aim": f"{aim}x"}
            | times
            | {"ratio": took["plain"] / took["fast"]},
            {"work": "    against the plain step in pieces of 64 sequences"}
            | pieces
            | {"ratio": took["plain_in_pieces"] / took["fast"]},
            {
                "work": f"    share of peak ({operations / 1e9:.0f} GFLOP at {took['peak'] / 1e9:.0f} GFLOP/s)",
                "baseline_seconds": operations / took["peak"],
                "seconds": took["fast"],
                "ratio": f"{share:.0%}",
                "at_least": "40%",
                "aim": "60%",
            },
        ]
    for name, (config, loss) in FULL.items():
        sides = {side.__name__: timed(stepper(config, loss, side)) for side in (plain_in_pieces, fast)}
        took = in_turns(min(repeats, 2), **sides)
        found.append(
            {
                "work": f"training step, {name}, all tokens (plain: pieces of 64)",
                "baseline_seconds": took["plain_in_pieces"],
                "seconds": took["fast"],
                "ratio": took["plain_in_pieces"] / took["fast"],
            }
        )
    memory = subprocess.run([sys.executable, "-c", MEMORY_SCRIPT], check=True, capture_output=True, text=True)
    gigabytes = f"{float(memory.stdout):.2f} GB"
    found.append({"work": "peak memory of training", "ratio": gigabytes, "at_least": "2 GB", "aim": "1 GB"})
    return found
