"""Check that every link of the built site works and nothing is loaded from another host.

python scripts/site/site_check.py site    # exit code 1 and a list, where something is wrong
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
PLAIN_LINKS = ("canonical", "alternate", "prev", "next")  # named, not fetched
_URL = re.compile(r"url\(\s*['\"]?(https?:)?//")


class Page(HTMLParser):
    """A parsed page: its anchors, its links and the files that it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.names |= {name for name in (values.get("id"), values.get("name")) if name}
        target = values.get(LOADED.get(tag, ""))
        if tag == "a" and values.get("href"):
            self.links.append(str(values["href"]))
        elif target and values.get("rel") not in PLAIN_LINKS:
            self.loads.append(target)


def wrong_in(site: Path) -> list[str]:
    """List broken links and files loaded from another host, one line each."""
    pages = {
        file.resolve(): Page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")
    }
    wrong = []
    for file, page in pages.items():
        if file.name == "404.html":  # its links begin at the server's root
            continue
        here = file.relative_to(site.resolve())
        wrong += [f"{here} loads {url}" for url in page.loads if urlsplit(url).netloc]
        for target in (*page.links, *page.loads):
            if problem := _leads_nowhere(file, target, pages):
                wrong.append(f"{here}: {target} {problem}")
    for sheet in site.rglob("*.css"):
        if _URL.search(sheet.read_text(encoding="utf-8")):
            wrong.append(f"{sheet.relative_to(site)} loads from another host")
    return wrong


def _leads_nowhere(file: Path, target: str, pages: dict[Path, Page]) -> str:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return ""
    there = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if not there.exists():
        return "is not there"
    name = unquote(parts.fragment)
    return (
        "has no such heading" if name and there in pages and name not in pages[there].names else ""
    )


def main() -> None:
    wrong = wrong_in(Path(sys.argv[1]))
    print("\n".join(wrong) or "every link leads somewhere; nothing is loaded from another host")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
