"""Ablations: replace the activations of a component and measure the effect.

A component is a head, a layer's heads, a feed-forward, an embedding, one of the paper's matrices, or one edge
(`pos->L2.k`: the positional part of layer 2's keys). The names are in `runner/components.py`, the scores in
`scores.py`. The row of the component "none" is the intact model.

`kinds` describes each kind of ablation: what replaces an activation y of a site, [batch, pos, d]. Comparing kinds is
informative. A component that only adds a constant has an effect under `zero` but not under `mean`. One that depends
only on the position has none under `mean-position`. One that does not carry the outputs of triggers has none under
`resample-output`.

A kind is a function of the intact run and a site; `register` gives it a name:

    @im.interventions.register("median", about="median of y over positions, for each sequence")
    def median(run, site):
        return run.at(site).median(-2, keepdim=True).values
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from induction_memory.errors import UnsupportedError, require, require_known
from induction_memory.field_docs import field_docs
from induction_memory.fields import require_seed
from induction_memory.interventions.scores import Scorer
from induction_memory.runner.components import ARROW, GROUPS, component_names, listed
from induction_memory.runner.recording import Patch, Recording, Via, take
from induction_memory.runner.weights import mixed, parameters
from induction_memory.source.elsewhere import Engine
from induction_memory.source.measuring import over_steps
from induction_memory.source.sources import At, Selection, Sequences, select
from induction_memory.task.batch import Batch
from induction_memory.task.corruptions import other_outputs
from induction_memory.task.sampler import BigramBatch
from induction_memory.terminal import Progress
from induction_memory.trajectory.search import Steps

logger = logging.getLogger("induction_memory")
Value = Float[Tensor, "#batch #pos d"]
Replacement = Callable[["Ablated", str], Value]
Kind = str | Replacement
"""The name of a kind of ablation, or the function itself."""
_KINDS: dict[str, "_Named"] = {}


@dataclass(frozen=True)
class _Named:
    """A kind of ablation with its description."""

    function: Replacement
    about: str


def register(name: str, *, about: str = "") -> Callable[[Replacement], Replacement]:
    """Give a kind of ablation a name, and a description for `ablate --list`.

    If a kind is impossible on some runs, let it raise an UnsupportedError there (`kind: expected ..., got ...`).

    >>> import induction_memory as im
    >>> @im.interventions.register("middle", about="the mean of what the first and the last position hold")
    ... def middle(run, site):
    ...     return (run.at(site)[:, :1] + run.at(site)[:, -1:]) / 2
    >>> batch = im.load("induction-small").task.sample(4, im.task.step_rng(0, 0))
    >>> im.ablate("induction-small", batch, heads="all", kind="middle")["kind"].tolist()
    ['none', 'middle', 'middle']
    """

    def added(function: Replacement) -> Replacement:
        known = _KINDS.get(name)
        own = known is not None and known.function.__module__ == __name__ != function.__module__
        require(name not in ("all", "none") and not own, "ablation", "a name that the package does not use", repr(name))
        _KINDS[name] = _Named(function, about or (function.__doc__ or "").split("\n")[0])
        return function

    return added


def own_kind(kind: Kind) -> Replacement | None:
    """The function of a name that a user has registered; None for other kinds."""
    named = _KINDS.get(kind) if isinstance(kind, str) else None
    return None if named is None or named.function.__module__ == __name__ else named.function


def kinds() -> dict[str, str]:
    """Every kind's name with a description of what replaces the activation y.

    >>> kinds()["mean"]
    'the mean of y over sequences and positions'
    """
    return {name: kind.about for name, kind in _KINDS.items()}


@field_docs
@dataclass(frozen=True, eq=False)
class Ablated:
    """The argument of a kind of ablation: the intact run, its sequences, and the component to be replaced."""

    recording: Recording
    batch: Batch
    component: str
    """The requested name. It can mean several sites."""
    seed: int
    all: "Replacements" = field(repr=False)
    """Values that the components of a run share."""

    def at(self, site: str) -> Float[Tensor, "batch pos d"]:
        """The intact activation at a site (`L1H1`, `L2H1.k` ...)."""
        return self.recording.at(site)


@field_docs
@dataclass(eq=False)
class Replacements:
    """Replacement values for the sites of one recorded run; shared values are computed once.

    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> batch = run.task.sample(4, im.task.step_rng(0, 0))
    >>> intact = im.runner.record(run.model(step=600), batch.tokens)
    >>> im.interventions.Replacements(intact, batch).value("L1H1", "mean").shape
    torch.Size([1, 1, 128])
    """

    recording: Recording
    batch: Batch
    initial: Mapping[str, Tensor] | nn.Module | None = None
    """The weights before training, or the model with these weights; None if not known."""
    seed: int = 0
    _before_training: dict[frozenset, Recording] = field(default_factory=dict, repr=False)
    _found: dict[tuple, tuple[Value, bool]] = field(default_factory=dict, repr=False)

    def value(self, site: str, kind: Kind) -> Value:
        """What replaces the activation at a node; for an edge, use its source."""
        return self._replacement(site, site, kind)[0]

    def patches(self, name: str, kind: Kind, *, effective: bool = False) -> list[Patch]:
        """The patches that ablate all sites of a name.

        `effective` leaves out patches that change nothing, such as `mean-position` of `pos`, which is equal in all
        sequences.
        """
        patches = []
        for site in self.recording.graph.resolve(name):
            value, is_own = self._replacement(name, site.split(ARROW)[0], kind)
            if not (effective and is_own):
                patches.append(Patch(site, value))
        return patches

    def _replacement(self, component: str, site: str, kind: Kind) -> tuple[Value, bool]:
        """What replaces the activation at a site, and whether it equals that activation up to rounding.

        For kinds that depend only on the site, all components share the same tensor.
        """
        if isinstance(kind, str):
            require_known(kind, _KINDS, "kind", f"all or one of {', '.join(_KINDS)}")
        else:
            require(callable(kind), "kind", "a name or a function of the run and a site", repr(kind))
        function = _KINDS[kind].function if isinstance(kind, str) else kind
        key = (id(function), "" if function in OF_SITE else component, site)
        if key not in self._found:
            value = function(Ablated(self.recording, self.batch, component, self.seed, self), site)
            own = self.recording.at(site)
            (batch, pos, d), shape = own.shape, tuple(value.shape) if isinstance(value, Tensor) else ()
            fits = len(shape) == 3 and shape[0] in (1, batch) and shape[1] in (1, pos) and shape[2] == d
            allowed = f"values of shape {tuple(own.shape)} at {site}, or 1 for batch and position"
            require(fits, "kind", allowed, f"{shape or type(value).__name__} from {name_of(kind)}")
            self._found[key] = value, _is_own(value, own)
        return self._found[key]

    @cached_property
    def other_outputs(self) -> Recording:
        """The run of the same sequences with the outputs of their triggers changed."""
        if not (isinstance(self.batch, BigramBatch) and self.batch.triggers.shape[1] > 0):
            raise UnsupportedError("kind: expected sequences with triggers for 'resample-output', got tokens alone")
        other = other_outputs(self.batch.to("cpu"), np.random.default_rng(self.seed))
        return self.recording.runner.record(other.tokens)

    def before_training(self, component: str) -> Recording:
        """The run with the weights behind a component set back to their values before training.

        Components with the same weights share this run. If none of these weights has changed, it is the intact run
        itself.
        """
        if self.initial is None:
            wanted = "a trajectory, or the model before training as `initial`"
            raise UnsupportedError(f"kind: expected {wanted}, got neither")
        initial = parameters(self.initial) if isinstance(self.initial, nn.Module) else self.initial
        runner, behind = self.recording.runner, self.recording.graph.parameters(component)
        key = frozenset(behind.items())
        if key not in self._before_training:
            for name, weight in runner.weights.items():
                given = tuple(initial[name].shape) if name in initial else "none"
                require(given == tuple(weight.shape), f"initial.{name}", f"shape {tuple(weight.shape)}", given)
            weights = mixed(runner.weights, initial, behind)
            learnt = any(
                not torch.equal(old.to(runner.weights[name]), runner.weights[name]) for name, old in weights.items()
            )
            self._before_training[key] = runner.record(self.recording.tokens, weights) if learnt else self.recording
        return self._before_training[key]


def _is_own(value: Value, own: Float[Tensor, "batch pos d"]) -> bool:
    """Whether a value equals the activation up to rounding."""
    value = value.expand_as(own)
    for at in (slice(-1, None), slice(None)):  # the last position, where most differ, comes first
        if not bool(((value[:, at] - own[:, at]).abs() <= 1e-6 * own[:, at].abs()).all()):
            return False
    return True


def name_of(kind: Kind) -> str:
    """The name of a kind in a table."""
    return kind if isinstance(kind, str) else getattr(kind, "__name__", type(kind).__name__)


@register("zero", about="0")
def zero(run: Ablated, site: str) -> Value:
    return torch.zeros_like(run.at(site)[:1, :1])


@register("mean", about="the mean of y over sequences and positions")
def mean(run: Ablated, site: str) -> Value:
    return run.at(site).mean((0, 1), keepdim=True)


@register("mean-position", about="the mean of y over sequences, at each position")
def mean_by_position(run: Ablated, site: str) -> Value:
    return _several(run.at(site)).mean(0, keepdim=True)


@register("resample", about="y of another sequence of the batch")
def resample(run: Ablated, site: str) -> Value:
    return _several(run.at(site)).roll(1, dims=0)


def _several(y: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
    if len(y) < 2:
        wanted = "two or more sequences for 'resample' and 'mean-position'"
        raise UnsupportedError(f"kind: expected {wanted}, got {len(y)}")
    return y


@register("resample-output", about="y of the same sequence with the outputs of its triggers changed")
def resample_output(run: Ablated, site: str) -> Value:
    return run.all.other_outputs.at(site)


@register("noise", about="Gaussian, each coordinate with y's own mean and standard deviation")
def noise(run: Ablated, site: str) -> Value:
    y, generator = run.at(site), torch.Generator().manual_seed(run.seed)
    drawn = torch.randn(y.shape, generator=generator, dtype=y.dtype).to(y.device)
    return y.mean((0, 1)) + y.flatten(0, 1).std(0, correction=0) * drawn


@register("initial", about="what the weights before training computed from the same input")
def initial(run: Ablated, site: str) -> Value:
    return run.all.before_training(run.component).at(site)


OF_SITE = (zero, mean, mean_by_position, resample, resample_output, noise)
"""The kinds that depend only on the site, not on the component."""
INTACT = "none"


def ablate(
    source: Any,
    batch: "Sequences" = None,
    *,
    heads: Literal["all"] | Sequence[Any] | None = None,
    components: str | Sequence[str] | None = None,
    kind: "Kind | Sequence[Kind]" = "mean",
    step: "Steps" = None,
    task: Any = None,
    initial: "Mapping[str, Tensor] | nn.Module | None" = None,
    via: Via | None = None,
    seed: int = 0,
    sequences: int | None = None,
    progress: "Progress" = None,
    engine: Engine | None = None,
) -> pd.DataFrame:
    """One row per component and kind of ablation (and step): in-context and global scores, KL, and standard errors.

    `source` is a trajectory or a series, its folder or name, or a model (then pass `batch`). `heads` are "all" or some,
    as "L2H1". `components` are names, or groups of them: heads, layers, feed_forward, embeddings, matrices, parts,
    edges, paths, all. The default is the first six groups, and at several steps the first five. `kind` is a name
    (`kinds`), a function, several of these, or "all": by default "mean", as on the command line. `step` is a stored
    step, several, or "all". Without a batch `sequences` are drawn: 64, or 16 for several steps (`attrs["sequences"]`);
    without a task they are random tokens repeated once. `attrs["left_out"]`, and a line in the log, say which kinds of
    "all" the sequences do not allow, and why. `via="hooks"` runs one hooked forward per row with different patches.
    `progress` is as in `im.measure`. `engine`, such as `im.sweep.Workers(4)`, measures the steps in other processes.

    >>> ablate("induction-small", heads="all")[["component", "kind", "in_context_accuracy"]].round(2)
      component  kind  in_context_accuracy
    0      none  none                 0.94
    1      L1H1  mean                 0.24
    2      L2H1  mean                 0.01
    """
    require_seed(seed)
    chosen = select(
        source,
        step=step,
        batch=batch,
        task=task,
        sequences=sequences,
        initial=initial,
        via=via,
        progress=progress,
        engine=engine,
    )
    if len(chosen.steps) > 1 and heads is None and components is None:
        components = GROUPS[:5]
    return ablate_selection(chosen, heads=heads, components=components, kind=kind, seed=seed)


def ablate_selection(
    chosen: Selection,
    *,
    heads: Literal["all"] | Sequence[Any] | None = None,
    components: str | Sequence[str] | None = None,
    kind: "Kind | Sequence[Kind]" = "mean",
    seed: int = 0,
    group: str | None = None,
) -> pd.DataFrame:
    """The rows of `ablate`; with `group`, all scores are over the positions of that group, which is faster."""
    kinds = list(_KINDS) if kind == "all" else listed(kind, "kind")
    how = {"heads": heads, "components": components, "kinds": kinds, "seed": seed, "group": group}
    how["skip"] = kind == "all"
    measure = partial(_ablate_one, **how)
    settings = {
        "ablate": how,
        "own": list(map(own_kind, kinds)),
        "batch": chosen.batch,
        "initial": chosen.given_initial,
    }
    rows = over_steps(chosen, measure, settings=settings)["rows"]
    if rows.attrs["left_out"]:
        logger.warning("left out: %s", "; ".join(f"{name} ({why})" for name, why in rows.attrs["left_out"].items()))
    return rows


@torch.no_grad()
def _ablate_one(
    at: At,
    *,
    heads: Any,
    components: Any,
    kinds: Sequence[Kind],
    skip: bool,
    seed: int,
    group: str | None,
) -> dict[str, pd.DataFrame]:
    """The rows of one step. `skip` leaves out the kinds that the sequences do not allow."""
    recording = at.runner.record(at.batch.tokens)
    batch = at.batch.to(recording.logits.device)
    needed = "initial" in kinds or any(map(callable, kinds))
    replacements = Replacements(recording, batch, at.chosen.initial() if needed else None, seed)
    kinds, left_out = list(kinds), dict[str, str]()
    rows, variants = [(INTACT, INTACT)], [list[Patch]()]
    place_of, places = {frozenset(): 0}, [0]
    for name in component_names(recording.graph, heads, components):
        for one in list(kinds):
            try:
                patches = replacements.patches(name, one, effective=True)
            except UnsupportedError as reason:
                if not skip:
                    raise
                left_out[name_of(one)] = str(reason).removeprefix("kind: ")
                kinds.remove(one)
                continue
            # W_O2 is L2H1, if layer 2 has no other head: they have the same values at the same sites
            same = frozenset([(patch.site, id(patch.value)) for patch in patches])
            if same not in place_of:
                place_of[same] = len(variants)
                variants.append(patches)
            rows.append((name, name_of(one)))
            places.append(place_of[same])
    queries, intact = None, recording.logits
    if group is not None:
        queries, batch = batch.of_group(group)
        intact = take(intact, queries)
    scorer, columns, measured = Scorer(intact, batch), [], []
    for logits in recording.run(variants, queries=queries):
        scores = scorer(logits)
        columns = list(scores)
        measured.append(torch.stack(list(scores.values())).tolist())
    scored = pd.DataFrame(measured, columns=columns).iloc[places].reset_index(drop=True)
    table = pd.DataFrame(rows, columns=["component", "kind"]).join(scored)
    table.attrs["left_out"] = left_out
    return {"rows": table}
