"""Render HTML pages from Jinja2 templates, which escape every value not marked `safe`."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from anchorscope.records import MODES
from anchorscope.show.words import (
    codes,
    number,
    percent,
    short,
    two_digits,
    visible,
    with_span,
)


class Table(NamedTuple):
    """A table of a page; columns after the first `text_columns` hold numbers, aligned right."""

    head: Sequence[object]
    rows: Sequence[Sequence[object]]
    text_columns: int = 1


def render(template: str, **values: Any) -> str:
    """Render a template of show/web with these values; a missing value is an error."""
    return environment().get_template(template).render(values)


@cache
def environment() -> Environment:
    """The Jinja2 environment of show/web, with its filters and globals."""
    found = Environment(
        loader=PackageLoader("anchorscope.show", "web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for show in (number, percent, short, visible, codes):
        found.filters[show.__name__] = show
    for show in (number, percent, two_digits, with_span):
        found.globals[show.__name__] = show
    found.globals |= {"finite": math.isfinite, "island": island, "modes": MODES, "zip": zip}
    return found


def web_file(name: str) -> str:
    """The text of a style sheet or script of show/web."""
    folder = resources.files("anchorscope.show").joinpath("web")
    return folder.joinpath(name).read_text(encoding="utf-8")


def page_style(name: str) -> str:
    """The style sheet of a page: light and dark colours, rules that pages share, and its own."""
    colors, dark = web_file("colors.css"), web_file("dark.css")
    shared = web_file("shared.css") + web_file("theme.css")
    scheme = f":root {{ {colors} }} @media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    return f"{scheme}\n{shared}{web_file(name)}"


def panel_style() -> str:
    """The style sheet of one question's panel, for a page of others such as a notebook."""
    own, dark = web_file("colors.css") + web_file("panel.css"), web_file("dark.css")
    return (
        f".anchorscope {{ {own}{web_file('shared.css')} }} "
        f"@media (prefers-color-scheme: dark) {{ .anchorscope {{ {dark} }} }}"
    )


def bundle(*names: str) -> str:
    """Join scripts of show/web into one, in strict mode and a scope of its own."""
    scripts = (web_file(f"{name}.js") for name in names)
    return "\n".join(['"use strict";', "(() => {", *scripts, "})();"])


def source_hash(text: str) -> str:
    """The text's hash as a Content-Security-Policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def island(identity: str, value: Any) -> str:
    """A script element with JSON data, which no text inside it can close or break."""
    written = json.dumps(finite(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        written = written.replace(character, f"\\u{ord(character):04x}")
    name = html.escape(identity)
    return f'<script type="application/json" id="{name}">{written}</script>'


def finite(value: Any) -> Any:
    """Replace NaN and infinity anywhere in a value by None, for JSON."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
