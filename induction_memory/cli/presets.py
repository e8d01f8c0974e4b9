"""`presets`: the experiments that `train` knows by name."""

import json
from typing import Annotated

import tyro


def presets(name: Annotated[str | None, tyro.conf.Positional] = None, /) -> None:
    """List the experiments, or show one in full.

    Args:
        name: the experiment to show as JSON.
    """
    from induction_memory.experiment.presets import PRESETS, preset

    if name is None:
        for key, entry in PRESETS.items():
            print(f"{key:<28} {entry.about}")
    else:
        entry = preset(name)
        print(json.dumps({"about": entry.about} | entry.run.to_dict(), indent=2))
