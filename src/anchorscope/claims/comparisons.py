"""Claims that compare datasets, or models."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from anchorscope.claims.about_curves import deepest, smooth
from anchorscope.claims.decision import Claim, Measured, Region, from_draws
from anchorscope.claims.inputs import ClaimInputs, Curves
from anchorscope.records import Mode

ALIKE = 0.5  # least correlation of curves that follow one another


def dataset_claims(run: ClaimInputs) -> Iterator[Claim]:
    """Whether datasets follow one another, which is deepest, whether they meet at the end."""
    names = list(run.titles)
    if len(names) < 2:
        return
    yield _of_several(
        run,
        "datasets-follow",
        f"the Q curves of all datasets follow one another (least correlation {ALIKE} or more)",
        _least_correlation,
        Region(low=ALIKE),
    )
    yield _deepest_dataset(run)
    yield _of_several(
        run,
        "q-converge",
        "the Q curves lie closer together in the last layers than in the middle",
        _spread_change,
        Region(high=0.0),
    )


def model_claims(runs: Sequence[ClaimInputs]) -> Iterator[Claim]:
    """Whether the larger of two models falls deeper, for each dataset that both have."""
    ordered = sorted(runs, key=lambda run: run.size)
    for small, large in itertools.pairwise(ordered):
        for dataset in small.titles:
            if dataset in large.titles and small.size < large.size:
                yield _larger(small, large, dataset)


def _larger(small: ClaimInputs, large: ClaimInputs, dataset: str) -> Claim:
    def read(mode: Mode) -> Measured:
        one, other = (run.curves[dataset, mode] for run in (large, small))
        value = float(deepest(one.q, one.a) - deepest(other.q, other.a))
        count = min(len(one.drawn_q), len(other.drawn_q))
        drawn = [deepest(c.drawn_q[:count], c.drawn_a[:count]) for c in (one, other)]
        return from_draws(value, drawn[0] - drawn[1], Region(high=0.0))

    return Claim(
        claim="larger-deeper",
        statement=f"{large.model} falls deeper than {small.model}",
        source="figure",
        model=f"{large.model}, {small.model}",
        dataset=dataset,
        paper=read("paper"),
        strict=read("strict"),
    )


def _of_several(
    run: ClaimInputs,
    claim: str,
    statement: str,
    statistic: Callable[[Sequence[np.ndarray]], np.ndarray],
    region: Region,
) -> Claim:
    def read(mode: Mode) -> Measured:
        curves: list[Curves] = [run.curves[name, mode] for name in run.titles]
        value = float(statistic([c.q for c in curves]))
        return from_draws(value, statistic([c.drawn_q for c in curves]), region)

    return Claim(
        claim=claim,
        statement=statement,
        source="figure",
        model=run.model,
        dataset=",".join(run.titles),
        paper=read("paper"),
        strict=read("strict"),
    )


def _deepest_dataset(run: ClaimInputs) -> Claim:
    """Paper mode names the dataset; both modes say by how much it is deeper than the next."""
    depth = {name: _mean_depth(run.curves[name, "paper"].q) for name in run.titles}
    drawn = [name for name in depth if np.isfinite(depth[name])]
    named = min(drawn, key=lambda name: depth[name], default=next(iter(run.titles)))
    place = list(run.titles).index(named)

    def behind(curves: Sequence[np.ndarray]) -> np.ndarray:
        depths = [_mean_depth(curve) for curve in curves]
        others = np.min([d for i, d in enumerate(depths) if i != place], axis=0)
        return depths[place] - others

    statement = f"Q-Anchored falls deepest on {run.titles[named]} (less the next, all layers)"
    return _of_several(run, "deepest-dataset", statement, behind, Region(high=0.0))


def _mean_depth(q: np.ndarray) -> np.ndarray:
    finite = np.isfinite(q)
    count = finite.sum(axis=-1)
    return np.where(count > 0, np.where(finite, q, 0).sum(axis=-1) / np.maximum(count, 1), np.nan)


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
