"""A value as a notebook shows it: a title, a few facts, and a picture."""

from __future__ import annotations

from collections.abc import Sequence

from anchorscope.notebook.visible import visible

_BOX = (
    "border:1px solid #8888;border-radius:8px;padding:.6em .9em;max-width:44em;"
    "font-family:system-ui,sans-serif;font-size:14px;line-height:1.5;overflow-wrap:anywhere"
)


def card(title: str, facts: Sequence[tuple[str, str]], *, picture: str = "") -> str:
    """HTML of the title and facts, all untrusted; `picture` is HTML already."""
    rows = "".join(
        f'<div><span style="opacity:.7">{visible(name)}</span> {visible(value)}</div>'
        for name, value in facts
    )
    return (
        f'<div class="anchorscope" style="{_BOX}"><div style="font-weight:600">{visible(title)}'
        f"</div>{rows}{picture}</div>"
    )
