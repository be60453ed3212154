"""The finding of a dataset: five questions, each with a number and a test, then a conclusion.

All five answers are always reported (docs/method.md, E1 to E5). Every set of folds is
examined on its own; p-values are combined by twice their median, which is valid whatever the sets
share, and intervals are widened by how much the sets differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from anchorscope.config import Delta
from anchorscope.pathways.band import Band
from anchorscope.pathways.effect_tests import (
    Agreement,
    Effect,
    between_sides,
    effect,
    share_of_question,
    under_retest,
)
from anchorscope.pathways.effects import estimate_columns
from anchorscope.pathways.groups import (
    ALPHA_LOOK,
    KAPPA,
    HumpTest,
    Road,
    Within,
    explain,
    look_for_groups,
    with_groups,
)
from anchorscope.records import Estimate, FindingName
from anchorscope.run_folder import table_columns
from anchorscope.stats.intervals import ALPHA, NOTHING, Draws, Z

FEWEST = 150  # usable samples below which there is no finding
ENOUGH = 0.8  # power below which what was not shown could not have been seen
Key = tuple[Within, Road]
Measured = TypeVar("Measured")


@dataclass(frozen=True, kw_only=True)
class Examined:
    """The answers to the five questions by one set of folds."""

    n: int
    layers: tuple[int, ...]
    effects: Mapping[str, Effect]  # by pass: knockout, question, neutral
    shares: Mapping[str, Estimate]  # of the whole question's effect: knockout, content
    sides: Agreement
    retest: Agreement
    looks: Mapping[Key, HumpTest]
    reliability: float  # of the clean belief


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The finding in a word and a sentence, and the numbers behind it."""

    name: FindingName
    by: str  # what explains the groups; "" but for `explained`
    why: str
    untested: tuple[str, ...]  # conditions whose passes are missing
    examined: Examined  # combined over the sets of folds
    best: HumpTest  # the look with the smallest p, of those that show two groups where any does
    power: Mapping[str, float]  # by planted share: half, fifth
    sets: int  # of folds
    gap: Estimate = NOTHING  # strict ΔP gap of Q and A over the band
    same_gap: float = np.nan  # the same with group and effect from one side


def examine(band: Band, draws: Draws, *, unit: Delta = "points") -> Examined:
    """Answer the five questions for one set of folds; `unit` is that of ΔP."""
    looks = look_for_groups(band, draws)
    for key, look in looks.items():
        if look.p_dip <= ALPHA:
            looks[key] = look = with_groups(look, band, draws)
        if look.grouped:
            looks[key] = replace(look, explained=explain(look, band, draws))
    return Examined(
        n=band.n,
        layers=band.layers,
        effects={
            name: effect(band, name, draws, unit=unit)
            for name in ("knockout", "question", "neutral")
        },
        shares={name: share_of_question(band, name, draws) for name in ("knockout", "content")},
        sides=between_sides(band, draws),
        retest=under_retest(band, draws),
        looks=looks,
        reliability=band.reliability,
    )


def find(examined: Sequence[Examined], power: Mapping[str, float]) -> Finding:
    """Conclude a finding from all sets of folds and from the power to see planted losses."""
    whole = combine(examined)
    groups = [look for look in whole.looks.values() if look.explained is not None]
    name, by, why = _conclude(whole, groups, power)
    looks = groups or list(whole.looks.values())
    return Finding(
        name=name,
        by=by,
        why=why,
        untested=_untested(whole, examined),
        examined=whole,
        best=min(looks, key=lambda look: np.nan_to_num(look.p_dip, nan=2.0)),
        power=power,
        sets=len(examined),
    )


def shows_two_pathways(bands: Sequence[Band], draws: Draws) -> bool:
    """Whether the whole rule finds `two-pathways` in the readings of all sets of folds.

    The same as `find`, four to six times as fast: it computes only what decides.
    """
    looks = [look_for_groups(band, draws) for band in bands]
    for key in looks[0] if bands[0].n >= FEWEST else ():
        if not together([found[key].p_dip for found in looks]) <= ALPHA_LOOK:
            continue
        sets = [with_groups(f[key], b, draws) for f, b in zip(looks, bands, strict=True)]
        if not (whole := _look(sets)).grouped or not whole.comes_back:
            continue
        for number, band in enumerate(bands):
            if sets[number].grouped:
                sets[number] = replace(sets[number], explained=explain(sets[number], band, draws))
        found = _look(sets).explained
        if found is not None and found.still_two:
            cut = together([effect(band, "knockout", draws).p for band in bands])
            sides = _over_sets([between_sides(band, draws) for band in bands])
            retest = _over_sets([under_retest(band, draws) for band in bands])
            return cut <= ALPHA and sides.shown and (retest.shown or not retest.tested)
    return False


def combine(examined: Sequence[Examined]) -> Examined:
    """Combine the examinations of all sets of folds into one."""
    first = examined[0]
    return replace(
        first,
        effects={n: _over_sets([e.effects[n] for e in examined]) for n in first.effects},
        shares={name: pooled([e.shares[name] for e in examined]) for name in first.shares},
        sides=_over_sets([e.sides for e in examined]),
        retest=_over_sets([e.retest for e in examined]),
        looks={key: _look([e.looks[key] for e in examined]) for key in first.looks},
        reliability=float(np.mean([e.reliability for e in examined])),
    )


def _look(looks: Sequence[HumpTest]) -> HumpTest:
    """Combine one hump test over all sets of folds; no groups where most sets have none."""
    detailed = [look for look in looks if np.isfinite(look.bic)]
    p: dict[str, Any] = {
        name: together([getattr(look, name) for look in looks]) for name in ("p_dip", "p_uniform")
    }
    if len(detailed) <= len(looks) / 2:
        names = ("within", "road", "rows", "unit", "shifts", "lower")
        return HumpTest(**{name: getattr(looks[0], name) for name in names}, **p)
    whole = replace(_over_sets(detailed, np.median), **p, explained=None)
    found = [look.explained for look in looks if look.explained is not None]
    if whole.grouped and len(found) > len(looks) / 2:
        return replace(whole, explained=_over_sets(found, _middle))
    return whole


def _over_sets(
    found: Sequence[Measured], middle: Callable[[list[float]], Any] = np.mean
) -> Measured:
    """Combine one measurement over sets of folds, field by field.

    p-values by `together`, estimates by `pooled`, other numbers by `middle`; any other field is
    that of the first set.
    """

    def field(name: str) -> Any:
        values = [getattr(one, name) for one in found]
        if isinstance(values[0], Estimate):
            return pooled(values)
        if name == "p" or name.startswith("p_"):
            return together(values)
        return float(middle(values)) if isinstance(values[0], float) else values[0]

    names = [f.name for f in fields(found[0])]  # type: ignore[arg-type]
    return type(found[0])(**{name: field(name) for name in names})


def _middle(values: list[float]) -> float:
    return float(np.nanmedian(values)) if np.isfinite(values).any() else np.nan


def together(p: Sequence[float]) -> float:
    """One p-value for the same test under several sets of folds: twice the median.

    NaN where most of them have none.
    """
    if np.isnan(p).sum() > len(p) / 2:
        return np.nan
    return float(p[0]) if len(p) == 1 else float(min(1.0, 2 * np.nanmedian(p)))


def pooled(estimates: Sequence[Estimate]) -> Estimate:
    """The mean estimate; its interval is widened by how much the sets of folds differ."""
    finite = [e for e in estimates if np.isfinite(e.value)]
    if not finite:
        return NOTHING
    values = np.array([e[:3] for e in finite], dtype=np.float64)
    value, low, high = values.mean(axis=0)
    between = (1 + 1 / len(values)) * values[:, 0].var(ddof=1) if len(values) > 1 else 0.0
    down, up = (np.hypot(reach, Z * np.sqrt(between)) for reach in (value - low, high - value))
    return Estimate(float(value), float(value - down), float(value + up), finite[0].n)


def _conclude(
    whole: Examined, groups: Sequence[HumpTest], power: Mapping[str, float]
) -> tuple[FindingName, str, str]:
    """The finding, what explains its groups, and why, from the tests that show groups."""
    if whole.n < FEWEST:
        return "too-few", "", f"{whole.n} usable samples; below {FEWEST} no finding is made"
    cut, question = whole.effects["knockout"], whole.effects["question"]
    if not cut.shown and not question.shown:
        if whole.effects["neutral"].takes_belief:
            why = "the neutral control takes belief away itself, and the question no more than that"
            return "cannot-tell", "", why
        why = "not even hiding the whole question moves the probe beyond the neutral control"
        return "no-effect", "", why
    # Two probes with nearly the same direction agree on everything; then only the retest can tell.
    comes_back = whole.retest.shown if whole.retest.tested else whole.sides.shown
    lasting = [group for group in groups if group.comes_back]
    two = [group for group in lasting if group.explained is not None and group.explained.still_two]
    if cut.shown and whole.sides.shown and comes_back and two:
        return "two-pathways", "", _where(two)
    lasting = lasting if comes_back else []
    reasons = [g.explained.by for g in lasting if g.explained is not None and g.explained.by]
    if len(reasons) > len(lasting) / 2:
        by = max(_EXPLAINED, key=reasons.count)  # of equals the first
        return "explained", by, f"two groups, and {_EXPLAINED[by]}"
    if lasting:
        why = (
            "two groups, but this run cannot exclude that the clean belief or the kind of "
            "question makes them"
        )
        return "cannot-tell", "", why
    # Groups that the retest shows not to be the samples' own, as in a coin toss. The run could
    # have seen groups that are: it sees these, and the retest puts samples into others.
    tossed = bool(groups) and all(group.retest_kappa.high < KAPPA for group in groups)
    if not (tossed or power["half"] >= ENOUGH):
        why = "two groups are not shown, and this run would have missed them too often"
        return "cannot-tell", "", why
    if not cut.shown:
        why = "the whole question moves the probe, its exact tokens do not"
        return "cannot-tell", "", why
    again = "; read again, they fall into other groups" if tossed else ""
    if comes_back:
        why = "samples differ in how far they move, by degree and not in two groups"
        return "graded", "", why + again
    why = "one law moves all samples; what it leaves over does not come back"
    return "uniform", "", why + again


# Groups that a missed span makes may also go with a kind of question or a belief, since spans are
# missed more often in some questions: what comes first here names them.
_EXPLAINED = {
    "finder": "they are gone when the whole question is hidden: its exact tokens were missed",
    "belief": "the clean belief tells which is which",
    "kinds": "relation, kind of answer, length or popularity tell which is which",
}


def _where(shown: Sequence[HumpTest]) -> str:
    """Describe on which roads and in which predicted classes two groups are shown."""
    words = {"shifts": "two humps of shifts", "laws": "two laws, one that keeps the belief"}
    roads, classes = ({getattr(look, key) for look in shown} for key in ("road", "within"))
    parts = " and ".join(text for road, text in words.items() if road in roads)
    alone = classes - {"both"}
    among = f"those predicted {alone.pop()}" if len(alone) == 1 else "both predicted classes"
    return f"{parts}, among {among}"


def _untested(whole: Examined, examined: Sequence[Examined]) -> tuple[str, ...]:
    lacks = []
    if not np.isfinite(whole.effects["question"].p):
        lacks.append("question")
    if not whole.retest.tested:
        lacks.append("retest")
    if not all(np.isfinite(e.sides.null) for e in examined):
        lacks.append("random direction")
    return tuple(lacks)


_EXPLAINED_COLUMNS = {  # of findings.csv, and the field of `Explained` that each holds
    "cells": "cells", "belief": "belief", "within_p": "p_within", "told": "belief_auroc",
    "told_by_rule": "rule_auroc", "finder": "finder",
}  # fmt: skip


def findings_table(finding: Finding, *, model: str, dataset: str, layer: int) -> pd.DataFrame:
    """One row of findings.csv; `layer` is that with the highest clean AUROC."""
    whole, look, why = finding.examined, finding.best, finding.best.explained
    cut = whole.effects["knockout"]
    estimates = estimate_columns(
        gap=finding.gap,
        effect=cut.points,
        effect_logit=cut.logit,
        effect_logit_right=cut.logit_right,
        effect_logit_wrong=cut.logit_wrong,
        effect_flips=cut.flips,
        exact_share=whole.shares["knockout"],
        content_share=whole.shares["content"],
        sides=whole.sides.value,
        retest=whole.retest.value,
        kappa=look.kappa,
    )
    row: dict[str, Any] = {
        "model": model,
        "dataset": dataset,
        "finding": finding.name,
        "by": finding.by,
        "layers": " ".join(map(str, whole.layers)),
        "n": whole.n,
        "power_half": finding.power["half"],
        "power_fifth": finding.power["fifth"],
        "why": finding.why,
        "untested": " ".join(finding.untested),
        "layer": layer,
        "sets": finding.sets,
        "same_gap": finding.same_gap,
        "reliability": whole.reliability,
        "effect_p": cut.p,
        "question_p": whole.effects["question"].p,
        "sides_null": whole.sides.null,
        "sides_p": whole.sides.p,
        "retest_p": whole.retest.p,
        "within": look.within,
        "road": look.road,
        "dip_p": look.p_dip,
        "uniform_p": look.p_uniform,
        "bic": look.bic,
        "retest_kappa": look.retest_kappa.value,
        **estimates,
    }
    if why is not None:
        row |= {"share_q": float(look.lower.mean())}
        row |= {column: getattr(why, name) for column, name in _EXPLAINED_COLUMNS.items()}
    return pd.DataFrame([row], columns=list(table_columns.FINDINGS))
