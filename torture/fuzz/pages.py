"""Pages and cards full of hostile text: what a browser would run is only what we wrote.

A study's page is read by html5lib, which reads as browsers do, where it is installed; the others,
of megabytes, by the standard library's parser.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import yaml
from kit.show_fixture import make_run

from anchorscope.detect.deployed.detector import Detector
from anchorscope.notebook import card
from anchorscope.run_folder.view import RunView
from anchorscope.show.explore.page import write_view
from anchorscope.show.html import island
from anchorscope.show.report.page import page
from torture.fuzz.folders import detector
from torture.fuzz.target import Target
from torture.fuzz.texts import MARKUP, part, seeded, text, value

PLACE = Path(tempfile.mkdtemp(prefix="fuzz-pages-"))
Elements = list[tuple[str, tuple[str, ...]]]  # each with the names of its attributes
PLACES = ("href", "src", "action", "formaction", "data", "xlink:href")


class Seen(HTMLParser):
    """What a browser would see: the elements, their attributes, and the texts of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self._script = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, data: str) -> None:
        (self.scripts if self._script else self.texts).append(data)


def elements(page: str) -> Elements:
    """The elements of a page as a browser sees them; one whose attribute acts is told apart."""
    if find_spec("html5lib"):
        import html5lib

        tree = html5lib.parse(page, namespaceHTMLElements=False)
        found: Iterable[tuple[str, dict[str, Any]]] = (
            (str(one.tag) if isinstance(one.tag, str) else "comment", dict(one.attrib))
            for one in tree.iter()
        )
    else:
        found = Seen(page).elements
    return told(found)


def told(found: Iterable[tuple[str, dict[str, Any]]]) -> Elements:
    """Each element with the names of its attributes, none of which leads to a script."""
    out = []
    for name, attributes in found:
        for place in PLACES:
            where = "".join(str(attributes.get(place) or "").split()).lower()
            assert not where.startswith(("javascript:", "vbscript:", "data:text")), where
        out.append((name, tuple(sorted(attributes))))
    return out


def check_markup(given: tuple[list[str], Any]) -> None:
    """Text of a card comes back as text, JSON as the same JSON."""
    texts, content = given
    first, second = texts[0], texts[-1]
    seen = Seen(card(first, [(second, first)]))
    assert {name for name, _ in seen.elements} <= {"div", "span", "bdi"}
    assert all(set(of) <= {"class", "style", "dir", "title"} for _, of in seen.elements)
    written = json.loads(json.dumps(content, default=str))
    seen = Seen(island("x", {"a": written, **dict.fromkeys(texts, 1)}))
    assert [name for name, _ in seen.elements] == ["script"] and not seen.texts
    assert set(json.loads("".join(seen.scripts))) >= {"a"}


def check_card(given: str) -> None:
    """A detector's card: its metadata is YAML of four fields, its Python one call, no markup."""
    trained = Detector.load(detector())
    hostile = trained.model | {"name": given, "source": given, "adapter": given}
    made = replace(trained, model=hostile, licence={"detector": given, "data": given}).card
    _, head, body = made.split("---\n", 2) if given.count("---") == 0 else (0, "", made)
    if head:
        assert set(yaml.safe_load(head)) == {"license", "library_name", "base_model", "tags"}
    fenced = re.sub(r"```python.*?\n```\n", "", body, count=1, flags=re.DOTALL)
    assert "<" not in fenced and body.count("\n```") == 2


def check_pages(given: tuple[str, str, str]) -> None:
    """Report and page of samples: no element that acts but ours, and a policy."""
    for name, texts in (("harmless", ("Who is {}?", "France", "Atlas")), ("hostile", given)):
        folder = make_run(PLACE / name, model=texts[2], datasets={"atlas": texts[2]}, layers=2, n=8,
                          question=texts[0].replace("{", "(").replace("}", ")"),
                          answer=texts[1])  # fmt: skip
        run = RunView.open(folder)
        view = write_view([run], PLACE / f"{name}.html").page.read_text(encoding="utf-8")
        made = (page(run), view)
        seen, every = [Seen(of) for of in made], [{*told(Seen(of).elements)} for of in made]
        for one in seen:
            policy = [of.get("content") for _, of in one.elements if "http-equiv" in of]
            assert len(policy) == 1 and "default-src 'none'" in str(policy[0])
        acting = [
            sorted(
                (tag, *sorted(k for k in of if k.startswith("on") or k in ("src", "href")))
                for tag, of in one.elements
                if tag in ("script", "img", "iframe", "svg", "object", "embed", "base", "form")
                or any(k.startswith("on") for k in of)
            )
            for one in seen
        ]
        if name == "harmless":
            expected, known = [{*of} for of in acting], every
    assert all({*of} <= allowed for of, allowed in zip(acting, expected, strict=True)), acting
    for of, allowed in zip(every, known, strict=True):
        assert of <= allowed, of - allowed


def _hostile(r: Random) -> tuple[str, str, str]:
    made = [" ".join((r.choice(MARKUP) + text(r) + r.choice(MARKUP)).split()) for _ in range(3)]
    return made[0], made[1], made[2].replace("/", "")


TARGETS = (
    Target(name="markup", check=check_markup, share=6,
           inputs=seeded(lambda r: ([text(r), part(r), text(r)], value(r, 2)))),
    Target(name="cards of detectors", inputs=seeded(text), check=check_card, share=1),
    Target(name="pages", inputs=seeded(_hostile), check=check_pages, share=0.05),
)  # fmt: skip
