"""Report the progress of long work to a listener; silent without one."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Listen to the progress of long work: stages, steps and notes."""

    def start(self, stage: str, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...

    def note(self, text: str) -> None: ...


class Quiet:
    """A progress listener that shows nothing."""

    def start(self, stage: str, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...

    def note(self, text: str) -> None: ...
