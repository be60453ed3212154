"""strict.csv: the evidence of every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.pathways.effects import Delta, delta_p, flips
from anchorscope.pathways.group_adds import Adds
from anchorscope.pathways.grouping import ROLES
from anchorscope.pathways.refit import Refit
from anchorscope.pathways.strict_layer import SUBSETS, StrictDraws, StrictLayer
from anchorscope.probes.readings import Readings
from anchorscope.records import MODES, Estimate, Mode
from anchorscope.stats.intervals import difference_of_means


@dataclass(frozen=True, kw_only=True)
class LayerEvidence:
    """All that strict.csv says of one layer."""

    examined: StrictLayer
    refit: Refit
    adds: Adds  # the strict group, in predicting z
    answer_only: Mapping[Mode, Estimate]  # ΔP without the question, Q less A


def answer_only_gaps(readings: Readings, layer: int, draws: StrictDraws) -> dict[Mode, Estimate]:
    """ΔP of Q less that of A when the question is left out, by mode; NaN where it was not run."""
    gaps_by_mode = {}
    for mode in MODES:
        group, measure = ROLES[mode]
        if "answer-only" not in readings.logits:
            gaps_by_mode[mode] = Estimate(np.nan, np.nan, np.nan, 0)
            continue
        flipped = flips(readings.at(layer, group), readings.at(layer, group, "knockout"))
        clean, other = readings.at(layer, measure), readings.at(layer, measure, "answer-only")
        effect = delta_p(clean, other, delta=draws.points)
        gaps_by_mode[mode] = difference_of_means(effect, flipped, draws)
    return gaps_by_mode


def strict_table(layers: Sequence[LayerEvidence], *, model: str, dataset: str) -> pd.DataFrame:
    """One row per layer."""
    rows = [{"model": model, "dataset": dataset, **_row(layer)} for layer in layers]
    return pd.DataFrame(rows)


def _row(layer: LayerEvidence) -> dict[str, Any]:
    seen, read = layer.examined, layer.refit
    return {
        "layer": seen.layer,
        "n": seen.n,
        **_kappas(seen),
        **_collapse(seen),
        **_gaps(seen),
        "same_gap": seen.same_gap,
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


def _kappas(seen: StrictLayer) -> dict[str, Any]:
    agreement = seen.agreement
    named = {"kappa": agreement.all, "kappa_right": agreement.right, "kappa_wrong": agreement.wrong,
             "kappa_next": agreement.next}  # fmt: skip
    return {key: value for name, e in named.items() for key, value in _estimate(name, e).items()}


def _collapse(seen: StrictLayer) -> dict[str, Any]:
    collapse = seen.collapse
    return {
        "flip_right": collapse.flip_right.value,
        "flip_wrong": collapse.flip_wrong.value,
        "delta_right": collapse.delta_right.value,
        "delta_wrong": collapse.delta_wrong.value,
        "group_auroc": collapse.group_auroc,
        "group_explained": collapse.explained,
        "collapse": collapse.collapsed,
    }


def _gaps(seen: StrictLayer) -> dict[str, Any]:
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


def _heterogeneity(seen: StrictLayer) -> dict[str, Any]:
    agreement = seen.reliability["both"]
    row = {
        **_estimate("reliability", agreement.value),
        "reliability_control": agreement.control,
        **_estimate("reliability_excess", agreement.excess),
        **_estimate("beyond_random", seen.beyond_random),
        "control": seen.control,
        "kinds": seen.kinds,
        "common": seen.common,
        "residual": seen.spread,
    }
    for name in SUBSETS:
        row |= {f"dip_p_{name}": seen.shapes[name].p, f"bic_{name}": seen.shapes[name].bic}
    return row


def _estimate(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
