"""Progress of long work, for a listener that the caller passes; otherwise it is silent."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Listen to the progress of long work: stages, steps and notes."""

    def start(self, stage: str, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...

    def note(self, text: str) -> None: ...


class Quiet:
    """The listener that shows nothing."""

    def start(self, stage: str, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...

    def note(self, text: str) -> None: ...
