"""Ablations: take a part of the model away, in several ways, and measure what is lost.

A part is a head, a layer's heads, a feed-forward, an embedding, one of the paper's matrices, or one term of what an
input reads (`pos->L2.k`: the positional part of the induction head's keys). The names are in components.py, the kinds
of ablation in replacements.py, the scores in outcome.py. The row of the component "none" is the intact model.

What replaces an activation that is taken away: the kinds of ablation, and how to add one.

For an activation y of a site, [batch, pos, d], `kinds` has one line per kind. Their differences are informative. A
component that only adds a constant matters under `zero` but not under `mean`. One that depends on the position alone
does not matter under `mean-position`. One that carries no output of a trigger does not matter under `resample-output`.

A kind is a function of the intact run and a site, and `ablation` gives it a name:

    @im.ablation("median", about="median of y over positions, for each sequence")
    def median(run, site):
        return run.at(site).median(-2, keepdim=True).values
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from induction_memory.errors import InputError, require
from induction_memory.field_docs import field_docs
from induction_memory.fields import require_seed
from induction_memory.interventions.scores import Scorer
from induction_memory.runner.components import ARROW, GROUPS, component_names, listed
from induction_memory.runner.recording import Patch, Recording, Runner, Via, take
from induction_memory.runner.weights import mixed, parameters
from induction_memory.source.measuring import Progress, over_steps
from induction_memory.source.sources import At, Selection, Sequences, select
from induction_memory.task.batch import Batch
from induction_memory.task.corruptions import other_outputs
from induction_memory.task.sampler import BigramBatch
from induction_memory.trajectory.search import Steps

logger = logging.getLogger("induction_memory")
Value = Float[Tensor, "#batch #pos d"]
Replacement = Callable[["Ablated", str], Value]
Kind = str | Replacement
"""The name of a kind of ablation, or the function itself."""
_KINDS: dict[str, "_Named"] = {}


@dataclass(frozen=True)
class _Named:
    """A kind of ablation with its line of explanation, and a function that says what a run lacks for it."""

    function: Replacement
    about: str
    missing: Callable[["Replacements"], str | None]


def ablation(
    name: str, *, about: str = "", missing: Callable[["Replacements"], str | None] = lambda run: None
) -> Callable[[Replacement], Replacement]:
    """Give a kind of ablation a name, and a line with its formula for `ablate --list`.

    `missing` returns what a run lacks for it (`expected ..., got ...`), or None.

    >>> import induction_memory as im
    >>> @im.ablation("middle", about="the mean of what the first and the last position hold")
    ... def middle(run, site):
    ...     return (run.at(site)[:, :1] + run.at(site)[:, -1:]) / 2
    >>> batch = im.load("induction-small").task.sample(4, im.step_rng(0, 0))
    >>> im.ablate("induction-small", batch, heads="all", kind="middle")["kind"].tolist()
    ['none', 'middle', 'middle']
    """

    def register(function: Replacement) -> Replacement:
        known = _KINDS.get(name)
        own = known is not None and known.function.__module__ == __name__ != function.__module__
        require(name not in ("all", "none") and not own, "ablation", "a name that the package does not use", repr(name))
        _KINDS[name] = _Named(function, about or (function.__doc__ or "").split("\n")[0], missing)
        return function

    return register


def kinds() -> dict[str, str]:
    """Every kind's name with one line on what stands in for the activation y.

    >>> kinds()["mean"]
    'the mean of y over sequences and positions'
    """
    return {name: kind.about for name, kind in _KINDS.items()}


@field_docs
@dataclass(frozen=True, eq=False)
class Ablated:
    """What a kind of ablation can look at: the intact run, its sequences, and the component to be replaced."""

    recording: Recording
    batch: Batch
    component: str
    """The name that was asked for. It can stand for several sites."""
    seed: int
    all: "Replacements" = field(repr=False)
    """What the components of a run share."""

    def at(self, site: str) -> Float[Tensor, "batch pos d"]:
        """The intact activation at a site (`L1H1`, `L2H1.k` ...)."""
        return self.recording.at(site)

    @property
    def before_training(self) -> Recording:
        """The run in which only the weights behind the component are those from before training."""
        return self.all.before_training(self.component)


@field_docs
@dataclass(eq=False)
class Replacements:
    """Replacement values for the sites of one recorded run; what several of them need is computed once.

    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> batch = run.task.sample(4, im.step_rng(0, 0))
    >>> intact = im.runner.record(run.model(step=600), batch.tokens)
    >>> im.interventions.Replacements(intact, batch).value("L1H1", "mean").shape
    torch.Size([1, 1, 128])
    """

    recording: Recording
    batch: Batch
    initial: Mapping[str, Tensor] | nn.Module | None = None
    """The weights before training, or the model that has them; None if they are not known."""
    seed: int = 0
    _before_training: dict[frozenset, Recording] = field(default_factory=dict, repr=False)
    _values: dict[tuple, Tensor] = field(default_factory=dict, repr=False)
    _own: dict[tuple, bool] = field(default_factory=dict, repr=False)

    def before_training(self, component: str) -> Recording:
        """The run in which only the weights behind a component are those from before training.

        Components with the same weights share it. If none of these weights has changed, it is the intact run itself.
        """
        initial, behind = self.initial_weights, self.recording.graph.parameters(component)
        assert initial is not None
        key = frozenset(behind.items())
        if key not in self._before_training:
            runner = self.recording.runner
            for name, weight in runner.weights.items():
                given = tuple(initial[name].shape) if name in initial else "none"
                require(given == tuple(weight.shape), f"initial.{name}", f"shape {tuple(weight.shape)}", given)
            weights = mixed(runner.weights, initial, behind)
            own = {name: runner.weights[name] for name in weights}
            learnt = any(not torch.equal(weights[name].to(own[name]), own[name]) for name in weights)
            self._before_training[key] = runner.record(self.recording.tokens, weights) if learnt else self.recording
        return self._before_training[key]

    @cached_property
    def initial_weights(self) -> Mapping[str, Tensor] | None:
        return parameters(self.initial) if isinstance(self.initial, nn.Module) else self.initial

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that this run allows: `initial` needs the initial weights, `resample` a second sequence."""
        return tuple(name for name, kind in _KINDS.items() if kind.missing(self) is None)

    @cached_property
    def other_outputs(self) -> Recording:
        """The run of the same sequences with the outputs of their triggers changed."""
        assert isinstance(self.batch, BigramBatch)
        other = other_outputs(self.batch.to("cpu"), np.random.default_rng(self.seed))
        return self.recording.runner.record(other.tokens)

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers, the same for every activation of a shape."""
        key = ("normal", like.shape)
        if key not in self._values:
            generator = torch.Generator().manual_seed(self.seed)
            self._values[key] = torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
        return self._values[key]

    def identity(self, name: str, kind: Kind) -> tuple:
        """A key that two ablations share if they are the same: the same sites, by a kind that depends on them alone."""
        sites = frozenset(patch.site for patch in self.changes(name, kind))
        return (id(self.function(kind)), sites if self._by_site(kind) else name) if sites else ()

    def _by_site(self, kind: Kind) -> bool:
        """Whether a kind depends on the site alone and not on the component that was named."""
        return self.function(kind) in (zero, mean, mean_by_position, resample, resample_output, noise)

    def patches(self, name: str, kind: Kind) -> list[Patch]:
        """The patches that ablate everything a name stands for."""
        function, component = self.function(kind), "" if self._by_site(kind) else name
        run = Ablated(self.recording, self.batch, name, self.seed, self)
        patches = []
        for site in self.recording.graph.resolve(name):
            source = site.split(ARROW)[0]
            key = (id(function), component, source)
            if key not in self._values:
                self._values[key] = self._checked(function(run, source), source, kind)
            patches.append(Patch(site, self._values[key]))
        return patches

    def changes(self, name: str, kind: Kind) -> list[Patch]:
        """The patches without those that change nothing, such as `mean-position` of `pos`, equal in all sequences."""
        return [patch for patch in self.patches(name, kind) if not self._is_own(patch)]

    def _is_own(self, patch: Patch) -> bool:
        source = patch.site.split(ARROW)[0]
        key = (id(patch.value), source)
        if key not in self._own:
            self._own[key] = _differs_by_rounding_alone(patch.value, self.recording.at(source))
        return self._own[key]

    def value(self, site: str, kind: Kind) -> Value:
        """What replaces the activation at a node; for an edge, ask for its source."""
        run = Ablated(self.recording, self.batch, site, self.seed, self)
        return self._checked(self.function(kind)(run, site), site, kind)

    def function(self, kind: Kind) -> Replacement:
        """The function of a kind; an error if this run does not allow it."""
        if not isinstance(kind, str):
            require(callable(kind), "kind", "a name or a function of the run and a site", repr(kind))
            return kind
        require(kind in _KINDS, "kind", f"all or one of {', '.join(_KINDS)}", repr(kind))
        named = _KINDS[kind]
        reason = named.missing(self)
        if reason is not None:
            raise InputError(f"kind: {reason}")
        return named.function

    def _checked(self, value: Tensor, site: str, kind: Kind) -> Value:
        own, name = tuple(self.recording.at(site).shape), name_of(kind)
        fits = isinstance(value, Tensor) and value.dim() == 3 and value.shape[-1] == own[-1]
        fits = fits and all(size in (1, whole) for size, whole in zip(value.shape, own, strict=True))
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        require(fits, "kind", f"values of shape {own} at {site}, or 1 for batch and position", f"{shape} from {name}")
        return value


def _differs_by_rounding_alone(value: Value, own: Float[Tensor, "batch pos d"]) -> bool:
    """Whether a value is the activation itself, up to rounding. The last position, where most differ, comes first."""
    value, places = value.expand_as(own), (slice(-1, None), slice(None))
    return all(bool((value[:, at] - own[:, at]).abs().max() <= 1e-6 * own[:, at].abs().max()) for at in places)


def name_of(kind: Kind) -> str:
    """The name of a kind in a table."""
    return kind if isinstance(kind, str) else getattr(kind, "__name__", type(kind).__name__)


def _no_second_sequence(run: Replacements) -> str | None:
    wanted = "two or more sequences for 'resample' and 'mean-position'"
    return None if len(run.batch) >= 2 else f"expected {wanted}, got {len(run.batch)}"


def _no_initial_weights(run: Replacements) -> str | None:
    if run.initial is not None:
        return None
    return "expected a trajectory, or the model before training as `initial`, got neither"


@ablation("zero", about="0")
def zero(run: Ablated, site: str) -> Value:
    return torch.zeros_like(run.at(site)[:1, :1])


@ablation("mean", about="the mean of y over sequences and positions")
def mean(run: Ablated, site: str) -> Value:
    return run.at(site).mean((0, 1), keepdim=True)


@ablation("mean-position", about="the mean of y over sequences, at each position", missing=_no_second_sequence)
def mean_by_position(run: Ablated, site: str) -> Value:
    return run.at(site).mean(0, keepdim=True)


@ablation("resample", about="y of another sequence of the batch", missing=_no_second_sequence)
def resample(run: Ablated, site: str) -> Value:
    return run.at(site).roll(1, dims=0)


def _no_triggers(run: Replacements) -> str | None:
    known = isinstance(run.batch, BigramBatch) and run.batch.triggers.shape[1] > 0
    return None if known else "expected sequences with triggers for 'resample-output', got tokens alone"


@ablation(
    "resample-output", about="y of the same sequence with the outputs of its triggers changed", missing=_no_triggers
)
def resample_output(run: Ablated, site: str) -> Value:
    return run.all.other_outputs.at(site)


@ablation("noise", about="Gaussian, each coordinate with y's own mean and standard deviation")
def noise(run: Ablated, site: str) -> Value:
    y = run.at(site)
    drawn = run.all.normal(y)
    return y.mean((0, 1)) + y.flatten(0, 1).std(0, correction=0) * drawn


@ablation("initial", about="what the weights before training computed from the same input", missing=_no_initial_weights)
def initial(run: Ablated, site: str) -> Value:
    return run.before_training.at(site)


INTACT = "none"


def ablate(
    source: Any,
    batch: Sequences = None,
    *,
    heads: Literal["all"] | Sequence[Any] | None = None,
    components: str | Sequence[str] | None = None,
    kind: Kind | Sequence[Kind] = "mean",
    step: Steps = None,
    task: Any = None,
    initial: Mapping[str, Tensor] | nn.Module | None = None,
    via: Via | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """One row per component and kind of ablation (and step): in-context and global scores, KL, and standard errors.

    `source` is a trajectory or a series, its folder or name, or a model (then give the batch). `heads` are "all" or
    some, as "L2H1". `components` are names, or groups of them: heads, layers, feed_forward, embeddings,
    matrices, parts, edges, paths, all. By default they are the first six groups, and at several steps the first five.
    `kind` is a name (replacements.py), a function, several of these, or "all": by default "mean", as on the command
    line. `step` is a stored step, several, or "all"; `progress(done, total)` is called after each. Without a batch 64
    sequences are drawn, or 16 for several steps (`attrs["sequences"]`); without a task they are random tokens repeated
    once. `attrs["left_out"]`, and a line in the log, say which kinds of "all" the sequences do not allow, and why.
    `via="hooks"` runs one hooked forward per row that differs from the others.

    >>> ablate("induction-small", heads="all")[["component", "kind", "in_context_accuracy"]].round(2)
      component  kind  in_context_accuracy
    0      none  none                 0.94
    1      L1H1  mean                 0.24
    2      L2H1  mean                 0.01
    """
    require_seed(seed)
    chosen = select(source, step=step, batch=batch, task=task, initial=initial, via=via)
    if len(chosen.steps) > 1 and heads is None and components is None:
        components = GROUPS[:5]
    return ablate_selection(chosen, heads=heads, components=components, kind=kind, seed=seed, progress=progress)


def ablate_selection(
    chosen: Selection,
    *,
    heads: Literal["all"] | Sequence[Any] | None = None,
    components: str | Sequence[str] | None = None,
    kind: Kind | Sequence[Kind] = "mean",
    seed: int = 0,
    group: str | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """The rows of `ablate`; with `group`, all scores are over the positions of that group, which takes less time."""
    how = {"heads": heads, "components": components, "kind": kind, "seed": seed, "group": group}
    needed = any(one in ("all", "initial") or callable(one) for one in listed(kind, "kind"))
    initial = chosen.initial() if needed else None

    def measure(at: At) -> dict[str, pd.DataFrame]:
        return {"rows": _ablate_one(at.runner, at.batch, initial=initial, **how)}

    settings = {"ablate": how, "batch": chosen.batch, "initial": chosen.given_initial}
    rows = over_steps(chosen, measure, settings=settings, progress=progress)["rows"]
    if rows.attrs["left_out"]:
        logger.warning("left out: %s", "; ".join(f"{name}, {why}" for name, why in rows.attrs["left_out"].items()))
    return rows


@torch.no_grad()
def _ablate_one(
    runner: Runner,
    batch: Batch,
    *,
    heads: Any,
    components: Any,
    kind: Kind | Sequence[Kind],
    initial: Mapping[str, Tensor] | nn.Module | None,
    seed: int,
    group: str | None,
) -> pd.DataFrame:
    recording = runner.record(batch.tokens)
    batch = batch.to(recording.logits.device)
    replacements = Replacements(recording, batch, initial, seed)
    names = component_names(recording.graph, heads, components)
    kinds: Sequence[Kind] = replacements.kinds if kind == "all" else listed(kind, "kind")
    missing = {name: one.missing(replacements) for name, one in _KINDS.items() if kind == "all"}
    for one in kinds:
        replacements.function(one)
    cells = [(name, one) for name in names for one in kinds]
    same = [replacements.identity(name, one) for name, one in cells]  # W_O2 is L2H1, if layer 2 has no other head
    place_of = {key: place for place, key in enumerate(dict.fromkeys(same), start=1)}
    first = [cells[same.index(key)] for key in place_of]
    queries, asked, intact = None, batch, recording.logits
    if group is not None:
        queries, asked = batch.of_group(group)
        intact = take(intact, queries)
    scorer, variants = Scorer(intact, asked), [[], *(replacements.changes(*cell) for cell in first)]
    measured = [
        {name: value.item() for name, value in scorer(logits).items()}
        for logits in recording.run(variants, queries=queries)
    ]
    rows = [measured[0], *(measured[place_of[key]] for key in same)]
    columns = {
        "component": [INTACT, *(name for name, _ in cells)],
        "kind": [INTACT, *(name_of(one) for _, one in cells)],
    }
    table = pd.DataFrame(columns | {score: [row[score] for row in rows] for score in rows[0]})
    table.attrs["left_out"] = {name: reason for name, reason in missing.items() if reason is not None}
    return table
