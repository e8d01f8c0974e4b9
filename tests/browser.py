"""A Chromium or Chrome for the tests of pages: found on the machine, or installed where that is possible.

    python -m tests.browser            print the browser's path; exit 1 if there is none
    python -m tests.browser --install  install one first if there is none

The variable INDUCTION_MEMORY_BROWSER names an executable, and `none` hides every browser. Otherwise the first of these
is taken: a command of the PATH, an application of macOS, the browser that `--install` unpacked into the environment,
and Playwright's own build. `--install` tries Debian's package as root, the same package unpacked without root, and
Playwright's download. Tests take the fixture `browser` of conftest.py, or `launched`: both skip where there is none.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

VARIABLE = "INDUCTION_MEMORY_BROWSER"
COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
APPLICATIONS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
UNPACKED = Path(sys.prefix) / "chromium"  # `make clean` removes it with the environment
PLAYWRIGHT = (
    "chromium-*/chrome-linux*/chrome",
    "chromium-*/chrome-mac*/*.app/Contents/MacOS/*",
    "chromium-*/chrome-win*/chrome.exe",
)
PACKAGES = ("chromium", "fonts-dejavu-core")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
MISSING = f"no Chromium or Chrome: install one, or name it in {VARIABLE}"


def find() -> str | None:
    """The path of a browser, or None."""
    named = os.environ.get(VARIABLE)
    if named:
        return shutil.which(named)
    on_path = (shutil.which(command) for command in COMMANDS)
    files = [*map(Path, APPLICATIONS), UNPACKED / "chromium", *_playwright_builds()]
    return next((path for path in on_path if path), None) or next(
        (str(f) for f in files if os.access(f, os.X_OK)), None
    )


@contextmanager
def launched() -> Iterator["Browser"]:
    """A browser that runs inside the block; the test is skipped where there is none."""
    import pytest
    from playwright.sync_api import sync_playwright

    path = find()
    if path is None:
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield browser
        browser.close()


def wait_until(tab: "Page", condition: Callable[[], bool], seconds: float = 60) -> None:
    """Far longer than it takes, so that a hang ends; nothing depends on the time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        tab.wait_for_timeout(20)


def install() -> str | None:
    """The path of a browser, installed if need be; None where no way works."""
    for way in (None, apt_as_root, apt_unpacked, playwright_build):
        if way is not None:
            _attempt(way)
        if path := find():
            return path
        if os.environ.get(VARIABLE):
            return None
    return None


def apt_as_root() -> None:
    """Debian's package, for the whole machine."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        _run("apt-get", "update", "-qq")
        _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES)


def apt_unpacked(folder: Path = UNPACKED, status: Path = Path("/var/lib/dpkg/status")) -> None:
    """Debian's package and what it needs beyond the packages of `status`, unpacked into a folder: no root needed."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return
    lists, cache, root = folder / "lists", folder / "cache", folder / "root"
    for path in (lists / "partial", cache / "archives" / "partial", root):
        path.mkdir(parents=True, exist_ok=True)
    settings = {"State::Lists": lists, "State::status": status, "Cache": cache, "Log": folder}
    private = [word for name, path in settings.items() for word in ("-o", f"Dir::{name}={path}")]
    private += ["-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User="]
    _run("apt-get", *private, "update", "-qq")
    _run("apt-get", *private, "install", "-y", "-qq", "--download-only", "--no-install-recommends", *PACKAGES)
    for package in (cache / "archives").glob("*.deb"):
        _run("dpkg-deb", "-x", str(package), str(root))
    libraries = {str(file.parent) for file in root.rglob("*.so*")}
    fonts = f'export FONTCONFIG_PATH="{root}/etc/fonts"\n' if (root / "etc" / "fonts").is_dir() else ""
    start = folder / "chromium"
    start.write_text(
        "#!/bin/sh\n"
        f'export LD_LIBRARY_PATH="{":".join(sorted(libraries))}:$LD_LIBRARY_PATH"\n'
        f'{fonts}export XDG_DATA_HOME="{root}/usr/share"\n'
        f'exec "{root}/usr/lib/chromium/chromium" "$@"\n'
    )
    start.chmod(0o755)
    for path in (lists, cache):
        shutil.rmtree(path)


def playwright_build() -> None:
    """Playwright's own build, in the user's cache."""
    _run(sys.executable, "-m", "playwright", "install", "chromium")


def _playwright_builds() -> list[Path]:
    default = "Library/Caches" if sys.platform == "darwin" else ".cache"
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / default / "ms-playwright")
    return sorted(path for pattern in PLAYWRIGHT for path in folder.glob(pattern))


def _attempt(way: Callable[[], None]) -> None:
    print(f"browser: {way.__doc__}", file=sys.stderr)
    try:
        way()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"browser: {error}", file=sys.stderr)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600)


if __name__ == "__main__":
    path = install() if "--install" in sys.argv[1:] else find()
    print(path or MISSING)
    raise SystemExit(path is None)
