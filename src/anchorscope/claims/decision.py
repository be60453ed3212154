"""A claim, its number in each mode, the region in which it holds, and the decision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr

from anchorscope.claims.inputs import ClaimInputs
from anchorscope.records import Estimate, Mode
from anchorscope.stats.intervals import ALPHA, Z, percentile_interval

Decision = Literal["holds", "fails", "undecided", "not shown", "not measured"]


@dataclass(frozen=True, kw_only=True)
class Region:
    """The values for which a claim holds, both ends included."""

    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The number of one claim in one mode. Without a value it was not measured."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p_holds: float = math.nan  # the chance of such a number if the claim were just false
    p_fails: float = math.nan  # if it were just true
    decided_elsewhere: Decision | None = None  # by more than one number
    otherwise: Decision = "undecided"  # where nothing is decided; a test can only fail to reject

    @property
    def p(self) -> float:
        """Twice the smaller p-value, since the claim may be decided either way."""
        return min(1.0, 2 * min(self.p_holds, self.p_fails))

    def decision(self, p: float) -> Decision:
        """The decision for a p-value that was corrected for the other claims of its family."""
        if self.decided_elsewhere is not None:
            return self.decided_elsewhere
        if math.isnan(self.value):
            return "not measured"
        if not p <= ALPHA:
            return self.otherwise
        return "holds" if self.p_holds < self.p_fails else "fails"


def from_draws(value: float, drawn: np.ndarray, region: Region) -> Measured:
    """A statistic with its bootstrap draws [resample], against a region."""
    estimate = percentile_interval(value, drawn, len(drawn))
    if not np.isfinite(estimate.low):
        return Measured()
    return _measured(*estimate[:3], float(drawn[np.isfinite(drawn)].std()), region)


def from_estimate(estimate: Estimate, region: Region) -> Measured:
    """An estimate with its interval, against a region."""
    if not np.isfinite(estimate[:3]).all():
        return Measured()
    error = (estimate.high - estimate.low) / (2 * Z)
    return _measured(estimate.value, estimate.low, estimate.high, error, region)


def both(one: Measured, other: Measured) -> Measured:
    """The first number; it holds only as far as the second holds too.

    It fails by its own number alone: an interval that is shown and allows the claim is no evidence
    against it, whatever the second number is.
    """
    if math.isnan(one.value) or math.isnan(other.value):
        return Measured()
    return Measured(
        value=one.value,
        low=one.low,
        high=one.high,
        p_holds=max(one.p_holds, other.p_holds),
        p_fails=one.p_fails,
    )


def _measured(value: float, low: float, high: float, error: float, region: Region) -> Measured:
    error = max(error, 1e-12)
    # Inside: both ends must be ruled out. Outside: one end must be crossed.
    beyond = [ndtr((region.low - value) / error), ndtr((value - region.high) / error)]
    within = [ndtr((value - region.low) / error), ndtr((region.high - value) / error)]
    p_holds, p_fails = float(max(beyond)), float(min(within))
    return Measured(value=value, low=low, high=high, p_holds=p_holds, p_fails=p_fails)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One row of claims.csv."""

    claim: str
    statement: str
    source: str  # figure, paper, or a reading of the figure
    model: str
    dataset: str  # several: joined by commas
    paper: Measured
    strict: Measured
    finding: str = ""  # what it is instead, where that is known
    primary: bool = False  # the question the run is for: it is outside Holm's family
    about_groups: bool = True  # about Q and A: strict mode then needs two pathways
    shares_number_of: str = ""  # a claim on the same number: the two count once in Holm's family


@dataclass(frozen=True, kw_only=True)
class DatasetClaim:
    """A claim that is decided for each dataset of a run: how it is worded and measured."""

    claim: str
    statement: str | Callable[[ClaimInputs, str], str]
    source: str
    # The number on a dataset in a mode. None in paper mode: the run has nothing to measure it by.
    measure: Callable[[ClaimInputs, str, Mode], Measured | None]
    primary: bool = False
    about_groups: bool = True
    shares_number_of: str = ""


def decided(run: ClaimInputs, claims: Iterable[DatasetClaim]) -> Iterator[Claim]:
    """Each of these claims on each dataset of a run that can measure it."""
    for row in claims:
        for dataset in run.titles:
            paper = row.measure(run, dataset, "paper")
            if paper is None:
                continue
            worded = (
                row.statement if isinstance(row.statement, str) else row.statement(run, dataset)
            )
            yield Claim(
                claim=row.claim,
                statement=worded,
                source=row.source,
                model=run.model,
                dataset=dataset,
                paper=paper,
                strict=row.measure(run, dataset, "strict") or Measured(),
                finding=str(run.finding_of(dataset)["finding"]) if row.primary else "",
                primary=row.primary,
                about_groups=row.about_groups,
                shares_number_of=row.shares_number_of,
            )
