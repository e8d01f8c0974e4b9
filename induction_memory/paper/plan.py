"""The runs of each figure of the paper, at the paper's scale or at a reduced scale.

A run is a preset and a seed. At both scales it is trained with one thread, so that two runs can share two cores and the
bits do not depend on the machine's number of threads.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from induction_memory.errors import InputError, require
from induction_memory.experiment.presets import FIGURE_8_DIMENSIONS, PRESETS, preset, quick, with_seed
from induction_memory.experiment.run_config import RunConfig

Scale = Literal["quick", "paper"]

TWO_LAYERS = {"fixed": "figure-2-fixed", "random": "figure-2-random"}
ONE_LAYER = {"fixed": "figure-2-one-layer-fixed", "random": "figure-2-one-layer-random"}
FREEZING = {
    "nothing frozen": "figure-3",
    r"$W_O^2$ frozen": "figure-3-freeze-output",
    r"$W_K^1, W_K^2$ frozen": "figure-3-freeze-keys",
    r"$W_K^1$ frozen": "figure-3-freeze-first-key",
    r"$W_K^2$ frozen": "figure-3-freeze-second-key",
}
FREEZING_IN_THE_TEXT = {label: f"{name}-text" for label, name in FREEZING.items()}
SETTINGS = {
    "K=1, fixed frequent": "figure-4-k1-fixed-frequent",
    "K=1, random": "figure-4-k1-random",
    "K=5, random": "figure-4-k5-random",
    "K=5, fixed frequent": "figure-4-k5-fixed-frequent",
    "K=5, fixed rare": "figure-4-k5-fixed-rare",
}
OUTPUTS = {"uniform": "figure-4-uniform", "bigram": "figure-4-bigram"}
UNIFORM_IN_THE_TEXT = "figure-7-text"
LATE_KEYS = {
    "K=1, random": "late-keys-k1",
    "K=5, random": "late-keys-k5",
    "K=5, fixed frequent": "late-keys-k5-fixed-frequent",
    "K=5, fixed rare": "late-keys-k5-fixed-rare",
}
"""Settings of Figure 4 at a reduced scale."""
SLOWDOWNS = {
    "one trigger instead of five": ("K=1, random", "K=5, random", "W_O2"),
    "rare triggers instead of frequent ones": ("K=5, fixed rare", "K=5, fixed frequent", "W_O2"),
    "random triggers instead of fixed ones": ("K=5, random", "K=5, fixed frequent", "W_K2"),
}
"""What slows learning down -> the slow and the fast setting, and the memory that the paper holds responsible."""
GRAFTS, GRAFTED_STEPS = {"W_O2": "-grafted", "keys": "-grafted-keys"}, 300
"""Ends of the presets that have learned memories from the start, and the number of steps that all of them have."""
REDUCED = tuple(f"{name}{end}" for name in LATE_KEYS.values() for end in ("", *GRAFTS.values()))
GRAFTED_SETTINGS = tuple(f"{SETTINGS[label]}{GRAFTS['W_O2']}" for label in ("K=1, random", "K=5, random"))
DIMENSION = tuple(name for name in PRESETS if name.startswith("figure-8-"))
DIMENSIONS = FIGURE_8_DIMENSIONS
REALISTIC, FOUR_HEADS = "figure-10", "figure-11"
LETTERS = 40  # tokens of a sequence in an attention map

FIGURES: dict[int, tuple[str, ...]] = {
    2: (*TWO_LAYERS.values(), *ONE_LAYER.values()),
    3: (*FREEZING.values(), *FREEZING_IN_THE_TEXT.values()),
    4: (*SETTINGS.values(), *OUTPUTS.values(), *REDUCED, *GRAFTED_SETTINGS),
    5: tuple(SETTINGS.values()),
    6: tuple(OUTPUTS.values()),
    7: (OUTPUTS["uniform"], UNIFORM_IN_THE_TEXT),
    8: DIMENSION,
    9: (),
    10: (REALISTIC,),
    11: (FOUR_HEADS,),
}
"""Figure -> its presets. Figure 9 needs no training."""

COMPARED = {10: (OUTPUTS["uniform"],)}
"""Figure -> presets of other figures that its claims use for comparison."""

TRAJECTORIES = {
    "random-triggers": OUTPUTS["uniform"],
    "fixed-triggers": SETTINGS["K=5, fixed frequent"],
    "frozen-keys": "figure-3-freeze-keys",
    "induction-alone": "figure-3",
    "four-heads": FOUR_HEADS,
    "layernorm-mlp": REALISTIC,
    "vanilla-fixed": TWO_LAYERS["fixed"],
    "vanilla-random": TWO_LAYERS["random"],
}
"""Shipped trajectory -> its preset; it is the first repetition."""

SEEDS = dict.fromkeys(
    [
        *FREEZING.values(),
        "figure-3-freeze-keys-text",
        *REDUCED,
        *(f"figure-8-d128-eta{eta}" for eta in (3.2, 6.4, 12.8, 25.6, 51.2)),
    ],
    3,
) | {"figure-3-freeze-output-text": 2}
"""Independent repetitions of a preset's run at the paper's scale; one if not listed."""


@dataclass(frozen=True)
class PaperRun:
    """One run of the reproduction."""

    preset: str
    seed: int
    config: RunConfig
    scale: Scale = "paper"

    @property
    def name(self) -> str:
        return f"{self.preset}-seed-{self.seed}"

    @property
    def command(self) -> str:
        """The command that trains this run."""
        if self.scale == "quick":
            return "induction-memory reproduce all --scale quick"
        return f"induction-memory train {self.preset} --seed {self.seed} --set train.threads=1 --out {self.name}"


def figures(names: Iterable[str]) -> list[int]:
    """The numbers of figures: from "3", "figure-3" or "figure_03"; all for "all" or an empty list."""
    chosen: list[int] = []
    for name in list(names) or ["all"]:
        number = name.lower().removeprefix("figure").lstrip("-_ 0")
        if name == "all":
            chosen += FIGURES
        elif number in map(str, FIGURES):
            chosen.append(int(number))
        else:
            raise InputError(f"figure: expected all, or one of {', '.join(map(str, FIGURES))}, got {name!r}")
    return list(dict.fromkeys(chosen))


def jobs(chosen: Sequence[int], scale: Scale) -> list[PaperRun]:
    """The runs of these figures and of the comparisons in their claims, each once."""
    good = isinstance(chosen, list | tuple) and chosen and all(figure in [*FIGURES] for figure in chosen)
    require(bool(good), "figures", f"a list of numbers out of {', '.join(map(str, FIGURES))}", repr(chosen)[:80])
    found: dict[str, PaperRun] = {}
    for figure in chosen:
        for seed in range(max(SEEDS.values())):
            for name in (*FIGURES[figure], *COMPARED.get(figure, ())):
                if seed < (1 if scale == "quick" else SEEDS.get(name, 1)):
                    job = PaperRun(name, seed, _config(name, seed, scale), scale)
                    found.setdefault(job.name, job)
    return list(found.values())


def _config(name: str, seed: int, scale: Scale) -> RunConfig:
    run = with_seed(preset(name).config, seed)
    if scale == "quick":
        run = quick(run)
    return run.with_settings(["train.threads=1"])


def describe(scale: Scale) -> str:
    """The note under a figure of reduced scale."""
    return "" if scale == "paper" else "quick scale: T = 64, batches of 128 sequences, one seed"


def step_sizes(d: int) -> dict[float, str]:
    """Step size -> the preset of Figure 8 that trains W_O2 with it in dimension d."""
    of_d = [name for name in DIMENSION if name == f"figure-8-d{d}" or name.startswith(f"figure-8-d{d}-")]
    return {preset(name).config.train.learning_rate: name for name in of_d}
