"""What the claims measure without a run is the same for all tests: it is measured once."""

import functools

import pytest


@pytest.fixture(scope="session")
def one_step():
    """Recall after one step, for each setting drawn once."""
    from induction_memory.paper.claims import memories

    return functools.cache(memories.repeated)


@pytest.fixture
def one_step_once(one_step, monkeypatch):
    """Claims read recall after one step as it was drawn the first time."""
    monkeypatch.setattr("induction_memory.paper.claims.memories.repeated", one_step)
