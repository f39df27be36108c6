"""Check that every link within a built site leads to a file, and to a place on its page.

python docs/check_links.py build/docs
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and the places on it that links may lead to."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places = {"", "top"}  # which every page has
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.places |= {name for name in (attributes.get("id"), attributes.get("name")) if name}
        self.links += [link for link in (attributes.get("href"), attributes.get("src")) if link]


def dead_links(site: Path) -> list[str]:
    """Return "page: link" for each link within the site that leads nowhere."""
    pages = {file.resolve(): Page(file) for file in sorted(site.rglob("*.html"))}
    dead = []
    for file, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            there = target.exists() and (target not in pages or unquote(parts.fragment) in pages[target].places)
            if not there:
                dead.append(f"{file.relative_to(site.resolve())}: {link}")
    return dead


if __name__ == "__main__":
    found = dead_links(Path(sys.argv[1]))
    sys.exit("\n".join(["links that lead nowhere:", *found]) if found else 0)
