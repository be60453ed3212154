"""strict.csv and verdict.csv: the evidence of every layer, and the finding of each dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.pathways.adds import Adds, adds
from anchorscope.pathways.effects import Delta, delta_p, flips
from anchorscope.pathways.examine import SUBSETS, Effort, Examined
from anchorscope.pathways.grouping import MODES, ROLES, Mode
from anchorscope.pathways.refit import Refit
from anchorscope.pathways.verdict import Verdict
from anchorscope.probes.metrics import bootstrap_mean
from anchorscope.probes.readings import Readings
from anchorscope.records import Estimate

VERDICT_COLUMNS = (
    "model", "dataset", "layer", "seeds", "finding", "why", "p",
    "gap", "null_low", "null_high", "within", "within_p", "kappa", "kappa_low", "dip_p", "bic",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LayerEvidence:
    """All that strict.csv says of one layer."""

    examined: Examined
    refit: Refit
    adds: Adds  # the strict group, in predicting z
    answer_only: Mapping[Mode, Estimate]  # ΔP without the question, Q less A


def answer_only_gaps(readings: Readings, layer: int, effort: Effort) -> dict[Mode, Estimate]:
    """ΔP of Q less that of A when the question is left out, by mode; NaN where it was not run."""
    found = {}
    for mode in MODES:
        group, measure = ROLES[mode]
        if "answer-only" not in readings.logits:
            found[mode] = Estimate(np.nan, np.nan, np.nan, 0)
            continue
        flipped = flips(readings.of(group)[:, layer], readings.of(group, "knockout")[:, layer])
        clean, other = readings.of(measure), readings.of(measure, "answer-only")
        effect = delta_p(clean[:, layer], other[:, layer], delta=effort.points)
        found[mode] = difference_of_means(effect, flipped, effort)
    return found


def difference_of_means(values: np.ndarray, group: np.ndarray, effort: Effort) -> Estimate:
    """Mean of group 1 less that of group 0, with the interval of two separate means."""
    parts = [values[(group == which) & ~np.isnan(values)] for which in (1, 0)]
    drawn = {"seed": effort.seed, "resamples": effort.resamples}
    one, other = (bootstrap_mean(part, **drawn) for part in parts)
    value = one.value - other.value
    down = np.hypot(one.value - one.low, other.high - other.value)
    up = np.hypot(one.high - one.value, other.value - other.low)
    return Estimate(value, float(value - down), float(value + up), min(one.n, other.n))


def group_adds(readings: Readings, layer: int, known: np.ndarray, effort: Effort) -> Adds:
    """What the strict group adds to probe b's signed logit and margin, and to `known`."""
    logit = readings.of("b")[:, layer]
    flipped = flips(readings.of("a")[:, layer], readings.of("a", "knockout")[:, layer])
    rows = ~np.isnan(flipped)
    columns = np.column_stack([logit, np.abs(logit), known])
    drawn = {"seed": effort.seed, "resamples": effort.resamples}
    return adds(readings.z[rows], flipped[rows], columns[rows], readings.fold[rows], **drawn)


def strict_table(layers: Sequence[LayerEvidence], *, model: str, dataset: str) -> pd.DataFrame:
    """One row per layer."""
    rows = [{"model": model, "dataset": dataset, **_row(layer)} for layer in layers]
    return pd.DataFrame(rows)


def verdict_table(verdict: Verdict, *, model: str, dataset: str) -> pd.DataFrame:
    """One row: the finding, and the predicted class that speaks loudest for two pathways."""
    best = min(verdict.classes, key=lambda c: (not c.enough, np.nan_to_num(c.p, nan=2.0)))
    row = (
        model, dataset, verdict.layer, verdict.seeds, verdict.finding, verdict.why, verdict.p,
        *verdict.gap[:3], best.name, best.p_gap, best.kappa.value, best.kappa.low, best.p_dip,
        best.bic,
    )  # fmt: skip
    return pd.DataFrame([row], columns=list(VERDICT_COLUMNS))


def _row(layer: LayerEvidence) -> dict[str, Any]:
    seen, read = layer.examined, layer.refit
    return {
        "layer": seen.layer,
        "n": seen.n,
        **_kappas(seen),
        **_collapse(seen),
        **_gaps(seen),
        **_heterogeneity(seen),
        **_estimate("knockout_auroc", read.clean_probe),
        **_estimate("refit_auroc", read.refit_probe),
        "moved_norm": read.norm,
        "moved_mahalanobis": read.mahalanobis,
        "adds_auroc_without": layer.adds.auroc_without,
        "adds_auroc_with": layer.adds.auroc_with,
        **_estimate("adds_gain", layer.adds.gain),
        **_estimate("answer_only_paper", layer.answer_only["paper"]),
        **_estimate("answer_only_strict", layer.answer_only["strict"]),
    }


def _kappas(seen: Examined) -> dict[str, Any]:
    found = seen.agreement
    named = {"kappa": found.all, "kappa_right": found.right, "kappa_wrong": found.wrong,
             "kappa_next": found.next}  # fmt: skip
    return {key: value for name, e in named.items() for key, value in _estimate(name, e).items()}


def _collapse(seen: Examined) -> dict[str, Any]:
    found = seen.collapse
    return {
        "flip_right": found.flip_right.value,
        "flip_wrong": found.flip_wrong.value,
        "delta_right": found.delta_right.value,
        "delta_wrong": found.delta_wrong.value,
        "group_auroc": found.group_auroc,
        "group_explained": found.explained,
        "collapse": found.collapsed,
    }


def _gaps(seen: Examined) -> dict[str, Any]:
    """Each mode over all samples and within ŷ ("both"), in points and in logits."""
    row: dict[str, Any] = {}
    units: dict[str, Delta] = {"": "points", "_logit": "logit"}
    for mode in MODES:
        for place, name in (("", "all"), ("_within", "both")):
            for end, unit in units.items():
                gap = seen.gaps[mode, name, unit]
                start = f"{mode}{place}"
                row |= {
                    f"{start}_gap{end}": gap.value,
                    f"{start}_null{end}_low": gap.low,
                    f"{start}_null{end}_high": gap.high,
                    f"{start}_null{end}_p": gap.p,
                }
    return row


def _heterogeneity(seen: Examined) -> dict[str, Any]:
    found = seen.reliability["both"]
    row = {
        **_estimate("reliability", found.value),
        "reliability_control": found.control,
        **_estimate("reliability_excess", found.excess),
        **_estimate("beyond_random", seen.beyond_random),
        "common": seen.common,
        "residual": seen.spread,
    }
    for name in SUBSETS:
        row |= {f"dip_p_{name}": seen.shapes[name].p, f"bic_{name}": seen.shapes[name].bic}
    return row


def _estimate(name: str, found: Estimate) -> dict[str, float]:
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
