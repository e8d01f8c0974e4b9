import jaxtyping
import pytest
from hypothesis import settings

from tests.browser import MISSING, launched

settings.register_profile("untimed", deadline=None)  # the machine may be busy: no test asserts a time
settings.load_profile("untimed")


@pytest.fixture
def unchecked():
    """Run without the type checks that tests turn on, to see what a user sees who passes a wrong type."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def browser():
    """Chromium or Chrome under Playwright; tests that ask for it are skipped where there is none."""
    with launched() as started:
        yield started


def pytest_collection_modifyitems(items):
    """Tests that start a browser are slow."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")


def pytest_terminal_summary(terminalreporter):
    """One loud line at the end where pages were not tested for want of a browser."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if MISSING in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} TESTS OF PAGES DID NOT RUN: {MISSING}", red=True, bold=True)
