"""Measure a finished run: its record."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from induction_memory import probes
from induction_memory.paper import plan
from induction_memory.paper.causes import causes
from induction_memory.paper.records import Record
from induction_memory.probes.arbitrating import AT_TRIGGERS, rank
from induction_memory.source.sources import SEQUENCES as PROBED
from induction_memory.task.batch import ratio
from induction_memory.task.sampler import sample, step_rng
from induction_memory.trajectory.export import PlainFolder
from induction_memory.trajectory.trajectory import Trajectory

RECALLS = ["W_K1", "W_K1_first64", "W_K1_causal", "W_K2", "W_K2_triggers", "W_O2", "W_F_kl", "W_F_kl_reverse"]
AT_THE_END = [
    *("previous_token_mass1", "previous_token_argmax1", "previous_after_trigger1"),
    *("induction_mass2", "induction_argmax2", "induction_other_mass2", "induction_other_argmax2"),
    *("attended_is_target2", "accuracy_in_context", "loss_in_context", "loss_global", "loss", "bayes_loss", "excess"),
    *("W_K1_sir", "W_K1_first64_sir", "W_K2_sir", "W_O2_sir"),
]
SEQUENCES = 128
"""Sequences on which the accuracy of the last step is measured."""
TO_FIND_LIKELY = 2560
"""Sequences that are searched for triggers whose output is among the three likeliest."""

BATCHES, RESAMPLES = 8, 300
"""Number of batches for a standard error over sequences, and of bootstrap draws over associations."""
UNCERTAIN = ["previous_token_argmax1", "induction_mass2", "induction_other_mass2"]
"""Attention probes of the last step in the claims."""

IGNORED = "^checkpoint$|^crc32$|_norm_"
"""Columns of the metrics that a record omits, such as the norms of weights and gradients."""


def make_record(run: Trajectory, name: str) -> Record:
    """Measure a finished run."""
    tables = probes.wide(probes.table(run, RECALLS))
    end = int(run.steps[-1])
    ending = probes.wide(probes.table(run, AT_THE_END, step=[end]))
    last = {column: float(ending[column].iloc[0]) for column in ending} | diagonals(run, end)
    errors = attention_errors(run, end) | _pair_errors(run, end)
    for values, spread in (_heads(run), _drawn(run, end), preferences(run, name), causes(run, name)):
        last, errors = last | values, errors | spread
    command, seconds = provenance(run)
    metrics = run.metrics.loc[:, ~run.metrics.columns.str.contains(IGNORED)]
    return Record(name, run.config, command, seconds, run.fingerprint, metrics, tables, last, errors)


def diagonals(run: Trajectory, step: int) -> dict[str, float]:
    """Per memory, the scores on its diagonal (the right associations): rank correlation with position or frequency, and
    spread."""
    if run.config.model.n_heads > 1 or run.config.model.n_layers < 2:
        return {}
    found = {}
    for memory in ("W_K1", "W_K2", "W_O2"):
        table = probes.births(run, memory, step=[step])
        against = "position" if "position" in table else "frequency"
        score = table["score"].to_numpy()
        correlation: Any = spearmanr(score, table[against])
        found[f"{memory}_diagonal_{against}"] = float(correlation.statistic)
        found[f"{memory}_diagonal_spread"] = float(score.std() / abs(score.mean()))
    return found


def attention_errors(run: Trajectory, step: int) -> dict[str, float]:
    """Standard errors of attention probes, from their spread over small batches of the same total size."""
    if run.config.model.n_heads > 1 or run.config.model.n_layers < 2:
        return {}
    short = replace(run.task, length=min(plan.LETTERS, run.task.length))
    asked = {"": (run.task, UNCERTAIN), "_drawn": (short, UNCERTAIN[:1])}
    found = {}
    for end, (task, names) in asked.items():
        values = []
        for number in range(1, BATCHES + 1):
            batch = sample(task, PROBED // BATCHES, step_rng(run.config.train.eval_seed, number))
            some = probes.wide(probes.table(run, names, step=[step], batch=batch, task=task))
            values.append([float(some[name].iloc[0]) if name in some else np.nan for name in names])
        errors = np.std(values, axis=0, ddof=1) / np.sqrt(BATCHES)
        found |= {f"{name}{end} over sequences": float(error) for name, error in zip(names, errors, strict=True)}
    return found


def _drawn(run: Trajectory, step: int) -> tuple[dict[str, float], dict[str, float]]:
    """How often layer 1 attends most to the previous token at the positions of an attention map; and the accuracy at
    triggers first seen at these positions or later. With standard errors.
    """
    if run.config.model.n_heads > 1:
        return {}, {}
    name = "previous_token_argmax1"
    short = replace(run.task, length=min(plan.LETTERS, run.task.length))
    back = probes.table(run, name, step=[step], task=short)["value"].iloc[0]
    batch, model = sample(run.task, SEQUENCES, step_rng(run.config.train.eval_seed, 0)), run.model(step)
    with torch.no_grad():
        predicted = torch.cat([model(tokens).argmax(-1) for tokens in batch.tokens.split(16)])
    first = (batch.tokens[:, :, None] == batch.tokens[:, None, :]).int().argmax(-1)
    values, errors = {f"{name}_drawn": float(back)}, {}
    for when, some in (("drawn", first < plan.LETTERS), ("late", first >= plan.LETTERS)):
        asked = (batch.groups["in_context"] & some).double()
        right, count = ((predicted == batch.targets) * asked).sum(1), asked.sum(1)
        mean, error = ratio(right, count)
        values[f"accuracy_in_context_{when}"] = mean.item()
        errors[f"accuracy_in_context_{when} over sequences"] = error.item()
    return values, errors


def preferences(run: Trajectory, name: str) -> tuple[dict[str, float], dict[str, float]]:
    """How often the vanilla transformers of Figure 2 predict the retrieved token, by its rank in pi_b.

    Outputs among the three likeliest are rare. They are measured at triggers of many more sequences, of which the model
    reads only those that have such an output.
    """
    if name.rpartition("-seed-")[0] not in plan.TWO_LAYERS.values():
        return {}, {}
    many = sample(run.task, TO_FIND_LIKELY, step_rng(run.config.train.eval_seed, 0))
    likely = rank(torch.tensor(run.task.bigram), many.tokens, many.targets) <= 2
    chosen = many[(likely & many.group("in_context")).any(-1)]
    common, rare = (probes.arbitration(run, batch=some) for some in (many[: 2 * SEQUENCES], chosen))
    values, errors = {}, {}
    for row, of_likely in zip(common.to_dict("records"), rare.to_dict("records"), strict=True):
        chosen_row = of_likely if row["question"] in AT_TRIGGERS and row["rank"] != "3 or more" else row
        key = f"{row['question']}, rank {row['rank']}"
        values[key], errors[f"{key} over sequences"] = chosen_row["value"], chosen_row["value_se"]
    return values, errors


def _pair_errors(run: Trajectory, step: int) -> dict[str, float]:
    """Standard errors of the measures of the diagonals: bootstrap over the associations of each memory."""
    if run.config.model.n_heads > 1 or run.config.model.n_layers < 2:
        return {}
    rng, found = np.random.default_rng(0), {}
    for memory in ("W_K1", "W_K2", "W_O2"):
        table = probes.births(run, memory, step=[step])
        against = "position" if "position" in table else "frequency"
        right, other = table["score"].to_numpy(), table[against].to_numpy()
        level = float(right.mean()) / probes.wide(probes.table(run, f"{memory}_sir", step=[step])).to_numpy()[0, 0]
        drawn = {f"diagonal_{against}": [], "diagonal_spread": [], "sir": []}
        for chosen in rng.integers(len(right), size=(RESAMPLES, len(right))):
            correlation: Any = spearmanr(right[chosen], other[chosen])
            drawn[f"diagonal_{against}"].append(correlation.statistic)
            drawn["diagonal_spread"].append(right[chosen].std() / abs(right[chosen].mean()))
            drawn["sir"].append(right[chosen].mean() / level)
        found |= {f"{memory}_{name} over pairs": float(np.std(values)) for name, values in drawn.items()}
    return found


def _heads(run: Trajectory) -> tuple[dict[str, float], dict[str, float]]:
    """Effective number of heads per role, by exact Shapley values; its standard error comes from draws of the shares
    with their errors.
    """
    if run.config.model.n_heads == 1:
        return {}, {}
    from induction_memory.heads import identify
    from induction_memory.heads.shapley import participation

    rng, values, errors = np.random.default_rng(0), {}, {}
    for role, own in identify(run, step=int(run.steps[-1])).carriers.groupby("role", sort=False):
        drawn = rng.normal(own["share"], own["share_se"], size=(RESAMPLES, len(own)))
        values[f"effective_heads_{role}"] = float(own["effective"].iloc[0])
        errors[f"effective_heads_{role} over sequences"] = float(np.std([participation(shares) for shares in drawn]))
    return values, errors


def provenance(run: Trajectory) -> tuple[str, float | None]:
    """The command that made the run, and its seconds if known."""
    if isinstance(run, PlainFolder):
        return "", None
    return run.manifest.command or "", run.manifest.seconds
