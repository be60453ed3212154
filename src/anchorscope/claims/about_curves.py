"""Claims about the ΔP curves of one dataset, each a number of the curves and a region for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import numpy as np

from anchorscope.claims.decision import DatasetClaim, Measured, Region, from_draws
from anchorscope.claims.inputs import ClaimInputs
from anchorscope.records import Mode

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


def deepest_layer(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The layer in the middle of Q's lowest stretch, from 1; NaN where no layer is known."""
    curve = smooth(q)
    place = np.where(np.isnan(curve), np.inf, curve).argmin(axis=-1)
    layer = place + (q.shape[-1] - curve.shape[-1]) / 2 + 1
    return np.where(np.isnan(curve).all(axis=-1), np.nan, layer)


def depth_of_deepest(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Where Q is lowest, from 0 (first layer) to 1 (last)."""
    return deepest_layer(q, a) / q.shape[-1]


def measure_curve(
    run: ClaimInputs, dataset: str, mode: Mode, *, statistic: Statistic, region: Region
) -> Measured:
    """A statistic of the curves with its draws, against a region."""
    curves = run.curves[dataset, mode]
    value = float(statistic(curves.q, curves.a))
    return from_draws(value, statistic(curves.drawn_q, curves.drawn_a), region)


def _curve(
    claim: str, statement: str, statistic: Statistic, region: Region, *, shares_number_of: str = ""
) -> DatasetClaim:
    return DatasetClaim(
        claim=claim,
        statement=statement,
        source="figure",
        measure=partial(measure_curve, statistic=statistic, region=region),
        shares_number_of=shares_number_of,
    )


CURVES = (
    _curve(
        "a-near-zero",
        f"A-Anchored stays within {NEAR:.0f} of zero, at its furthest layer too",
        furthest_a,
        Region(low=-NEAR, high=NEAR),
    ),
    _curve(
        "q-far-below",
        f"Q-Anchored lies {FAR:.0f} or more below A-Anchored from the middle layer on",
        later_gap,
        Region(high=-FAR),
    ),
    _curve(
        "start-near-zero",
        f"both start within {NEAR:.0f} of zero at layer 1",
        start,
        Region(low=-NEAR, high=NEAR),
    ),
    _curve(
        "u-shape",
        f"Q-Anchored rises again by {RECOVERY:.0f} or more after its deepest layers",
        recovery,
        Region(low=RECOVERY),
    ),
    _curve(
        "keeps-falling",
        f"Q-Anchored ends within {RECOVERY:.0f} of its deepest layers",
        recovery,
        Region(high=RECOVERY),
        shares_number_of="u-shape",
    ),
    _curve(
        "deepest-in-middle",
        "Q-Anchored is deepest between a third and three quarters of the depth",
        depth_of_deepest,
        Region(low=MIDDLE[0], high=MIDDLE[1]),
    ),
)


def _quiet(reduce: Callable[..., np.ndarray], values: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # no layer known: NaN, as it should be
        return reduce(values, axis=-1)
