"""Claims about the curves of one dataset, each a number of the curve and a region for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from anchorscope.claims.decision import Claim, Measured, Region, from_draws
from anchorscope.claims.inputs import ClaimInputs, Curves
from anchorscope.records import MODES

NEAR = 10.0  # points that still count as near zero
FAR = 20.0  # points that count as far below
RECOVERY = 10.0  # points that a curve must rise again to be called U-shaped
MIDDLE = (1 / 3, 3 / 4)  # of the depth
Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]  # q, a [..., layer] -> [...]


def smooth(curve: np.ndarray) -> np.ndarray:
    """Means over an eighth of the layers, so that one noisy layer decides nothing."""
    width = max(1, curve.shape[-1] // 8)
    windows = np.lib.stride_tricks.sliding_window_view(curve, width, axis=-1)
    return windows.mean(axis=-1)


def deepest(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The lowest stretch of Q."""
    return _quiet(np.nanmin, smooth(q))


def furthest_a(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """A at the layer where it is furthest from zero, on either side."""
    low, high = _quiet(np.nanmin, a), _quiet(np.nanmax, a)
    return np.where(np.abs(low) >= np.abs(high), low, high)


def later_gap(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Q less A, over the layers from the middle on: no layer is picked."""
    half = q.shape[-1] // 2
    return _quiet(np.nanmean, (q - a)[..., half:])


def start(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The first layer's Q or A, whichever is further from zero."""
    return np.where(np.abs(q[..., 0]) >= np.abs(a[..., 0]), q[..., 0], a[..., 0])


def recovery(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """How far Q rises from its lowest stretch to its last."""
    curve = smooth(q)
    return curve[..., -1] - _quiet(np.nanmin, curve)


def depth_of_deepest(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Where Q is lowest, from 0 (first layer) to 1 (last)."""
    curve = smooth(q)
    depths = np.where(np.isnan(curve), np.inf, curve)
    place = (depths.argmin(axis=-1) + (q.shape[-1] - curve.shape[-1]) / 2 + 1) / q.shape[-1]
    return np.where(np.isnan(curve).all(axis=-1), np.nan, place)


@dataclass(frozen=True, kw_only=True)
class _Curve:
    name: str
    statement: str
    statistic: Statistic
    region: Region
    shares_number_of: str = ""


CURVES = (
    _Curve(
        name="a-near-zero",
        statement=f"A-Anchored stays within {NEAR:.0f} of zero, at its furthest layer too",
        statistic=furthest_a,
        region=Region(low=-NEAR, high=NEAR),
    ),
    _Curve(
        name="q-far-below",
        statement=f"Q-Anchored lies {FAR:.0f} or more below A-Anchored from the middle layer on",
        statistic=later_gap,
        region=Region(high=-FAR),
    ),
    _Curve(
        name="start-near-zero",
        statement=f"both start within {NEAR:.0f} of zero at layer 1",
        statistic=start,
        region=Region(low=-NEAR, high=NEAR),
    ),
    _Curve(
        name="u-shape",
        statement=f"Q-Anchored rises again by {RECOVERY:.0f} or more after its deepest layers",
        statistic=recovery,
        region=Region(low=RECOVERY),
    ),
    _Curve(
        name="keeps-falling",
        statement=f"Q-Anchored ends within {RECOVERY:.0f} of its deepest layers",
        statistic=recovery,
        region=Region(high=RECOVERY),
        shares_number_of="u-shape",
    ),
    _Curve(
        name="deepest-in-middle",
        statement="Q-Anchored is deepest between a third and three quarters of the depth",
        statistic=depth_of_deepest,
        region=Region(low=MIDDLE[0], high=MIDDLE[1]),
    ),
)


def curve_claims(run: ClaimInputs) -> Iterator[Claim]:
    """The claims of CURVES for every dataset."""
    for curve in CURVES:
        for dataset in run.titles:
            measured = {
                mode: read_curve(run.curves[dataset, mode], curve.statistic, curve.region)
                for mode in MODES
            }
            yield Claim(
                claim=curve.name,
                statement=curve.statement,
                source="figure",
                model=run.model,
                dataset=dataset,
                paper=measured["paper"],
                strict=measured["strict"],
                shares_number_of=curve.shares_number_of,
            )


def read_curve(curves: Curves, statistic: Statistic, region: Region) -> Measured:
    """A statistic of the curves with its draws, against a region."""
    value = float(statistic(curves.q, curves.a))
    return from_draws(value, statistic(curves.drawn_q, curves.drawn_a), region)


def _quiet(reduce: Callable[..., np.ndarray], values: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # no layer known: NaN, as it should be
        return reduce(values, axis=-1)
