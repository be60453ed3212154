"""Format values, and render HTML pages; Jinja2 escapes every value not marked `safe`."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from anchorscope.records import MODES

_SIGNS = {"\n": "⏎", "\t": "⇥"}
# Format and control characters, odd spaces, and letters without a shape; web/text.js has the same.
_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"})
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
_UNUSUAL = re.compile(r"[^ -~]")  # all but printable ASCII


class Table(NamedTuple):
    """A table of a page; columns after the first `text_columns` hold numbers, aligned right."""

    head: Sequence[object]
    rows: Sequence[Sequence[object]]
    text_columns: int = 1


def render(template: str, **values: Any) -> str:
    """Render a template of show/web with these values; a missing value is an error."""
    return environment().get_template(template).render(values)


def render_page(
    template: str,
    *,
    css: str,
    scripts: Sequence[str] = (),
    inline_styles: bool = True,
    **values: Any,
) -> str:
    """Render a self-contained page of a folder, with its style sheet and scripts of show/web.

    Only these scripts may run, and nothing may be fetched: a second protection besides escaping.
    """
    style, script = page_style(css), bundle(*scripts)
    styles = "'unsafe-inline'" if inline_styles else source_hash(style)
    policy = (
        f"default-src 'none'; {f'script-src {source_hash(script)}; ' if scripts else ''}"
        f"style-src {styles}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    return render(template, policy=policy, style=style, script=script, **values)


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


# --- Numbers and untrusted text ---


def number(value: float, digits: int = 1) -> str:
    """Format a number with a true minus sign; 'not measured' if it is not finite."""
    if not math.isfinite(value):
        return "not measured"
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", "−")


def two_digits(value: float) -> str:
    """Format a number with two decimals."""
    return number(value, 2)


def percent(share: float) -> str:
    """Format a share of 1 as a whole percentage, with one decimal close to 0 or 100 %."""
    if not math.isfinite(share):
        return "not measured"
    digits = 1 if 0 < abs(share) < 0.01 or 0.99 < abs(share) < 1 else 0
    return f"{number(100 * share, digits)} %"


def short(value: float) -> str:
    """Format a number with about three digits, such as `−17.4`; empty if it is not finite."""
    if not math.isfinite(value):
        return ""
    return number(value, 1 if abs(value) >= 9.995 else 2)


def span(low: float, high: float, show: Callable[[float], str] = number) -> str:
    """Format an interval as 'low to high', or 'no interval' where an end is unknown."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return "no interval"
    return f"{show(low)} to {show(high)}"


def with_span(row: Mapping[str, Any], name: str, show: Callable[[float], str]) -> str:
    """Format columns `name`, `name_low` and `name_high` of a row as 'value (low to high)'."""
    value, low, high = (float(row[f"{name}{end}"]) for end in ("", "_low", "_high"))
    if not math.isfinite(value):
        return "not measured"
    return f"{show(value)} ({span(low, high, show)})" if math.isfinite(low) else show(value)


def visible(text: str) -> str:
    """Escape a text as HTML with hidden characters shown, in a `bdi` element."""
    return f'<bdi dir="auto">{codes(text)}</bdi>'


def codes(text: str) -> str:
    """Escape a text as HTML with hidden characters shown as codes such as U+202E."""
    if not _UNUSUAL.search(text):
        return html.escape(text)
    return "".join(_code(letter) if _hidden(letter) else html.escape(letter) for letter in text)


def _hidden(letter: str) -> bool:
    """Whether a character is invisible or changes the direction of text."""
    if letter == " ":
        return False
    blank = letter in _BLANK or "\ufe00" <= letter <= "\ufe0f"
    return blank or unicodedata.category(letter) in _CATEGORIES


def _code(letter: str) -> str:
    name = _SIGNS.get(letter, f"U+{ord(letter):04X}")
    return f'<span class="code" title="U+{ord(letter):04X}">{name}</span>'
