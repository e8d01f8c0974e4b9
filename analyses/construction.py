"""Accuracy of the hand-built induction head against the dimension, with and without the feed-forward.

python analyses/construction.py --docs docs/construction.md
"""

from itertools import product
from pathlib import Path

import pandas as pd
import torch

from induction_memory import BigramTask, ModelConfig, construct, sample, step_rng
from induction_memory.errors import require, run_script
from induction_memory.model.construction import Scales
from induction_memory.tables import markdown


def accuracies(task: BigramTask, config: ModelConfig, sequences: int, seed: int) -> dict[str, float]:
    """In-context accuracy (also without sequences that begin with a trigger), accuracy and loss on global tokens."""
    model, batch = construct(task, config, seed=seed), sample(task, sequences, step_rng(seed, 0))
    predicted, loss = [], []
    with torch.no_grad():
        for i in range(0, sequences, 8):
            logits = model(batch.tokens[i : i + 8])
            predicted.append(logits.argmax(-1))
            loss.append(torch.nn.functional.cross_entropy(logits.mT, batch.targets[i : i + 8], reduction="none"))
    correct = torch.cat(predicted) == batch.targets
    later = ~(batch.tokens[:, :1] == batch.triggers).any(-1)
    return {
        "in context": correct[batch.in_context].float().mean().item(),
        "in context, no trigger first": correct[later][batch.in_context[later]].float().mean().item(),
        "global": correct[batch.global_].float().mean().item(),
        "global loss": torch.cat(loss)[batch.global_].mean().item(),
    }


def main(
    dimensions: tuple[int, ...] = (128, 256, 512, 1024, 2048),
    sequences: int = 128,
    seeds: int = 2,
    docs: Path | None = None,
) -> None:
    """Print the table, or write the page.

    Args:
        dimensions: values of d.
        sequences: sequences per seed.
        seeds: constructions per cell, each with other embeddings and data.
        docs: the Markdown page to write.
    """
    require(sequences >= 1, "sequences", "1 or more", sequences)
    require(seeds >= 1, "seeds", "1 or more", seeds)
    rows = []
    for triggers, feed_forward, d in product(("fixed", "random"), ("none", "linear"), dimensions):
        task = BigramTask(k=5, triggers=triggers)
        config = ModelConfig.simplified(d_model=d, feed_forward=feed_forward)
        cells = pd.DataFrame([accuracies(task, config, sequences, seed) for seed in range(seeds)])
        means = [f"{mean:.3f}" for mean in cells.mean()]
        rows.append([triggers, "yes" if feed_forward == "linear" else "no", d, *means])
        print(*rows[-1], sep="\t", flush=True)
    if docs is not None:
        docs.write_text(page(rows, sequences, seeds))


def page(rows: list[list], sequences: int, seeds: int) -> str:
    columns = ["triggers", "W_F", "d", "in context", "in context, no trigger first", "global", "global loss"]
    table = markdown(pd.DataFrame(rows, columns=columns))
    return f"""# The construction: accuracy against the dimension

The paper's hand-built memories (`induction_memory.construct`) with K = 5 triggers at T = 256, fixed (the most frequent
characters) or random, with {Scales()!r}. Each cell is the mean of {seeds}
constructions on {sequences} fresh sequences each. Written by `python analyses/construction.py --docs
docs/construction.md`.

W_K1, W_K2 and W_O2 are those of equation 4, times a scale. W_F is not that of equation 5: its rows are 2 log(pi_b +
0.01), centred, where the paper has log pi_b, which is minus infinity for bigrams that never occur. The factor 2 and the
smoothing make W_F stronger than the induction head's noise. They cost global loss, because probabilities are squared:
the last column is the mean loss in nats on tokens that are not triggers.

{table}

Two kinds of error remain. The first position has no predecessor and attends to itself, so a sequence that begins with a
trigger shows a false match there. The column "no trigger first" leaves those sequences out. The other errors come from
embeddings that are only nearly orthogonal: at small d the keys of 256 positions interfere, and W_F reads what the
induction head writes. The global accuracy of W_F alone is at most that of the bigrams' most likely successor. The
induction head adds noise to it, because it attends somewhere on every token. With random triggers W_F holds the bigrams
of every token, also of those that are triggers in the sequence at hand, so the two sources compete there.
"""


if __name__ == "__main__":
    run_script(main, __doc__)
