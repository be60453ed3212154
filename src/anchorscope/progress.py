"""How long work reports: the library is silent unless somebody passes a listener."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A listener: a stage begins, moves on, and now and then there is something to say."""

    def start(self, stage: str, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...

    def note(self, text: str) -> None: ...


class Quiet:
    """The listener that hears nothing."""

    def start(self, stage: str, total: int) -> None:
        return None

    def advance(self, count: int = 1) -> None:
        return None

    def note(self, text: str) -> None:
        return None
