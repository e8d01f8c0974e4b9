"""The run that three studies start from: the preset `demo`, or at full scale `figure-3`, once per seed."""

from dataclasses import asdict
from pathlib import Path
from typing import Literal

import induction_memory as im

Scale = Literal["reduced", "full"]


def base_run(scale: Scale, seed: int, out: Path) -> im.Trajectory:
    """The run of a seed in `out`, trained or resumed if it is not there yet: 300 steps, or 600 at full scale."""
    config = im.experiment.preset("demo" if scale == "reduced" else "figure-3").config
    train = config.train.with_seed(seed).replace(
        steps=300 if scale == "reduced" else 600, checkpoints="every 1 to 20 then every 5", threads=1
    )
    settings = asdict(train)
    return im.train(config.task, config.model, out=out / f"base-{seed}", resume="or start", progress=False, **settings)


def seeds_of(scale: Scale) -> range:
    return range(3 if scale == "reduced" else 5)
