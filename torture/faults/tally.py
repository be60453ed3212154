"""What became of the faults: tried, survived, and how much was lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Count:
    """The trials of one kind of fault."""

    fault: str
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


@dataclass
class Tally:
    """All kinds of fault, in the order they were tried."""

    counts: list[Count] = field(default_factory=list)

    @contextmanager
    def of(self, fault: str) -> Iterator[Count]:
        """The count of a kind of fault, whose seconds are taken."""
        count, begun = Count(fault), time.monotonic()
        self.counts.append(count)
        try:
            yield count
        finally:
            count.seconds = time.monotonic() - begun

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
