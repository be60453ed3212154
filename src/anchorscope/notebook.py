"""Small HTML for notebooks and pages: untrusted text made visible, facts, P(wrong) by layer."""

from __future__ import annotations

import html
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

_SIGNS = {"\n": "⏎", "\t": "⇥"}
# Format and control characters, odd spaces, and letters without a shape, as the page of samples
# shows them too.
_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"})
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
_UNUSUAL = re.compile(r"[^ -~]")  # printable ASCII needs no look
_BOX = (
    "border:1px solid #8888;border-radius:8px;padding:.6em .9em;max-width:44em;"
    "font-family:system-ui,sans-serif;font-size:14px;line-height:1.5;overflow-wrap:anywhere"
)
_WIDTH, _HEIGHT = 480, 230  # of the chart, in units of its viewBox
_LEFT, _RIGHT, _TOP, _BOTTOM = 34.0, 10.0, 8.0, 32.0
_INK, _GREY = "currentColor", "var(--quiet, #6b7280)"
Numbers = Sequence[float]  # [layer], NaN where there is none


def visible(text: str) -> str:
    """The text as HTML with its hidden characters shown, in an element of its own direction."""
    return f'<bdi dir="auto">{codes(text)}</bdi>'


def codes(text: str) -> str:
    """The text as HTML with its hidden characters shown as U+202E and the like."""
    if not _UNUSUAL.search(text):
        return html.escape(text)
    return "".join(_code(letter) if _hidden(letter) else html.escape(letter) for letter in text)


def _hidden(letter: str) -> bool:
    """Whether a reader would not see this character, or would see the others moved by it."""
    if letter == " ":
        return False
    blank = letter in _BLANK or "\ufe00" <= letter <= "\ufe0f"
    return blank or unicodedata.category(letter) in _CATEGORIES


def _code(letter: str) -> str:
    name = _SIGNS.get(letter, f"U+{ord(letter):04X}")
    return f'<span class="code" title="U+{ord(letter):04X}">{name}</span>'


def card(title: str, facts: Sequence[tuple[str, str]], *, picture: str = "") -> str:
    """HTML of a title and facts, all untrusted; `picture` is HTML already."""
    rows = "".join(
        f'<div><span style="opacity:.7">{visible(name)}</span> {visible(value)}</div>'
        for name, value in facts
    )
    return (
        f'<div class="anchorscope" style="{_BOX}"><div style="font-weight:600">{visible(title)}'
        f"</div>{rows}{picture}</div>"
    )


@dataclass(frozen=True, kw_only=True)
class Line:
    """P(wrong) by layer under one pass."""

    name: str
    label: str
    values: Numbers
    color: str = _INK
    dash: str = ""


@dataclass(frozen=True, kw_only=True)
class Band:
    """The range of a group's values at each layer."""

    name: str
    label: str
    low: Numbers
    high: Numbers
    color: str


def belief_chart(
    lines: Sequence[Line], bands: Sequence[Band] = (), *, layer: int | None = None
) -> str:
    """P(wrong) by layer as an <svg> element, readable without colour and on any background.

    A vertical line marks `layer`.
    """
    layers = max(len(line.values) for line in lines)

    def point(at: int, value: float) -> tuple[float, float]:
        share = (at - 1) / max(1, layers - 1)
        x = _LEFT + 4 + share * (_WIDTH - _LEFT - _RIGHT - 8)
        return x, _HEIGHT - _BOTTOM - value * (_HEIGHT - _BOTTOM - _TOP)

    parts = [*_grid(point, layers), *(_band(point, band) for band in bands)]
    parts += [_line(point, line) for line in lines]
    if layer is not None:
        (x, bottom), (_, top) = point(layer, 0), point(layer, 1)
        parts.append(
            f'<line class="cursor" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom:.1f}" y2="{top:.1f}" '
            f'stroke="{_INK}" stroke-opacity="0.45" stroke-dasharray="2 2"/>'
        )
    return (
        '<svg class="beliefs" role="img" aria-label="P(wrong) by layer" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" style="max-width:{1.35 * _WIDTH:.0f}px">'
        f"{''.join(parts)}</svg>"
    )


def line_sample(line: Line) -> str:
    """A piece of the line, for a legend."""
    return (
        f'<svg width="26" height="8" aria-hidden="true"><line x1="0" x2="26" y1="4" y2="4" '
        f'stroke="{html.escape(line.color)}" stroke-width="2.2" '
        f'stroke-dasharray="{line.dash}"/></svg>'
    )


Point = Callable[[int, float], tuple[float, float]]  # where a layer and a probability are drawn


def _grid(point: Point, layers: int) -> Iterable[str]:
    def text(x: float, y: float, what: str, anchor: str = "middle") -> str:
        return (
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="12" '
            f'fill="{_GREY}">{what}</text>'
        )

    for value in (0, 0.25, 0.5, 0.75, 1):
        _, y = point(1, value)
        yield (
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{_GREY}" stroke-opacity="{0.7 if value == 0.5 else 0.25}"/>'
        )
        if value in (0, 0.5, 1):
            yield text(_LEFT - 5, y + 4, f"{value:g}", "end")
    step = max(1, math.ceil(layers / 7 / 5) * 5) if layers > 7 else 1
    for layer in [k for k in range(1, layers + 1) if k % step == 0 or k == 1]:
        yield text(point(layer, 0)[0], _HEIGHT - _BOTTOM + 15, str(layer))
    yield text((_LEFT + _WIDTH) / 2, _HEIGHT - 3, "layer")


def _line(point: Point, line: Line) -> str:
    paths = [_path(point, [(k, line.values[k - 1]) for k in part]) for part in _parts(line.values)]
    width = 2.6 if line.color == _INK else 1.9
    return (
        f'<path class="belief" data-pass="{html.escape(line.name)}" d="{"".join(paths)}" '
        f'fill="none" stroke="{html.escape(line.color)}" stroke-width="{width}" '
        f'stroke-dasharray="{line.dash}"/>'
    )


def _band(point: Point, band: Band) -> str:
    paths = []
    for part in _parts(band.low):
        there = [(k, band.low[k - 1]) for k in part]
        back = [(k, band.high[k - 1]) for k in reversed(part)]
        paths.append(_path(point, [*there, *back]) + "Z")
    dash, color = "4 2" if band.name == "A" else "", html.escape(band.color)
    return (
        f'<path class="band" data-group="{html.escape(band.name)}" d="{"".join(paths)}" '
        f'fill="{color}" fill-opacity="0.17" stroke="{color}" '
        f'stroke-opacity="0.55" stroke-width="0.8" stroke-dasharray="{dash}"/>'
    )


def _path(point: Point, places: Iterable[tuple[int, float]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.2f}" for x, y in (point(*place) for place in places))


def _parts(values: Numbers) -> list[list[int]]:
    """The layers (from 1) without a gap between them."""
    parts: list[list[int]] = [[]]
    for layer, value in enumerate(values, start=1):
        if math.isfinite(value):
            parts[-1].append(layer)
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]
