"""P(wrong) by layer as SVG: lines over bands, readable without colour and on any background."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anchorscope.notebook.visible import escape

_LEFT, _RIGHT, _TOP, _BOTTOM = 34.0, 10.0, 8.0, 32.0
_INK, _GREY = "currentColor", "var(--quiet, #6b7280)"
Numbers = Sequence[float]  # [layer], NaN where there is none


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
    """Between which values a group lies at each layer."""

    name: str
    label: str
    low: Numbers
    high: Numbers
    color: str


def belief_chart(
    lines: Sequence[Line],
    bands: Sequence[Band] = (),
    *,
    layer: int | None = None,
    width: int = 480,
    height: int = 230,
    title: str = "P(wrong) by layer",
) -> str:
    """The chart as an <svg> element; `layer` is marked by a vertical line."""
    layers = max(len(line.values) for line in lines)
    place = _Place(layers, width, height)
    parts = [*_grid(place), *(_band(place, band) for band in bands)]
    parts += [_line(place, line) for line in lines]
    if layer is not None:
        x = place.x(layer)
        parts.append(
            f'<line class="cursor" x1="{x:.1f}" x2="{x:.1f}" y1="{place.y(0):.1f}" '
            f'y2="{place.y(1):.1f}" stroke="{_INK}" stroke-opacity="0.45" stroke-dasharray="2 2"/>'
        )
    size = f'viewBox="0 0 {width} {height}" width="100%" style="max-width:{1.35 * width:.0f}px"'
    about = f'class="beliefs" role="img" aria-label="{escape(title)}"'
    return f"<svg {about} {size}>{''.join(parts)}</svg>"


def key(line: Line) -> str:
    """A piece of the line, for a legend."""
    return (
        f'<svg width="26" height="8" aria-hidden="true"><line x1="0" x2="26" y1="4" y2="4" '
        f'stroke="{escape(line.color)}" stroke-width="2.2" stroke-dasharray="{line.dash}"/></svg>'
    )


@dataclass(frozen=True)
class _Place:
    """Where a layer and a probability lie in the picture."""

    layers: int
    width: int
    height: int

    def x(self, layer: float) -> float:
        share = (layer - 1) / max(1, self.layers - 1)
        return _LEFT + 4 + share * (self.width - _LEFT - _RIGHT - 8)

    def y(self, value: float) -> float:
        return self.height - _BOTTOM - value * (self.height - _BOTTOM - _TOP)


def _grid(place: _Place) -> Iterable[str]:
    for value in (0, 0.25, 0.5, 0.75, 1):
        y, strong = place.y(value), value == 0.5
        yield (
            f'<line x1="{_LEFT}" x2="{place.width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{_GREY}" stroke-opacity="{0.7 if strong else 0.25}"/>'
        )
        if value in (0, 0.5, 1):
            yield _text(_LEFT - 5, y + 4, f"{value:g}", "end")
    step = max(1, math.ceil(place.layers / 7 / 5) * 5) if place.layers > 7 else 1
    for layer in [k for k in range(1, place.layers + 1) if k % step == 0 or k == 1]:
        yield _text(place.x(layer), place.height - _BOTTOM + 15, str(layer), "middle")
    yield _text((_LEFT + place.width) / 2, place.height - 3, "layer", "middle")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="12" '
        f'fill="{_GREY}">{escape(text)}</text>'
    )


def _line(place: _Place, line: Line) -> str:
    paths = [
        "M" + "L".join(f"{place.x(k):.1f},{place.y(line.values[k - 1]):.2f}" for k in part)
        for part in _stretches(line.values)
    ]
    width = 2.6 if line.color == _INK else 1.9
    return (
        f'<path class="belief" data-pass="{escape(line.name)}" d="{"".join(paths)}" fill="none" '
        f'stroke="{escape(line.color)}" stroke-width="{width}" stroke-dasharray="{line.dash}"/>'
    )


def _band(place: _Place, band: Band) -> str:
    paths = []
    for part in _stretches(band.low):
        there = [f"{place.x(k):.1f},{place.y(band.low[k - 1]):.2f}" for k in part]
        back = [f"{place.x(k):.1f},{place.y(band.high[k - 1]):.2f}" for k in reversed(part)]
        paths.append("M" + "L".join([*there, *back]) + "Z")
    dash = "4 2" if band.name == "A" else ""
    return (
        f'<path class="band" data-group="{escape(band.name)}" d="{"".join(paths)}" '
        f'fill="{escape(band.color)}" fill-opacity="0.17" stroke="{escape(band.color)}" '
        f'stroke-opacity="0.55" stroke-width="0.8" stroke-dasharray="{dash}"/>'
    )


def _stretches(values: Numbers) -> list[list[int]]:
    """The layers (from 1) without a gap between them."""
    parts: list[list[int]] = [[]]
    for layer, value in enumerate(values, start=1):
        if math.isfinite(value):
            parts[-1].append(layer)
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]
