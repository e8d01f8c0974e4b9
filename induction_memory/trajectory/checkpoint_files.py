"""The files of one checkpoint that others trained: which they are, what changed about them, and reading them ahead."""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from induction_memory.trajectory.checkpoint_names import Label

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "tokenizer_config.json")
_NO_WEIGHTS = ("training_args.bin", "optimizer.pt", "scheduler.pt")
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

    def tokenizer(self) -> dict[str, str]:
        """The hashes of its tokenizer's files."""
        paths = [self.folder / name for name in TOKENIZER if (self.folder / name).is_file()]
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def weight_files(folder: Path) -> list[Path]:
    """The files of a checkpoint that hold weights; safetensors alone where it has both kinds."""
    for patterns in (WEIGHTS[:1], WEIGHTS[1:]):
        files = sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
        files = [path for path in files if path.name not in _NO_WEIGHTS]
        if files:
            return files
    return []


def read_ahead(files: Sequence[Path]) -> threading.Thread:
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
