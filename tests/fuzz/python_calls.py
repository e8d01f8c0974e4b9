"""Wrong calls of the Python API: each replaces one argument of a good call by a value that it cannot take.

A good call is a function and its arguments by name. `WRONG` has values by what an argument means. Whether a value is
wrong is decided by hand here: nothing in these lists may be accepted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import induction_memory as im
from tests.tiny_runs import MODEL, TASK

HUGE = 10**400
NAN, INF = float("nan"), float("inf")


class Stranger:
    """An object that nothing knows."""

    def __repr__(self) -> str:
        return "a\nstranger"


STRANGER = Stranger()
NUMBER = ("one", None, [], {}, NAN, INF, True, STRANGER, b"1", HUGE)
WRONG: dict[str, tuple[Any, ...]] = {
    "source": (
        None,
        3,
        "",
        "nowhere",
        "x" * 300,
        "a\0b",
        b"run",
        [],
        {},
        STRANGER,
        torch.zeros(2),
        torch.nn.Linear(2, 2),
    ),
    "run": (None, 3, "run", [], STRANGER, {}),
    "step": (5, 5.7, -2, "first", "", NAN, INF, HUGE, True, [], [5.9], [None], [[0]], {}, STRANGER, np.array([]), "4"),
    "steps": (5.7, [], [5.9], [5], "first", "", [None], {}, STRANGER, [HUGE], np.array([NAN]), True),
    "one_step": (5, 5.7, -2, None, "", NAN, HUGE, True, [], [4], {}, STRANGER),
    "folder": (None, 3, "", b"new", "a\0b", "x" * 300, [], STRANGER, "/dev/null", "/dev/null/x"),
    "file": (None, 3, "", "x", "x.txt", "a\0.html", "x" * 300 + ".html", [], STRANGER, "/dev/null/x.html", "/dev/full"),
    "count": ("1", 0, -1, 2.5, *NUMBER),
    "seed": (-1, 2.5, *NUMBER),
    "kind": ("nothing", "", [], None, 3, ["mean", "nothing"], [None], {}, STRANGER),
    "choice": ("nothing", "", [], 3, True, {}, STRANGER, ["mean"]),
    "names": ("nothing", "", [], 3, ["nothing"], [None], [[]], {}, STRANGER, "L9H9", "L1H1,L1H2"),
    "memory": ("nothing", "", [], None, 3, {}, STRANGER, "W_K9", ["W_K1"], "w_k1"),
    "pairs": ("", "ab", "☃", [], 3, ["a", None], {}, STRANGER, "a->", "\\x", "a->b->c"),
    "strength": (NAN, INF, "1", [], True, 1e39, HUGE, STRANGER),
    "task": (3, "bigrams", [], {}, STRANGER, MODEL),
    "model": (None, 3, "demo", [], {}, STRANGER, TASK, torch.nn.Linear(2, 2)),
    "config": (None, 3, "demo", [], {}, STRANGER, TASK),
    "batch": (3, "ab", [], {}, STRANGER, torch.zeros(2, 2), torch.zeros(3).long(), torch.full((2, 9), 99), [[1, 2]]),
    "text": (3, "", "☃", [], STRANGER, "a" * 9999, b"ab", ["a", 3]),
    "rules": ("W_K1", 3, [3], ["W_K9"], ["W_K1: 9..3"], [None], {}, STRANGER, ["W_K1: " + "9" * 5000 + ".."]),
    "grafts": ("W_K1", 3, [3], ["W_K9"], ["W_K1: 9..3"], [None], {"W_K9": 3}, {"W_K1": None}, STRANGER),
    "settings": ("task.k=3", 3, ["task.k"], ["task.nothing=3"], [None], {"task.k": 3}, STRANGER),
    "rng": (None, 3, "rng", STRANGER, np.random),
    "fraction": (0, -0.1, 1.5, "x", *NUMBER),
    "table": (None, 3, [], {}, STRANGER),
    "figures": (None, 3, "3", [], ["3"], [99], [True], [2.5], [None], [[]], [HUGE], {}, NAN, STRANGER),
    "upload": ("", "x", 3, [], {}, "a/b/c", "/a", b"a/b", STRANGER),
    "keep": (3, "", b"x", "a\0b", "/dev/null", [], {}, NAN, True, STRANGER),
}


@dataclass(frozen=True)
class Call:
    """A good call, and which kind of wrong value each argument gets."""

    name: str
    function: Callable[..., object]
    good: dict[str, Any]
    wrong: dict[str, str]
    """Argument -> key of WRONG."""
    but: tuple[Any, ...] = ()
    """Values that this call takes after all."""


def calls(run: im.Trajectory, place: Path) -> list[Call]:
    """The good calls, on a tiny run; what they would write goes to `place`."""
    new = place / "new"
    steps = {"step": "step"}
    return [
        Call(
            "load",
            im.load,
            {"source": run.path},
            {"source": "source", "model": "task", "task": "model"},
            but=(None, run),
        ),
        Call("verify", im.verify, {"source": run.path}, {"source": "source"}),
        Call("thin", im.thin, {"source": run, "out": new}, {"source": "run", "out": "folder", "step": "steps"}),
        Call("state", run.state, {"step": 4}, {"step": "one_step"}),
        Call("model", run.model, {"step": 4}, {"step": "one_step"}),
        Call("stack", run.stack, {"parameter": "W_K1"}, {"parameter": "memory", "step": "steps"}),
        Call("memory", run.memory, {"name": "W_K1"}, {"name": "memory", "step": "steps"}),
        Call("embedding", run.embedding, {"name": "w_E"}, {"name": "memory", "step": "steps"}),
        Call("optimizer_state", run.optimizer_state, {"step": 4}, {"step": "one_step"}),
        Call("export", run.export, {"step": 4, "out": new}, {"step": "one_step", "out": "folder"}),
        Call(
            "train",
            im.train,
            {"task": TASK, "model": MODEL, "out": new, "steps": 1, "batch_size": 2, "progress": False},
            {
                "task": "task",
                "model": "config",
                "out": "folder",
                "steps": "seed",
                "batch_size": "count",
                "learning_rate": "fraction",
                "freeze": "rules",
                "grafts": "rules",
                "clamps": "rules",
                "checkpoints": "choice",
                "log": "choice",
                "resume": "choice",
                "optimizer": "kind",
                "loss": "kind",
                "threads": "count",
            },
            but=(1.5, None, {}),
        ),
        Call(
            "branch",
            im.branch,
            {"source": run, "at": 4, "out": new, "progress": False},
            {
                "source": "run",
                "at": "one_step",
                "out": "folder",
                "freeze": "rules",
                "clamps": "rules",
                "grafts": "grafts",
                "settings": "settings",
                "edit": "settings",
                "steps": "count",
                "resume": "choice",
            },
            but=(None,),
        ),
        Call(
            "ablate",
            im.ablate,
            {"source": run, "kind": "mean"},
            {
                "source": "source",
                "batch": "batch",
                "heads": "names",
                "components": "names",
                "kind": "kind",
                "task": "task",
                "via": "choice",
                "seed": "seed",
                **steps,
            },
        ),
        Call(
            "patch",
            im.patch,
            {"source": run},
            {
                "source": "source",
                "batch": "batch",
                "kind": "choice",
                "corruption": "choice",
                "direction": "choice",
                "query": "choice",
                "components": "names",
                "positions": "choice",
                "via": "choice",
                "seed": "seed",
                **steps,
            },
        ),
        Call(
            "surgery",
            im.surgery,
            {"source": run, "memory": "W_O2", "insert": "a->b"},
            {
                "source": "source",
                "memory": "memory",
                "insert": "pairs",
                "strength": "strength",
                "head": "names",
                **steps,
            },
        ),
        Call(
            "truncate", im.surgery, {"source": run, "memory": "W_O2", "truncate": 1}, {"truncate": "count"}, but=(None,)
        ),
        Call("transplant", im.surgery, {"source": run, "memory": "W_O2"}, {"transplant": "model"}, but=(None,)),
        Call(
            "attention",
            im.attention,
            {"source": run},
            {
                "source": "source",
                "text": "text",
                "batch": "batch",
                "row": "seed",
                "length": "count",
                "heads": "names",
                "triggers": "text",
                "task": "task",
                **steps,
            },
            but=(None,),
        ),
        Call("save attention", im.attention(run).save, {"path": place / "a.html"}, {"path": "file"}),
        Call(
            "identify",
            im.heads.identify,
            {"source": run, "sequences": 2, "orders": 2},
            {
                "source": "source",
                "sequences": "count",
                "metric": "kind",
                "kind": "kind",
                "orders": "count",
                "seed": "seed",
                **steps,
            },
        ),
        Call(
            "report",
            im.report,
            {"source": run, "sequences": 1, "length": 4, "causal_steps": 1},
            {
                "source": "source",
                "step": "steps",
                "sequences": "count",
                "length": "count",
                "causal_steps": "count",
                "budget": "count",
            },
        ),
        Call(
            "table",
            im.probes.table,
            {"source": run, "names": ["loss"]},
            {"source": "source", "names": "names", "step": "steps", "task": "task", "batch": "batch"},
        ),
        Call("recall", im.probes.recall, {"source": run}, {"source": "source", "names": "names", "step": "steps"}),
        Call("spectrum", im.probes.spectrum, {"source": run, "memory": "W_O2"}, {"memory": "memory", "step": "steps"}),
        Call("births", im.probes.births, {"source": run, "memory": "W_O2"}, {"memory": "memory", "step": "steps"}),
        Call(
            "score_matrix",
            im.probes.score_matrix,
            {"source": run, "memory": "W_O2"},
            {"source": "source", "memory": "memory", "step": "step", "head": "names"},
        ),
        Call(
            "sample",
            im.sample,
            {"task": TASK, "sequences": 2, "rng": im.task.step_rng(0, 0)},
            {"task": "task", "sequences": "count", "rng": "rng"},
        ),
        Call("step_rng", im.task.step_rng, {"seed": 0, "step": 0}, {"seed": "seed", "step": "seed"}, but=(HUGE,)),
        Call("build", im.build, {"config": MODEL}, {"config": "config", "seed": "seed"}),
        Call(
            "construct",
            im.construct,
            {"task": TASK},
            {
                "task": "task",
                "config": "config",
                "leave_out": "names",
                "shuffle": "names",
                "seed": "seed",
                "scales": "batch",
            },
            but=(None, []),
        ),
        Call("preset", im.experiment.preset, {"name": "demo"}, {"name": "memory"}),
        Call(
            "model embedding",
            im.model.embedding,
            {"source": run.model(4), "name": "w_E"},
            {"source": "model", "name": "memory"},
        ),
        Call("sweep table", im.sweep.table, {"folder": run.path.parent}, {"folder": "folder"}),
        Call("sweep read", im.sweep.read, {"file": run.path}, {"file": "folder"}),
        Call(
            "RunConfig",
            im.experiment.RunConfig,
            {"task": TASK, "model": MODEL},
            {"task": "task", "model": "config", "train": "config"},
        ),
        Call(
            "causal_curves",
            im.interventions.causal_curves,
            {"source": run},
            {"source": "source", "components": "names", "kind": "kind", "step": "steps"},
        ),
        Call(
            "discover",
            im.interventions.discover,
            {"source": run, "sizes": [0], "random_orders": 0},
            {"source": "source", "kind": "kind", "share": "fraction", "points": "count", "batch": "batch", **steps},
            but=(0,),
        ),
        Call("theory", im.paper.theory.run, {"names": ["lemma"]}, {"names": "names", "out": "folder"}, but=(None,)),
        Call("audit", im.paper.audit, {"folder": place / "none"}, {"folder": "folder"}, but=(None,)),
        Call("audit figures", im.paper.audit, {"folder": place}, {"figures": "figures"}),
        Call(
            "share",
            im.share,
            {"source": run, "out": new},
            {"source": "source", "out": "folder", "upload": "upload"},
            but=(run,),
        ),
        Call("revisions", im.revisions, {"source": [(0, run.model(4))]}, {"keep": "keep"}),
        Call(
            "head_scores",
            im.probes.head_scores,
            {"source": run},
            {"source": "source", "length": "count", **steps},
            but=(None,),
        ),
        Call(
            "BigramTask",
            im.BigramTask,
            {},
            {"length": "count", "k": "count", "triggers": "kind", "outputs": "kind", "corpus": "model"},
        ),
        Call(
            "ModelConfig",
            im.ModelConfig,
            {},
            {"d_model": "count", "n_layers": "count", "n_heads": "count", "feed_forward": "kind", "trained": "names"},
            but=([], {}),
        ),
    ]


def wrong_calls(made: list[Call]) -> Iterator[tuple[str, Callable[..., object], dict[str, Any]]]:
    """What is called, in words, the function and its arguments; every wrong value of every argument."""
    for call in made:
        for argument, kind in call.wrong.items():
            for value in WRONG[kind]:
                if not any(value is known or (type(value) is type(known) and value == known) for known in call.but):
                    yield f"{call.name}({argument}={value!r:.40})", call.function, call.good | {argument: value}
