"""Two pathways or something else: strict mode's finding at one layer, over several sets of folds.

The layer is settled before anything is tested: the one whose clean probe reads best. It is chosen
without a look at any knocked-out state, so the gap cannot have been picked for its width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anchorscope.pathways.one_mechanism import Gap
from anchorscope.pathways.strict_layer import StrictLayer
from anchorscope.probes.readings import Readings
from anchorscope.records import Estimate
from anchorscope.stats.intervals import ALPHA
from anchorscope.stats.ranking import auroc

FindingName = Literal[
    "two-pathways",
    "one-mechanism",
    "shift",
    "class-collapse",
    "continuum",
    "no-effect",
    "undecided",
]
# Only the humps tell two pathways from a continuum, and there are three chances to see them: in
# either predicted class, and in both together. So the 5 % are shared among the three.
ALPHA_HUMPS = ALPHA / 3
KAPPA = 0.4  # the least agreement of the probes, at the lower end of its interval
FEWEST = 10  # samples that Q and A must each have within a predicted class
STRONG = 10  # difference of BIC that counts as strong evidence for two components
COMMON = 0.5  # share of the movement above which it is one displacement of everybody
CLASSES = ("right", "wrong", "both")


@dataclass(frozen=True, kw_only=True)
class ClassEvidence:
    """What speaks for two pathways within one predicted class, over all sets of folds."""

    name: str  # right, wrong, or both (each sample compared within its own class)
    n_q: int
    n_a: int
    gap: float  # logits
    band: tuple[float, float]
    p_gap: float
    kappa: Estimate
    p_dip: float
    bic: float

    @property
    def enough(self) -> bool:
        return min(self.n_q, self.n_a) >= FEWEST

    @property
    def beyond(self) -> bool:
        """A gap that one mechanism does not give."""
        return self.enough and self.p_gap <= ALPHA

    @property
    def agreed(self) -> bool:
        return self.kappa.low > KAPPA

    @property
    def two_humps(self) -> bool:
        return self.p_dip <= ALPHA_HUMPS and self.bic > 0

    @property
    def one_hump(self) -> bool:
        """Whether nothing speaks strongly for a second hump: failing to see it is not enough."""
        return self.p_dip > ALPHA_HUMPS and self.bic <= STRONG

    @property
    def two_pathways(self) -> bool:
        return self.beyond and self.agreed and self.two_humps

    @property
    def p(self) -> float:
        """All conditions must hold, so the weakest one speaks; tripled for the three looks."""
        parts = (self.p_gap, 3 * self.p_dip)
        return min(1.0, max(parts)) if np.isfinite(parts).all() else np.nan


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The finding at the chosen layer, in a word and in a sentence."""

    name: FindingName
    why: str
    layer: int  # from 1
    seeds: int  # sets of folds
    gap: Estimate  # strict ΔP gap over all samples; its interval is the null's band
    p: float
    classes: tuple[ClassEvidence, ...]


def choose_layer(readings: Readings) -> int:
    """The layer whose clean paper probe tells wrong from right best."""
    areas = [auroc(readings.z, logit) for logit in readings.of("paper").T]
    return int(np.argmax(areas)) + 1


def find(examined: Sequence[StrictLayer]) -> Finding:
    """The finding from the same layer examined under several sets of folds."""
    classes = tuple(_class_evidence(examined, name) for name in CLASSES)
    name, why = _name_it(examined, classes)
    p_values = [c.p for c in classes if np.isfinite(c.p)]
    return Finding(
        name=name,
        why=why,
        layer=examined[0].layer,
        seeds=len(examined),
        gap=_overall_gap([e.gaps["strict", "all", "points"] for e in examined]),
        p=min(p_values, default=np.nan),
        classes=classes,
    )


def together(p: Sequence[float]) -> float:
    """One p-value for the same test under several sets of folds: twice the median.

    The sets share their samples, so they confirm each other less than they seem to; twice the
    median is valid whatever they share. NaN where most of them have none.
    """
    if np.isnan(p).sum() > len(p) / 2:
        return np.nan
    return float(min(1.0, 2 * np.nanmedian(p)))


def pooled(estimates: Sequence[Estimate]) -> Estimate:
    """The mean estimate; its interval is widened by how much the sets of folds differ."""
    values = np.array([e[:3] for e in estimates])
    value, low, high = values.mean(axis=0)
    between = (1 + 1 / len(values)) * values[:, 0].var(ddof=1) if len(values) > 1 else 0.0
    down, up = (np.hypot(reach, 1.96 * np.sqrt(between)) for reach in (value - low, high - value))
    return Estimate(float(value), float(value - down), float(value + up), estimates[0].n)


def _class_evidence(examined: Sequence[StrictLayer], name: str) -> ClassEvidence:
    gaps = [e.gaps["strict", name, "logit"] for e in examined]
    shapes = [e.shapes[name] for e in examined]
    return ClassEvidence(
        name=name,
        n_q=int(np.median([gap.n_q for gap in gaps])),
        n_a=int(np.median([gap.n_a for gap in gaps])),
        gap=float(np.mean([gap.value for gap in gaps])),
        band=(
            float(np.mean([gap.low for gap in gaps])),
            float(np.mean([gap.high for gap in gaps])),
        ),
        p_gap=together([gap.p for gap in gaps]),
        kappa=pooled([getattr(e.agreement, name) for e in examined]),
        p_dip=together([s.p for s in shapes]),
        bic=float(np.median([s.bic for s in shapes])),
    )


def _overall_gap(gaps: Sequence[Gap]) -> Estimate:
    values = np.array([(gap.value, gap.low, gap.high) for gap in gaps]).mean(axis=0)
    return Estimate(*map(float, values), n=gaps[0].n_q + gaps[0].n_a)


def _name_it(
    examined: Sequence[StrictLayer], classes: Sequence[ClassEvidence]
) -> tuple[FindingName, str]:
    """The first of these that fits, from "nothing happens" to "cannot say"."""
    if (moved := pooled([e.beyond_random for e in examined])).low <= 0:
        return (
            "no-effect",
            f"the knockout moves logits no more than random tokens ({moved.value:+.2f})",
        )
    if any(c.two_pathways for c in classes):
        return "two-pathways", "within " + _names(c for c in classes if c.two_pathways)
    if np.median([e.collapse.collapsed for e in examined]) > 0.5:
        share = np.mean([e.collapse.explained for e in examined])
        return "class-collapse", f"the predicted class explains {share:.0%} of the grouping"
    if not any(c.enough for c in classes):
        return "undecided", f"fewer than {FEWEST} samples in Q or A within each predicted class"
    if any(c.beyond for c in classes):
        return _beyond_band([c for c in classes if c.beyond])
    return _inside_band(examined, classes)


def _beyond_band(classes: Sequence[ClassEvidence]) -> tuple[FindingName, str]:
    """A gap beyond the band that does not make two pathways."""
    if all(c.one_hump for c in classes):
        return "continuum", "the gap is beyond one mechanism, but one hump fits the shifts"
    missing = []
    if not any(c.agreed for c in classes):
        missing.append(f"probes are not shown to agree (κ above {KAPPA})")
    if not any(c.two_humps for c in classes):
        missing.append("two humps are not shown")
    return "undecided", "the gap is beyond one mechanism, but " + (
        " and ".join(missing) or "no predicted class shows everything at once"
    )


def _inside_band(
    examined: Sequence[StrictLayer], classes: Sequence[ClassEvidence]
) -> tuple[FindingName, str]:
    """One law for all; is it a displacement, a matter of degree, or noise?"""
    if np.mean([e.common for e in examined]) >= COMMON:
        return (
            "shift",
            "everybody is displaced alike, and within predicted classes the gap is what that gives",
        )
    excess = [pooled([e.reliability[name].excess for e in examined]) for name in CLASSES]
    if any(e.low > 0 for e in excess):
        best = max(excess, key=lambda e: e.low)
        if not all(c.one_hump for c in classes if c.enough):
            return "undecided", (
                "probes agree on how far each sample moves, and one hump may not be enough, but "
                "the groups by flip are no further apart than one mechanism allows"
            )
        return "continuum", (
            "the gap is inside one mechanism's band, and independent probes agree on how far each "
            f"sample moves (correlation {best.value:.2f} above the control's)"
        )
    return "one-mechanism", "the gap is what one line and one noise give"


def _names(classes) -> str:
    return ", and ".join(
        "the predicted classes" if c.name == "both" else f"the samples predicted {c.name}"
        for c in classes
    )
