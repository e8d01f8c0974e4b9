"""Measure a finished run: its record."""

from dataclasses import replace
from typing import Any

import torch
from scipy.stats import spearmanr

from induction_memory import probes
from induction_memory.reproduction import plan
from induction_memory.reproduction.records import Record
from induction_memory.task.sampler import sample, step_rng
from induction_memory.trajectory.folder import FolderSource
from induction_memory.trajectory.trajectory import Trajectory

RECALLS = ["W_K1", "W_K1_first64", "W_K1_causal", "W_K2", "W_K2_triggers", "W_O2", "W_F_kl", "W_F_kl_reverse"]
AT_THE_END = [
    *("previous_token_mass1", "previous_token_argmax1", "previous_after_trigger1"),
    *("induction_mass2", "induction_argmax2", "induction_other_mass2", "induction_other_argmax2"),
    *("attended_is_target2", "accuracy_in_context", "loss_in_context", "loss_global", "loss", "bayes_loss", "excess"),
    *("W_K1_sir", "W_K2_sir", "W_O2_sir"),
]
SEQUENCES = 128
"""Sequences that the accuracy of the last step is measured on."""

IGNORED = ("checkpoint", "crc32")
"""Columns of the metrics that a record leaves out."""


def make_record(run: Trajectory, name: str) -> Record:
    """Measure a finished run."""
    tables = probes.wide(probes.table(run, RECALLS))
    end = int(run.steps[-1])
    ending = probes.wide(probes.table(run, AT_THE_END, steps=[end]))
    last = {column: float(ending[column].iloc[0]) for column in ending} | diagonals(run, end) | _heads(run)
    last |= _drawn(run, end)
    command, seconds = provenance(run)
    metrics = run.metrics.drop(columns=list(IGNORED), errors="ignore")
    return Record(name, run.config, command, seconds, run.fingerprint, metrics, tables, last)


def diagonals(run: Trajectory, step: int) -> dict[str, float]:
    """Per memory, the scores of its right associations: rank correlation with position or frequency, and spread."""
    if run.config.model.n_heads > 1 or run.config.model.n_layers < 2:
        return {}
    found = {}
    for memory in ("W_K1", "W_K2", "W_O2"):
        table = probes.births(run, memory, steps=[step])
        against = "position" if "position" in table else "frequency"
        score = table["score"].to_numpy()
        correlation: Any = spearmanr(score, table[against])
        found[f"{memory}_diagonal_{against}"] = float(correlation.statistic)
        found[f"{memory}_diagonal_spread"] = float(score.std() / abs(score.mean()))
    return found


def _drawn(run: Trajectory, step: int) -> dict[str, float]:
    """At the positions that an attention map shows: how often layer 1 attends most to the previous token, and the
    accuracy at triggers first seen there.
    """
    if run.config.model.n_heads > 1:
        return {}
    name = "previous_token_argmax1"
    short = replace(run.task, length=min(plan.LETTERS, run.task.length))
    back = probes.table(run, name, steps=[step], task=short)["value"].iloc[0]
    batch, model = sample(run.task, SEQUENCES, step_rng(run.config.train.eval_seed, 0)), run.model(step)
    with torch.no_grad():
        predicted = torch.cat([model(tokens).argmax(-1) for tokens in batch.tokens.split(16)])
    first = (batch.tokens[:, :, None] == batch.tokens[:, None, :]).int().argmax(-1)
    right = (predicted == batch.targets)[batch.in_context & (first < plan.LETTERS)]
    return {f"{name}_drawn": float(back), "accuracy_in_context_drawn": right.double().mean().item()}


def _heads(run: Trajectory) -> dict[str, float]:
    """Effective number of heads per role, by exact Shapley values."""
    if run.config.model.n_heads == 1:
        return {}
    from induction_memory.heads import identify

    carriers = identify(run, step=int(run.steps[-1])).carriers.drop_duplicates("role")
    return {
        f"effective_heads_{role}": float(n) for role, n in zip(carriers["role"], carriers["effective"], strict=True)
    }


def provenance(run: Trajectory) -> tuple[str, float | None]:
    """The command that made the run, and the seconds it took where that is known."""
    if not isinstance(run.source, FolderSource):
        return "", None
    return run.source.manifest.command or "", run.source.manifest.seconds
