"""A series of checkpoints that somebody else trained, read one after another (Pythia, OLMo, one's own Trainer).

    series = revisions("checkpoints-of-mine")      a folder of Hugging Face folders (step1000/, checkpoint-2000/ ...)
    series = revisions("models--org--name")        a local Hub cache with its revisions
    series = revisions([path, path])               chosen checkpoints
    series = revisions((step, model) pairs)        models that you load yourself
    series[1000], series[-1]                       the model of one step
    series.steps, series.tokens                    numpy steps; tokens where the names say them
    for step, model in series.items(): ...         one model in memory at a time
    im.measure(series, function)                   a table of every checkpoint, with a step column
    im.ablate(series, step="all")                  analyses take a series, or its folder, like any run

`checkpoint_files` finds the steps in the names; checkpoints are ordered by step. Only `fetch_revisions` uses the
network.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from induction_memory.errors import InputError, require
from induction_memory.files import require_folder
from induction_memory.trajectory.checkpoint_files import Checkpoint, label
from induction_memory.trajectory.search import ByStep, Steps, checkpoint_folders

BESIDE = Path(".induction_memory")
"""The folder for kept results, beside the checkpoints."""


class Revisions(ByStep[nn.Module]):
    """A series of checkpoints in the order of their steps; models are made on request."""

    def __init__(self, name: str, checkpoints: Sequence[Checkpoint], keep: Path | None = None) -> None:
        self.name, self.checkpoints, self.keep = name, tuple(checkpoints), keep

    def __repr__(self) -> str:
        return f"Revisions({self.name!r}: {len(self)} checkpoints from step {self.steps[0]} to {self.steps[-1]})"

    @property
    def steps(self) -> Int[np.ndarray, " step"]:
        return np.array([one.label.step for one in self.checkpoints], dtype=np.int64)

    @property
    def tokens(self) -> list[int | None]:
        """Tokens seen at each step; None if not in the name."""
        return [one.label.tokens for one in self.checkpoints]

    def at(self, steps: int | Iterable[int]) -> "Revisions":
        """Some of its steps."""
        wanted = [steps] if isinstance(steps, int | np.integer) else list(steps)
        require(len(wanted) > 0, "step", "one or more steps", "none")
        by_step = {one.label.step: one for one in self.checkpoints}
        return Revisions(self.name, [by_step[step] for step in sorted(set(map(self.resolve, wanted)))], self.keep)

    def model(self, step: int | None = None) -> nn.Module:
        """The model of one step, by default the last."""
        from induction_memory.model.bridge import boot

        one = self.checkpoints[-1] if step is None else self.at(step).checkpoints[0]
        one.require_intact()
        return boot(one.folder)

    def in_turn(self, steps: Sequence[int], size: int = 1) -> Iterator[tuple[list[int], nn.Module]]:
        """Each step with its model. Where possible it is one model whose weights change, so do not keep its tensors."""
        from induction_memory.model.bridge import Refill

        models = Refill()
        for one in self.at(steps).checkpoints if len(steps) else ():
            one.require_intact()
            yield [one.label.step], models.load(one.folder, one.files())

    def identity(self, step: int) -> str | None:
        """The key for the kept results of a step: a hash of its files' names and content."""
        return self.at(step).checkpoints[0].fingerprint

    task = None
    has_steps = True
    reads_text = True

    def initial(self) -> None:
        """None: the weights before training are not known."""

    def context(self) -> tuple[int, int]:
        """The size of the vocabulary and the longest sequence."""
        config = self.config()
        vocabulary: Any = getattr(config, "vocab_size", None)
        longest: Any = getattr(config, "max_position_embeddings", None)
        good = all(isinstance(size, int) and size > 0 for size in (vocabulary, longest))
        expected = "a vocab_size and max_position_embeddings of 1 or more"
        require(good, "config.json", expected, f"{vocabulary!r} and {longest!r}")
        return vocabulary, longest

    def config(self) -> Any:
        """The transformers configuration of the last checkpoint."""
        from transformers import AutoConfig

        from induction_memory.model.bridge import ONLY_FILES, reading

        with reading(self.checkpoints[-1].folder):
            return AutoConfig.from_pretrained(self.checkpoints[-1].folder, **ONLY_FILES).get_text_config()

    def tokenizer(self) -> Any:
        """The tokenizer of the series; an error if the checkpoints have none, or different ones."""
        from transformers import AutoTokenizer

        from induction_memory.model.bridge import ONLY_FILES, reading

        files = [one.tokenizer() for one in self.checkpoints]
        without = "a series that brings a tokenizer (without one, give tokens by number)"
        require(bool(files[-1]), "text", without, f"{self.name}, which has none")
        require(all(f == files[-1] for f in files), "text", "one tokenizer for all checkpoints", "different ones")
        with reading(self.checkpoints[-1].folder):
            return AutoTokenizer.from_pretrained(self.checkpoints[-1].folder, **ONLY_FILES)

    def encode(self, text: str, length: int | None = None) -> Int[Tensor, "batch pos"]:
        """The tokens of a text as one sequence; with `length`, cut into full sequences of this length."""
        tokens = torch.tensor(self.tokenizer()(text, add_special_tokens=False)["input_ids"], dtype=torch.long)
        require(len(tokens) >= 2, "text", "two or more tokens", len(tokens))
        if length is None or len(tokens) < length:
            return tokens[None]
        return tokens[: len(tokens) // length * length].reshape(-1, length)

    def words(self, tokens: Int[Tensor, " pos"]) -> list[str]:
        """Tokens as text; their numbers if the series has no tokenizer."""
        if not self.checkpoints[-1].tokenizer():
            return [str(int(token)) for token in tokens]
        tokenizer = self.tokenizer()
        return [tokenizer.decode([int(token)]) for token in tokens]


class GivenModels(Revisions):
    """A series from the user's (step, model) pairs, read once, in their order."""

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

    def items(self) -> Iterator[tuple[int, nn.Module]]:
        for pair in self._pairs:
            fits = isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], nn.Module)
            require(fits, "source", "pairs of a step and a model", repr(pair)[:80])
            step, model = int(pair[0]), pair[1]
            require(not self._seen or step > self._seen[-1], "source", "steps that grow", step)
            self._seen.append(step)
            yield step, model

    def __iter__(self) -> Iterator[int]:
        raise InputError("series: expected series.items() for pairs of steps and models, which are read once")

    def resolve(self, step: Any, nearest: bool = False) -> int:
        raise InputError("step: expected none: pairs of steps and models are read once, in their order")

    def model(self, step: int | None = None) -> nn.Module:
        raise InputError("source: expected checkpoints on the disk to choose from, got pairs of steps and models")

    def choose(self, step: "Steps") -> list[int]:
        allowed = isinstance(step, str) and step == "all"
        require(allowed, "step", "'all' for pairs of steps and models", repr(step))
        return []

    def in_turn(self, steps: Sequence[int], size: int = 1) -> Iterator[tuple[list[int], nn.Module]]:
        for step, model in self.items():
            yield [step], model

    def identity(self, step: int) -> str | None:
        return None

    def config(self) -> Any:
        raise InputError("batch: expected sequences of tokens for pairs of steps and models, got none")

    def tokenizer(self) -> Any:
        raise InputError("text: expected tokens (batch=...) for pairs of steps and models, got a text")


Source = str | Path | Sequence[str | Path] | Iterable[tuple[int, nn.Module]]


def revisions(source: "Source", *, keep: str | Path | Literal[False] | None = None) -> Revisions:
    """A series of checkpoints that somebody else trained: a folder with one per step, a list of folders, or (step,
    model) pairs.

    Analyses keep the results of each step in the folder `keep`: for one folder of checkpoints by default
    `.induction_memory` in it; False keeps nothing.

    >>> import induction_memory as im
    >>> model = im.load("induction-small").model
    >>> series = im.revisions([(0, model(step=0)), (600, model(step=600))])
    >>> im.measure(series, lambda at: {"norm": at.model.W_O[1].norm().item()})["norm"].round(1).tolist()
    [6.5, 25.4]
    """
    folder = None if keep is None or keep is False else require_folder(keep, "keep")
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        require(os.path.isdir(path), "source", "a folder of checkpoints", repr(str(path)))
        found = _hub_cache(path) if (path / "snapshots").is_dir() else checkpoint_folders(path)
        return Revisions(path.resolve().name, in_order(found, path), path / BESIDE if keep is None else folder)
    require(isinstance(source, Iterable), "source", "a folder, paths, or (step, model) pairs", type(source).__name__)
    if isinstance(source, Sequence) and source and all(isinstance(one, str | os.PathLike) for one in source):
        paths = [Path(one) for one in source]  # type: ignore[arg-type]
        for path in paths:
            require(os.path.isdir(path), "source", "folders of checkpoints", repr(str(path)))
        return Revisions(paths[-1].resolve().parent.name, in_order({p.name: p for p in paths}, "source"), folder)
    require(not keep, "keep", "none for (step, model) pairs, because models have no identity", repr(keep))
    return GivenModels(source)  # type: ignore[arg-type]


def _hub_cache(path: Path) -> dict[str, Path]:
    """Revision name -> folder: refs/NAME holds the commit, snapshots/COMMIT the files."""
    refs = path / "refs"
    named = {
        str(p.relative_to(refs)): p.read_text(encoding="utf-8").strip() for p in sorted(refs.rglob("*")) if p.is_file()
    }
    found = {name: path / "snapshots" / commit for name, commit in named.items() if label(name) is not None}
    for name, folder in found.items():
        require(folder.is_dir(), str(path), f"the snapshot of revision {name}", "none")
    return found


def in_order(found: dict[str, Path], where: str | Path) -> list[Checkpoint]:
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


FILES = ["*.json", "*.safetensors", "*.bin", "*.txt", "*.model"]


def fetch_revisions(
    source: str, step: int | Sequence[int], *, cache: str | Path | None = None, keep: str | Path | None = None
) -> Revisions:
    """Fetch the revisions of one step or several of `owner/name`, and read them as a series.

    `cache` is huggingface_hub's folder, by default its own. `keep` is a folder for results.
    """
    good = isinstance(source, str) and source.count("/") == 1
    require(good, "source", "owner/name of a model on the Hub", repr(source))
    steps = [step] if isinstance(step, int) else sorted(set(step))
    require(len(steps) > 0, "step", "the steps to fetch", "none")
    from huggingface_hub import list_repo_refs, snapshot_download

    refs = list_repo_refs(source)
    offered = {said.step: ref.name for ref in (*refs.branches, *refs.tags) if (said := label(ref.name)) is not None}
    known = ", ".join(map(str, sorted(offered)[:8]))
    for one in steps:
        require(one in offered, "step", f"steps that {source} has ({known} ...)", one)
    paths = [snapshot_download(source, revision=offered[one], cache_dir=cache, allow_patterns=FILES) for one in steps]
    folders = list(map(Path, paths))
    return revisions(folders[0].parents[1], keep=keep).at(steps)
