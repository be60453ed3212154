"""The one-mechanism null: the gap between groups that one shift of everybody would give.

The null says: every sample follows the same law, knocked-out logit = line(clean logit) + noise,
and nothing else tells samples apart. It is simulated from the observed clean logits, the fitted
lines, and Gaussian noise; the simulated logits are then grouped exactly as the mode groups.

Strict mode takes the group from probe a and the effect from probe b, so the noise is a pair, and
everything hangs on how far the two go together. The probes share no training question, but they
read the *same states*: if the knockout jolts a state at random, both see that jolt, each along its
own direction. Independent noise would therefore make the band too narrow: any jolt would pass for
a second pathway. The other extreme, the correlation of the observed residuals, takes the very
thing in question for granted: if samples do differ in how much they need the question, that is
what both probes see, and the null would simulate it. Under one mechanism the noise is a jolt in no
special direction, and how far two probes agree on such a jolt can be measured: it is the
correlation of their residuals under the random-token knockout. The upper end of its interval is
what is drawn, so that the control's own error cannot narrow the band. Without a control the
observed correlation is taken: the widest band, which errs towards one mechanism.

The line from the clean to the knocked-out logit, and what it leaves over.

Every fold has a probe of its own, with its own scale and offset. So "one line" is one line for
each probe that reads: intercept and slope by fold. A single line over all folds would turn the
probes' differences into differences between samples, and five probes into five humps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from anchorscope.pathways.effects import Delta, delta_p, prediction
from anchorscope.stats.intervals import Z, percentile_interval

_BLOCK = 1_000_000  # simulated logits at a time
CLASSES = ("all", "right", "wrong", "both")
UNITS: tuple[Delta, ...] = ("points", "logit")
FEWEST = 4  # samples of a fold below which it takes the line of all samples


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The mean effect of Q less that of A, beside what one mechanism would give."""

    value: float  # NaN where a group is empty
    low: float  # the null's 95 % band; NaN where it never has two groups
    high: float
    p: float  # how often one mechanism gives a gap at least as deep
    n_q: int
    n_a: int

    @property
    def beyond(self) -> bool:
        """Whether Q falls further below A than one mechanism lets it."""
        return bool(self.value < self.low)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Logits [question] of the probe that groups and of the probe that measures, without NaN."""

    group_clean: np.ndarray
    group_knockout: np.ndarray
    effect_clean: np.ndarray
    effect_knockout: np.ndarray
    fold: np.ndarray
    stratum: np.ndarray  # groups are compared within a stratum, and each has lines of its own

    @property
    def flipped(self) -> np.ndarray:
        return (self.group_clean > 0) != (self.group_knockout > 0)

    def within(self, name: str) -> Pair:
        """The samples of one class that the effect's probe predicts, "right" or "wrong".

        "all" takes all samples as they are; "both" takes all, compared within their class.
        """
        predicted = prediction(self.effect_clean)
        if name == "all":
            return self
        if name == "both":
            return replace(self, stratum=predicted)
        rows = predicted == (name == "wrong")
        return Pair(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def gaps(
    pair: Pair,
    *,
    seed: int,
    simulations: int = 500,
    points: Delta = "points",
    shared: float | None = None,
) -> dict[Delta, Gap]:
    """The gap in points and in logits, each with its null band.

    `points` may be "relative": the unit that the ΔP of the run counts in. `shared` is the
    correlation of the two probes' noise (`shared_by_control`); None takes the observed one.
    Within a predicted class the lines are those of that class: a bend between the classes is
    still one mechanism.
    """
    n = len(pair.fold)
    if n < 3:
        return {unit: _gap(np.nan, np.array([np.nan]), pair) for unit in UNITS}
    observed = _gaps(pair, pair.group_knockout[None], pair.effect_knockout[None], points)
    rng = np.random.default_rng(seed)
    size = max(1, _BLOCK // n)
    counts = [min(size, simulations - start) for start in range(0, simulations, size)]
    drawn = [_gaps(pair, *_simulate(pair, rng, count, shared), points) for count in counts]
    return {
        unit: _gap(observed[unit][0], np.concatenate([d[unit] for d in drawn]), pair)
        for unit in UNITS
    }


def shared_by_control(control: Pair) -> float:
    """The most that two probes' noise may go together, from a pair read under the control.

    The upper end of the 95 % interval of the residuals' correlation (Fisher's z); scipy's pearsonr
    gives the same to 3e-16 (tested), but NaN for residuals without spread.
    """
    n = len(control.fold)
    if n < 4:
        return 1.0
    seen = _correlation(*(_line(control, role).residual for role in ("group", "effect")))
    return float(np.tanh(np.arctanh(min(seen, 1 - 1e-9)) + Z / np.sqrt(n - 3)))


def _line(pair: Pair, role: str) -> Line:
    clean, knockout = getattr(pair, f"{role}_clean"), getattr(pair, f"{role}_knockout")
    return fit_line(clean, knockout, 2 * pair.fold + pair.stratum)


def _simulate(
    pair: Pair, rng: np.random.Generator, count: int, shared: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Knocked-out logits [simulation, question] of both probes under one mechanism."""
    group, effect = _line(pair, "group"), _line(pair, "effect")
    shared = _correlation(group.residual, effect.residual) if shared is None else shared
    first, second = rng.standard_normal((2, count, len(pair.fold)))
    second = shared * first + np.sqrt(1 - shared**2) * second
    return group.fitted + group.spread * first, effect.fitted + effect.spread * second


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    size = np.sqrt((x**2).sum() * (y**2).sum())
    return float(np.clip((x * y).sum() / size, -1, 1)) if size > 0 else 0.0


def _gaps(
    pair: Pair, group_knockout: np.ndarray, effect_knockout: np.ndarray, points: Delta
) -> dict[Delta, np.ndarray]:
    """The gap of each simulation [simulation], by unit; NaN where a group is empty."""
    flipped = (group_knockout > 0) != (pair.group_clean > 0)
    clean = np.broadcast_to(pair.effect_clean, effect_knockout.shape)
    gaps_by_unit: dict[Delta, np.ndarray] = {}
    for unit in UNITS:
        effect = delta_p(clean, effect_knockout, delta=points if unit == "points" else unit)
        parts = [pair.stratum == number for number in np.unique(pair.stratum)]
        gaps_by_unit[unit] = _stratified([(effect[:, rows], flipped[:, rows]) for rows in parts])
    return gaps_by_unit


def _stratified(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The mean gap over strata [simulation], each weighted by how much it says of a gap."""
    total, weights = 0.0, 0.0
    for effect, flipped in parts:
        q, n = flipped.sum(axis=1), flipped.shape[1]
        a, in_q = n - q, (effect * flipped).sum(axis=1)
        gap = in_q / np.maximum(q, 1) - (effect.sum(axis=1) - in_q) / np.maximum(a, 1)
        weight = q * a / n  # none where a group is empty
        total, weights = total + weight * gap, weights + weight
    return np.where(weights > 0, total / np.where(weights > 0, weights, 1), np.nan)


def _gap(value: float, drawn: np.ndarray, pair: Pair) -> Gap:
    sizes = {"n_q": int(pair.flipped.sum()), "n_a": int((~pair.flipped).sum())}
    known = drawn[~np.isnan(drawn)]
    # A null that mostly leaves one group empty has no gap to compare with: no band, no p.
    value, low, high, _ = percentile_interval(value, drawn, len(pair.fold))
    p = (1 + (known <= value).sum()) / (1 + len(known)) if np.isfinite(low) else np.nan
    return Gap(value=value, low=low, high=high, p=float(p), **sizes)


class Line(NamedTuple):
    """Fitted knocked-out logits [question], what is left over, and its spread."""

    fitted: np.ndarray
    residual: np.ndarray
    spread: float  # standard deviation of the noise, corrected for the parameters fitted


def fit_line(clean: np.ndarray, knockout: np.ndarray, fold: np.ndarray) -> Line:
    """The least-squares line of each fold. Logits [question] without NaN."""
    fitted = np.empty_like(clean)
    parameters = 0
    for rows in (fold == number for number in np.unique(fold)):
        source = rows if rows.sum() >= FEWEST else np.ones(len(clean), dtype=bool)
        fitted[rows] = _predict(clean[source], knockout[source], clean[rows])
        parameters += 2 * int(rows.sum() >= FEWEST)
    residual = knockout - fitted
    free = max(len(clean) - parameters, 1)
    return Line(fitted, residual, float(np.sqrt((residual**2).sum() / free)))


def _predict(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
    # scipy's linregress (the same to 4e-15, tested) is 17 times slower and refuses equal x.
    middle, variance = x.mean(), x.var()
    slope = ((x - middle) * (y - y.mean())).mean() / variance if variance > 0 else 0.0
    return y.mean() + slope * (at - middle)
