"""A claim, its number in each mode, the region in which it holds, and the decision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import ndtr

from anchorscope.claims.inputs import ClaimInputs
from anchorscope.records import Estimate, Mode
from anchorscope.stats.intervals import ALPHA, Z, percentile_interval

Decision = Literal["holds", "fails", "undecided", "not shown", "not measured"]


@dataclass(frozen=True)
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
    """Measure a statistic with its bootstrap draws [resample] against a region."""
    estimate = percentile_interval(value, drawn, len(drawn))
    if not np.isfinite(estimate.low):
        return Measured()
    return _measured(*estimate[:3], float(drawn[np.isfinite(drawn)].std()), region)


def from_estimate(estimate: Estimate, region: Region) -> Measured:
    """Measure an estimate with its interval against a region."""
    if not np.isfinite(estimate[:3]).all():
        return Measured()
    error = (estimate.high - estimate.low) / (2 * Z)
    return _measured(estimate.value, estimate.low, estimate.high, error, region)


def both(one: Measured, other: Measured) -> Measured:
    """Combine two numbers of a claim: the first, which holds only if the second holds too.

    It fails by its own number alone: an interval that is shown and allows the claim is no evidence
    against it, whatever the second number is.
    """
    if math.isnan(one.value) or math.isnan(other.value):
        return Measured()
    return replace(one, p_holds=max(one.p_holds, other.p_holds))


def _measured(value: float, low: float, high: float, error: float, region: Region) -> Measured:
    error = max(error, 1e-12)
    # Inside: both ends must be ruled out. Outside: one end must be crossed.
    beyond = [ndtr((region.low - value) / error), ndtr((value - region.high) / error)]
    within = [ndtr((value - region.low) / error), ndtr((region.high - value) / error)]
    p_holds, p_fails = float(max(beyond)), float(min(within))
    return Measured(value=value, low=low, high=high, p_holds=p_holds, p_fails=p_fails)


@dataclass(frozen=True)
class Claim:
    """A claim: how it is worded, and what measures it."""

    name: str
    statement: str | Callable[[ClaimInputs, str], str]
    # The number on a dataset (several: joined by commas) in a mode. None in paper mode: the run
    # has nothing to measure it by.
    measure: Callable[[ClaimInputs, str, Mode], Measured | None]
    source: str = "paper"  # or figure, or a reading of the figure
    primary: bool = False  # the question the run is for: it is outside Holm's family
    about_groups: bool = True  # about Q and A: strict mode then needs two pathways
    shares_number_of: str = ""  # a claim on the same number: the two count once in Holm's family


class ClaimRow(NamedTuple):
    """A claim with its numbers: one row of claims.csv."""

    claim: Claim
    statement: str
    model: str
    dataset: str
    paper: Measured
    strict: Measured


def decided(
    run: ClaimInputs,
    claims: Iterable[Claim],
    *,
    datasets: Sequence[str] | None = None,
    model: str | None = None,
) -> Iterator[ClaimRow]:
    """Yield a row for each claim on each dataset (default: all of the run) that can measure it."""
    for claim in claims:
        for dataset in run.titles if datasets is None else datasets:
            paper = claim.measure(run, dataset, "paper")
            if paper is not None:
                statement = claim.statement
                worded = statement if isinstance(statement, str) else statement(run, dataset)
                strict = claim.measure(run, dataset, "strict") or Measured()
                yield ClaimRow(claim, worded, model or run.model, dataset, paper, strict)
