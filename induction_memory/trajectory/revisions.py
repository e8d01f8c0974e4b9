"""A series of checkpoints that others trained, read one after another (Pythia, OLMo, one's own Trainer).

    series = revisions("checkpoints-of-mine")      a folder of Hugging Face folders (step1000/, checkpoint-2000/ ...)
    series = revisions("models--org--name")        a local Hub cache with its revisions
    series = revisions([path, path])               chosen checkpoints
    series = revisions((step, model) pairs)        models that the caller loads
    series.steps, series.tokens                    numpy steps; tokens where the names say them
    for step, model in series: ...                 one model in memory at a time, the next one's files read ahead
    series.table(measure)                          a table of every checkpoint, with a step column

Names are read by `checkpoint_names`; the order is by step. Files are local: nothing is ever fetched.
"""

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor, nn

from induction_memory.errors import InputError, require
from induction_memory.trajectory.checkpoint_names import Label, label

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of a series: what its name says, and where its files are."""

    name: str
    label: Label
    folder: Path

    def files(self) -> list[Path]:
        """Its weight files, in the order of their names."""
        return weight_files(self.folder)

    @property
    def fingerprint(self) -> str:
        """A hash of the names, sizes and times of its files: it changes when a file is written again."""
        facts = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(self.folder.iterdir()) if p.is_file()]
        return hashlib.sha256(repr(facts).encode()).hexdigest()


class Revisions:
    """A series of checkpoints in the order of their steps; models are made when asked for."""

    def __init__(self, name: str, checkpoints: Sequence[Checkpoint], keep: Path | None = None) -> None:
        self.name, self.checkpoints, self.keep = name, tuple(checkpoints), keep

    def __repr__(self) -> str:
        return f"Revisions({self.name!r}: {len(self)} checkpoints from step {self.steps[0]} to {self.steps[-1]})"

    def __len__(self) -> int:
        return len(self.checkpoints)

    @property
    def steps(self) -> Int[np.ndarray, " step"]:
        return np.array([one.label.step for one in self.checkpoints], dtype=np.int64)

    @property
    def tokens(self) -> list[int | None]:
        """Tokens seen at each step, None where a name does not say."""
        return [one.label.tokens for one in self.checkpoints]

    def at(self, steps: int | Iterable[int]) -> "Revisions":
        """Some of its steps."""
        wanted = [steps] if isinstance(steps, int | np.integer) else list(steps)
        by_step = {one.label.step: one for one in self.checkpoints}
        for step in wanted:
            require(step in by_step, "step", f"one of {', '.join(map(str, by_step))}", step)
        require(len(wanted) > 0, "step", "one or more steps", "none")
        return Revisions(self.name, [by_step[step] for step in sorted(set(wanted))], self.keep)

    def model(self, step: int | None = None) -> nn.Module:
        """The model of one step, the last when not given."""
        from induction_memory.model.bridge import boot

        one = self.checkpoints[-1] if step is None else self.at(int(step)).checkpoints[0]
        return boot(one.folder)

    def __iter__(self) -> Iterator[tuple[int, nn.Module]]:
        """Step and model; drop the model before asking for the next one, so that only one is in memory."""
        for one, load in self._loaders():
            yield one.label.step, load()

    def _loaders(self) -> Iterator[tuple[Checkpoint, Callable[[], nn.Module]]]:
        """Each checkpoint with the function that makes its model; the files of the next are read meanwhile."""
        from induction_memory.model.bridge import boot

        for one, following in zip(self.checkpoints, [*self.checkpoints[1:], None], strict=True):
            reading = _read_ahead(following.files()) if following is not None else None
            yield one, partial(boot, one.folder)
            if reading is not None:
                reading.join()

    def table(self, measure: Callable[[nn.Module], pd.DataFrame], *, key: str | None = None) -> pd.DataFrame:
        """The tables that `measure` makes of each model, one below the other, with the step in front.

        With `keep` and a `key` that names the measure and its settings, each step's table is kept on the disk as soon
        as it is there, and read from it next time: a run that was killed goes on where it was.
        """
        parts = []
        for one, load in self._loaders():
            kept = self._kept(one, key)
            if kept is not None and kept.exists():
                part = pd.read_parquet(kept)
            else:
                part = measure(load())
                if kept is not None:
                    _write(part, kept)
            part = part.drop(columns="step", errors="ignore")
            part.insert(0, "step", one.label.step)
            parts.append(part)
        return pd.concat(parts, ignore_index=True)

    def _kept(self, one: Checkpoint, key: str | None) -> Path | None:
        if self.keep is None or key is None:
            return None
        digest = hashlib.sha256(f"{key}\n{one.fingerprint}".encode()).hexdigest()[:24]
        return self.keep / f"step-{one.label.step}-{digest}.parquet"


class Pairs(Revisions):
    """A series whose models the caller brings, as (step, model) pairs: read once, in the order given."""

    def __init__(self, pairs: Iterable[tuple[int, nn.Module]]) -> None:
        super().__init__("models", [])
        self._pairs = iter(pairs)
        self._seen: list[int] = []

    def __repr__(self) -> str:
        return f"Revisions of (step, model) pairs, {len(self._seen)} read"

    @property
    def steps(self) -> Int[np.ndarray, " step"]:
        """The steps that were read so far."""
        return np.array(self._seen, dtype=np.int64)

    def __iter__(self) -> Iterator[tuple[int, nn.Module]]:
        for pair in self._pairs:
            fits = isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], nn.Module)
            require(fits, "source", "pairs of a step and a model", repr(pair)[:80])
            step, model = int(pair[0]), pair[1]
            require(not self._seen or step > self._seen[-1], "source", "steps that grow", step)
            self._seen.append(step)
            yield step, model

    def at(self, steps: int | Iterable[int]) -> "Revisions":
        raise InputError("step: expected none: pairs of steps and models are read once, in the order given")

    def model(self, step: int | None = None) -> nn.Module:
        raise InputError("source: expected checkpoints on the disk to choose from, got pairs of steps and models")

    def table(self, measure: Callable[[nn.Module], pd.DataFrame], *, key: str | None = None) -> pd.DataFrame:
        parts = []
        for step, model in self:
            part = measure(model).drop(columns="step", errors="ignore")
            part.insert(0, "step", step)
            parts.append(part)
        require(len(parts) > 0, "source", "one or more pairs of a step and a model", "none that is left")
        return pd.concat(parts, ignore_index=True)


Source = str | Path | Sequence[str | Path] | Iterable[tuple[int, nn.Module]]


def revisions(source: Source, *, keep: str | Path | None = None) -> Revisions:
    """The series of checkpoints in `source` (module docstring).

    `keep` is a folder for results: what `table` measures at a step is kept there as soon as it is known.
    """
    folder = None if keep is None else Path(keep)
    if isinstance(source, str | PathLike):
        path = Path(source)
        require(path.is_dir(), "source", "a folder of checkpoints", repr(str(path)))
        found = _hub_cache(path) if (path / "snapshots").is_dir() else _children(path)
        return Revisions(path.resolve().name, _in_order(found, path), folder)
    require(isinstance(source, Iterable), "source", "a folder, paths, or (step, model) pairs", type(source).__name__)
    if isinstance(source, Sequence) and source and all(isinstance(one, str | PathLike) for one in source):
        paths = [Path(one) for one in source]  # type: ignore[arg-type]
        for path in paths:
            require(path.is_dir(), "source", "folders of checkpoints", repr(str(path)))
        return Revisions(paths[-1].resolve().parent.name, _in_order({p.name: p for p in paths}, "source"), folder)
    require(keep is None, "keep", "none for (step, model) pairs: nothing tells one model from another", repr(keep))
    return Pairs(source)  # type: ignore[arg-type]


def is_series(path: Path) -> bool:
    """Whether a folder holds two or more checkpoints, or is a local Hub cache."""
    return (path / "snapshots").is_dir() or len(_children(path)) > 1


def weight_files(folder: Path) -> list[Path]:
    """The files of a checkpoint that hold weights; safetensors alone where it has both kinds."""
    for patterns in (WEIGHTS[:1], WEIGHTS[1:]):
        files = sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
        files = [path for path in files if path.name not in ("training_args.bin", "optimizer.pt", "scheduler.pt")]
        if files:
            return files
    return []


def _children(path: Path) -> dict[str, Path]:
    return {p.name: p for p in sorted(path.iterdir()) if p.is_dir() and (p / "config.json").exists()}


def _hub_cache(path: Path) -> dict[str, Path]:
    """Revision name -> folder: refs/NAME holds the commit, snapshots/COMMIT the files."""
    refs = path / "refs"
    named = {str(p.relative_to(refs)): p.read_text().strip() for p in sorted(refs.rglob("*")) if p.is_file()}
    found = {name: path / "snapshots" / commit for name, commit in named.items() if label(name) is not None}
    for name, folder in found.items():
        require(folder.is_dir(), str(path), f"the snapshot of revision {name}", "none")
    return found


def _in_order(found: dict[str, Path], where: str | Path) -> list[Checkpoint]:
    checkpoints: dict[int, Checkpoint] = {}
    for name, folder in found.items():
        said = label(name)
        if said is None:
            if name == "main":
                continue
            raise InputError(f"{folder}: expected a name with one step in it, such as step1000, got {name!r}")
        if said.step in checkpoints:
            raise InputError(f"{folder}: expected one checkpoint per step, got {checkpoints[said.step].name} as well")
        checkpoints[said.step] = Checkpoint(name, said, folder)
    require(bool(checkpoints), str(where), "folders with config.json whose names say their step", "none")
    return [checkpoints[step] for step in sorted(checkpoints)]


def _read_ahead(files: Sequence[Path]) -> threading.Thread:
    """Read files into the system's cache in the background, without keeping them."""

    def read() -> None:
        buffer = bytearray(_CHUNK)
        for path in files:
            try:
                with path.open("rb", buffering=0) as file:
                    while file.readinto(buffer):
                        pass
            except OSError:
                return  # the load itself reports what cannot be read

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _write(table: pd.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    table.to_parquet(part, index=False)
    part.replace(path)


def hashed(value: object) -> str:
    """A short text that tells settings apart, tensors by their content: for the `key` of `Revisions.table`."""
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous()
        return hashlib.sha256(data.view(torch.uint8).numpy().tobytes()).hexdigest()
    if isinstance(value, dict):
        return repr(sorted((name, hashed(one)) for name, one in value.items()))
    if isinstance(value, list | tuple):
        return repr([hashed(one) for one in value])
    return repr(value)
