"""The finding of a dataset: five questions, each with its number and its test, then one word.

All five answers are always there and none hides another (METHOD's E1 to E5). Every set of folds is
examined on its own; p-values are combined by twice their median, which is valid whatever the sets
share, and intervals are widened by how much the sets differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd

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
    Explained,
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


@dataclass(frozen=True, kw_only=True)
class Examined:
    """The answers to the five questions by one set of folds."""

    n: int
    layers: tuple[int, ...]
    effects: Mapping[str, Effect]  # by pass: knockout, question
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


def examine(band: Band, draws: Draws) -> Examined:
    """The five questions asked of one set of folds."""
    looks = look_for_groups(band, draws)
    for key, look in looks.items():
        if look.p_dip <= ALPHA:
            looks[key] = look = with_groups(look, band, draws)
        if look.grouped:
            looks[key] = replace(look, explained=explain(look, band, draws))
    return Examined(
        n=band.n,
        layers=band.layers,
        effects={name: effect(band, name, draws) for name in ("knockout", "question")},
        shares={name: share_of_question(band, name, draws) for name in ("knockout", "content")},
        sides=between_sides(band, draws),
        retest=under_retest(band, draws),
        looks=looks,
        reliability=band.reliability,
    )


def find(examined: Sequence[Examined], power: Mapping[str, float]) -> Finding:
    """The finding from all sets of folds, and from the chance of seeing what was planted."""
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
    """Whether the whole rule ends in `two-pathways`, from the readings of all sets of folds.

    The same as `find`, and quicker where it does not: what fails first is not asked further.
    """
    if bands[0].n < FEWEST:
        return False
    looks: list[dict[Key, HumpTest]] = []
    for band in bands:
        looks.append(look_for_groups(band, draws))
        missed = [sum(not seen[key].p_dip <= ALPHA_LOOK for seen in looks) for key in looks[0]]
        if min(missed) > len(bands) / 2:  # no median can be small enough
            return False
    for key in looks[0]:
        if not together([found[key].p_dip for found in looks]) <= ALPHA_LOOK:
            continue
        detailed = [with_groups(f[key], b, draws) for f, b in zip(looks, bands, strict=True)]
        if not (whole := _look(detailed)).grouped or not whole.comes_back:
            continue
        pairs = zip(detailed, bands, strict=True)
        found = [explain(look, band, draws) for look, band in pairs if look.grouped]
        if len(found) > len(bands) / 2 and _explained(found).still_two:
            cut = together([effect(band, "knockout", draws).p for band in bands])
            sides = _agreement([between_sides(band, draws) for band in bands])
            retest = _agreement([under_retest(band, draws) for band in bands])
            return cut <= ALPHA and sides.shown and (retest.shown or not retest.tested)
    return False


def combine(examined: Sequence[Examined]) -> Examined:
    """One examination over all sets of folds."""
    first = examined[0]
    if len(examined) == 1:
        return first
    return replace(
        first,
        effects={n: _effect([e.effects[n] for e in examined]) for n in first.effects},
        shares={name: pooled([e.shares[name] for e in examined]) for name in first.shares},
        sides=_agreement([e.sides for e in examined]),
        retest=_agreement([e.retest for e in examined]),
        looks={key: _look([e.looks[key] for e in examined]) for key in first.looks},
        reliability=float(np.mean([e.reliability for e in examined])),
    )


def _explained(found: Sequence[Explained]) -> Explained:
    """What explains a look's groups, over the sets of folds that saw them."""

    def middle(values: list[float]) -> float:
        return float(np.nanmedian(values)) if np.isfinite(values).any() else np.nan

    by_name = {f.name: [getattr(one, f.name) for one in found] for f in fields(Explained)}
    p_within = together(by_name.pop("p_within"))
    return Explained(p_within=p_within, **{n: middle(values) for n, values in by_name.items()})


def together(p: Sequence[float]) -> float:
    """One p-value for the same test under several sets of folds: twice the median.

    NaN where most of them have none.
    """
    if len(p) == 0 or np.isnan(p).sum() > len(p) / 2:
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


def _effect(effects: Sequence[Effect]) -> Effect:
    estimates = [f.name for f in fields(Effect) if f.name != "p"]
    by_name = {name: pooled([getattr(one, name) for one in effects]) for name in estimates}
    return Effect(p=together([one.p for one in effects]), **by_name)


def _agreement(agreements: Sequence[Agreement]) -> Agreement:
    return replace(
        agreements[0],
        value=pooled([a.value for a in agreements]),
        null=float(np.mean([a.null for a in agreements])),
        p=together([a.p for a in agreements]),
    )


def _look(looks: Sequence[HumpTest]) -> HumpTest:
    """One look over all sets; where most of them saw no groups, it has none."""
    detailed = [look for look in looks if np.isfinite(look.bic)]
    combined = replace(
        looks[0],
        p_dip=together([look.p_dip for look in looks]),
        p_uniform=together([look.p_uniform for look in looks]),
    )
    if len(detailed) <= len(looks) / 2:
        return replace(
            combined,
            bic=np.nan,
            kappa=NOTHING,
            retest_kappa=NOTHING,
            flips=NOTHING,
            explained=None,
        )
    combined = replace(
        combined,
        lower=detailed[0].lower,
        rows=detailed[0].rows,
        shifts=detailed[0].shifts,
        bic=float(np.median([look.bic for look in detailed])),
        kappa=pooled([look.kappa for look in detailed]),
        retest_kappa=pooled([look.retest_kappa for look in detailed]),
        flips=pooled([look.flips for look in detailed]),
    )
    found = [look.explained for look in looks if look.explained is not None]
    enough = combined.grouped and len(found) > len(looks) / 2
    return replace(combined, explained=_explained(found) if enough else None)


def _conclude(
    whole: Examined, groups: Sequence[HumpTest], power: Mapping[str, float]
) -> tuple[FindingName, str, str]:
    """The finding, what explains its groups, and why, from the looks that show groups."""
    if whole.n < FEWEST:
        return "too-few", "", f"{whole.n} usable samples; below {FEWEST} no finding is made"
    cut, question = whole.effects["knockout"], whole.effects["question"]
    if not cut.shown and not question.shown:
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
    """On which roads and among which predicted classes two groups are shown, in words."""
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
    """One row of findings.csv; `layer` is the band's layer whose clean probe reads best."""
    whole, look, why = finding.examined, finding.best, finding.best.explained
    cut = whole.effects["knockout"]
    row: dict[str, Any] = {
        "model": model,
        "dataset": dataset,
        "finding": finding.name,
        "by": finding.by,
        "layers": " ".join(map(str, whole.layers)),
        "n": whole.n,
        **estimate_columns("gap", finding.gap),
        "power_half": finding.power["half"],
        "power_fifth": finding.power["fifth"],
        "why": finding.why,
        "untested": " ".join(finding.untested),
        "layer": layer,
        "sets": finding.sets,
        "same_gap": finding.same_gap,
        "reliability": whole.reliability,
        **estimate_columns("effect", cut.points),
        **estimate_columns("effect_logit", cut.logit),
        **estimate_columns("effect_flips", cut.flips),
        "effect_p": cut.p,
        "question_p": whole.effects["question"].p,
        **estimate_columns("exact_share", whole.shares["knockout"]),
        **estimate_columns("content_share", whole.shares["content"]),
        **estimate_columns("sides", whole.sides.value),
        "sides_null": whole.sides.null,
        "sides_p": whole.sides.p,
        **estimate_columns("retest", whole.retest.value),
        "retest_p": whole.retest.p,
        "within": look.within,
        "road": look.road,
        "dip_p": look.p_dip,
        "uniform_p": look.p_uniform,
        "bic": look.bic,
        "kappa": look.kappa.value,
        "kappa_low": look.kappa.low,
        "retest_kappa": look.retest_kappa.value,
        "share_q": float(look.lower.mean()) if why is not None else np.nan,
        **{
            column: np.nan if why is None else getattr(why, name)
            for column, name in _EXPLAINED_COLUMNS.items()
        },
        **estimate_columns("effect_logit_right", cut.logit_right),
        **estimate_columns("effect_logit_wrong", cut.logit_wrong),
    }
    columns = (
        *table_columns.FINDINGS,
        *table_columns.FINDINGS_MORE,
        *table_columns.FINDINGS_EFFECT,
    )
    return pd.DataFrame([row], columns=list(columns))
