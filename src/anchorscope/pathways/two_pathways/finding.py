"""Two pathways or something else: strict mode's finding at one layer, over several sets of folds.

The layer is settled before anything is tested: the one whose clean probe reads best. It is chosen
without a look at any knocked-out state, so the gap cannot have been picked for its width.

Only `two-pathways`, `kinds-of-question`, `margin` and `class-collapse` are shown by a test that
rejects. The other findings name what was not rejected: none of them says that there are no
pathways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from anchorscope.pathways.one_law import LAWS, Law
from anchorscope.pathways.one_mechanism import Gap
from anchorscope.pathways.strict_layer import StrictLayer
from anchorscope.pathways.two_pathways.looks import ALPHA_LOOK, ROADS, TOLD, WITHIN, Look, Road
from anchorscope.probes.readings import Readings
from anchorscope.records import Estimate
from anchorscope.stats.intervals import ALPHA
from anchorscope.stats.ranking import auroc

FindingName = Literal[
    "two-pathways",
    "kinds-of-question",
    "margin",
    "class-collapse",
    "shift",
    "continuum",
    "one-mechanism",
    "no-effect",
    "undecided",
    "too-few",
]
FEWEST = 150  # usable samples below which there is no finding
STRONG = 10  # difference of BIC that counts as strong evidence for two components
KINDS = 0.1  # least share of the residuals that kinds of question must account for to be the reason
COMMON = 0.5  # share of the movement above which one displacement of everybody makes it up


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The finding at the chosen layer, in a word and in a sentence."""

    name: FindingName
    why: str
    layer: int  # from 1
    n: int  # usable samples with a knocked-out state
    seeds: int  # sets of folds
    gap: Estimate  # strict ΔP gap over all samples; its interval is the null's band
    same_gap: float  # the same with group and effect from one probe
    p: float
    best: Look  # the look that speaks loudest for two pathways
    kinds: float  # share of the squared residuals that kinds of question account for
    power: float = np.nan  # the chance of finding the clear case in this run


def choose_layer(readings: Readings) -> int:
    """The layer whose clean paper probe tells wrong from right best."""
    areas = [auroc(readings.z, logit) for logit in readings.of("paper").T]
    return int(np.argmax(areas)) + 1


def find(examined: Sequence[StrictLayer]) -> Finding:
    """The finding from the same layer examined closely under several sets of folds."""
    looks: dict[Law, list[Look]] = {
        law: [_combined(examined, name, road, law) for road in ROADS for name in WITHIN]
        for law in LAWS
    }
    name, why = _name_it(examined, looks)
    p_values = [look.p for look in looks["curve"] if np.isfinite(look.p)]
    gaps = [e.gaps["strict", "all", "points"] for e in examined]
    return Finding(
        name=name,
        why=why,
        layer=examined[0].layer,
        n=examined[0].n,
        seeds=len(examined),
        gap=_overall_gap(gaps),
        same_gap=float(np.mean([e.same_gap for e in examined])),
        p=min(p_values, default=np.nan),
        best=min(looks["curve"], key=lambda look: (np.nan_to_num(look.p, nan=2.0), look.p_dip)),
        kinds=float(np.mean([e.kinds for e in examined])),
    )


def together(p: Sequence[float]) -> float:
    """One p-value for the same test under several sets of folds: twice the median.

    The sets share their samples, so they confirm each other less than they seem to; twice the
    median is valid whatever they share. NaN where most of them have none.
    """
    if len(p) == 0 or np.isnan(p).sum() > len(p) / 2:
        return np.nan
    return float(p[0]) if len(p) == 1 else float(min(1.0, 2 * np.nanmedian(p)))


def pooled(estimates: Sequence[Estimate]) -> Estimate:
    """The mean estimate; its interval is widened by how much the sets of folds differ."""
    if not estimates:
        return Estimate(np.nan, np.nan, np.nan, 0)
    values = np.array([e[:3] for e in estimates])
    value, low, high = values.mean(axis=0)
    between = (1 + 1 / len(values)) * values[:, 0].var(ddof=1) if len(values) > 1 else 0.0
    down, up = (np.hypot(reach, 1.96 * np.sqrt(between)) for reach in (value - low, high - value))
    return Estimate(float(value), float(value - down), float(value + up), estimates[0].n)


def _combined(examined: Sequence[StrictLayer], within: str, road: Road, law: Law) -> Look:
    """One look over all sets of folds; what was not worth computing in a set does not count."""
    looks = [e.looks[within, road, law] for e in examined if e.looks]
    if not looks:
        return Look(within=within, road=road, law=law, n_q=0, n_a=0, p_dip=np.nan)
    detailed = [look for look in looks if np.isfinite(look.bic)]
    p_dip = together([look.p_dip for look in looks])
    if len(detailed) <= len(looks) / 2:
        return replace(looks[0], p_dip=p_dip, bic=np.nan, p_gap=np.nan)
    lines = [look.p_lines for look in detailed if np.isfinite(look.p_lines)]
    return Look(
        within=within,
        road=road,
        law=law,
        n_q=int(np.median([look.n_q for look in detailed])),
        n_a=int(np.median([look.n_a for look in detailed])),
        p_dip=p_dip,
        bic=float(np.median([look.bic for look in detailed])),
        kappa=pooled([look.kappa for look in detailed]),
        gap=_mean([look.gap for look in detailed]),
        p_gap=together([look.p_gap for look in detailed]),
        flips=pooled([look.flips for look in detailed]),
        told=float(np.mean([look.told for look in detailed])),
        p_lines=together(lines),
    )


def _mean(estimates: Sequence[Estimate]) -> Estimate:
    values = np.array([e[:3] for e in estimates]).mean(axis=0)
    return Estimate(*map(float, values), n=estimates[0].n)


def _overall_gap(gaps: Sequence[Gap]) -> Estimate:
    values = np.array([(gap.value, gap.low, gap.high) for gap in gaps]).mean(axis=0)
    return Estimate(*map(float, values), n=gaps[0].n_q + gaps[0].n_a)


def _name_it(
    examined: Sequence[StrictLayer], looks: dict[Law, list[Look]]
) -> tuple[FindingName, str]:
    """The first of these that fits: cannot say, what is shown, what is not rejected."""
    if (n := examined[0].n) < FEWEST:
        return "too-few", f"{n} usable samples; below {FEWEST} no finding is made"
    if (moved := pooled([e.beyond_random for e in examined])).low <= 0:
        control = examined[0].control or "neutral"
        return "no-effect", (
            f"the knockout is not shown to move logits more than {control} tokens do "
            f"({moved.value:+.2f})"
        )
    shown = {law: [look for look in looks[law] if look.shown] for law in LAWS}
    if pathways := [look for look in shown["curve"] if look.told < TOLD]:
        return "two-pathways", _two(pathways)
    kinds = np.mean([e.kinds for e in examined])
    if shown["line"] and not shown["kinds"] and kinds >= KINDS:
        return "kinds-of-question", (
            "there are two groups, but not once relation, kind of answer and length are taken out"
        )
    area = max((look.told for law in LAWS for look in shown[law]), default=0.0)
    if area >= TOLD:
        return "margin", f"the clean belief alone tells the two groups apart (AUROC {area:.2f})"
    return _not_shown(examined, looks["curve"])


def _two(pathways: Sequence[Look]) -> str:
    roads = {look.road for look in pathways}
    what = {"shifts": "two humps of shifts", "laws": "two laws, one that keeps the belief"}
    told = " and ".join(what[road] for road in ROADS if road in roads)
    return f"{told}, within {_names([look for look in pathways if look.road in roads])}"


def _not_shown(examined: Sequence[StrictLayer], looks: Sequence[Look]) -> tuple[FindingName, str]:
    """No two groups are shown; what is seen instead."""
    if np.median([e.collapse.collapsed for e in examined]) > 0.5:
        share = np.mean([e.collapse.explained for e in examined])
        return "class-collapse", f"the predicted class explains {share:.0%} of the grouping"
    gaps = {name: [e.gaps["strict", name, "logit"] for e in examined] for name in WITHIN}
    # Three classes are looked at, so each counts at a third of the level.
    beyond = any(3 * together([g.p for g in of]) <= ALPHA for of in gaps.values())
    if any(look.p_dip <= ALPHA_LOOK or look.bic > STRONG for look in looks):
        return "undecided", _missing(looks)
    excess = [pooled([e.reliability[name].excess for e in examined]) for name in WITHIN]
    own = max((e for e in excess if e.low > 0), key=lambda e: e.low, default=None)
    if np.mean([e.common for e in examined]) >= COMMON and not beyond:
        return "shift", "one displacement makes up most of the movement, and the gap with it"
    if own is not None:
        return "continuum", (
            "probes agree on how far each sample moves (correlation "
            f"{own.value:.2f} above the control's), and two humps are not shown"
        )
    if beyond:
        return "undecided", "the gap is beyond one mechanism, but two groups are not shown"
    return "one-mechanism", "the gap is what one law and its noise give"


def _missing(looks: Sequence[Look]) -> str:
    best = min(looks, key=lambda look: np.nan_to_num(look.p_dip, nan=2.0))
    lacks = []
    if not best.p_dip <= ALPHA_LOOK:
        lacks.append("two humps are not shown")
    if not best.kappa.low > 0.4:
        lacks.append("probes are not shown to agree on them")
    if not best.flips.low > 0:
        lacks.append("the lower one does not flip more")
    return "two components fit better than one, but " + (
        " and ".join(lacks) or "no look shows everything at once"
    )


def _names(looks: Sequence[Look]) -> str:
    names = list(dict.fromkeys(look.within for look in looks))
    said = {"both": "the predicted classes"}
    return ", and ".join(said.get(name, f"the samples predicted {name}") for name in names)
