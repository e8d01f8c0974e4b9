"""A trajectory as a folder to share: its files, a model card, figures and configuration.

    im.share(run, "shared")                       a folder; nothing leaves this machine
    im.share(run, "shared", upload="me/my-run")   the same, and uploaded to the Hub under this name

The folder is a trajectory: `im.load("shared")` reads it, `induction-memory verify shared` checks it.
"""

import json
from html import escape
from pathlib import Path
from typing import Any

from induction_memory.errors import InputError, require
from induction_memory.files import make_folder, require_folder, write_figure, write_file
from induction_memory.trajectory.manifest import MANIFEST, PIECES
from induction_memory.trajectory.trajectory import Trajectory, opened
from induction_memory.trajectory.verification import verify

CARD, CONFIG, FIGURES = "README.md", "config.json", "figures"


def share(source: Trajectory | str | Path, out: str | Path, *, upload: str | None = None) -> Path:
    """Write the trajectory, a model card, figures and the configuration into the new folder, and return it.

    `upload` is the name of a repository on the Hub, `owner/name`; the upload uses huggingface_hub's account. By default
    nothing is uploaded.

    >>> import tempfile
    >>> out = share("induction-small", tempfile.mkdtemp() + "/shared")
    >>> sorted(path.name for path in out.iterdir())[:3]
    ['README.md', 'config.json', 'figures']
    """
    run, out = opened(source), require_folder(out)
    named = upload is None or (isinstance(upload, str) and upload.count("/") == 1 and all(upload.split("/")))
    require(named, "upload", "owner/name of a repository", repr(upload))
    require(not out.exists() or not any(out.iterdir()), "out", "a new or an empty folder", repr(str(out)))
    finished = run.finished and (run.path / MANIFEST).exists()
    require(finished, "run", "a finished run of this package", f"{run.name}, which is none")
    damaged = verify(run.path)
    require(not damaged, "run", "undamaged files", "; ".join(damaged))
    make_folder(out / FIGURES)
    write_file(out / CONFIG, json.dumps(_configuration(run), indent=1) + "\n")
    write_file(out / CARD, card(run, _figures(run, out / FIGURES)))
    for name in (*PIECES, MANIFEST):  # the manifest is last: without it the folder does not load
        if (run.path / name).exists():
            write_file(out / name, (run.path / name).read_bytes())
    if upload is not None:
        _upload(out, upload)
    return out


def card(run: Trajectory, figures: list[str]) -> str:
    """The model card: front matter, how to load the run, a description, its last measurements, and figures."""
    last = run.metrics.dropna(axis="columns", how="all").iloc[-1] if len(run.metrics) else {}
    measured = "\n".join(f"| {name} | {float(value):.4g} |" for name, value in last.items() if name != "checkpoint")
    images = "\n\n".join(f"![{Path(name).stem}]({FIGURES}/{name})" for name in figures)
    config = json.dumps(_configuration(run), indent=1)
    return f"""---
library_name: induction_memory
tags:
- mechanistic-interpretability
- induction-heads
- training-trajectory
---
# {escape(run.name)}

A training trajectory of a small transformer: {len(run.steps)} stored steps from {run.steps[0]} to {run.steps[-1]}.

```python
import induction_memory as im

run = im.load("path/to/this/folder")   # after a download: im.load(huggingface_hub.snapshot_download("owner/name"))
run.model(step={run.steps[-1]})
```

`induction-memory verify path/to/this/folder` checks every file against its checksum.

## Last measurements

| measure | value |
| --- | --- |
{measured}

## Figures

{images}

## Configuration

```json
{config}
```
"""


def _configuration(run: Trajectory) -> dict[str, Any]:
    """Task, model and training, as plain JSON; `model_type` tells the Hub which library reads it."""
    return {"model_type": "induction_memory", **json.loads(json.dumps(run.config.to_dict()))}


def _figures(run: Trajectory, folder: Path) -> list[str]:
    """Pictures of the run: training curves, and the attention at the last step."""
    from induction_memory.probes.tables import table, wide
    from induction_memory.views.attention_maps import attention
    from induction_memory.views.figures.curves import birth_figure

    names = ["training.png", "attention.png"]
    write_figure(birth_figure(run.metrics, wide(table(run)), run.name), folder / names[0], dpi=130)
    attention(run).save(folder / names[1])
    return names


def _upload(folder: Path, name: str) -> None:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise InputError("upload: expected the package huggingface_hub, got none") from error
    api = HfApi()
    api.create_repo(name, exist_ok=True)
    api.upload_folder(repo_id=name, folder_path=str(folder))
