"""All targets, in the order in which they are tried."""

from __future__ import annotations

from torture.fuzz import asked, files, judged, marked, options
from torture.fuzz.target import Target


def every_target() -> list[Target]:
    """Each target once."""
    return [*judged.TARGETS, *files.TARGETS, *marked.TARGETS, *asked.TARGETS, *options.TARGETS]
