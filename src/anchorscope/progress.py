"""Progress of long work, for a listener that the caller passes; otherwise it is silent."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A listener: a stage begins, moves on, and now and then there is something to say."""

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
