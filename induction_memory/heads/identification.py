"""What each head does, and how certain that is: from models and runs to tables.

    found = identify([run0, run1, run2])          the last step of each
    found.roles                                   the verdict on every head
    found.shares, found.totals                    Shapley values; how many heads carry what
    found.pairs, found.hydra                      redundant pairs; what a head takes over when another is ablated
    found.mediation                               through which input of which later head each head acts
    found.carriers                                each head's share of a role, and the effective number of heads
    found.stability, found.identifiability        across runs
    found.origins                                 whether the initial weights or the data decide which head has a role
    identify(run, step="all").changes             over training

Every table has the columns run and step first; heads are named L1H1 ... as in `interventions`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.fields import require_integer, require_seed
from induction_memory.files import require_folder, write_file
from induction_memory.heads import across_runs, roles, sharing
from induction_memory.heads.games import Metric, solve_games, value_function
from induction_memory.heads.mediation import COLUMNS as PATH_COLUMNS
from induction_memory.heads.mediation import mediation
from induction_memory.heads.roles import at_last_step, listed, rows_of, verdicts
from induction_memory.heads.shapley import ORDERS
from induction_memory.heads.votes import votes
from induction_memory.interventions.ablations import Kind, own_kind
from induction_memory.runner.recording import Via
from induction_memory.source.elsewhere import Engine
from induction_memory.source.measuring import over_steps
from induction_memory.source.replicates import labels
from induction_memory.source.sources import At, Selection, select
from induction_memory.task.batch import Batch
from induction_memory.terminal import Progress, track
from induction_memory.trajectory.search import Steps

MOST_ORDERS = 100_000
SEQUENCES = 32

Tokens = Callable[[int], Int[Tensor, "batch pos"]]
Tables = dict[str, pd.DataFrame]


@field_docs
@dataclass(frozen=True, eq=False)
class Identification:
    """The tables of one or more runs; derived tables are computed on first use.

    >>> import induction_memory as im
    >>> found = im.heads.identify("induction-small", sequences=8)
    >>> found.roles[["head", "role"]]
       head            role
    0  L1H1  previous-token
    1  L2H1       induction
    """

    runs: pd.DataFrame
    """Run, its seeds, its size, and the settings that distinguish its configuration."""
    roles: pd.DataFrame
    """One row per head: the verdict (roles.py)."""
    votes: pd.DataFrame
    """One row per head, vote and role: the scores behind it (votes.py)."""
    shares: pd.DataFrame
    """One row per game and head: Shapley values (sharing.py)."""
    totals: pd.DataFrame
    """One row per game: total effect and effective number of heads."""
    pairs: pd.DataFrame
    """One row per pair of heads: redundant, synergistic or independent."""
    hydra: pd.DataFrame
    """One row per ordered pair: what one head takes over when the other is ablated."""
    mediation: pd.DataFrame
    """One row per source and path (mediation.py), at the last step of each run."""

    def __repr__(self) -> str:
        shown = self.last("roles")[["run", "step", "head", "role", "agreement", "share"]]
        return f"Identification of {len(self.runs)} run(s)\n{shown.to_string(index=False)}"

    def last(self, name: str) -> pd.DataFrame:
        """A table at the last step of each run."""
        return at_last_step(getattr(self, name))

    @cached_property
    def carriers(self) -> pd.DataFrame:
        """Each head's share of each role, and the effective number of heads."""
        return roles.carriers(self.last("shares"), self.last("totals"))

    @cached_property
    def matches(self) -> pd.DataFrame:
        """Heads matched between each two runs."""
        return across_runs.matches(self.last("roles"), self.last("votes"))

    @cached_property
    def stability(self) -> pd.DataFrame:
        """How stable each role is across runs, per configuration if there are several."""
        return self._per_configuration(
            lambda one: across_runs.stability(one.runs, one.roles, one.shares, one.totals, one.matches)
        )

    @cached_property
    def identifiability(self) -> pd.DataFrame:
        """How well one run predicts another's roles, per configuration if there are several."""
        return self._per_configuration(
            lambda one: across_runs.identifiability(one.runs, one.last("roles"), one.last("votes"))
        )

    @cached_property
    def origins(self) -> pd.DataFrame:
        """Whether initial weights or data decide which head has a role, per configuration."""
        return self._per_configuration(lambda one: across_runs.origins(one.runs, one.carriers))

    @cached_property
    def births(self) -> pd.DataFrame:
        """When each head got its final role (roles.py); needs several steps, as with `step="all"`."""
        return roles.role_births(self.roles)

    @cached_property
    def changes(self) -> pd.DataFrame:
        """Every change of role."""
        return roles.changes(self.roles)

    @cached_property
    def decisions(self) -> pd.DataFrame:
        """When each role emerged and when its sharing was decided."""
        return roles.decisions(self.shares)

    def _per_configuration(self, measure: "Callable[[Identification], pd.DataFrame]") -> pd.DataFrame:
        """A measure across runs that differ only in their seeds; with several configurations, the first column names
        them."""
        groups = listed(self.runs, "configuration") if "configuration" in self.runs else [""]
        if len(groups) == 1:
            return measure(self)
        tables = []
        for label in groups:
            names = listed(rows_of(self.runs, configuration=label), "run")
            own = {field.name: rows_of(getattr(self, field.name), run=names) for field in fields(self)}
            table = measure(Identification(**own))
            table.insert(0, "configuration", label)
            tables.append(table)
        return _concat(tables)

    def save(self, folder: str | Path) -> None:
        """Write the measured tables, one Parquet file each."""
        place = require_folder(folder, "folder")
        for field in fields(self):
            write_file(place / f"{field.name}.parquet", getattr(self, field.name).to_parquet(index=False), "folder")

    @classmethod
    def read(cls, folder: str | Path) -> "Identification":
        """The tables that `save` wrote."""
        return cls(**{field.name: pd.read_parquet(Path(folder) / f"{field.name}.parquet") for field in fields(cls)})

    @classmethod
    def join(cls, parts: "Sequence[Identification]") -> "Identification":
        """Several identifications as one; their runs must have different names."""
        require(len(parts) > 0, "parts", "at least one", "none")
        tables = {}
        for field in fields(cls):
            tables[field.name] = _concat([getattr(part, field.name) for part in parts])
        names = tables["runs"]["run"].tolist()
        require(len(names) == len(set(names)), "runs", "names that differ", ", ".join(names))
        return cls(**tables)


def identify(
    source: Any,
    step: "Steps" = None,
    batch: "Batch | Tensor | Tokens | None" = None,
    *,
    sequences: int = SEQUENCES,
    metric: Metric = "logit",
    kind: "Kind" = "mean",
    orders: int = ORDERS,
    via: Via | None = None,
    seed: int = 0,
    progress: "Progress" = None,
    engine: Engine | None = None,
) -> Identification:
    """Roles, shares and paths of the heads of models, runs or series (one, a folder, or a list).

    `step` is for runs and series: a stored step, several, or "all"; by default the last. `batch` holds the sequences: a
    Batch, tokens, or a function from a number of sequences to tokens. By default a run reads its task, and a model or a
    series reads random tokens repeated once. `kind` is what replaces an ablated head (as in `im.ablate`). `orders` is
    the number of random orders if there are too many heads to evaluate all coalitions. An interruption keeps the
    completed steps. `engine`, such as `im.sweep.Workers(4)`, examines the steps in other processes.

    >>> identify("induction-small", sequences=8).roles[["head", "role"]]
       head            role
    0  L1H1  previous-token
    1  L2H1       induction
    """
    every = list(source) if isinstance(source, list | tuple) else [source]
    require(len(every) > 0, "source", "at least one", "none")
    require_integer(sequences, "sequences", 2, None)
    require_integer(orders, "orders", 1, MOST_ORDERS)
    require_seed(seed)
    given = batch(sequences) if callable(batch) else batch
    how = {"step": step, "batch": given, "sequences": sequences, "via": via, "progress": progress, "engine": engine}
    opened = [select(one, **how) for one in every]
    names, parts = _names(opened), []
    settings: dict[str, Any] = {"kind": kind, "metric": metric, "orders": orders, "seed": seed}
    each = list(zip(names, opened, labels([one.source for one in opened]), strict=True))
    for name, chosen, label in track(each, "runs", progress=progress if len(each) > 1 else None):
        end = int(chosen.steps[-1]) if len(chosen.steps) else None
        task = chosen.task if isinstance(chosen.given, Batch | None) else None
        examine = partial(_examine, end=end, task=task, **settings)
        kept = {"identify": settings, "own": own_kind(kind), "sequences": chosen.batch, "end": end}
        tables = over_steps(chosen, examine, settings=kept)
        for table in tables.values():
            table.insert(0, "run", name)
        found: Any = chosen.source
        seeds = {"init_seed": torch.nan, "data_seed": torch.nan}
        if found.task is not None:
            train = found.config.train
            seeds = {"init_seed": float(train.init_seed), "data_seed": float(train.data_seed)}
        n_layers, n_heads = int(tables["roles"]["layer"].to_numpy().max()), tables["roles"]["head"].nunique()
        size = {"n_layers": n_layers, "n_heads": n_heads // n_layers}
        facts = pd.DataFrame([{"run": name} | size | seeds | {"configuration": label}])
        parts.append(Identification(facts, **tables))
        if len(chosen.steps) > len(set(tables["roles"]["step"])):
            break  # interrupted
    return Identification.join(parts)


def _examine(at: At, *, end: int | None, **settings: Any) -> Tables:
    """All tables of one step; the mediation of the last step only."""
    initial = at.chosen.initial() if settings["kind"] == "initial" or callable(settings["kind"]) else None
    v = value_function(at.runner, at.batch, initial=initial, **settings)
    games, questions = solve_games(v), v.questions
    whole, known = sharing.whole_effect(games, questions)
    shares, totals = sharing.shares_and_totals(games, questions, whole)
    pairs = sharing.pairs(games[0], questions, whole, known)
    scores = votes(v, shares, known)
    tables = {
        "roles": verdicts(scores, shares, pairs),
        "votes": scores,
        "shares": shares,
        "totals": totals,
        "pairs": pairs,
        "hydra": sharing.hydra(games[0], questions, whole),
        "mediation": pd.DataFrame(columns=list(PATH_COLUMNS)),
    }
    if at.step == end:
        redundant = rows_of(pairs, relation="fully redundant")
        tables["mediation"] = mediation(v, list(zip(redundant["a"], redundant["b"], strict=True)))
    for table in tables.values():
        table.insert(0, "step", at.step)
    return tables


def _names(sources: Sequence[Selection]) -> list[str]:
    """A name for each source: the run's name, or model 1, model 2 ...; equal names get numbers."""
    names: list[str] = []
    for number, source in enumerate(sources, start=1):
        name = source.name if source.source.has_steps else f"model {number}"
        copies = sum(other == name or other.startswith(f"{name} (") for other in names)
        names.append(f"{name} ({copies + 1})" if copies else name)
    return names


def _concat(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The joined table; empty ones are left out, since their columns have no types."""
    filled = list(filter(len, tables)) or list(tables[:1])
    return pd.concat(filled, ignore_index=True) if len(filled) > 1 else filled[0]
