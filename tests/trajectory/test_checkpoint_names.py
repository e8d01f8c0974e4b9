"""Names of checkpoints, as the field writes them."""

import pytest

from induction_memory.trajectory.checkpoint_files import Label, label

BILLION = 10**9


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("step1000", Label(1000)),
        ("step0", Label(0)),
        ("checkpoint-1000", Label(1000)),
        ("stage1-step120000-tokens252B", Label(120000, 252 * BILLION)),
        ("step-001000-2BT", Label(1000, 2 * BILLION)),
        ("step1000-tokens4B", Label(1000, 4 * BILLION)),
        ("step738020-tokens3.094T", Label(738020, 3_094 * BILLION)),
        ("model_1000.pth", Label(1000)),
        ("model-300.pt", Label(300)),
        ("global_step143000", Label(143000)),
        ("iter_0001000.safetensors", Label(1000)),
        ("pythia-70m-deduped-step512", Label(512)),
        ("OLMo-1B-step2000", Label(2000)),
        ("0000300.pt", Label(300)),
        ("some/folder/step7", Label(7)),
        ("main", None),
        ("pythia-70m", None),
        ("run-1-300", None),
        ("step10-step20", None),
        ("stage1", None),
    ],
)
def test_a_name_says_its_step_and_its_tokens(name, expected):
    assert label(name) == expected
