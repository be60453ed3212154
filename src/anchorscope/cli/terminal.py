"""Print lines, tables and progress to the terminal; escape control characters.

Names and texts come from files that others wrote. An escape sequence among them would move the
cursor, write over what was printed, or change the window's title.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table

from anchorscope.errors import CONTROLS, UserError


def visible(text: str) -> str:
    """Escape control characters as JSON does."""
    return CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def echo(text: str = "", *, err: bool = False) -> None:
    """Print a line."""
    typer.echo(visible(text), err=err)


class Terminal(Console):
    """A rich console that escapes control characters in texts and draws no emoji for `:train:`."""

    def __init__(self, *, highlight: bool = False, **options: Any) -> None:
        super().__init__(highlight=highlight, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Escape control characters in every segment but rich's own, which move the cursor."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


def plain_table(*columns: str) -> Table:
    """Make an empty table with a line under its header and no frame."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column)
    return table


class Bar:
    """Show progress on standard error: a bar for each stage; in a log a line every 30 seconds."""

    def __init__(self, *, seconds: float = 30.0) -> None:
        self.console = Terminal(stderr=True)
        self._rich = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task = None
        self._seconds, self._ended = seconds, threading.Event()

    def __enter__(self) -> Bar:
        quiet_libraries()
        self._rich.start()
        if not self.console.is_terminal:
            threading.Thread(target=self._print_lines, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._rich.stop()

    def _print_lines(self) -> None:
        """Print the stage's progress regularly, for logs."""
        begun = time.monotonic()
        while not self._ended.wait(self._seconds):
            if self._task is not None:
                task, minutes = self._rich.tasks[self._task], (time.monotonic() - begun) / 60
                done = f"{task.completed:.0f}/{task.total:.0f}"
                self.note(f"{task.description} ({done}), {minutes:.1f} minutes so far")

    def start(self, stage: str, total: int) -> None:
        if not self.console.is_terminal:
            self.console.print(f"{stage} (0/{total})", markup=False)
        self._task = self._rich.add_task(stage, total=total)

    def advance(self, count: int = 1) -> None:
        if self._task is not None:
            self._rich.advance(self._task, count)

    def note(self, text: str) -> None:
        self.console.print(text, style="dim", markup=False)


def require_packages(command: str, extra: str, *names: str) -> None:
    """Raise a UserError with the line that installs the packages of an extra that are missing."""
    if missing := [name for name in names if find_spec(name) is None]:
        raise UserError(
            f"`anchorscope {command}` needs {', '.join(missing)}, which is not installed. Install "
            f"it: {sys.executable} -m pip install 'anchorscope[{extra}]'."
        )


def quiet_libraries() -> None:
    """Turn off the progress bars and warnings of transformers, datasets and huggingface_hub."""
    # Unset, tokenizers warns of each process that is started after it used several cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # `datasets` reads it when it is imported; it is slow to import, and only the hub needs it.
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging as transformers_logging

    if "datasets" in sys.modules:
        from datasets.utils.logging import disable_progress_bar

        disable_progress_bar()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
