"""The pictures of the page that open the README and the site: docs/page.png and docs/page-dark.png.

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
        for scheme, name in (("light", "page.png"), ("dark", "page-dark.png")):
            tab = browser.new_page(viewport=size, device_scale_factor=SCALE, color_scheme=scheme)
            tab.goto(f"{PAGE.as_uri()}#at={STEP}")
            tab.wait_for_selector("#slider")
            told = "document.querySelector('#slider').getAttribute('aria-valuetext')"
            tab.wait_for_function(f"{told}.includes('{STEP}')")
            tab.screenshot(path=DOCS / name)
            print(DOCS / name)


if __name__ == "__main__":
    main()
