import pytest

from tests.sweep import tiny_sweep


@pytest.fixture(scope="session")
def serial(tmp_path_factory):
    """The tiny sweep's runs, trained one after the other."""
    folder = tmp_path_factory.mktemp("serial")
    return tiny_sweep.serial(tiny_sweep.write(folder), folder / "runs")
