"""Claims about ΔP curves: of one dataset, of several datasets or models, and of figures.

Each is a number of the curves and a region for it. The published figures of four
models were read by eye, several times each, and the readings contradict one another.
published_figures.csv holds their numbers, one row a number: the reading, whether it fits the
paper's own text, pathway, dataset, the part of the curve, and the range of ΔP (or of layers, where
the part is `trough-layers`).
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import resources
from typing import Any, cast

import numpy as np
import pandas as pd

from anchorscope.claims.decision import (
    Claim,
    ClaimInputs,
    ClaimRow,
    Measured,
    Region,
    decided,
    from_draws,
)
from anchorscope.records import Mode

READ_ERROR = 5.0  # points by which a number read off a picture may be wrong
FALLING = ("keeps falling", "plateau")
Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]  # q, a [..., layer] -> [...]
SeveralCurves = Callable[[Sequence[np.ndarray]], np.ndarray]  # q of each dataset -> [...]
Figure = Mapping[str, Any]  # a row of published_figures.csv
CURVES: list[Claim] = []  # about the curves of one dataset


def measure_curve(
    run: ClaimInputs, dataset: str, mode: Mode, *, statistic: Statistic, region: Region
) -> Measured:
    """Measure a statistic of the curves with its draws against a region."""
    curves = run.curves[dataset, mode]
    value = float(statistic(curves.q, curves.a))
    return from_draws(value, statistic(curves.drawn_q, curves.drawn_a), region)


def _claim(
    name: str, statement: str, region: Region, **options: Any
) -> Callable[[Statistic], Statistic]:
    """Register the claim that a statistic of the curves is in a region (a decorator)."""

    def add(statistic: Statistic) -> Statistic:
        measure = partial(measure_curve, statistic=statistic, region=region)
        CURVES.append(Claim(name, statement, measure, source="figure", **options))
        return statistic

    return add


def smooth(curve: np.ndarray) -> np.ndarray:
    """Moving means over an eighth of the layers, so that no single noisy layer decides."""
    width = max(1, curve.shape[-1] // 8)
    windows = np.lib.stride_tricks.sliding_window_view(curve, width, axis=-1)
    return windows.mean(axis=-1)


def deepest(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The lowest value of the smoothed Q curve."""
    return _quiet(np.nanmin, smooth(q))


NEAR_ZERO = Region(-10, 10)


@_claim("a-near-zero", "A-Anchored stays within 10 of zero, at its furthest layer too", NEAR_ZERO)
def furthest_a(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The value of A at the layer where it is furthest from zero, on either side."""
    low, high = _quiet(np.nanmin, a), _quiet(np.nanmax, a)
    return np.where(np.abs(low) >= np.abs(high), low, high)


@_claim(
    "q-far-below",
    "Q-Anchored lies 20 or more below A-Anchored from the middle layer on",
    Region(high=-20),
)
def later_gap(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The mean of Q less A over the layers from the middle on."""
    return _quiet(np.nanmean, (q - a)[..., q.shape[-1] // 2 :])


@_claim("start-near-zero", "both start within 10 of zero at layer 1", NEAR_ZERO)
def start(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The value of Q or A at layer 1, whichever is further from zero."""
    return np.where(np.abs(q[..., 0]) >= np.abs(a[..., 0]), q[..., 0], a[..., 0])


U_SHAPED, STILL_FALLING = Region(low=10), Region(high=10)


@_claim(
    "keeps-falling",
    "Q-Anchored ends within 10 of its deepest layers",
    STILL_FALLING,
    shares_number_of="u-shape",
)
@_claim("u-shape", "Q-Anchored rises again by 10 or more after its deepest layers", U_SHAPED)
def recovery(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """How far the smoothed Q curve rises from its lowest value to its last."""
    curve = smooth(q)
    return curve[..., -1] - _quiet(np.nanmin, curve)


def deepest_layer(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The layer (from 1) at which the smoothed Q curve is lowest; NaN where none is known."""
    curve = smooth(q)
    place = np.where(np.isnan(curve), np.inf, curve).argmin(axis=-1)
    layer = place + (q.shape[-1] - curve.shape[-1]) / 2 + 1
    return np.where(np.isnan(curve).all(axis=-1), np.nan, layer)


@_claim(
    "deepest-in-middle",
    "Q-Anchored is deepest between a third and three quarters of the depth",
    Region(1 / 3, 3 / 4),
)
def depth_of_deepest(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The depth at which Q is lowest, as a share of the layers; 1 is the last layer."""
    return deepest_layer(q, a) / q.shape[-1]


def _quiet(reduce: Callable[..., np.ndarray], values: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # no layer known: NaN, as it should be
        return reduce(values, axis=-1)


# --- Several datasets, and two models ---


def dataset_claims(run: ClaimInputs) -> Iterator[ClaimRow]:
    """Claims that compare datasets: correlation of Q curves, the deepest one, convergence."""
    if len(run.titles) < 2:
        return
    depth = [float(_quiet(np.nanmean, run.curves[name, "paper"].q)) for name in run.titles]
    # Paper mode names the dataset; both modes say by how much it is deeper than the next.
    deep = int(np.nan_to_num(depth, nan=np.inf).argmin())

    def behind(curves: Sequence[np.ndarray]) -> np.ndarray:
        depths = [_quiet(np.nanmean, curve) for curve in curves]
        return depths[deep] - np.min([d for i, d in enumerate(depths) if i != deep], axis=0)

    follow = "the Q curves of all datasets follow one another (least correlation 0.5 or more)"
    fall = f"Q-Anchored falls deepest on {[*run.titles.values()][deep]} (less the next, all layers)"
    meet = "the Q curves lie closer together in the last layers than in the middle"
    for name, statement, statistic, region in (
        ("datasets-follow", follow, _least_correlation, Region(low=0.5)),
        ("deepest-dataset", fall, behind, Region(high=0.0)),
        ("q-converge", meet, _spread_change, Region(high=0.0)),
    ):
        measure = partial(_measure_several, statistic, region)
        claim = Claim(name, statement, measure, source="figure")
        yield from decided(run, [claim], datasets=[",".join(run.titles)])


def _measure_several(
    statistic: SeveralCurves, region: Region, run: ClaimInputs, datasets: str, mode: Mode
) -> Measured:
    curves = [run.curves[name, mode] for name in run.titles]  # a name may hold a comma
    value = float(statistic([c.q for c in curves]))
    return from_draws(value, statistic([c.drawn_q for c in curves]), region)


def model_claims(runs: Sequence[ClaimInputs]) -> Iterator[ClaimRow]:
    """Whether the larger of two models falls deeper, for each dataset that both have."""
    for small, large in itertools.pairwise(sorted(runs, key=lambda run: run.size)):

        def measure(
            large: ClaimInputs, dataset: str, mode: Mode, small: ClaimInputs = small
        ) -> Measured:
            pair = [run.curves[dataset, mode] for run in (large, small)]
            count = min(len(curves.drawn_q) for curves in pair)
            value, other = (float(deepest(c.q, c.a)) for c in pair)
            drawn = [deepest(c.drawn_q[:count], c.drawn_a[:count]) for c in pair]
            return from_draws(value - other, drawn[0] - drawn[1], Region(high=0.0))

        statement = f"{large.model} falls deeper than {small.model}"
        claim = Claim("larger-deeper", statement, measure, source="figure")
        both = [name for name in small.titles if name in large.titles and small.size < large.size]
        yield from decided(large, [claim], datasets=both, model=f"{large.model}, {small.model}")


def _least_correlation(curves: Sequence[np.ndarray]) -> np.ndarray:
    pairs = itertools.combinations([smooth(curve) for curve in curves], 2)
    return np.min([_correlation(x, y) for x, y in pairs], axis=0)


def _correlation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pearson's correlation along the layers that both have."""
    both = np.isfinite(x) & np.isfinite(y)
    n = np.maximum(both.sum(axis=-1, keepdims=True), 1)
    x, y = (np.where(both, v - np.where(both, v, 0).sum(-1, keepdims=True) / n, 0) for v in (x, y))
    size = np.sqrt((x**2).sum(axis=-1) * (y**2).sum(axis=-1))
    correlation = (x * y).sum(axis=-1) / np.where(size > 0, size, 1)
    return np.where((size > 0) & (both.sum(axis=-1) >= 3), correlation, np.nan)


def _spread_change(curves: Sequence[np.ndarray]) -> np.ndarray:
    """The spread between the datasets' smoothed curves at the end less that in the middle."""
    smoothed = np.stack([smooth(curve) for curve in curves])
    spread = smoothed.max(axis=0) - smoothed.min(axis=0)
    return spread[..., -1] - spread[..., spread.shape[-1] // 2]


# --- The readings of the published figures ---


def reference_bands(model_name: str) -> pd.DataFrame:
    """The published figures of a model, by its name with or without its owner; may be empty."""
    table = _published_figures()
    own = table.loc[table["model"] == model_name.rsplit("/", 1)[-1]]
    return cast(pd.DataFrame, own).reset_index(drop=True)


def reading_claims(run: ClaimInputs) -> Iterator[Claim]:
    """One claim for every number of every reading of this model's figures."""
    for row in cast("list[dict[str, Any]]", reference_bands(run.model).to_dict("records")):
        fits = "fits the paper's text" if row["fits_text"] else "does not fit the paper's text"
        name = f"figure-{row['reading']}-{row['pathway']}-{row['part'].replace(' ', '-')}"
        source = f"the published figure, reading {row['reading']} ({fits})"
        yield Claim(name, _statement(row), partial(_measure_reading, row), source=source)


def _measure_reading(row: Figure, run: ClaimInputs, dataset: str, mode: Mode) -> Measured | None:
    if row["dataset"] not in ("all", run.titles[dataset], dataset):
        return None
    statistic, region = _expected(row, layers=run.curves[dataset, "paper"].q.shape[-1])
    return measure_curve(run, dataset, mode, statistic=statistic, region=region)


def _statement(row: Figure) -> str:
    if row["part"] == "shape":
        return f"{row['pathway']}: {row['note']}"
    part = "deepest at layers" if row["part"] == "trough-layers" else f"{row['part']}:"
    ends = f"{row['low']:g} to {row['high']:g}" if row["low"] != row["high"] else f"{row['low']:g}"
    return f"{row['pathway']}-Anchored {part} {ends}"


def _expected(row: Figure, *, layers: int) -> tuple[Statistic, Region]:
    """The number of the curves that a row describes, and the region it should be in."""
    part, take_q = row["part"], row["pathway"] == "Q"
    if part == "shape":
        falls = str(row["note"]).startswith(FALLING)
        return recovery, STILL_FALLING if falls else U_SHAPED
    if part == "trough-layers":
        return deepest_layer, Region(row["low"] - 1, row["high"] + 1)
    region = Region(row["low"] - READ_ERROR, row["high"] + READ_ERROR)
    if part == "trough":
        return deepest, region
    if part == "all layers" and not take_q:
        return furthest_a, region
    ends = {"last": (layers, layers), "all layers": (1, layers)}
    first, last = ends.get(part, (row["layer_low"], row["layer_high"]))
    stretch = slice(int(min(max(first, 1), layers)) - 1, int(min(max(last, 1), layers)))

    def between(q: np.ndarray, a: np.ndarray) -> np.ndarray:
        return (q if take_q else a)[..., stretch].mean(axis=-1)

    return between, region


@cache
def _published_figures() -> pd.DataFrame:
    file = resources.files("anchorscope.claims").joinpath("published_figures.csv")
    with file.open("r", encoding="utf-8") as text:
        return pd.read_csv(text, dtype={"reading": str}, keep_default_na=False).astype(
            {"low": float, "high": float, "layer_low": float, "layer_high": float}
        )
