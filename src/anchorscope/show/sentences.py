"""Describe power and detectors in sentences and small tables for the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pandas as pd

from anchorscope.records import Estimate

if TYPE_CHECKING:
    from anchorscope.detect.detector import Detector
    from anchorscope.pathways.power import Power

# Smallest effects found: loss of half of the samples, its ΔP, share of Q, with their intervals.
EFFECTS = [f"{name}{end}" for name in ("loss", "delta_p", "share") for end in ("", "_low", "_high")]
# Advice on findings that more questions do not change.
ADVICE = {
    "explained": "More questions do not change that: ask one kind of question alone, or mend what "
    "the groups are explained by.",
    "no-effect": "See first that the right tokens are cut: exact tokens are in samples.parquet.",
}


def power_sentences(power: Power) -> str:
    """Describe the power of one dataset in sentences."""
    parts = [f"{power.dataset}: {power.finding} ({power.why})."]
    if not math.isnan(power.now["power_half"]):
        parts.append(
            f"Had half of the samples lost their belief, this run would have found two pathways "
            f"in {power.now['power_half']:.0%}; had a fifth, in {power.now['power_fifth']:.0%}."
        )
    parts += [ADVICE[power.finding]] if power.finding in ADVICE else []
    probe = power.probe
    parts.append(
        f"The probe of layer {probe.layer} of {probe.layers} reads {probe.right} right and "
        f"{probe.wrong} wrong answers with AUROC {probe.auroc.value:.2f} "
        f"({probe.auroc.low:.2f} to {probe.auroc.high:.2f}), shuffled labels "
        f"with {min(probe.shuffled):.2f} to {max(probe.shuffled):.2f}."
    )
    parts += [f"{probe.why.capitalize()}."] if probe.why else []
    return " ".join(parts)


def power_table(powers: list[Power]) -> pd.DataFrame:
    """Tabulate the power by dataset and number of samples, with intervals."""
    rows = []
    for one in powers:
        for size in one.smallest:
            row = {
                "dataset": one.dataset,
                "finding": one.finding,
                "usable": size.n,
                # To get so many usable samples, at this run's rate.
                "questions": round(size.n * one.questions / one.n),
            }
            probe = one.probe
            for name in EFFECTS[::3]:
                row |= _with_ends(name, getattr(size, name))
            row |= {**one.now, "layer": probe.layer, "right": probe.right, "wrong": probe.wrong}
            row |= _with_ends("auroc", probe.auroc)
            row["shuffled_auroc"] = sum(probe.shuffled) / len(probe.shuffled)
            rows.append(row | {"at_chance": probe.at_chance})
    return pd.DataFrame(rows)


def _with_ends(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def detector_sentences(detector: Detector) -> str:
    """Describe a trained detector's accuracy, threshold and promise in a few lines."""
    numbers, data = detector.evaluation, detector.trained_on
    low, high = detector.band or (detector.threshold, detector.threshold)
    lines = [
        f"{detector.method.name}: AUROC {numbers['auroc']:.3f} [{numbers['auroc_low']:.3f}, "
        f"{numbers['auroc_high']:.3f}] on unseen entities, from {data['answers']} answers "
        f"({data['wrong']} wrong) of {', '.join(data['datasets'])}.",
        f"Flags above {detector.threshold:.3f}; cannot say between {low:.3f} and {high:.3f} "
        f"({numbers['cannot_say']:.0%} of held-out answers).",
        f"Promised: {detector.promise}." if detector.promise else "",
        f"Draws {draws} answers beside each that it scores: as much again, {draws} times."
        if (draws := detector.method.samples_)
        else "",
        detector.caution,
    ]
    return "\n".join(line for line in lines if line)


def decisions(row: dict[Any, Any]) -> str:
    """Format both modes' decisions: "paper undecided (+0.002), strict fails (-0.018)"."""
    modes = [mode for mode in ("paper", "strict") if f"{mode}_decision" in row]
    return ", ".join(f"{m} {row[f'{m}_decision']} ({row[f'{m}_value']:+.3f})" for m in modes)
