"""A claim with what both modes say of it."""

from __future__ import annotations

from dataclasses import dataclass

from anchorscope.pathways.claims.reading import Reading


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One row of claims.csv."""

    claim: str
    statement: str
    source: str  # figure, paper, or a reading of the figure
    model: str
    dataset: str  # several: joined by commas
    paper: Reading
    strict: Reading
    finding: str = ""  # what it is instead, where that is known
    primary: bool = False  # the question the run is for: it stands outside Holm's family
