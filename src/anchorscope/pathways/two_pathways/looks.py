"""Two groups or one, looked at within the predicted classes, on two roads.

On the first road Q and A differ by how far they move: the shifts have two humps. On the second
they follow two laws: Q's belief falls towards the prior, A's stays, so that the shifts *in units
of the margin* have two humps, among the samples whose margin is large enough to tell. Either way
the humps must still be there once relation, kind of question and the clean belief have had their
say, two probes must agree on who is in which, and the lower hump must be the one that flips.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from scipy.special import chdtrc

from anchorscope.pathways.humps import two_humps
from anchorscope.pathways.one_law import (
    LAWS,
    Fit,
    Known,
    Law,
    correlation,
    one_law,
    upper_correlation,
)
from anchorscope.pathways.probe_agreement import kappa_interval
from anchorscope.pathways.two_pathways.told import told
from anchorscope.pathways.two_pathways.two_lines import two_lines_p
from anchorscope.records import Estimate
from anchorscope.stats.dip import dip, dip_p
from anchorscope.stats.drawing import effective_size
from anchorscope.stats.intervals import ALPHA, Draws, difference, percentile_interval, rate
from anchorscope.stats.kept import normals

Road = Literal["shifts", "laws"]
ROADS: tuple[Road, ...] = get_args(Road)
WITHIN = ("right", "wrong", "both")
PROBES = ("paper", "a", "b")
# Six looks, three samples on two roads, share the 5 %.
ALPHA_LOOK = ALPHA / (len(WITHIN) * len(ROADS))
KAPPA = 0.4  # the least agreement of the probes, at the lower end of its interval
TOLD = 0.75  # AUROC from which the clean belief alone tells the humps apart
FEWEST = 40  # samples below which humps are not looked for
WORTH = 0.2  # a dip's p above which nothing else is computed
_NONE = Estimate(np.nan, np.nan, np.nan, 0)


@dataclass(frozen=True, kw_only=True)
class Look:
    """What one sample of questions shows on one road; NaN where it was not worth computing."""

    within: str  # right, wrong, or both (each sample turned towards its own predicted class)
    road: Road
    law: Law  # what was taken out before
    n_q: int  # probe a's lower hump
    n_a: int
    p_dip: float
    bic: float = np.nan
    kappa: Estimate = _NONE  # agreement of probes a and b on the humps
    gap: Estimate = _NONE  # probe b's residual in a's lower hump less that in the upper, logits;
    # its interval is the band that one mechanism gives
    p_gap: float = np.nan
    flips: Estimate = _NONE  # share that probe b flips in a's lower hump less that in the upper
    told: float = np.nan  # AUROC of the clean belief for the humps, within predicted classes
    p_lines: float = np.nan  # of two lines against one curve; on the road of laws alone

    @property
    def shown(self) -> bool:
        """Whether this look shows two groups, apart from what the clean belief tells."""
        return self.grouped and (not self.asks_for_lines or self.p_lines <= ALPHA)

    @property
    def grouped(self) -> bool:
        """Two humps, on which probes agree, further apart than one mechanism puts them."""
        return bool(
            self.p_dip <= ALPHA_LOOK
            and self.bic > 0
            and self.kappa.low > KAPPA
            and self.p_gap <= ALPHA
            and self.flips.low > 0
        )

    @property
    def asks_for_lines(self) -> bool:
        return self.road == "laws" and self.law == "curve"

    @property
    def p(self) -> float:
        """All conditions must hold, so the weakest one speaks; six-fold for the six looks."""
        parts = [self.p_dip / ALPHA_LOOK * ALPHA, self.p_gap]
        parts += [self.p_lines] if self.asks_for_lines else []
        return min(1.0, max(parts)) if np.isfinite(parts).all() else np.nan


@dataclass(frozen=True, kw_only=True)
class Logits:
    """Clean, knocked-out and control logits of every probe at one layer, [question], no NaN."""

    clean: Mapping[str, np.ndarray]
    knockout: Mapping[str, np.ndarray]
    control: Mapping[str, np.ndarray] | None


def look_closely(
    logits: Logits,
    known: Known,
    draws: Draws,
    *,
    laws: tuple[Law, ...] = LAWS,
    roads: tuple[Road, ...] = ROADS,
) -> dict[tuple[str, Road, Law], Look]:
    """Every look at one layer, after taking out ever more."""
    looks: dict[tuple[str, Road, Law], Look] = {}
    for law in laws:
        fits = {p: one_law(logits.clean[p], logits.knockout[p], known, law=law) for p in PROBES}
        for road in roads:
            parts = {w: _Part.of(logits, fits, known, within=w, road=road) for w in WITHIN}
            alone = [_dip_p(parts[name]) for name in WITHIN[:2]]
            for name, part in parts.items():
                p = alone[WITHIN.index(name)] if name != "both" else _both(part, alone)
                looks[name, road, law] = _look(part, p, law, draws)
    return looks


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The samples of one look, their shifts turned towards ŷ."""

    logits: Logits
    known: Known
    fits: Mapping[str, Fit]
    rows: np.ndarray  # of all samples
    within: str
    road: Road

    @classmethod
    def of(
        cls, logits: Logits, fits: Mapping[str, Fit], known: Known, *, within: str, road: Road
    ) -> _Part:
        wrong = known.predicted == 1
        rows = {"right": ~wrong, "wrong": wrong, "both": np.ones(len(wrong), dtype=bool)}[within]
        if road == "laws":
            rows = rows & _large_margin(known)
        return cls(
            logits=logits, known=known.take(rows), fits=fits, rows=rows, within=within, road=road
        )

    @property
    def towards(self) -> np.ndarray:
        return np.where(self.known.predicted == 1, 1.0, -1.0)

    def shifts(self, probe: str) -> np.ndarray:
        """Residuals towards ŷ; on the road of laws in units of the margin."""
        turned = self.towards * self.fits[probe].residual[self.rows]
        return turned / self.margin if self.road == "laws" else turned

    @property
    def margin(self) -> np.ndarray:
        margin = np.abs(self.known.belief)
        return np.maximum(margin, 0.1 * margin.mean())  # a margin of zero has no unit


def _large_margin(known: Known) -> np.ndarray:
    margin, large = np.abs(known.belief), np.zeros(len(known.belief), dtype=bool)
    for mine in (known.predicted == which for which in np.unique(known.predicted)):
        large[mine] = margin[mine] >= np.median(margin[mine])
    return large


def _dip_p(part: _Part) -> float:
    shifts = part.shifts("paper")
    if len(shifts) < FEWEST or not np.ptp(shifts) > 0:
        return np.nan
    # Questions about one entity are not independent samples of the law.
    size = effective_size(shifts, part.known.entity)
    return dip_p(dip(shifts), round(size))


def _both(part: _Part, alone: list[float]) -> float:
    """The dip's p of both classes together; 1 where neither class supports it by itself.

    Two classes with one skewed hump each have two modes when they are put together. So the classes
    must speak for two humps on their own too, by Fisher's combination of their p-values.
    """
    known = np.array([p for p in alone if np.isfinite(p)])
    if not len(known):
        return np.nan
    combined = chdtrc(2 * len(known), -2 * np.log(np.maximum(known, 1e-6)).sum())
    return _dip_p(part) if combined <= ALPHA else 1.0


def _look(part: _Part, p_dip: float, law: Law, draws: Draws) -> Look:
    about = {"within": part.within, "road": part.road, "law": law, "p_dip": p_dip}
    if not p_dip <= WORTH:
        return Look(**about, n_q=0, n_a=0)
    humps = {probe: two_humps(part.shifts(probe), seed=draws.seed) for probe in PROBES}
    lower = {probe: hump.lower for probe, hump in humps.items()}
    gap, p_gap = _gap(part, lower["a"], draws)
    look = Look(
        **about,
        n_q=int(lower["a"].sum()),
        n_a=int((~lower["a"]).sum()),
        bic=humps["paper"].bic,
        kappa=kappa_interval(
            lower["a"],
            lower["b"],
            seed=draws.seed,
            resamples=draws.resamples,
            entity=part.known.entity,
        ),
        gap=gap,
        p_gap=p_gap,
        flips=_flips(part, lower["a"]),
        told=told(lower["paper"], part.known),
    )
    worth = look.asks_for_lines and look.grouped
    return replace(look, p_lines=_lines_p(part, draws)) if worth else look


def _lines_p(part: _Part, draws: Draws) -> float:
    fit, rows = part.fits["paper"], part.rows
    own = Fit(fit.fitted[rows], fit.residual[rows], fit.spread, fit.noise[rows])
    return two_lines_p(part.logits.clean["paper"][rows], own, seed=draws.seed)


def _gap(
    part: _Part, lower: np.ndarray, draws: Draws, simulations: int = 200
) -> tuple[Estimate, float]:
    """Probe b's residual in a's lower hump less that in the upper, and one mechanism's band."""
    n, effect = len(lower), part.shifts("b")
    value = float(effect[lower].mean() - effect[~lower].mean()) if 0 < lower.sum() < n else np.nan
    shared = _shared(part)
    one, other = normals(2, simulations, n, seed=draws.seed)
    other = shared * one + np.sqrt(max(0.0, 1 - shared**2)) * other
    low = one <= np.quantile(one, lower.mean(), axis=1, keepdims=True)
    q = low.sum(axis=1)
    total = (other * low).sum(axis=1)
    drawn = effect.std() * (
        total / np.maximum(q, 1) - (other.sum(axis=1) - total) / np.maximum(n - q, 1)
    )
    band = percentile_interval(value, drawn, n)
    return band, float((1 + (drawn <= value).sum()) / (1 + simulations))


def _shared(part: _Part) -> float:
    """How far the two probes' noise may go together: the upper end under the control.

    Without a control it is what is seen under the knockout itself, the widest band.
    """
    n = int(part.rows.sum())
    if part.logits.control is None:
        return correlation(part.shifts("a"), part.shifts("b"))
    logits, rows = part.logits, part.rows
    left = [
        one_law(logits.clean[p][rows], part.logits.control[p][rows], part.known).residual
        for p in ("a", "b")
    ]
    return upper_correlation(correlation(*left), n)


def _flips(part: _Part, lower: np.ndarray) -> Estimate:
    """The share that probe b flips, lower hump less upper."""
    clean, knocked = (of["b"][part.rows] for of in (part.logits.clean, part.logits.knockout))
    flipped = (clean > 0) != (knocked > 0)
    if not 0 < lower.sum() < len(lower):
        return _NONE
    return difference(rate(flipped[lower]), rate(flipped[~lower]))
