"""Weight probes stay on the device of the weights."""

import torch

from induction_memory.errors import UnsupportedError
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.model.memories import weights_of
from induction_memory.probes.tables import FAMILIES
from induction_memory.source.sources import Stack
from induction_memory.task.bigrams import BigramTask
from tests.elsewhere import Elsewhere, MadeThere

TASK = BigramTask(length=12, k=3, triggers="fixed")
CONFIG = ModelConfig.full(d_model=16, n_heads=2, n_ctx=12, layer_norm=True, feed_forward="linear")


def test_every_weight_probe_gives_the_same_elsewhere():
    weights = weights_of(build(CONFIG))
    here, there = Stack(weights, 1, TASK), Stack({name: Elsewhere(w) for name, w in weights.items()}, 1, TASK)
    measured = 0
    for probe in [p for family in FAMILIES.values() for p in family.PROBES.values() if p.of == "weights"]:
        if probe.name.startswith("explained_W_") and probe.name != "explained_W_F":
            continue  # torch's own pseudo-inverse does not accept the disguise
        try:
            expected = probe.measure(here)
        except UnsupportedError:
            continue
        with MadeThere():
            found = probe.measure(there)
        assert isinstance(found, Elsewhere), probe.name
        torch.testing.assert_close(found.inner, expected, equal_nan=True, msg=probe.name)
        measured += 1
    assert measured > 60
