"""Find damage in a trajectory, and duplicates, gaps and damage in a series.

`verify` checks every checksum of a trajectory and does not stop at the first failure. `check` finds these in a series
by reading its files:

identical checkpoint   all trained weights equal those of another step
identical shard        one of several files equals that of another step: a revision was uploaded in part
identical tensor       one trained tensor equals that of another step
unreadable             a file that is truncated, or no weights at all
damaged                a file of a Hub cache that differs from the hash that names it
refused                what loading refuses: a tensor of the model that is not in the files, one of the files that is
                       not in the model, a list of files without one of them. Checkpoints whose configuration and files
                       have equal names and sizes are tried once.
configuration, tokenizer   config.json or the tokenizer's files differ from the step before
gap                    steps missing from an otherwise regular schedule (equal distances, or equal ratios)
jump                   weights that move JUMP times further in one interval than in the intervals beside it
off the path           weights that move away and back: |i-1, i| + |i, i+1| above OFF_PATH times |i-1, i+1|

Tensors that are equal at every step (masks, rotary tables, frozen weights) are not reported. Distances are relative,
|W' - W| / |W| over all trained floating-point tensors. Files of a Hub cache are links to blobs named by their hash. A
blob that several revisions share is read once.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from induction_memory.errors import DamagedError, Error, InputError
from induction_memory.model.bridge import configuration, load_whole, tensors_in
from induction_memory.trajectory import rows as row_files
from induction_memory.trajectory.checkpoint_files import Checkpoint
from induction_memory.trajectory.manifest import LATEST, MANIFEST, Manifest, check_piece, step_path
from induction_memory.trajectory.search import find, is_series
from induction_memory.trajectory.series import Revisions, revisions
from induction_memory.trajectory.tensors import open_listed, open_state
from induction_memory.trajectory.writer import kept_alone


def verify(source: str | Path) -> list[str]:
    """One line per damaged file of a trajectory, or per finding in a series of checkpoints; empty if all is right.

    >>> import induction_memory as im
    >>> im.verify("induction-small")
    []
    """
    folder = find(source)
    if is_series(folder):
        return lines(revisions(folder))
    if not (folder / MANIFEST).exists():
        raise InputError(f"{folder}: expected a trajectory (a folder with {MANIFEST}), got none there")
    try:
        manifest = Manifest.read(folder)
        for part in manifest.config:
            manifest.part(folder, part)
    except DamagedError as error:
        return [str(error)]
    damage: list[str] = []

    @contextmanager
    def noted() -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except Error as error:
            damage.append(str(error))

    for name, piece in manifest.pieces.items():
        with noted():
            check_piece(folder / name, piece)
        if name.endswith(".safetensors"):
            with noted():
                open_listed(folder, manifest, name).check()
    rows: list[dict[str, Any]] = []
    with noted():
        rows = row_files.of(folder, manifest)
    if not manifest.finished:
        with noted():
            open_state(folder / LATEST, manifest).check()
        kept: list[int] = []
        with noted():
            kept = kept_alone(folder, manifest, rows)
        for step in kept:
            with noted():
                open_state(step_path(folder, step), manifest, step).check()
    return list(dict.fromkeys(damage))


JUMP = 5.0
OFF_PATH = 3.0
COLUMNS = ["finding", "step", "other_step", "where", "detail"]


@dataclass(frozen=True)
class Finding:
    """One problem of a series."""

    finding: str
    step: int
    other_step: int | None
    where: str
    detail: str


@dataclass
class Contents:
    """The hashes of one checkpoint."""

    step: int
    tensors: dict[str, str] = field(default_factory=dict)
    """Tensor name -> hash of its bytes."""
    shards: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """File name -> the tensors in it."""
    problems: list[Finding] = field(default_factory=list)


def check(series: Revisions) -> pd.DataFrame:
    """All problems of a series, one row each; empty if there are none."""
    known: dict[Path, dict[str, str]] = {}
    contents = [_contents(one, known) for one in series.checkpoints]
    trained = _trained(contents)
    findings = [problem for one in contents for problem in one.problems]
    findings += _refused(series.checkpoints, contents)
    findings += _identical(contents, trained)
    findings += _changed_files(series.checkpoints)
    findings += gaps(series.steps.tolist())
    findings += _moves(series.checkpoints, contents, trained)
    rows = [[f.finding, f.step, f.other_step, f.where, f.detail] for f in findings]
    return pd.DataFrame(rows, columns=COLUMNS).astype({"step": "Int64", "other_step": "Int64"})


def lines(series: Revisions) -> list[str]:
    """The findings as text, one line each."""
    found = []
    for finding, step, other, where, detail in check(series)[COLUMNS].itertuples(index=False, name=None):
        beside = "" if pd.isna(other) else f" (step {other})"
        found.append(f"step {step}{beside}: {finding}: {where}: {detail}")
    return found


def gaps(steps: list[int]) -> list[Finding]:
    """Steps that are missing from a schedule of equal distances or equal ratios.

    For a gap before the last checkpoint, the three distances before it must be equal.

    >>> [one.detail for one in gaps([0, 100, 200, 400, 500])]
    ['step 300 is missing']
    """
    found = list[Finding]()

    def add(here: int, after: int, missing: list[int]) -> None:
        text = f"step {missing[0]} is missing" if len(missing) == 1 else f"{len(missing)} steps are missing"
        found.append(Finding("gap", here, after, f"steps {here} to {after}", text))

    for i in range(1, len(steps) - 2):
        before, here, after, beyond = steps[i - 1 : i + 3]
        step, distance = here - before, after - here
        if beyond - after == step and distance > step and distance % step == 0:
            add(here, after, list(range(here + step, after, step)))
        elif before > 0 and here * here == before * (ratio_end := _geometric(before, here, after, beyond)):
            add(here, after, [ratio_end])
    *earlier, last = np.diff(steps[-5:]).tolist() or [0]
    if len(set(earlier)) == 1 and len(earlier) == 3 and last > earlier[0] and last % earlier[0] == 0:
        add(steps[-2], steps[-1], list(range(steps[-2] + earlier[0], steps[-1], earlier[0])))
    return found


def _geometric(before: int, here: int, after: int, beyond: int) -> int:
    """The step missing between `here` and `after` in a schedule of equal ratios; 0 if none is."""
    if here % before or here == before:
        return 0
    ratio = here // before
    return here * ratio if after == here * ratio * ratio and beyond == after * ratio else 0


def _contents(one: Checkpoint, known: dict[Path, dict[str, str]]) -> Contents:
    contents = Contents(one.label.step)
    files, damaged = one.files(), one.damaged()
    for path in damaged:
        detail = "differs from the hash that names it"
        contents.problems.append(Finding("damaged", contents.step, None, f"{one.name}/{path.name}", detail))
    if not files:
        contents.problems.append(Finding("unreadable", contents.step, None, one.name, "no weight files"))
    for path in [path for path in files if path not in damaged]:
        try:
            file = path.resolve()
            hashes = known[file] if file in known else known.setdefault(file, _hashes(path))
        except (OSError, RuntimeError, EOFError, ValueError) as error:
            detail = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
            contents.problems.append(Finding("unreadable", contents.step, None, f"{one.name}/{path.name}", detail))
            continue
        contents.tensors |= hashes
        contents.shards[path.name] = tuple(hashes)
    return contents


def _hashes(path: Path) -> dict[str, str]:
    """Tensor name -> hash of its content and shape."""
    return {name: _hash(tensor) for name, tensor in tensors_in(path)}


def _hash(tensor: Tensor) -> str:
    data = tensor.detach().contiguous()
    digest = hashlib.sha256(repr((tuple(data.shape), str(data.dtype))).encode())
    digest.update(data.flatten().view(torch.uint8).numpy().tobytes() if data.numel() else b"")
    return digest.hexdigest()


def _trained(contents: list[Contents]) -> set[str]:
    """Names of the tensors that are not equal at all steps."""
    values: dict[str, set[str]] = defaultdict(set)
    for one in contents:
        for name, value in one.tensors.items():
            values[name].add(value)
    return {name for name, different in values.items() if len(different) > 1}


def _refused(checkpoints: Iterable[Checkpoint], contents: list[Contents]) -> list[Finding]:
    """What loading says of checkpoints without problems."""
    found, tried = list[Finding](), set[str]()
    for one, content in zip(checkpoints, contents, strict=True):
        files = sorted((path.name, path.stat().st_size) for path in one.folder.iterdir() if path.is_file())
        kind = repr((sorted(_config(one.folder).items(), key=repr), files))
        if content.problems or kind in tried:
            continue
        tried.add(kind)
        try:
            load_whole(one.folder)
        except InputError as error:
            tried.remove(kind)
            detail = str(error).replace(f"{one.folder}: ", "")
            found.append(Finding("refused", content.step, None, one.name, detail))
    return found


def _identical(contents: list[Contents], trained: set[str]) -> list[Finding]:
    """Pairs of steps that share weights, reported once for the largest equal unit: checkpoint, shard or tensor."""
    found = []
    for i, one in enumerate(contents):
        for other in contents[i + 1 :]:
            same = {n for n in trained if one.tensors.get(n) == other.tensors.get(n) and n in one.tensors}
            if not same:
                continue
            if same == trained & set(one.tensors) == trained & set(other.tensors):
                detail = "all weights that train are the same"
                found.append(Finding("identical checkpoint", other.step, one.step, "all files", detail))
                continue
            for shard, names in other.shards.items():
                inside = trained & set(names)
                if len(other.shards) > 1 and inside and inside <= same:
                    detail = f"its {len(inside)} tensors that train are the same"
                    found.append(Finding("identical shard", other.step, one.step, shard, detail))
                    same -= inside
            for name in sorted(same):
                found.append(Finding("identical tensor", other.step, one.step, name, "the same values"))
    return found


def _changed_files(checkpoints: Iterable[Checkpoint]) -> list[Finding]:
    found: list[Finding] = []
    before: tuple[int, dict[str, Any], dict[str, str]] | None = None
    for one in checkpoints:
        config, tokenizer = _config(one.folder), one.tokenizer()
        if before is not None:
            fields = sorted(k for k in config.keys() | before[1].keys() if config.get(k) != before[1].get(k))
            if fields:
                detail = "; ".join(f"{k}: {before[1].get(k)!r} -> {config.get(k)!r}"[:80] for k in fields[:4])
                found.append(Finding("configuration", one.label.step, before[0], "config.json", detail))
            files = sorted(k for k in tokenizer.keys() | before[2].keys() if tokenizer.get(k) != before[2].get(k))
            if files:
                found.append(Finding("tokenizer", one.label.step, before[0], ", ".join(files), "other content"))
        before = one.label.step, config, tokenizer
    return found


def _config(folder: Path) -> dict[str, Any]:
    try:
        values = configuration(folder)
    except InputError:
        return {"config.json": "unreadable"}
    return {name: value for name, value in values.items() if name != "architectures"}


def _moves(checkpoints: tuple[Checkpoint, ...], contents: list[Contents], trained: set[str]) -> list[Finding]:
    """Jumps, and checkpoints off the path, among the checkpoints that can be read completely."""
    whole = [(c, k) for c, k in zip(checkpoints, contents, strict=True) if not k.problems and k.tensors]
    if len(whole) < 4:
        return []
    one, two = distances([c for c, _ in whole], trained)
    steps = [k.step for _, k in whole]
    found = []
    for i in range(1, len(steps) - 1):
        if two[i - 1] * OFF_PATH < one[i - 1] + one[i]:
            detail = f"moves by {one[i - 1]:.3g} and {one[i]:.3g}, its neighbours are {two[i - 1]:.3g} apart"
            found.append(Finding("off the path", steps[i], None, "all weights", detail))
    off = {finding.step for finding in found}
    for i in range(1, len(one) - 1):
        beside = max(one[i - 1], one[i + 1])
        if one[i] > JUMP * beside and not {steps[i], steps[i + 1]} & off:
            detail = f"moves by {one[i]:.3g}, beside it by at most {beside:.3g}"
            found.append(Finding("jump", steps[i + 1], steps[i], "all weights", detail))
    return found


def distances(checkpoints: list[Checkpoint], trained: set[str]) -> tuple[list[float], list[float]]:
    """Relative distances of the weights: from each checkpoint to the next, and to the one after that."""
    kept: list[dict[str, Tensor]] = []
    one, two = [], []
    for checkpoint in checkpoints:
        now = {
            n: t for path in checkpoint.files() for n, t in tensors_in(path) if n in trained and t.is_floating_point()
        }
        kept.append(now)
        if len(kept) > 1:
            one.append(_distance(kept[-2], now))
        if len(kept) > 2:
            two.append(_distance(kept[-3], now))
            kept.pop(0)
    return one, two


def _distance(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    shared = [name for name in before if name in after and before[name].shape == after[name].shape]
    moved = sum(float((after[name].double() - before[name].double()).square().sum()) for name in shared)
    size = sum(float(before[name].double().square().sum()) for name in shared)
    return float(np.sqrt(moved / size)) if size else float("nan")
