"""The picture of the page that opens the README: docs/page.png, from docs/pages/random-triggers.html (`make pages`).

python docs/page_picture.py

It needs a Chromium or Chrome (`python -m tests.browser --install`). Letters are drawn with the fonts of the machine.
"""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

PAGE = DOCS / "pages" / "random-triggers.html"
STEP = 230
WIDTH, HEIGHT, SCALE = 1400, 1010, 1.25


def main() -> None:
    from tests.browser import launched

    if not PAGE.exists():
        raise SystemExit(f"{PAGE}: run `make pages` first")
    with launched() as browser:
        size = {"width": WIDTH, "height": HEIGHT}
        tab = browser.new_page(viewport=size, device_scale_factor=SCALE, color_scheme="light")
        tab.goto(f"{PAGE.as_uri()}#at={STEP}")
        tab.wait_for_selector("#slider")
        tab.wait_for_function(f"document.querySelector('#slider').getAttribute('aria-valuetext').includes('{STEP}')")
        tab.screenshot(path=DOCS / "page.png")
    print(DOCS / "page.png")


if __name__ == "__main__":
    main()
