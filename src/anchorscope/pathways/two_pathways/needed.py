"""How many samples strict mode would need to show two pathways with a chance of 80 %.

The pathways are planted as in planted.py, in samples drawn from the run's own, ever more of them.
Where the chance crosses 80 % is read off a logistic curve over the logarithm of their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from anchorscope.parallel import in_parallel
from anchorscope.pathways.two_pathways.finding import FEWEST
from anchorscope.pathways.two_pathways.looks import ALPHA_LOOK, KAPPA, TOLD, Look
from anchorscope.pathways.two_pathways.planted import Plan
from anchorscope.pathways.two_pathways.power import looks_at, shows
from anchorscope.records import Estimate
from anchorscope.stats.intervals import ALPHA, Draws, percentile_interval, rate
from anchorscope.stats.logistic import fit_logistic

TARGET = 0.8
MOST = 12_800  # samples beyond which nothing is tried
SCOUTS = 10  # worlds of a size that only shows where to look closely
WORLDS = 40  # worlds of each of the sizes around the crossing
ONE_HUMP = 2.0  # spreads up to which two equal humps have a single peak: no size is read off that
_RIDGE = 0.5  # the curve has a slope even where the classes are parted
_REDRAWN = 200  # times that the worlds are drawn again for the error of the number
OnDone = Callable[[], None]

# What a look must meet, in the order in which it is asked for.
CONDITIONS: dict[str, Callable[[Look], bool]] = {
    "two humps (dip test)": lambda look: look.p_dip <= ALPHA_LOOK,
    "two humps (fit)": lambda look: look.bic > 0,
    "agreement of the probes": lambda look: look.kappa.low > KAPPA,
    "a gap beyond one mechanism": lambda look: look.p_gap <= ALPHA,
    "more flips in the lower hump": lambda look: look.flips.low > 0,
    "groups that the belief does not tell": lambda look: look.told < TOLD,
}


@dataclass(frozen=True, kw_only=True)
class Needed:
    """The chance now, and the number of samples at which it would be TARGET."""

    now: Estimate  # the chance at the run's own number, with the simulation's interval
    samples: Estimate  # NaN where more than MOST would be needed
    apart: float  # distance of the planted humps in spreads of the paper probe's noise
    furthest: float  # the same for probes that learnt from MOST samples
    share: float  # of Q
    limit: str  # what most of the planted worlds lack at the run's own number; "" where none does


@dataclass(frozen=True)
class Tried:
    """One planted world: how many samples it had, and what it lacked ("" where it was shown)."""

    n: int
    lacked: str


def needed(plan: Plan, *, seed: int, worlds: int = WORLDS, on_done: OnDone | None = None) -> Needed:
    """The number of samples at which the planted pathways are shown with a chance of TARGET."""
    own = len(plan.known.fold)
    attempt = partial(_tried, plan, seed=seed, on_done=on_done)
    tried = attempt(own, worlds) if own >= FEWEST else []
    for n in _ladder(own, _chance(tried)) if plan.apart["paper"] > ONE_HUMP else ():
        scouts = attempt(n, SCOUTS)
        tried += scouts
        if (_chance(scouts) >= TARGET) == (n > own):
            break
    middle = _crossing(tried)
    if np.isfinite(middle):
        for n in (0.8 * middle, middle, 1.25 * middle):
            tried += attempt(int(np.clip(n, FEWEST, MOST)), worlds)
    here = [one for one in tried if one.n == own]
    lacking = Counter(one.lacked for one in here if one.lacked)
    return Needed(
        now=rate(np.array([not one.lacked for one in here]))
        if here
        else Estimate(0.0, 0.0, 0.0, 0),
        samples=_number(tried, seed),
        apart=plan.apart["paper"],
        furthest=furthest(plan),
        share=plan.share,
        limit=lacking.most_common(1)[0][0] if lacking else "",
    )


def furthest(plan: Plan) -> float:
    """The distance of the humps for probes that have as many answers as are ever tried."""
    return float(plan.learnt_from(MOST).apart["paper"])


def chance_at(
    plan: Plan, n: int, *, worlds: range, seed: int = 0, on_done: OnDone | None = None
) -> list[str]:
    """What each planted world of n samples lacks, "" where two pathways are shown."""

    def look(number: int) -> str:
        return lacking(plan, n, np.random.default_rng((seed, n, number)))

    return in_parallel(look, list(worlds), progress=lambda *_: on_done() if on_done else None)


def lacking(plan: Plan, n: int, rng: np.random.Generator) -> str:
    """What a planted world of about n samples lacks for two pathways, "" where they are shown."""
    drawn = plan.drawn(n, rng)
    draws = Draws(seed=int(rng.integers(2**31)), resamples=200)
    looks = looks_at(drawn.world(rng), drawn.known, draws)
    if any(map(shows, looks)):
        return ""
    best = min(looks, key=lambda look: np.nan_to_num(look.p_dip, nan=2.0))
    return next(
        (name for name, met in CONDITIONS.items() if not met(best)), "all of it in one look"
    )


def _tried(plan: Plan, n: int, worlds: int, *, seed: int, on_done: OnDone | None) -> list[Tried]:
    return [
        Tried(n, lack)
        for lack in chance_at(plan, n, worlds=range(worlds), seed=seed, on_done=on_done)
    ]


def _ladder(own: int, chance: float) -> list[int]:
    """The sizes to scout: up where the run's own is too small, down where it is enough."""
    if chance >= TARGET:
        steps = [round(own / 2**step) for step in range(1, 8)]
        return [n for n in steps if n > FEWEST] + [FEWEST]
    start = max(own, FEWEST)
    steps = [round(start * 2**step) for step in range(0 if own < FEWEST else 1, 10)]
    return [n for n in steps if n < MOST] + [MOST]


def _chance(tried: Sequence[Tried]) -> float:
    return float(np.mean([not one.lacked for one in tried])) if tried else 0.0


def _crossing(tried: Sequence[Tried]) -> float:
    """The number of samples at which a logistic curve through the worlds is TARGET."""
    n = np.log([one.n for one in tried])
    shown = np.array([not one.lacked for one in tried], dtype=float)
    if shown.all():
        return float(FEWEST)  # however few: below that there is no finding
    spread = n.std()
    if not spread > 0 or not shown.any():
        return np.nan
    fit = fit_logistic((n[:, None] - n.mean()) / spread, shown, ridge=_RIDGE)
    if fit is None or fit[0][1] <= 0:
        return np.nan
    level, slope = fit[0]
    at = (np.log(TARGET / (1 - TARGET)) - level) / slope * spread + n.mean()
    return float(np.exp(at)) if at <= np.log(MOST) else np.nan


def _number(tried: Sequence[Tried], seed: int) -> Estimate:
    """The crossing with the simulation's interval; NaN where it lies beyond MOST."""
    value, rng = _crossing(tried), np.random.default_rng(seed)
    if not np.isfinite(value):
        return Estimate(np.nan, np.nan, np.nan, len(tried))
    sizes = {one.n for one in tried}
    by_size = [[one for one in tried if one.n == n] for n in sorted(sizes)]
    drawn = []
    for _ in range(_REDRAWN):
        again = [of[at] for of in by_size for at in rng.integers(0, len(of), len(of))]
        drawn.append(_crossing(again))
    drawn = np.nan_to_num(np.array(drawn), nan=MOST)
    return percentile_interval(value, drawn, len(tried))
