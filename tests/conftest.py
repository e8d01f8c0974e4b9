import gc
import signal
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import jaxtyping
import pytest
from hypothesis import settings

from tests import knocks as knock_counts
from tests.browser import MISSING, launched
from tests.network import NETWORK
from tests.time_limit import limited

settings.register_profile("untimed", deadline=None)  # the machine may be busy: no test asserts a time
settings.load_profile("untimed")

NEW_LENS = int(version("transformer-lens").split(".")[0]) >= 4
if NEW_LENS:
    # They ask about HookedTransformers of configurations that TransformerLens 4 can no longer make.
    needed, here = "\nfrom transformer_lens import HookedTransformer", Path(__file__).parent
    files = [path for path in here.rglob("test_*.py") if needed in path.read_text(encoding="utf-8")]
    collect_ignore = ["architectures/test_matrix.py", *(str(path.relative_to(here)) for path in files)]


def pytest_configure():
    """Close the network. Hear Ctrl-C, which a shell has its jobs in the background ignore, and their children too."""
    NETWORK.close()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep what the imports make out of garbage collection: it lives to the end, and each full pass would walk it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Open this machine to the tests that ask for it, with their fixtures. A test that hangs fails."""
    NETWORK.loopback = item.get_closest_marker("loopback") is not None
    try:
        with limited(3600 if item.get_closest_marker("hard") else 600):
            return (yield)
    finally:
        NETWORK.loopback = False


@pytest.fixture(autouse=True)
def closed_network():
    """A test that has asked for the network fails, whatever became of its question."""
    NETWORK.attempts.clear()
    yield
    assert NETWORK.attempts == []


@pytest.fixture(autouse=True)
def uninterrupted():
    """Interruptions are counted per process, and a command that is run in a test is told of none from another test."""
    from induction_memory import terminal

    terminal._cut.clear()


@pytest.fixture
def unchecked():
    """Run without the type checks that tests turn on, to see what a user sees who passes a wrong type."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def knocks(record_property):
    """Counts what a test did, for the line at the end (tests/knocks.py)."""
    counts = Counter()
    yield counts
    record_property(knock_counts.PROPERTY, dict(counts))


@pytest.fixture(scope="module")
def browser():
    """Chromium or Chrome under Playwright; tests that ask for it are skipped where there is none."""
    with launched() as started:
        yield started


def pytest_collection_modifyitems(items):
    """Tests that start a browser are slow. Fields that only TransformerLens 3.9 has are not asked about under 4."""
    for item in items:
        if NEW_LENS and any(field in item.name for field in ("use_qk_norm", "attn_scores_soft_cap")):
            item.add_marker(pytest.mark.skip(reason="TransformerLens 4 has no such field"))
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")


def pytest_terminal_summary(terminalreporter):
    """The counts of the tests of reliability, and one loud line where pages were not tested for want of a browser."""
    counts = knock_counts.total(terminalreporter.stats.get("", []))  # where reports of the end of a test are kept
    if counts:
        terminalreporter.write_line(knock_counts.line(counts))
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if MISSING in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} TESTS OF PAGES DID NOT RUN: {MISSING}", red=True, bold=True)
