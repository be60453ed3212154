"""What became of the faults: tried, survived, and how much was lost."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


class Enough(Exception):
    """The seconds of a kind of fault are used up."""


@dataclass
class Count:
    """The trials of one kind of fault."""

    fault: str
    until: float = math.inf  # by the clock that does not jump
    tried: int = 0
    survived: int = 0
    lost: int = 0  # trials after which a result was missing or another one
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, trial: str, *, wrong: str = "", lost: bool = False) -> None:
        """One more trial; `wrong` says what was not as it should be."""
        self.tried += 1
        self.survived += not wrong
        self.lost += lost
        if wrong:
            self.failures.append(f"{self.fault}, {trial}: {wrong}")
            print(self.failures[-1], file=sys.stderr, flush=True)

    def go_on(self) -> None:
        """Raise where no further trial is to begin."""
        if time.monotonic() > self.until:
            raise Enough


@dataclass
class Tally:
    """All kinds of fault, in the order they were tried, each for so many seconds at most."""

    most: float = math.inf
    counts: list[Count] = field(default_factory=list)

    @contextmanager
    def of(self, fault: str) -> Iterator[Count]:
        """The count of a kind of fault, whose seconds are taken."""
        begun = time.monotonic()
        count = Count(fault, until=begun + self.most)
        self.counts.append(count)
        try:
            with suppress(Enough):
                yield count
        finally:
            count.seconds = time.monotonic() - begun
            print(
                f"{count.survived} of {count.tried} survived: {fault}", file=sys.stderr, flush=True
            )

    @property
    def failures(self) -> list[str]:
        return [failure for count in self.counts for failure in count.failures]

    def sums(self) -> dict[str, int]:
        """Faults tried, survived, and data lost."""
        names = {"faults tried": "tried", "survived": "survived", "data lost": "lost"}
        return {said: sum(getattr(c, name) for c in self.counts) for said, name in names.items()}

    def table(self) -> str:
        """All counts as a table in Markdown."""
        rows = [
            (c.fault, str(c.tried), str(c.survived), str(c.lost), f"{c.seconds:.0f} s")
            for c in self.counts
        ]
        sums = [str(number) for number in self.sums().values()]
        rows.append(("all", *sums, f"{sum(c.seconds for c in self.counts):.0f} s"))
        lines = ["| fault | tried | survived | data lost | time |", "| --- |" + " ---: |" * 4]
        return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])
