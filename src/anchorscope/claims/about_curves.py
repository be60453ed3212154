"""Claims about ΔP curves: of one dataset, between datasets, between models, and of the figures.

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

from anchorscope.claims.decision import Claim, ClaimRow, Measured, Region, decided, from_draws
from anchorscope.claims.inputs import ClaimInputs
from anchorscope.records import Mode

NEAR = 10.0  # points that still count as near zero
FAR = 20.0  # points that count as far below
RECOVERY = 10.0  # points that a curve must rise again to be called U-shaped
MIDDLE = (1 / 3, 3 / 4)  # of the depth
ALIKE = 0.5  # least correlation of curves that follow one another
READ_ERROR = 5.0  # points by which a number read off a picture may be wrong
FALLING = ("keeps falling", "plateau")
Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]  # q, a [..., layer] -> [...]
Figure = Mapping[str, Any]  # a row of published_figures.csv


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
    name: str, statement: str, statistic: Statistic, region: Region, **options: Any
) -> Claim:
    measure = partial(measure_curve, statistic=statistic, region=region)
    return Claim(name=name, statement=statement, source="figure", measure=measure, **options)


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


def dataset_claims(run: ClaimInputs) -> Iterator[ClaimRow]:
    """Whether datasets follow one another, which is deepest, whether they meet at the end."""
    if len(run.titles) < 2:
        return
    depth = {name: float(_mean_depth(run.curves[name, "paper"].q)) for name in run.titles}
    # Paper mode names the dataset; both modes say by how much it is deeper than the next.
    named = min(depth, key=lambda name: np.nan_to_num(depth[name], nan=np.inf))
    place = list(run.titles).index(named)

    def behind(curves: Sequence[np.ndarray]) -> np.ndarray:
        depths = [_mean_depth(curve) for curve in curves]
        others = np.min([d for i, d in enumerate(depths) if i != place], axis=0)
        return depths[place] - others

    claims = (
        (
            "datasets-follow",
            f"the Q curves of all datasets follow one another (least correlation {ALIKE} or more)",
            _least_correlation,
            Region(low=ALIKE),
        ),
        (
            "deepest-dataset",
            f"Q-Anchored falls deepest on {run.titles[named]} (less the next, all layers)",
            behind,
            Region(high=0.0),
        ),
        (
            "q-converge",
            "the Q curves lie closer together in the last layers than in the middle",
            _spread_change,
            Region(high=0.0),
        ),
    )
    for name, statement, statistic, region in claims:
        measure = partial(_measure_several, statistic=statistic, region=region)
        claim = Claim(name=name, statement=statement, source="figure", measure=measure)
        yield from decided(run, [claim], datasets=[",".join(run.titles)])


def _measure_several(
    run: ClaimInputs,
    datasets: str,
    mode: Mode,
    *,
    statistic: Callable[[Sequence[np.ndarray]], np.ndarray],
    region: Region,
) -> Measured:
    curves = [run.curves[name, mode] for name in run.titles]  # a name may hold a comma
    value = float(statistic([c.q for c in curves]))
    return from_draws(value, statistic([c.drawn_q for c in curves]), region)


def model_claims(runs: Sequence[ClaimInputs]) -> Iterator[ClaimRow]:
    """Whether the larger of two models falls deeper, for each dataset that both have."""
    ordered = sorted(runs, key=lambda run: run.size)
    for small, large in itertools.pairwise(ordered):
        claim = Claim(
            name="larger-deeper",
            statement=f"{large.model} falls deeper than {small.model}",
            source="figure",
            measure=partial(_measure_larger, small=small),
        )
        both = [name for name in small.titles if name in large.titles and small.size < large.size]
        models = f"{large.model}, {small.model}"
        yield from decided(large, [claim], datasets=both, model=models)


def _measure_larger(
    large: ClaimInputs, dataset: str, mode: Mode, *, small: ClaimInputs
) -> Measured:
    one, other = (run.curves[dataset, mode] for run in (large, small))
    value = float(deepest(one.q, one.a) - deepest(other.q, other.a))
    count = min(len(one.drawn_q), len(other.drawn_q))
    drawn = [deepest(c.drawn_q[:count], c.drawn_a[:count]) for c in (one, other)]
    return from_draws(value, drawn[0] - drawn[1], Region(high=0.0))


def _mean_depth(q: np.ndarray) -> np.ndarray:
    return _quiet(np.nanmean, q)


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
    """Spread of the datasets at the last stretch less that in the middle."""
    smoothed = np.stack([smooth(curve) for curve in curves])
    spread = smoothed.max(axis=0) - smoothed.min(axis=0)
    return spread[..., -1] - spread[..., spread.shape[-1] // 2]


def reference_bands(model_name: str) -> pd.DataFrame:
    """The published figures of a model, by its name with or without its owner; may be empty."""
    table = _published_figures()
    own = table.loc[table["model"] == model_name.rsplit("/", 1)[-1]]
    return cast(pd.DataFrame, own).reset_index(drop=True)


def reading_claims(run: ClaimInputs) -> Iterator[Claim]:
    """One claim for every number of every reading of this model's figures."""
    for row in cast("list[dict[str, Any]]", reference_bands(run.model).to_dict("records")):
        fits = "fits the paper's text" if row["fits_text"] else "does not fit the paper's text"
        yield Claim(
            name=f"figure-{row['reading']}-{row['pathway']}-{row['part'].replace(' ', '-')}",
            statement=_statement(row),
            source=f"the published figure, reading {row['reading']} ({fits})",
            measure=partial(_measure_reading, row),
        )


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
        return recovery, Region(high=RECOVERY) if falls else Region(low=RECOVERY)
    if part == "trough-layers":
        return deepest_layer, Region(low=row["low"] - 1, high=row["high"] + 1)
    region = Region(low=row["low"] - READ_ERROR, high=row["high"] + READ_ERROR)
    if part == "trough":
        return deepest, region
    if part == "all layers" and not take_q:
        return furthest_a, region
    first, last = (int(min(max(row[f"layer_{end}"], 1), layers)) for end in ("low", "high"))
    if part == "last":
        first = last = layers
    if part == "all layers":
        first, last = 1, layers

    def between(q: np.ndarray, a: np.ndarray) -> np.ndarray:
        return (q if take_q else a)[..., first - 1 : last].mean(axis=-1)

    return between, region


@cache
def _published_figures() -> pd.DataFrame:
    file = resources.files("anchorscope.claims").joinpath("published_figures.csv")
    with file.open("r", encoding="utf-8") as text:
        return pd.read_csv(text, dtype={"reading": str}, keep_default_na=False).astype(
            {"low": float, "high": float, "layer_low": float, "layer_high": float}
        )
