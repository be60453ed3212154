"""A claim's number in one mode, the region in which the claim holds, and the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import norm

from anchorscope.probes.metrics import LEVEL
from anchorscope.records import Estimate

Decision = Literal["holds", "fails", "undecided", "not measured"]
ALPHA = 0.05
_Z95 = 1.959963984540054


@dataclass(frozen=True, kw_only=True)
class Region:
    """The values for which a claim holds, both ends included."""

    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one mode says of one claim. Without a value it was not measured."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p_holds: float = math.nan  # the chance of such a number if the claim were just false
    p_fails: float = math.nan  # if it were just true
    settled: Decision | None = None  # decided elsewhere, by more than one number

    @property
    def p(self) -> float:
        """The claim may be decided either way: twice the smaller one."""
        return min(1.0, 2 * min(self.p_holds, self.p_fails))

    def decision(self, p: float) -> Decision:
        """The verdict for a p-value that was corrected for the company it keeps."""
        if self.settled is not None:
            return self.settled
        if math.isnan(self.value):
            return "not measured"
        if not p <= ALPHA:
            return "undecided"
        return "holds" if self.p_holds < self.p_fails else "fails"


def from_draws(value: float, drawn: np.ndarray, region: Region) -> Reading:
    """The reading of a statistic with its bootstrap draws [resample]."""
    known = drawn[np.isfinite(drawn)]
    if not math.isfinite(value) or len(known) < len(drawn) / 2:
        return Reading()
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return _reading(value, float(low), float(high), float(known.std()), region)


def from_estimate(found: Estimate, region: Region) -> Reading:
    """The reading of an estimate that has its interval already."""
    if not np.isfinite(found[:3]).all():
        return Reading()
    error = (found.high - found.low) / (2 * _Z95)
    return _reading(found.value, found.low, found.high, error, region)


def difference(one: Estimate, other: Estimate) -> Estimate:
    """`one - other` with an interval for two separate groups, from their own intervals.

    Recovers each group's variance from its interval (Zou and Donner 2008; for shares it is
    Newcombe's interval), so that a gap can be checked by hand. n is that of the smaller group.
    """
    value = one.value - other.value
    down = math.hypot(one.value - one.low, other.high - other.value)
    up = math.hypot(one.high - one.value, other.value - other.low)
    return Estimate(value, value - down, value + up, min(one.n, other.n))


def both(one: Reading, other: Reading) -> Reading:
    """The first reading's number; it holds only as far as the second holds too."""
    if math.isnan(one.value) or math.isnan(other.value):
        return Reading()
    return Reading(
        value=one.value,
        low=one.low,
        high=one.high,
        p_holds=max(one.p_holds, other.p_holds),
        p_fails=min(one.p_fails, other.p_fails),
    )


def _reading(value: float, low: float, high: float, error: float, region: Region) -> Reading:
    error = max(error, 1e-12)
    # Inside: both ends must be ruled out. Outside: one end must be crossed.
    beyond = [norm.sf((value - region.low) / error), norm.sf((region.high - value) / error)]
    within = [norm.sf((region.low - value) / error), norm.sf((value - region.high) / error)]
    p_holds, p_fails = float(max(beyond)), float(min(within))
    return Reading(value=value, low=low, high=high, p_holds=p_holds, p_fails=p_fails)
