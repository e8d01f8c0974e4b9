import jaxtyping
import pytest


@pytest.fixture
def unchecked():
    """Run without the type checks that tests turn on, to see what a user sees who passes a wrong type."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
