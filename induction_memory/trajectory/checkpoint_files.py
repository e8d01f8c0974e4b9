"""The files of one checkpoint of a series: finding them, and noticing changes.

A Hub cache names each blob by a hash of its content: SHA-256 for large files, git's own hash for others. Such a file is
compared with its name before it is read. Files of other folders have no checksums and cannot be checked.

The name of a checkpoint gives its training step and, in some names, the tokens seen by then.

    step1000                        step 1,000
    checkpoint-1000                 step 1,000
    stage1-step120000-tokens252B    step 120,000 after 252 billion tokens
    step-001000-2BT                 step 1,000 after 2 billion tokens
    model_1000.pth                  step 1,000

The step is the number after a word such as `step` or `checkpoint`. Without such a word, it is the only number besides
the tokens and the stage. A name with two such numbers gives no step.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePath

from induction_memory.errors import DamagedError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_TOKENS = re.compile(r"tokens?[-_=]?(\d+(?:\.\d+)?)([KMBT]?)(?![0-9A-Za-z])|(?<![0-9A-Za-z.])(\d+(?:\.\d+)?)([KMB])T\b")
_STAGE = re.compile(r"stage[-_=]?\d+", re.IGNORECASE)
_STEP = re.compile(
    r"(?:steps?|checkpoint|ckpt|iter(?:ation)?|model|state)[-_=]?(\d+)(?![0-9A-Za-z.]*[A-Za-z])", re.IGNORECASE
)
_NUMBER = re.compile(r"(?<![0-9A-Za-z.])(\d+)(?![0-9A-Za-z.])")
_ENDINGS = (".safetensors", ".pth", ".pt", ".bin")


@dataclass(frozen=True)
class Label:
    """Step of a checkpoint, and tokens seen by then (None if not in the name)."""

    step: int
    tokens: int | None = None


def label(name: str) -> Label | None:
    """Step and tokens from the name of a file, folder or revision; None if it names no step, or more than one.

    >>> label("stage1-step120000-tokens252B")
    Label(step=120000, tokens=252000000000)
    >>> label("main") is None
    True
    """
    bare = PurePath(name).name
    for ending in _ENDINGS:
        bare = bare.removesuffix(ending)
    tokens = _TOKENS.search(bare)
    rest = _STAGE.sub("", bare if tokens is None else bare.replace(tokens[0], "", 1))
    steps = {int(found) for found in _STEP.findall(rest)} or {int(found) for found in _NUMBER.findall(rest)}
    if len(steps) != 1:
        return None
    return Label(steps.pop(), None if tokens is None else _count(tokens))


def _count(match: re.Match[str]) -> int:
    number, unit = (match[1], match[2]) if match[1] else (match[3], match[4])
    return round(float(number) * _UNITS[unit])


WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "tokenizer_config.json")
_NO_WEIGHTS = ("training_args.bin", "optimizer.pt", "scheduler.pt")
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of a series: step and tokens from its name, and its files."""

    name: str
    label: Label
    folder: Path

    def files(self) -> list[Path]:
        """Its weight files, in the order of their names."""
        return weight_files(self.folder)

    @property
    def fingerprint(self) -> str:
        """A hash of the names and the content of its files."""
        facts = [(p.name, content(p, *file_state(p))) for p in sorted(self.folder.iterdir()) if p.is_file()]
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def damaged(self) -> list[Path]:
        """The files in a Hub cache that differ from the hash that names them."""
        blobs = [(path, path.resolve()) for path in sorted(self.folder.iterdir()) if path.is_symlink()]
        named = [(path, blob) for path, blob in blobs if blob.parent.name == "blobs" and _BLOB.fullmatch(blob.name)]
        return [path for path, blob in named if not blob.is_file() or _hash(blob, *file_state(blob)) != blob.name]

    def require_intact(self) -> None:
        """Refuse a file that differs from the hash that names it."""
        for path in self.damaged():
            raise DamagedError(path, "content that differs from the hash in its Hub cache")

    def tokenizer(self) -> dict[str, str]:
        """The hashes of its tokenizer's files."""
        paths = [self.folder / name for name in TOKENIZER if (self.folder / name).is_file()]
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def file_state(path: Path) -> tuple[int, ...]:
    """The file's size, times and inode, which change if it is rewritten or replaced."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


@lru_cache(maxsize=4096)
def content(path: Path, *state: int) -> str:
    """SHA-256 of a file, recomputed when its state changes; for a file of a Hub cache, the hash in its name."""
    blob = path.resolve()
    if blob.parent.name == "blobs" and _BLOB.fullmatch(blob.name):
        return blob.name
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=4096)
def _hash(blob: Path, *state: int) -> str:
    """The hash of a blob, of the kind that its name has; recomputed when the file's state changes."""
    with blob.open("rb") as file:
        if len(blob.name) == 64:
            return hashlib.file_digest(file, "sha256").hexdigest()
        return hashlib.sha1(b"blob %d\0" % state[0] + file.read(), usedforsecurity=False).hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a checkpoint; if there are several kinds, only safetensors."""
    for patterns in (WEIGHTS[:1], WEIGHTS[1:]):
        files = sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
        files = [path for path in files if path.name not in _NO_WEIGHTS]
        if files:
            return files
    return []
