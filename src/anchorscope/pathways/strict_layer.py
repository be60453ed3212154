"""Everything strict mode asks of one layer, put together from readings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from anchorscope.pathways.class_collapse import ClassCollapse, class_collapse
from anchorscope.pathways.effects import Delta, prediction
from anchorscope.pathways.grouping import ROLES
from anchorscope.pathways.heterogeneity import (
    NO_SHAPE,
    Reliability,
    Shape,
    reliability,
    residuals,
    shape,
)
from anchorscope.pathways.one_mechanism import CLASSES, Gap, Pair, gaps, shared_by_control
from anchorscope.pathways.probe_agreement import Agreement, agreement
from anchorscope.probes.readings import Readings
from anchorscope.records import MODES, Estimate, Mode
from anchorscope.stats.intervals import Draws, bootstrap_mean

SUBSETS = (*CLASSES, "z0", "z1")  # classes predicted, classes true


@dataclass(frozen=True, kw_only=True)
class StrictLayer:
    """The evidence of one layer."""

    layer: int  # from 1
    n: int  # samples with a knocked-out state
    agreement: Agreement
    collapse: ClassCollapse  # of the paper probe
    gaps: Mapping[tuple[Mode, str, Delta], Gap]  # mode, class, unit
    reliability: Mapping[str, Reliability]  # class
    shapes: Mapping[str, Shape]  # subset
    beyond_random: Estimate  # |shift| under the knockout less that under random tokens, logits
    common: float  # share of the squared shift that one displacement of everybody makes up
    spread: float  # standard deviation of the residual, logits of the paper probe


@dataclass(frozen=True, kw_only=True)
class StrictDraws(Draws):
    """The draws behind strict mode's numbers, what they are for, in which unit ΔP counts."""

    simulations: int = 500
    points: Delta = "points"
    modes: tuple[Mode, ...] = MODES  # whose gaps
    classes: tuple[str, ...] = CLASSES  # within which predicted classes
    subsets: tuple[str, ...] = SUBSETS  # whose shapes


def examine_layer(readings: Readings, layer: int, draws: StrictDraws | None = None) -> StrictLayer:
    """The evidence at one layer."""
    draws = draws or StrictDraws()
    known = ~np.isnan(readings.at(layer, "paper", "knockout"))
    at = _Layer(readings, layer, known)
    drawn = {"seed": draws.seed, "resamples": draws.resamples}
    clean, knocked = at.of("paper"), at.of("paper", "knockout")
    moved = knocked - clean
    return StrictLayer(
        layer=layer,
        n=int(known.sum()),
        agreement=agreement(readings, layer, **drawn),
        collapse=class_collapse(clean, knocked, delta=draws.points, **drawn),
        gaps=_gaps(at, draws),
        reliability={name: _reliability(at, name, draws) for name in draws.classes},
        shapes={name: _shape(at, name, draws.seed) for name in draws.subsets},
        beyond_random=_beyond_random(at, draws),
        common=float(moved.mean() ** 2 / (moved**2).mean()) if (moved != 0).any() else np.nan,
        spread=float(residuals(clean, knocked, at.fold).std()) if len(clean) else np.nan,
    )


class _Layer:
    """The logits of one layer, of the questions that have a knocked-out state."""

    def __init__(self, readings: Readings, layer: int, known: np.ndarray) -> None:
        self.readings, self.layer, self.known = readings, layer, known
        self.fold, self.z = readings.fold[known], readings.z[known]

    def of(self, probe: str, intervention: str = "clean") -> np.ndarray:
        return self.readings.at(self.layer, probe, intervention)[self.known]

    def rows(self, subset: str, *, probe: str) -> np.ndarray:
        """Which of the questions belong to a subset; ŷ is that of `probe`."""
        if subset in ("all", "both"):
            return np.ones(len(self.fold), dtype=bool)
        if subset in ("z0", "z1"):
            return self.z == int(subset[1])
        return prediction(self.of(probe)) == (subset == "wrong")

    @property
    def has_control(self) -> bool:
        logits = self.readings.logits
        return "random" in logits and not np.isnan(self.of("paper", "random")).any()


def _gaps(at: _Layer, draws: StrictDraws) -> dict[tuple[Mode, str, Delta], Gap]:
    gaps_by_key: dict[tuple[Mode, str, Delta], Gap] = {}
    for mode, name in itertools.product(draws.modes, draws.classes):
        shared = None
        if mode == "strict" and at.has_control:
            shared = shared_by_control(_pair(at, mode, "random").within(name))
        drawn = gaps(
            _pair(at, mode, "knockout").within(name),
            seed=draws.seed,
            simulations=draws.simulations,
            points=draws.points,
            shared=shared,
        )
        gaps_by_key |= {(mode, name, unit): gap for unit, gap in drawn.items()}
    return gaps_by_key


def _pair(at: _Layer, mode: Mode, intervention: str) -> Pair:
    group, effect = ROLES[mode]
    return Pair(
        group_clean=at.of(group),
        group_knockout=at.of(group, intervention),
        effect_clean=at.of(effect),
        effect_knockout=at.of(effect, intervention),
        fold=at.fold,
        stratum=np.zeros(len(at.fold)),
    )


def _reliability(at: _Layer, subset: str, draws: StrictDraws) -> Reliability:
    """How far a and b agree on the residuals within a class."""
    rows = at.rows(subset, probe="b")

    def left(probe: str, intervention: str) -> np.ndarray:
        return _residuals(at, rows, subset, probe=probe, classes="b", intervention=intervention)

    control = (left("a", "random"), left("b", "random")) if at.has_control else None
    seen = (left("a", "knockout"), left("b", "knockout"))
    return reliability(seen, control, seed=draws.seed, resamples=draws.resamples)


def _shape(at: _Layer, subset: str, seed: int) -> Shape:
    """Shape of the paper probe's shifts, without what each line already says of them."""
    rows = at.rows(subset, probe="paper")
    if not rows.any():
        return NO_SHAPE
    left = _residuals(at, rows, subset, probe="paper", classes="paper")
    # Both classes together are turned the same way round: towards ŷ.
    towards = np.where(at.of("paper")[rows] > 0, 1.0, -1.0) if subset == "both" else 1.0
    return shape(towards * left, seed=seed)


def _residuals(
    at: _Layer,
    rows: np.ndarray,
    subset: str,
    *,
    probe: str,
    classes: str,
    intervention: str = "knockout",
) -> np.ndarray:
    """What is left of a probe's logits after the line of each fold, fitted within the subset.

    Within a class the line is that class's own, so that a bend between the classes does not pass
    for something the samples have of their own.
    """
    clean, other, line = at.of(probe)[rows], at.of(probe, intervention)[rows], at.fold[rows]
    if subset == "both":
        line = 2 * line + (at.of(classes)[rows] > 0)
    return residuals(clean, other, line)


def _beyond_random(at: _Layer, draws: StrictDraws) -> Estimate:
    if not at.has_control:
        return Estimate(np.nan, np.nan, np.nan, len(at.fold))
    clean = at.of("paper")
    more = np.abs(at.of("paper", "knockout") - clean) - np.abs(at.of("paper", "random") - clean)
    return bootstrap_mean(more, seed=draws.seed, resamples=draws.resamples)
