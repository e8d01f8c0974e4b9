"""The calls whose numbers are frozen: name -> what it measures, and the columns that name a row.

A function takes a run and the steps for expensive calls, and returns a table. To follow a renamed call or column,
change its function here, so that the table keeps the columns that are frozen. Heads are renamed in compare.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

import induction_memory as im

RUNS = (
    "induction-alone",
    "frozen-keys",
    "fixed-triggers",
    "random-triggers",
    "four-heads",
    "layernorm-mlp",
    "vanilla-fixed",
    "vanilla-random",
    "causal-graph",
    "copying-any",
    "copying-middle",
    "factual-recall",
    "markov-1",
    "markov-2",
    "noisy-triggers",
    "noisy-triggers-beside",
)
WHOLE = "-"  # stands in for the run where a call is about all runs together
MEMORIES = ("W_K1", "W_K2", "W_O2")
PARTS = ("heads", *MEMORIES)
FEW = 8  # sequences of a batch
EDITS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("W_K1", {"erase": "5"}),
    ("W_K1", {"insert": "5->9"}),
    ("W_K1", {"swap": "5->9"}),
    ("W_K1", {"project": "ideal"}),
    ("W_K1", {"truncate": 8}),
    ("W_K2", {"erase": "e"}),
    ("W_K2", {"erase": "e", "through": 1}),
    ("W_K2", {"erase": "e", "through": 3}),
    ("W_K2", {"insert": "e->t"}),
    ("W_K2", {"project": "complement"}),
    ("W_O2", {"erase": ["e", "t"]}),
    ("W_O2", {"insert": "e", "strength": 3.0}),
    ("W_O2", {"swap": "e->t"}),
    ("W_O2", {"project": "ideal"}),
    ("W_F", {"erase": "e->r"}),
    ("W_F", {"project": "ideal"}),
    ("W_F", {"truncate": 8}),
)


@dataclass(frozen=True)
class Call:
    """A measurement of one run: its function, and the columns that name a row (all others are values)."""

    measure: Callable[[Any, list[int]], pd.DataFrame]
    keys: tuple[str, ...]


def sequences(run: Any, n: int = FEW) -> Any:
    """A small batch of the run's task, always the same."""
    return im.sample(run.task, n, im.task.step_rng(12345, 0))


def some_steps(run: Any) -> list[int]:
    """Five stored steps, evenly chosen from the first to the last; all where there are fewer."""
    stored = [int(step) for step in run.steps]
    return sorted({stored[round(share * (len(stored) - 1))] for share in (0, 0.25, 0.5, 0.75, 1)})


def each(cells: Iterator[tuple[dict[str, Any], Callable[[], pd.DataFrame]]]) -> pd.DataFrame:
    """The tables of several cells under their labels; a cell that the package refuses is a row that says so.

    A call whose cells have no labels is refused as a whole.
    """
    tables = []
    for labels, measure in cells:
        try:
            table = measure()
        except im.errors.InputError:
            table = pd.DataFrame({"refused": ["yes"]})
        tables.append(table.assign(**labels))
    if not labels and all("refused" in table for table in tables):
        raise im.errors.InputError("refused in every cell")
    return pd.concat(tables, ignore_index=True)


def probes_of_weights(run: Any, steps: list[int]) -> pd.DataFrame:
    return im.probes.table(run, ["recall", "weights", "composition"])


def probes_of_activations(run: Any, steps: list[int]) -> pd.DataFrame:
    families = ["attention", "prediction", "attribution"]
    return im.probes.table(run, families, step=steps, batch=sequences(run))


def probes_births(run: Any, steps: list[int]) -> pd.DataFrame:
    """Positions counted from 0 when they were frozen."""

    def of(memory: str) -> pd.DataFrame:
        table = im.probes.births(run, memory)
        from_0 = {name: table[name] - 1 for name in ("association", "position") if memory == "W_K1" and name in table}
        return table.assign(**from_0)

    return each(({}, lambda memory=memory: of(memory)) for memory in MEMORIES)


def probes_trends(run: Any, steps: list[int]) -> pd.DataFrame:
    return each(({}, lambda m=m: im.probes.trends(im.probes.births(run, m))) for m in MEMORIES)


def probes_change_points(run: Any, steps: list[int]) -> pd.DataFrame:
    def points(memory: str) -> pd.DataFrame:
        found = im.probes.change_points(run, [memory], resamples=100)
        return found.rename(columns={"change_low": "low", "change_high": "high"})

    return each(({"asked": m}, lambda m=m: points(m)) for m in MEMORIES)


def probes_spectrum(run: Any, steps: list[int]) -> pd.DataFrame:
    def largest(memory: str) -> pd.DataFrame:
        table = im.probes.spectrum(run, memory, step=steps)
        return table[table["rank"] <= 4]

    return each(({"memory": m}, lambda m=m: largest(m)) for m in MEMORIES)


def probes_between(run: Any, steps: list[int]) -> pd.DataFrame:
    asked = {"W_O2": ("W_V2 w_E", "w_U"), "W_K2^T": ("w_E", "Phi_1 w_E")}
    return each(
        ({"W": W}, lambda W=W, u=u, v=v: im.probes.recall(run, W, inputs=u, outputs=v, step=steps))
        for W, (u, v) in asked.items()
    )


def probes_head_scores(run: Any, steps: list[int]) -> pd.DataFrame:
    def scores(step: int) -> pd.DataFrame:
        table = im.probes.head_scores(run.model(step))
        return table.assign(layer=table["head"].str.extract(r"L(\d+)H")[0].astype(int))

    return each(({"step": step}, lambda step=step: scores(step)) for step in steps)


def ablate(run: Any, steps: list[int]) -> pd.DataFrame:
    return im.ablate(
        run, sequences(run), components=["heads", "layers", "feed_forward", "embeddings"], kind="all", step=steps
    )


def ablate_matrices(run: Any, steps: list[int]) -> pd.DataFrame:
    return im.ablate(run, sequences(run), components="matrices", kind="all", step=steps)


def ablate_parts(run: Any, steps: list[int]) -> pd.DataFrame:
    return im.ablate(run, sequences(run), components=["parts"], kind=["zero", "mean"], step=steps[-1:])


def patch_activations(run: Any, steps: list[int]) -> pd.DataFrame:
    def patched(corruption: Any) -> pd.DataFrame:
        return im.patch(run, sequences(run), corruption=corruption, step=steps[-2:])

    return each(({"corruption": c}, lambda c=c: patched(c)) for c in ("trigger", "output"))


def patch_restoring(run: Any, steps: list[int]) -> pd.DataFrame:
    return im.patch(run, sequences(run), direction="restore", positions="all", step=steps[-1:])


def patch_paths(run: Any, steps: list[int]) -> pd.DataFrame:
    return im.patch(run, sequences(run), kind="path", step=steps[-1:])


def attribute(run: Any, steps: list[int]) -> pd.DataFrame:
    from induction_memory.task.corruptions import corrupt

    if not isinstance(run.task, im.BigramTask):
        raise im.errors.InputError("a task without triggers")
    pairs = corrupt(sequences(run), "trigger", np.random.default_rng(0))
    return im.interventions.attribute(im.interventions.contrast(run.model(steps[-1]), pairs), points=4)


def discover_edges(run: Any, steps: list[int]) -> pd.DataFrame:
    return im.interventions.discover(run, sequences(run), points=4, sizes=[0], random_orders=0).edges


def discover_curve(run: Any, steps: list[int]) -> pd.DataFrame:
    found = im.interventions.discover(run, sequences(run), rankings=["exact"], random_orders=1, sizes=[0, 4, 8, 12])
    found_there = pd.DataFrame([{"ranking": "against", "n": 0} | found.against()])
    return pd.concat([found.curve, found_there], ignore_index=True)


def surgery(run: Any, steps: list[int]) -> pd.DataFrame:
    def operated(memory: str, edit: dict[str, Any]) -> pd.DataFrame:
        named = edit | ({"through": f"L1H{edit['through']}"} if "through" in edit else {})
        return im.surgery(run, sequences(run, 16), memory=memory, step=steps[-1:], **named)

    return each(
        ({"memory": memory, "edit": str(edit)}, lambda m=memory, e=edit: operated(m, e)) for memory, edit in EDITS
    )


def causal(run: Any, steps: list[int]) -> pd.DataFrame:
    return im.interventions.causal_curves(run, sequences(run), components=PARTS, step=steps)


def causal_births(run: Any, steps: list[int]) -> pd.DataFrame:
    several = [int(step) for step in run.steps][:: max(1, len(run.steps) // 8)]
    return im.interventions.delays(
        im.interventions.causal_curves(run, sequences(run, 4), components=PARTS, step=several)
    )


_IDENTIFIED: dict[str, Any] = {}


def identified(name: str) -> Callable[[Any, list[int]], pd.DataFrame]:
    """One table of `identify` at the middle and the last step; the tables of a run are measured once."""

    def table(run: Any, steps: list[int]) -> pd.DataFrame:
        key = str(run.path)
        if key not in _IDENTIFIED:
            _IDENTIFIED.clear()
            _IDENTIFIED[key] = im.heads.identify(run, steps[-2:], sequences=FEW)
        found = getattr(_IDENTIFIED[key], name).drop(columns=["run", "disagreement"], errors="ignore")
        return found.rename(columns={"agreement": "confidence"})

    return table


def attention(run: Any, steps: list[int]) -> pd.DataFrame:
    """Of the map of each head over one sequence: attention to the previous token and to right keys, and its entropy."""
    rows = []
    for step in steps:
        view = im.attention(run, step, batch=sequences(run), row=0, length=64)
        for head, A in zip(view.heads, view.patterns[0].astype(float), strict=True):
            entropy = -np.sum(A * np.log(A, where=A > 0, out=np.zeros_like(A)), -1).mean()
            found = {"previous": A.diagonal(-1).mean(), "entropy": entropy, "first": A[:, 0].mean()}
            found |= {"right": A[view.right].sum(), "other": A[view.other].sum()}
            rows.append({"step": step, "head": head} | found)
    return pd.DataFrame(rows)


def claims(run: Any, steps: list[int]) -> pd.DataFrame:
    """Every measurement of the paper's claims from the shipped records, numbered within its claim."""
    from induction_memory.paper.auditing import audit

    verdicts = audit().verdicts
    number = verdicts.groupby("claim").cumcount()
    return verdicts.assign(number=number)[["claim", "number", "value", "verdict"]]


def records(run: Any, steps: list[int]) -> pd.DataFrame:
    """How far the recalls of the shipped trajectories are from those of their records."""
    from induction_memory.paper.auditing import audit

    return audit().compared.drop(columns="where")


OF_RUNS: dict[str, Call] = {
    "probes.weights": Call(probes_of_weights, ("probe", "head")),
    "probes.activations": Call(probes_of_activations, ("probe", "head")),
    "probes.births": Call(probes_births, ("memory", "head", "association")),
    "probes.trends": Call(probes_trends, ("memory", "head", "of", "against")),
    "probes.change_points": Call(probes_change_points, ("asked", "probe", "head")),
    "probes.spectrum": Call(probes_spectrum, ("memory", "head", "rank")),
    "probes.between": Call(probes_between, ("W", "head")),
    "probes.head_scores": Call(probes_head_scores, ("layer", "head")),
    "ablate.components": Call(ablate, ("component", "kind")),
    "ablate.matrices": Call(ablate_matrices, ("component", "kind")),
    "ablate.parts": Call(ablate_parts, ("component", "kind")),
    "patch.activation": Call(patch_activations, ("corruption", "component", "position")),
    "patch.restore": Call(patch_restoring, ("component", "position")),
    "patch.path": Call(patch_paths, ("source", "target")),
    "attribute": Call(attribute, ("source", "target")),
    "discover.edges": Call(discover_edges, ("edge",)),
    "discover.curve": Call(discover_curve, ("ranking", "n")),
    "surgery": Call(surgery, ("memory", "edit", "group")),
    "causal.trajectory": Call(causal, ("component", "kind")),
    "causal.births": Call(causal_births, ("component", "kind")),
    "identify.roles": Call(identified("roles"), ("head",)),
    "identify.votes": Call(identified("votes"), ("head", "vote", "role")),
    "identify.shares": Call(identified("shares"), ("game", "head")),
    "identify.totals": Call(identified("totals"), ("game", "layer")),
    "identify.pairs": Call(identified("pairs"), ("a", "b")),
    "identify.hydra": Call(identified("hydra"), ("cut", "other")),
    "identify.mediation": Call(identified("mediation"), ("source", "path", "target", "input")),
    "identify.carriers": Call(identified("carriers"), ("role", "head")),
    "attention": Call(attention, ("head",)),
}
OF_ALL: dict[str, Call] = {
    "claims": Call(claims, ("claim", "number")),
    "records": Call(records, ("trajectory",)),
}
