import jaxtyping
import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # the machine may be busy: no test asserts a time
settings.load_profile("untimed")


@pytest.fixture
def unchecked():
    """Run without the type checks that tests turn on, to see what a user sees who passes a wrong type."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
