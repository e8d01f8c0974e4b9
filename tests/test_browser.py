"""A browser is found wherever it is; without one the tests of pages are skipped, and one line says so."""

from types import SimpleNamespace

import pytest

from tests import browser, conftest


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without a browser: an empty PATH, no application, no build of Playwright's."""
    monkeypatch.delenv(browser.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "builds"))
    monkeypatch.setattr(browser, "APPLICATIONS", ())
    monkeypatch.setattr(browser, "UNPACKED", tmp_path / "unpacked")
    return tmp_path


def executable(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_a_machine_without_a_browser_has_none(bare):
    assert browser.find() is None


@pytest.mark.parametrize(
    "place",
    ["bin/chromium", "bin/google-chrome-stable", "unpacked/chromium", "builds/chromium-1/chrome-linux64/chrome"],
)
def test_a_browser_is_found_in_every_place(bare, place):
    path = executable(bare / place)
    assert browser.find() == path
    assert browser.install() == path


def test_the_variable_goes_first_and_none_hides_every_browser(bare, monkeypatch):
    executable(bare / "bin/chromium")
    monkeypatch.setenv(browser.VARIABLE, executable(bare / "elsewhere/my-browser"))
    assert browser.find() == str(bare / "elsewhere/my-browser")
    monkeypatch.setenv(browser.VARIABLE, "none")
    assert browser.find() is None
    assert browser.install() is None


def test_ways_to_install_are_tried_until_one_works(bare, monkeypatch):
    tried = []

    def failing():
        """A way that fails."""
        tried.append("failing")
        raise OSError("no network")

    def working():
        """A way that works."""
        tried.append("working")
        executable(bare / "unpacked/chromium")

    monkeypatch.setattr(browser, "apt_as_root", failing)
    monkeypatch.setattr(browser, "apt_unpacked", working)
    monkeypatch.setattr(browser, "playwright_build", lambda: tried.append("too far"))
    assert browser.install() == str(bare / "unpacked/chromium")
    assert tried == ["failing", "working"]


def test_without_a_browser_a_test_is_skipped_and_the_last_line_counts_it(bare):
    with pytest.raises(pytest.skip.Exception) as skipped, browser.launched():
        raise AssertionError("started a browser that is not there")
    lines = []
    reports = [SimpleNamespace(longrepr=("file", 1, str(skipped.value))), SimpleNamespace(longrepr="another reason")]
    for stats in ({}, {"skipped": reports[1:]}, {"skipped": reports}):
        reporter = SimpleNamespace(stats=stats, write_line=lambda line, **how: lines.append(line))
        conftest.pytest_terminal_summary(reporter)
    assert lines == [f"1 TESTS OF PAGES DID NOT RUN: {browser.MISSING}"]
