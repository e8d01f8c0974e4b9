"""Revisions of a model on the Hub, fetched into the local cache: the only module that uses the network.

    series = im.fetch_revisions("EleutherAI/pythia-70m", steps=[0, 1000, 2000])

Afterwards the same checkpoints are read offline, with `im.revisions` of the cache's folder `models--owner--name`.
"""

from collections.abc import Sequence
from pathlib import Path

from induction_memory.errors import InputError, require
from induction_memory.trajectory.checkpoint_names import label
from induction_memory.trajectory.revisions import Revisions, revisions

FILES = ["*.json", "*.safetensors", "*.bin", "*.txt", "*.model"]


def fetch_revisions(
    name: str, steps: Sequence[int], *, cache: str | Path | None = None, keep: str | Path | None = None
) -> Revisions:
    """Fetch the revisions of these steps of `owner/name`, and read them as a series.

    `cache` is huggingface_hub's folder, its own default if not given. `keep` is a folder for results.
    """
    require(isinstance(name, str) and name.count("/") == 1, "name", "owner/name of a model on the Hub", repr(name))
    require(len(steps) > 0, "steps", "the steps to fetch", "none")
    from huggingface_hub import list_repo_refs, snapshot_download

    refs = list_repo_refs(name)
    offered = {said.step: ref.name for ref in (*refs.branches, *refs.tags) if (said := label(ref.name)) is not None}
    for step in steps:
        if step not in offered:
            known = ", ".join(map(str, sorted(offered)[:8]))
            raise InputError(f"steps: expected steps that {name} has ({known} ...), got {step}")
    folders = [
        Path(snapshot_download(name, revision=offered[step], cache_dir=cache, allow_patterns=FILES))
        for step in sorted(set(steps))
    ]
    return revisions(folders[0].parents[1], keep=keep).at(steps)
