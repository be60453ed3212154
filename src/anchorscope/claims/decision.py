"""A claim, its number in each mode, the region in which it holds, and the decision."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr

from anchorscope.records import Estimate
from anchorscope.stats.intervals import ALPHA, Z, percentile_interval

Decision = Literal["holds", "fails", "undecided", "not shown", "not measured"]


@dataclass(frozen=True, kw_only=True)
class Region:
    """The values for which a claim holds, both ends included."""

    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one mode says of one claim. Without a value it was not measured."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p_holds: float = math.nan  # the chance of such a number if the claim were just false
    p_fails: float = math.nan  # if it were just true
    decided_elsewhere: Decision | None = None  # by more than one number
    otherwise: Decision = "undecided"  # where nothing is decided; a test can only fail to reject

    @property
    def p(self) -> float:
        """The claim may be decided either way: twice the smaller one."""
        return min(1.0, 2 * min(self.p_holds, self.p_fails))

    def decision(self, p: float) -> Decision:
        """The verdict for a p-value that was corrected for the company it keeps."""
        if self.decided_elsewhere is not None:
            return self.decided_elsewhere
        if math.isnan(self.value):
            return "not measured"
        if not p <= ALPHA:
            return self.otherwise
        return "holds" if self.p_holds < self.p_fails else "fails"


def from_draws(value: float, drawn: np.ndarray, region: Region) -> Measured:
    """The reading of a statistic with its bootstrap draws [resample]."""
    estimate = percentile_interval(value, drawn, len(drawn))
    if not np.isfinite(estimate.low):
        return Measured()
    return _reading(*estimate[:3], float(drawn[np.isfinite(drawn)].std()), region)


def from_estimate(estimate: Estimate, region: Region) -> Measured:
    """The reading of an estimate that has its interval already."""
    if not np.isfinite(estimate[:3]).all():
        return Measured()
    error = (estimate.high - estimate.low) / (2 * Z)
    return _reading(estimate.value, estimate.low, estimate.high, error, region)


def both(one: Measured, other: Measured) -> Measured:
    """The first reading's number; it holds only as far as the second holds too.

    It fails by its own number alone: an interval that is shown and allows the claim does not
    speak against it, whatever the second one says.
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


def _reading(value: float, low: float, high: float, error: float, region: Region) -> Measured:
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
    primary: bool = False  # the question the run is for: it stands outside Holm's family
    about_groups: bool = True  # of Q and A: strict mode then needs two pathways
    shares_number_of: str = ""  # a claim on the same number: the two count once in Holm's family
