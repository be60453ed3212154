"""Read an answer with a run's probes: P(wrong), the pathway, and their accuracy in the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

from anchorscope.detect.detector import Detector
from anchorscope.detect.scored import Scored
from anchorscope.engine.interventions import CLEAN, KNOCKOUT
from anchorscope.pathways.effects import ROLES
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.records import Mode
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.charts import FEW, Halves, middle_halves
from anchorscope.stats.intervals import rate

NEAR = 0.1  # probabilities this close count as the same


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """P(wrong) of an answer, the probe or detector that gives it, and its calibration in words."""

    probability: float
    by: str  # "detector probe" or "the run's probe at layer 20"
    calibration: str  # a sentence
    scored: Scored | None = None  # where a detector gave it


@dataclass(frozen=True, kw_only=True)
class PathwayVote:
    """The pathway at one layer, and how many probes that never saw the question vote for Q."""

    pathway: str  # Q or A
    votes: int  # probes whose prediction flips under the knockout
    probes: int
    agreement: float  # Cohen's κ of two independent probes over the run's answers; NaN: not known

    @property
    def agreeing(self) -> int:
        """The number of probes that agree with the pathway."""
        return self.votes if self.pathway == "Q" else self.probes - self.votes

    @property
    def certainty(self) -> str:
        """The share of agreeing probes as a word: "clear", "likely" or "unsure"."""
        share = self.agreeing / self.probes
        return "clear" if share >= 0.9 else "likely" if share >= 0.7 else "unsure"


@dataclass(frozen=True)
class RunReadings:
    """The probes of one dataset of a run, and what they read in its answers."""

    run: RunView
    dataset: str

    @cached_property
    def probes(self) -> ProbeSet:
        return ProbeSet.load(self.run.path / "probes" / self.dataset)

    @cached_property
    def finding(self) -> dict[str, Any]:
        """The run's finding on this dataset, as in findings.csv; empty where it has none."""
        return next(iter(records(where(self.run.findings, dataset=self.dataset))), {})

    @cached_property
    def layer(self) -> int:
        """The layer of the finding; without one, the layer with the most accurate probe."""
        if np.isfinite(layer := self.finding.get("layer", np.nan)):
            return int(layer)
        table = where(self.run.probes, dataset=self.dataset)
        return int(table["layer"].to_numpy()[values(table, "auroc").to_numpy(float).argmax()])

    @cached_property
    def folds(self) -> dict[str, int]:
        """The fold of each question that probes were trained on, by question id."""
        samples = where(self.run.samples, dataset=self.dataset)
        if "fold" not in samples.columns:
            return {}
        rows = [row for row in records(samples) if not pd.isna(row["fold"])]
        return {str(row["id"]): int(row["fold"]) for row in rows}

    def logits(self, states: np.ndarray, fold: int | None, mode: Mode) -> np.ndarray:
        """The logits [row, layer] of states [row, layer, width] by the mode's effect probe.

        A question of the run is read by the probe that held its fold out, another one (fold
        None) by the mean of all folds' probes.
        """
        probes = self.probes
        if fold is None:
            read = probes.mean_logits(states)
        else:
            read = probes.logits(states, np.full(len(states), fold))
        return read[probes.probes.index(ROLES[mode].effect)]

    def pathway(
        self, mode: Mode, states: Mapping[str, np.ndarray], fold: int | None
    ) -> PathwayVote:
        """The pathway by the mode's probe, with the votes of all probes that never saw it.

        A question of the run is read by its own fold's probes, another one by all of them.
        """
        both = np.stack([states[CLEAN.name], states[KNOCKOUT.name]])
        folds = range(self.probes.folds) if fold is None else [fold]
        logits = np.stack([self.probes.logits(both, np.full(2, f)) for f in folds])
        at = logits[..., self.layer - 1] > 0  # [fold, probe, pass]
        flips = at[..., 0] != at[..., 1]
        group = self.probes.probes.index(ROLES[mode].group)
        clean, cut = logits[:, group, :, self.layer - 1].mean(axis=0) > 0  # as mean_logits
        strict = where(self.run.strict, dataset=self.dataset, layer=self.layer)
        return PathwayVote(
            pathway="Q" if clean != cut else "A",
            votes=int(flips.sum()),
            probes=flips.size,
            agreement=float(strict["kappa"].iloc[0]) if len(strict) else np.nan,
        )

    def bands(
        self, mode: Mode, predicted: np.ndarray
    ) -> dict[str, tuple[tuple[float, float], ...]]:
        """The middle half of P(wrong) under the knockout, (low, high) by layer, of Q and of A.

        Among answers of the same predicted class as `predicted` [layer]; NaN below ten of them.
        """
        return {
            group: tuple(
                self._middle_halves.get((mode, layer, int(class_), group), (np.nan, np.nan))
                for layer, class_ in enumerate(predicted, start=1)
            )
            for group in "QA"
        }

    @cached_property
    def _middle_halves(self) -> Halves:
        return middle_halves(where(self.run.pathways, dataset=self.dataset))

    def wrong(self, mode: Mode, probability: float) -> Wrong:
        """P(wrong) by the run's probe, with the share of wrong answers at similar P(wrong)."""
        rows = where(self.run.pathways, dataset=self.dataset, mode=mode, layer=self.layer)
        near = np.abs(expit(rows["logit_clean"].to_numpy(float)) - probability) <= NEAR
        share = rate(rows["z"].to_numpy(float)[near])
        low, high = max(0.0, probability - NEAR), min(1.0, probability + NEAR)
        words = (
            f"Of the run's {share.n} answers given {low:.0%} to {high:.0%}, {share.value:.0%} "
            f"were wrong (95 % interval {share.low:.0%} to {share.high:.0%})."
        )
        if share.n < FEW:
            words = (
                f"Only {share.n} answers of the run were given {low:.0%} to {high:.0%}: too few."
            )
        by = f"the run's probe at layer {self.layer}"
        return Wrong(probability=probability, by=by, calibration=words)


def wrong_by_detector(detector: Detector, scored: Scored) -> Wrong:
    """P(wrong) by the detector, with its calibration in words."""
    evaluation = detector.evaluation
    words = [f"Calibrated by {detector.calibrated_on}."]
    if scored.reason:
        words.insert(0, f"{scored.outcome.capitalize()}: {scored.reason}.")
    if evaluation.get("ece") is not None:
        words.append(
            f"On {evaluation.get('n')} answers about unseen entities its probabilities were off by "
            f"{evaluation['ece']:.0%} on average."
        )
    if evaluation.get("auroc") is not None:
        words.append(f"AUROC {evaluation['auroc']:.2f}.")
    by = f"detector {detector.name}"
    return Wrong(probability=scored.probability, by=by, calibration=" ".join(words), scored=scored)
