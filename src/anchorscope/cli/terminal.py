"""Print to the terminal: the one place where text leaves, with control characters shown as code.

Names and texts come from files that others wrote. An escape sequence among them would move the
cursor, write over what was printed, or change the window's title.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from anchorscope.errors import CONTROLS


def visible(text: str) -> str:
    """The text with control characters as codes, in the spelling that JSON has for them."""
    return CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def echo(text: str = "", *, err: bool = False) -> None:
    """Print a line."""
    typer.echo(visible(text), err=err)


class Terminal(Console):
    """A console of rich that shows control characters of texts; its own colours stay."""

    def __init__(self, *, highlight: bool = False, **options: Any) -> None:
        super().__init__(highlight=highlight, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of what is printed; those that move the cursor are rich's own."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)
