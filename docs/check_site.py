"""Check the built site: every link and anchor leads somewhere, no mathematics failed, nothing is fetched.

python docs/check_site.py docs/_build/html
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

BAD_MATHEMATICS = "#cc0000"
"""The colour in which KaTeX prints what it could not read."""


class Links(HTMLParser):
    """The names that a page can be entered at, where it leads to, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {found[name] or "" for name in ("id", "name") if name in found}
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        if tag in ("script", "img", "iframe", "source") and found.get("src"):
            self.loaded.append(str(found["src"]))
        if tag == "link" and found.get("rel") == "stylesheet":
            self.loaded.append(str(found["href"]))


def problems(site: Path) -> list[str]:
    """One line per dead link, missing anchor, formula in red and address that would be fetched."""
    pages, found = {}, []
    for path in sorted(site.rglob("*.html")):
        if "pages" in path.relative_to(site).parts:  # pages of runs: single files with tests of their own
            continue
        text = path.read_text(encoding="utf-8")
        pages[path.resolve()] = links = Links()
        links.feed(text)
        if BAD_MATHEMATICS in text:
            found.append(f"{path.relative_to(site)}: a formula in red")
    for path, page in pages.items():
        where = path.relative_to(site.resolve())
        found += [
            f"{where}: fetches {address}" for address in page.loaded if urlsplit(address).scheme in ("http", "https")
        ]
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                found.append(f"{where}: no {link}")
            elif (
                where.parts[0] == "_modules"
            ):  # sources point back by the module that defines a name, not the public one
                continue
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{where}: no anchor {link}")
    return sorted(set(found))


if __name__ == "__main__":
    lines = problems(Path(sys.argv[1]))
    print("\n".join(lines) or "every link and anchor leads somewhere, every formula is set, nothing is fetched")
    sys.exit(int(bool(lines)))
