"""Everything that the page shows of one run, measured through the public functions and put into a Pack.

The sequences are the first of the run's evaluation stream, `im.sample(run.task, 16, step_rng(eval_seed, 0))`, so that
the line of Python beside a panel measures the same thing. What a task does not offer is left out, with the reason.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from induction_memory.task.batch import Batch
from induction_memory.task.protocol import offered
from induction_memory.task.sampler import step_rng
from induction_memory.trajectory.trajectory import Trajectory
from induction_memory.views.attention_maps import telling_rows
from induction_memory.views.page import causes, curves, live, sequences, tables, words
from induction_memory.views.page.pack import Pack, Quantised, quantise

EVALUATED = 16  # sequences on which causes and distances are measured
LENGTH = 64  # tokens of each sequence that is shown
LIKELY_BIGRAM = 0.1  # pairs of W_F that are marked: pi_b(j | k) at least this

Progress = Callable[[str], object]


def evaluation_batch(run: Trajectory) -> Batch:
    """The sequences on which the page measures this run."""
    return run.task.sample(EVALUATED, step_rng(run.config.train.eval_seed, 0))


def gather(
    run: Trajectory,
    steps: Sequence[int],
    *,
    shown: int,
    length: int,
    causal_steps: int,
    bits: int,
    progress: Progress,
) -> Pack:
    """Metadata and arrays of one run at the steps that the page shows."""
    batch, cut = evaluation_batch(run), min(length, run.task.length)
    rows = telling_rows(batch, cut)[:shown]
    progress(f"{run.name}: attention at {len(steps)} steps")
    read = batch[torch.tensor(rows)]
    found = sequences.run_over(run, steps, read, cut)
    progress(f"{run.name}: memories")
    stored, skipped = tables.tables(run, steps)
    progress(f"{run.name}: curves")
    leaders = {table.memory: table.head for table in reversed(stored)}
    drawn, more = curves.curves(run, batch, leaders)
    born = curves.births(run, leaders)
    at = spread(steps, causal_steps)
    progress(f"{run.name}: causes at {len(at)} steps")
    measured, lost = causes.causes(run, at, batch)
    arrays: dict[str, np.ndarray | Quantised] = {
        "attention": quantise(found.attention, bits, 0.0, 1.0),
        "loss": found.loss.astype("<f4"),
        "likely": found.likely.astype("<u2"),
        "probability": quantise(found.probability, 16, 0.0, 1.0),
    }
    memories = []
    for table in stored:
        name = f"table {table.memory} {table.head}".strip()
        codes = quantise(table.scores, bits)
        arrays[name] = codes
        memories.append(tables.facts(table, codes.step, name))
    phases, cap = curves.phases(drawn)
    meta = _facts(run, steps, batch) | {
        "sequences": sequences.facts(batch, rows, cut, run.task),
        "memories": memories,
        "curves": drawn,
        "births": born,
        "phases": phases,
        "caps": cap,
        "causes": measured,
        "skipped": {name: reason for name, reason in (skipped | more | lost).items() if "_triggers" not in name},
        "snippets": words.of(run, drawn, cut),
        "live": None,
        "why_not_live": live.why_not(run.model_config),
    }
    if not meta["why_not_live"]:
        progress(f"{run.name}: weights")
        meta["live"], weights = live.pack(run, steps)
        meta["live"]["tolerance"] = _tolerance(meta["live"], weights, read.tokens[:, :cut], found)
        arrays |= {f"live {name}": array for name, array in weights.items()}
    return Pack(meta, arrays)


def spread(steps: Sequence[int], n: int) -> list[int]:
    """At most n of the steps, evenly by index, the first and the last among them."""
    chosen = np.linspace(0, len(steps) - 1, min(n, len(steps)))
    return np.asarray(steps)[np.unique(np.rint(chosen).astype(int))].tolist()


def _facts(run: Trajectory, steps: Sequence[int], batch: Batch) -> dict[str, Any]:
    task, model = run.task, run.model_config
    table = offered(task, "bigram")
    likely = [] if table is None else np.argwhere(table >= LIKELY_BIGRAM).tolist()
    return words.facts(run, batch) | {
        "name": run.name,
        "steps": list(steps),
        "stored": len(run.steps),
        "heads": [f"L{layer}H{head}" for layer in range(1, model.n_layers + 1) for head in range(1, model.n_heads + 1)],
        "n_layers": model.n_layers,
        "likely_bigrams": likely,
        "about": _about(run),
    }


def _about(run: Trajectory) -> str:
    """One sentence on the model and its task."""
    model, task = run.model_config, run.task
    heads = "one head" if model.n_heads == 1 else f"{model.n_heads} heads"
    layers = "one layer" if model.n_layers == 1 else f"{model.n_layers} layers"
    feed = {"none": "no feed-forward", "linear": "a linear feed-forward", "relu": "ReLU feed-forwards"}
    feed |= {"other": "feed-forwards of another kind"}
    asked = offered(task, "about") or f"{task.name}, sequences of {task.length} tokens"
    kind = "Simplified model" if model.identity_queries else "Transformer"
    return (
        f"{kind}: {layers} of {heads}, d = {model.d_model}, {feed[model.feed_forward]}"
        f"{', LayerNorm' if model.layer_norm else ''}. Task: {asked}. Trained for {run.config.train.steps} steps."
    )


def _tolerance(
    facts: dict[str, Any], arrays: live.Arrays, tokens: torch.Tensor, exact: sequences.Shown
) -> dict[str, float]:
    """Differences between the page's forward pass and the model's own, over all shown steps and sequences.

    Probabilities are compared at the most likely outputs of each position.
    """
    attention, right = [], []
    for step in range(len(exact.attention)):
        maps, logits = live.forward(facts, arrays, step, tokens)
        q = logits.double().softmax(-1).gather(-1, torch.from_numpy(exact.likely[step])).numpy()
        attention.append(np.abs(sequences.triangle(maps).numpy() - exact.attention[step]))
        right.append(np.abs(q - exact.probability[step]))
    return {
        "attention_mean": float(np.mean(attention)),
        "attention_max": float(np.max(attention)),
        "probability_mean": float(np.mean(right)),
        "probability_max": float(np.max(right)),
    }
