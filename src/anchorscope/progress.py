"""Progress of long work, for a listener that the caller passes; otherwise it is silent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Listen to the progress of long work: stages, steps and notes."""

    def start(self, stage: str, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...

    def note(self, text: str) -> None: ...


class Quiet:
    """The listener that shows nothing."""

    def start(self, stage: str, total: int) -> None:
        return None

    def advance(self, count: int = 1) -> None:
        return None

    def note(self, text: str) -> None:
        return None


@contextmanager
def without_library_bars() -> Iterator[None]:
    """Hide the progress bars of transformers and the hub inside the block."""
    from transformers.utils import logging  # slow to import

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
