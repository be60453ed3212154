"""A badge for a README: what `anchorscope verify` found, as a small SVG."""

from __future__ import annotations

from html import escape

_LETTER, _PAD, _HIGH = 6.6, 8, 20  # pixels of a letter at 11 px, beside the words, and of the badge
_COLORS = {True: "#2e7d32", False: "#b3261e"}


def badge(status: str, *, ok: bool, label: str = "anchorscope") -> str:
    """The SVG: the label on grey, and the status on green or red."""
    left, right = (round(len(text) * _LETTER) + 2 * _PAD for text in (label, status))
    texts = "".join(
        f'<text x="{x}" y="14" text-anchor="middle">{escape(text)}</text>'
        for x, text in ((left / 2, label), (left + right / 2, status))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{_HIGH}" '
        f'role="img" aria-label="{escape(label)}: {escape(status)}">'
        f"<title>{escape(label)}: {escape(status)}</title>"
        f'<rect width="{left + right}" height="{_HIGH}" rx="3" fill="#555"/>'
        f'<rect x="{left}" width="{right}" height="{_HIGH}" rx="3" fill="{_COLORS[ok]}"/>'
        f'<rect x="{left}" width="4" height="{_HIGH}" fill="{_COLORS[ok]}"/>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{texts}</g>'
        "</svg>\n"
    )
