"""Everything strict mode asks of one layer, put together from readings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from anchorscope.pathways.class_collapse import ClassCollapse, class_collapse
from anchorscope.pathways.effects import Delta, delta_p, flips, prediction
from anchorscope.pathways.grouping import ROLES
from anchorscope.pathways.heterogeneity import NO_SHAPE, Reliability, Shape, reliability, shape
from anchorscope.pathways.one_law import Fit, Known, factors_of, fit_line, kinds_share, one_law
from anchorscope.pathways.one_mechanism import CLASSES, Gap, Pair, gaps, shared_by_laws
from anchorscope.pathways.probe_agreement import Agreement, agreement
from anchorscope.probes.labelled import Covariates
from anchorscope.probes.readings import Readings
from anchorscope.records import MODES, Estimate, Mode
from anchorscope.stats.intervals import Draws, bootstrap_mean

SUBSETS = (*CLASSES, "z0", "z1")  # classes predicted, classes true
CONTROLS = ("neutral",)


@dataclass(frozen=True, kw_only=True)
class StrictLayer:
    """The evidence of one layer."""

    layer: int  # from 1
    n: int  # samples with a knocked-out state
    agreement: Agreement
    collapse: ClassCollapse  # of the paper probe
    gaps: Mapping[tuple[Mode, str, Delta], Gap]  # mode, class, unit
    # ΔP gap with group and effect from strict mode's probe b alone. What lies between it and paper
    # mode is the smaller training set; what lies between it and strict mode is the circularity.
    same_gap: float
    reliability: Mapping[str, Reliability]  # class
    shapes: Mapping[str, Shape]  # subset
    control: str  # the control, neutral; "" where there is none
    beyond_random: Estimate  # |shift| under the knockout less that under the control, logits
    kinds: float  # share of the squared residuals that kinds of question account for
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


def examine_layer(
    readings: Readings,
    layer: int,
    draws: StrictDraws | None = None,
    *,
    covariates: Covariates | None = None,
) -> StrictLayer:
    """The evidence at one layer."""
    draws = draws or StrictDraws()
    at = _Layer(readings, layer, covariates)
    clean, knocked = at.of("paper"), at.of("paper", "knockout")
    moved = knocked - clean
    return StrictLayer(
        layer=layer,
        n=len(at.fold),
        agreement=agreement(
            readings,
            layer,
            seed=draws.seed,
            resamples=draws.resamples,
            entity=None if covariates is None else covariates.entity,
        ),
        collapse=class_collapse(
            clean,
            knocked,
            delta=draws.points,
            seed=draws.seed,
            resamples=draws.resamples,
            entity=at.entity,
        ),
        gaps=_gaps(at, draws),
        same_gap=_same_gap(at, draws),
        reliability={name: _reliability(at, name, draws) for name in draws.classes},
        shapes={name: _shape(at, name, draws.seed) for name in draws.subsets},
        control=at.control,
        beyond_random=_beyond_control(at, draws),
        kinds=kinds_share(clean, knocked, at.known("paper")) if len(clean) else np.nan,
        common=float(moved.mean() ** 2 / (moved**2).mean()) if (moved != 0).any() else np.nan,
        spread=float(fit_line(clean, knocked, at.fold).residual.std()) if len(clean) else np.nan,
    )


class _Layer:
    """The logits of one layer, of the questions that have a knocked-out state."""

    def __init__(self, readings: Readings, layer: int, covariates: Covariates | None) -> None:
        self.readings, self.layer = readings, layer
        self.read = ~np.isnan(readings.at(layer, "paper", "knockout"))
        self.fold, self.z = readings.fold[self.read], readings.z[self.read]
        covariates = covariates and covariates.take(self.read)
        self.factors = factors_of(covariates)
        self.entity = covariates and covariates.entity
        self.control = self._stronger_control()
        self._laws: dict[tuple[str, ...], Fit] = {}

    def of(self, probe: str, intervention: str = "clean") -> np.ndarray:
        return self.readings.at(self.layer, probe, intervention)[self.read]

    def known(self, probe: str | None = None) -> Known:
        """What is known of each sample; ŷ is that of `probe`, or of the probes' mean belief."""
        belief = np.mean([self.of(name) for name in self.readings.probes], axis=0)
        return Known(
            fold=self.fold,
            predicted=prediction(self.of(probe) if probe else belief),
            belief=belief,
            factors=self.factors,
            entity=self.entity,
        )

    def rows(self, subset: str, *, probe: str) -> np.ndarray:
        """Which of the questions belong to a subset; ŷ is that of `probe`."""
        if subset in ("all", "both"):
            return np.ones(len(self.fold), dtype=bool)
        if subset in ("z0", "z1"):
            return self.z == int(subset[1])
        return prediction(self.of(probe)) == (subset == "wrong")

    def law(self, subset: str, probe: str, intervention: str = "knockout", *, classes: str) -> Fit:
        """What a probe's logits follow within a subset; ŷ is that of the probe `classes`.

        Within a class the law is that class's own, so that a bend between the classes does not
        pass for something the samples have of their own. Gaps, agreement and shapes ask for the
        same laws.
        """
        split = subset in ("both", "right", "wrong")
        key = (subset, probe, intervention, classes if split else "")
        if key not in self._laws:
            rows = self.rows(subset, probe=classes)
            known = self.known(classes).take(rows)
            clean, other = self.of(probe)[rows], self.of(probe, intervention)[rows]
            self._laws[key] = one_law(clean, other, known if split else known.together())
        return self._laws[key]

    def _stronger_control(self) -> str:
        """The control that moves the logits most; "" where the run has none."""
        moved = {}
        for name in CONTROLS:
            if name in self.readings.logits:
                away = np.abs(self.of("paper", name) - self.of("paper"))
                if len(away) and away.any() and not np.isnan(away).any():
                    moved[name] = float(away.mean())
        return max(moved, key=lambda name: moved[name], default="")


def _same_gap(at: _Layer, draws: StrictDraws) -> float:
    clean, knocked = at.of("b"), at.of("b", "knockout")
    flipped, effect = flips(clean, knocked) == 1, delta_p(clean, knocked, delta=draws.points)
    if not 0 < flipped.sum() < len(flipped):
        return np.nan
    return float(effect[flipped].mean() - effect[~flipped].mean())


def _gaps(at: _Layer, draws: StrictDraws) -> dict[tuple[Mode, str, Delta], Gap]:
    gaps_by_key: dict[tuple[Mode, str, Delta], Gap] = {}
    for mode, name in itertools.product(draws.modes, draws.classes):
        group, effect = ROLES[mode]
        laws = at.law(name, group, classes=effect), at.law(name, effect, classes=effect)
        shared = None
        if mode == "strict" and at.control:
            control = (at.law(name, probe, at.control, classes=effect) for probe in ROLES[mode])
            shared = shared_by_laws(*control)
        drawn = gaps(
            _pair(at, mode).within(name),
            seed=draws.seed,
            simulations=draws.simulations,
            points=draws.points,
            shared=shared,
            laws=laws,
        )
        gaps_by_key |= {(mode, name, unit): gap for unit, gap in drawn.items()}
    return gaps_by_key


def _pair(at: _Layer, mode: Mode) -> Pair:
    group, effect = ROLES[mode]
    return Pair(
        group_clean=at.of(group),
        group_knockout=at.of(group, "knockout"),
        effect_clean=at.of(effect),
        effect_knockout=at.of(effect, "knockout"),
        known=at.known(),
    )


def _reliability(at: _Layer, subset: str, draws: StrictDraws) -> Reliability:
    """How far a and b agree on the residuals within a class."""

    def left(intervention: str) -> tuple[np.ndarray, np.ndarray]:
        one, other = (at.law(subset, probe, intervention, classes="b") for probe in ("a", "b"))
        return one.residual, other.residual

    rows = at.rows(subset, probe="b")
    entity = None if at.entity is None else at.entity[rows]
    drawn = {"seed": draws.seed, "resamples": draws.resamples}
    control = left(at.control) if at.control else None
    return reliability(left("knockout"), control, entity=entity, **drawn)


def _shape(at: _Layer, subset: str, seed: int) -> Shape:
    """Shape of the paper probe's shifts, without what the law already says of them."""
    rows = at.rows(subset, probe="paper")
    if not rows.any():
        return NO_SHAPE
    left = at.law(subset, "paper", classes="paper").residual
    # Both classes together are turned the same way round: towards ŷ.
    towards = np.where(at.of("paper")[rows] > 0, 1.0, -1.0) if subset == "both" else 1.0
    return shape(towards * left, seed=seed, entity=None if at.entity is None else at.entity[rows])


def _beyond_control(at: _Layer, draws: StrictDraws) -> Estimate:
    if not at.control:
        return Estimate(np.nan, np.nan, np.nan, len(at.fold))
    clean = at.of("paper")
    more = np.abs(at.of("paper", "knockout") - clean) - np.abs(at.of("paper", at.control) - clean)
    return bootstrap_mean(more, seed=draws.seed, resamples=draws.resamples, entity=at.entity)
