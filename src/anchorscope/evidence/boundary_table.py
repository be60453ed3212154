"""boundary.csv: accuracy, abstention and popularity by pathway, overall and within ŷ."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import fisher_exact, mannwhitneyu

from anchorscope.evidence.groups import PREDICTED, groups_of
from anchorscope.pathways.claims.reading import difference
from anchorscope.pathways.examine import Effort
from anchorscope.pathways.grouping import MODES, Mode
from anchorscope.pathways.strict import difference_of_means
from anchorscope.probes.metrics import bootstrap_mean, rate
from anchorscope.probes.readings import Readings

COLUMNS = (
    "model", "dataset", "layer", "mode", "subset", "measure", "pathway", "n", "value", "low",
    "high", "p",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Measure:
    """One number of each sample, [question], and whether it is a share (0 or 1)."""

    name: str
    values: np.ndarray  # NaN where the measure does not speak of the sample
    share: bool


def boundary_table(
    readings: Readings,
    *,
    popularity: np.ndarray,
    model: str,
    dataset: str,
    abstained: Readings | None = None,
    grouping: str = "per-layer",
    seed: int = 0,
    resamples: int = 1000,
) -> pd.DataFrame:
    """One row per layer, mode, subset, measure and pathway (Q, A, and Q less A with its p).

    accuracy: share right of the answers judged right or wrong. abstention: share abstained of
    these and `abstained`, whose readings come from probes that never saw them; without it the
    measure is left out. popularity: mean log10 of `popularity` [question] (log10, NaN: unknown).
    Shares have Wilson's interval, their difference Newcombe's and Fisher's exact test; popularity
    has bootstrap intervals and the Mann-Whitney test.
    """
    measures = _measures(readings, popularity, abstained)
    effort = Effort(seed=seed, resamples=resamples)
    rows = []
    for mode in MODES:
        pathway, subsets = _groups(readings, abstained, mode, grouping)
        for name, measure, layer in itertools.product(PREDICTED, measures, range(readings.layers)):
            here = subsets[name][:, layer] & ~np.isnan(measure.values)
            if not here.any() and measure.name == "popularity" and np.isnan(popularity).all():
                continue
            q, a = (measure.values[here & (pathway[:, layer] == which)] for which in ("Q", "A"))
            rows += [(model, dataset, layer + 1, mode, name, measure.name, *row)
                     for row in _compared(q, a, measure.share, effort)]  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _measures(
    readings: Readings, popularity: np.ndarray, abstained: Readings | None
) -> list[_Measure]:
    nothing = np.full(0 if abstained is None else len(abstained.ids), np.nan)
    found = [
        _Measure(name="accuracy", values=np.r_[1.0 - readings.z, nothing], share=True),
        _Measure(name="popularity", values=np.r_[popularity, nothing], share=False),
    ]
    if abstained is not None:
        said = np.r_[np.zeros(len(readings.ids)), np.ones(len(abstained.ids))]
        found.insert(1, _Measure(name="abstention", values=said, share=True))
    return found


def _groups(
    readings: Readings, abstained: Readings | None, mode: Mode, grouping: str
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Pathways [sample, layer] and predicted classes, the abstained after the answered."""
    parts = [readings] if abstained is None else [readings, abstained]
    groups = [groups_of(part, mode, grouping=grouping) for part in parts]
    subsets = {str(n): np.vstack([g.subset(n) for g in groups]) for n in PREDICTED}
    return np.vstack([g.pathway for g in groups]), subsets


def _compared(q: np.ndarray, a: np.ndarray, share: bool, effort: Effort) -> list[tuple]:
    """Q, A and Q less A."""
    if share:
        one, other = rate(q), rate(a)
        gap, p = difference(one, other), _fisher(q, a)
    else:
        drawn = {"seed": effort.seed, "resamples": effort.resamples}
        one, other = bootstrap_mean(q, **drawn), bootstrap_mean(a, **drawn)
        group = np.r_[np.ones(len(q)), np.zeros(len(a))]
        gap, p = difference_of_means(np.r_[q, a], group, effort), _mann_whitney(q, a)
    rows = (("Q", one, np.nan), ("A", other, np.nan), ("Q-A", gap, p))
    return [(name, e.n, *e[:3], value) for name, e, value in rows]


def _fisher(q: np.ndarray, a: np.ndarray) -> float:
    if not (len(q) and len(a)):
        return np.nan
    cells = [[int(of.sum()), len(of) - int(of.sum())] for of in (q, a)]
    return float(fisher_exact(cells).pvalue)  # type: ignore[union-attr]


def _mann_whitney(q: np.ndarray, a: np.ndarray) -> float:
    return float(mannwhitneyu(q, a).pvalue) if len(q) and len(a) else np.nan
