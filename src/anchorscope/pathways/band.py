"""Average calibrated logits over a band of layers that is chosen on clean states.

Every side (probe a, probe b) reads a sample by the mean of its logits over all layers whose clean
probe is within one standard error of the best one, so that no finding depends on 0.001 of AUROC.
Knocked-out states are not used, so that no band can be picked for its gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anchorscope.pathways.one_law import Fit, Law, Predictors, one_law
from anchorscope.probes.folds import Covariates
from anchorscope.probes.probe_set import Readings
from anchorscope.stats.intervals import Z
from anchorscope.stats.ranking import auroc, auroc_interval, resampled_auroc

SIDES = ("a", "b")
# The passes that a finding reads by every set of folds, where a run has them.
READ = ("clean", "knockout", "neutral", "content", "question", "retest", "retest-knockout")
_RESAMPLES = 200  # behind the standard error of an AUROC


@dataclass(frozen=True, kw_only=True)
class Band:
    """A dataset's readings over the band, of one set of folds.

    Samples without a knocked-out state are left out; in other passes they are NaN.
    """

    layers: tuple[int, ...]  # from 1
    logits: Mapping[str, np.ndarray]  # by pass, [probe, question]; probes in the order of `probes`
    probes: tuple[str, ...]
    z: np.ndarray
    fold: np.ndarray
    covariates: Covariates
    overlap: float = np.nan  # agreement of a and b on a displacement in a random direction

    @property
    def n(self) -> int:
        return len(self.fold)

    @property
    def entity(self) -> np.ndarray:
        """Each sample's entity, [question]; itself where none is known."""
        return np.arange(self.n) if self.covariates.entity is None else self.covariates.entity

    @property
    def belief(self) -> np.ndarray:
        """The clean logit, the mean over all probes, [question]."""
        return self.logits["clean"].mean(axis=0)

    @property
    def wrong(self) -> np.ndarray:
        """Whether the prediction ŷ is "wrong", [question]."""
        return self.belief > 0

    @property
    def towards(self) -> np.ndarray:
        """+1 or -1, the sign of ŷ's logit, [question]."""
        return np.where(self.wrong, 1.0, -1.0)

    @property
    def reliability(self) -> float:
        """The share of the beliefs' variance that is not the probes' error.

        The sides share no training question, so their errors are independent, and their
        correlation is the reliability of one of them; that of their mean is higher
        (Spearman-Brown).
        """
        a, b = (self.side(name) for name in SIDES)
        if not (a.std() > 0 and b.std() > 0):
            return 0.0
        shared = max(float(np.corrcoef(a, b)[0, 1]), 0.0)
        return 2 * shared / (1 + shared)

    def side(self, probe: str, intervention: str = "clean") -> np.ndarray:
        """One probe's logits under a pass, [question]."""
        return self.logits[intervention][self.probes.index(probe)]

    def both(self, intervention: str = "clean") -> np.ndarray:
        """The mean of sides a and b under a pass, [question]."""
        return np.mean([self.side(name, intervention) for name in SIDES], axis=0)

    def has(self, *interventions: str) -> bool:
        """Whether any sample was read under each of these passes."""
        return all(name in self.logits and self.rows(name).any() for name in interventions)

    def rows(self, *interventions: str) -> np.ndarray:
        """The samples that were read under all of these passes, [question] bool."""
        finite = [np.isfinite(self.logits[name]).all(axis=0) for name in interventions]
        return np.logical_and.reduce(finite)

    def take(self, rows: np.ndarray) -> Band:
        """The band of some samples."""
        return replace(
            self,
            logits={name: logits[:, rows] for name, logits in self.logits.items()},
            z=self.z[rows],
            fold=self.fold[rows],
            covariates=self.covariates.take(rows),
        )

    def law(self, before: np.ndarray, after: np.ndarray, *, law: Law = "line") -> Fit:
        """Fit the one law of `after` on `before` [question], within each fold and ŷ."""
        predictors = Predictors(
            fold=self.fold, predicted=self.wrong.astype(np.float64), belief=self.belief
        )
        return one_law(before, after, predictors, law=law)


def clean_aurocs(readings: Readings) -> np.ndarray:
    """AUROC of the clean paper probe, [layer]."""
    return np.array([auroc(readings.z, logit) for logit in readings.of("paper").T])


def best_layer(readings: Readings) -> int:
    """The layer (from 1) whose clean paper probe has the highest AUROC."""
    return int(np.argmax(clean_aurocs(readings))) + 1


def choose_band(readings: Readings, *, seed: int = 0) -> tuple[int, ...]:
    """The layers whose clean AUROC is within one standard error of the best layer's."""
    return band_within(clean_aurocs(readings), _error_of_best(readings, seed))


def _error_of_best(readings: Readings, seed: int) -> float:
    """The standard error of the best layer's clean AUROC; 0 where there is none."""
    best = readings.at(best_layer(readings), "paper")
    found = auroc_interval(
        readings.z, best, seed=seed, resamples=_RESAMPLES, entity=readings.entity
    )
    error = (found.high - found.low) / (2 * Z)
    return float(error) if np.isfinite(error) else 0.0


def band_within(areas: np.ndarray, error: float) -> tuple[int, ...]:
    """The layers (from 1) whose AUROC [layer] is at most `error` below the best."""
    if not np.isfinite(areas).any():
        return ()
    return tuple(int(at) + 1 for at in np.flatnonzero(areas >= np.nanmax(areas) - error))


def drawn_bands(
    readings: Readings, part: np.ndarray, times: np.ndarray, *, seed: int
) -> list[tuple[int, ...]]:
    """The band that each draw of the questions would have chosen.

    `part` [question] is the part that holds it, `times` [draw, part] how often a draw has it.
    """
    error, count = _error_of_best(readings, seed), times.T[part]  # [question, draw]
    wrong, right = (np.flatnonzero(readings.z == value) for value in (1, 0))
    areas = [
        resampled_auroc(clean, wrong, right, count[wrong], count[right])
        for clean in readings.of("paper").T
    ]
    return [band_within(drawn, error) for drawn in np.transpose(areas)]


def read_band(readings: Readings, layers: Sequence[int], *, covariates: Covariates) -> Band:
    """The readings over some layers (from 1), of the samples that have a knocked-out state."""
    columns = [layer - 1 for layer in layers]
    logits = {name: values[:, :, columns].mean(axis=2) for name, values in readings.logits.items()}
    whole = Band(
        layers=tuple(layers),
        logits=logits,
        probes=readings.probes,
        z=readings.z,
        fold=readings.fold,
        covariates=covariates,
    )
    return whole.take(whole.rows("knockout"))


def side_overlap(a: np.ndarray, b: np.ndarray, moved: Sequence[float]) -> float:
    """The correlation of both sides' readings under displacements in random directions.

    `a` and `b` are the sides' coefficients [fold, layer, width], `moved` the mean squared length of
    the knockout's displacement at each layer.
    """
    shared, only_a, only_b = (
        np.einsum("flw,flw,l->f", x, y, np.asarray(moved), dtype=np.float64)
        for x, y in ((a, b), (a, a), (b, b))
    )
    size = np.sqrt(only_a * only_b)
    return float(np.mean(np.divide(shared, size, out=np.zeros_like(size), where=size > 0)))
