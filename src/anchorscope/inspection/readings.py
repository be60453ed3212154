"""Read an answer with a run's probes: P(wrong), the pathway, and their track record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd
from scipy.special import expit

from anchorscope.detect.answer_parts import locate_answer
from anchorscope.detect.detector import Detector
from anchorscope.detect.prompts import Bound
from anchorscope.detect.scored import Scored
from anchorscope.engine.passes import CLEAN, KNOCKOUT
from anchorscope.errors import unknown
from anchorscope.inspection.question import RecordedAnswer
from anchorscope.models import Model
from anchorscope.pathways.effects import ROLES
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.records import Estimate, Mode
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.stats.intervals import rate

LEAST = 10  # samples of a group below which there is no band, and no share of wrong answers
NEAR = 0.1  # how far from a probability others count as given the same


@dataclass(frozen=True)
class RunAnswers:
    """The answers and probes of one dataset of a run, to compare one more question with."""

    run: RunView
    dataset: str

    @cached_property
    def probes(self) -> ProbeSet:
        return ProbeSet.load(self.run.path / "probes" / self.dataset)

    @cached_property
    def finding(self) -> dict[str, Any]:
        """The run's finding on this dataset, as in findings.csv; empty where it has none."""
        if not self.run.has_strict:
            return {}
        return next(iter(records(where(self.run.findings, dataset=self.dataset))), {})

    @cached_property
    def layer(self) -> int:
        """The layer of the finding; without one, the layer with the most accurate probe."""
        layer = self.finding.get("layer", np.nan)
        if np.isfinite(layer):
            return int(layer)
        table = where(self.run.probes, dataset=self.dataset)
        return int(table["layer"].to_numpy()[values(table, "auroc").to_numpy(float).argmax()])

    @cached_property
    def agreement(self) -> float:
        """Cohen's κ of two independent probes on the pathway at that layer; NaN: not known."""
        if not self.run.has_strict:
            return np.nan
        rows = records(where(self.run.strict, dataset=self.dataset, layer=self.layer))
        return float(rows[0]["kappa"]) if rows else np.nan

    @cached_property
    def folds(self) -> dict[str, int]:
        """The fold of each question that a probe was trained with, by id."""
        samples = where(self.run.samples, dataset=self.dataset)
        if "fold" not in samples.columns:
            return {}
        rows = [row for row in records(samples) if not pd.isna(row["fold"])]
        return {str(row["id"]): int(row["fold"]) for row in rows}

    def logits(self, states: np.ndarray, fold: int | None) -> np.ndarray:
        """Every probe's logit of states [row, layer, width]: [probe, row, layer].

        A question of the run is read by the probes that held its fold out, another one (fold
        None) by the mean of all folds' probes.
        """
        if fold is None:
            return self.probes.mean_logits(states)
        return self.probes.logits(states, np.full(len(states), fold))

    @cached_property
    def _rows(self) -> pd.DataFrame:
        return where(self.run.pathways, dataset=self.dataset)

    def bands(self, mode: Mode, predicted: np.ndarray) -> dict[str, np.ndarray]:
        """The middle half of P(wrong) under the knockout, [layer, 2], of Q and of A.

        Among answers of the same predicted class as `predicted` [layer]; NaN below ten of them.
        """
        out = {group: np.full((len(predicted), 2), np.nan) for group in ("Q", "A")}
        for (of_mode, layer, class_, group), middle in self._middles.items():
            if of_mode == mode and class_ == predicted[layer - 1]:
                out[group][layer - 1] = middle
        return out

    @cached_property
    def _middles(self) -> dict[tuple[str, int, int, str], np.ndarray]:
        """The quartiles of P(wrong) under the knockout, by mode, layer, class and pathway."""
        middles = {}
        key = ["mode", "layer", "prediction", "pathway"]
        for names, rows in self._rows.groupby(key, observed=True):
            mode, layer, class_, group = cast(tuple, names)
            logits = rows["logit_knockout"].dropna()
            if len(logits) >= LEAST:
                quartiles = np.quantile(expit(logits), (0.25, 0.75))
                middles[str(mode), int(layer), int(class_), str(group)] = quartiles
        return middles

    def share_wrong(self, mode: Mode, probability: float) -> Estimate:
        """The share of wrong answers among those with about the same probability."""
        rows = where(self._rows, mode=mode, layer=self.layer)
        near = np.abs(expit(rows["logit_clean"].to_numpy(float)) - probability) <= NEAR
        return rate(rows["z"].to_numpy(float)[near])

    def effect_probe(self, mode: Mode) -> int:
        """The index of the probe that measures effects in this mode."""
        return self.probes.probes.index(ROLES[mode].effect)

    def group_probe(self, mode: Mode) -> int:
        """The index of the probe that forms the groups Q and A in this mode."""
        return self.probes.probes.index(ROLES[mode].group)


def answers_of(run: RunView, dataset: str | None) -> RunAnswers:
    """The answers of a dataset of the run; its first one where none is named."""
    name = dataset or run.datasets[0]
    if name not in run.datasets:
        raise unknown("dataset of the run", name, run.datasets)
    return RunAnswers(run, name)


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """P(wrong) of an answer, which probe or detector gives it, and its calibration in words."""

    probability: float
    by: str  # "detector probe" or "the run's probe at layer 20"
    calibration: str  # a sentence
    scored: Scored | None = None  # where a detector said it


@dataclass(frozen=True, kw_only=True)
class PathwayVote:
    """The pathway at one layer, and how many of the probes that never saw the question say Q."""

    pathway: str  # Q or A
    votes: int  # probes whose prediction flips under the knockout
    probes: int
    agreement: float  # Cohen's κ of two independent probes over the run's answers; NaN: not known

    @property
    def agreeing(self) -> int:
        """How many probes say the same pathway."""
        return self.votes if self.pathway == "Q" else self.probes - self.votes

    @property
    def certainty(self) -> str:
        """The share of agreeing probes in a word."""
        share = self.agreeing / self.probes
        return "clear" if share >= 0.9 else "likely" if share >= 0.7 else "unsure"


def detector_dataset(detector: Detector, dataset: str) -> str:
    """The dataset itself where the detector knows it, else the first that it does."""
    return dataset if dataset in detector.datasets else detector.datasets[0]


def wrong_by_probe(answers: RunAnswers, mode: Mode, probability: float) -> Wrong:
    """P(wrong) of this answer by the run's probe, with its calibration in words."""
    share = answers.share_wrong(mode, probability)
    low, high = max(0.0, probability - NEAR), min(1.0, probability + NEAR)
    if share.n < LEAST:
        words = f"Only {share.n} answers of the run were given {low:.0%} to {high:.0%}: too few."
    else:
        words = (
            f"Of the run's {share.n} answers given {low:.0%} to {high:.0%}, {share.value:.0%} "
            f"were wrong (95 % interval {share.low:.0%} to {share.high:.0%})."
        )
    by = f"the run's probe at layer {answers.layer}"
    return Wrong(probability=probability, by=by, calibration=words)


def wrong_by_detector(
    detector: Detector, model: Model, bound: Bound, exchange: RecordedAnswer
) -> Wrong:
    """P(wrong) of this answer by the detector, with its calibration in words."""
    scored = _scored(detector, model, bound, exchange)
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


def _scored(detector: Detector, model: Model, bound: Bound, exchange: RecordedAnswer) -> Scored:
    dataset = detector_dataset(detector, exchange.sample.question.dataset)
    own, clean = detector.bind(model, dataset=dataset), exchange.clean
    text, answer = exchange.sample.question.text, exchange.sample.answer
    same = (own.before, own.after) == (bound.before, bound.after)
    if not (same and detector.reads_states_alone) or clean is None:
        return detector.score(model, text, answer=answer.text, dataset=dataset)
    located = locate_answer(model, text, answer)
    return detector.score_located([located], clean[None][: len(located.entities)])[0]


def pathway_of(
    answers: RunAnswers,
    mode: Mode,
    states: Mapping[str, np.ndarray],
    *,
    fold: int | None,
) -> PathwayVote:
    """The pathway by the mode's probe, with the votes of every probe that never saw the question.

    A question of the run is read by its own fold's probes, another one by all of them.
    """
    both = np.stack([states[CLEAN.name], states[KNOCKOUT.name]])
    folds = range(answers.probes.folds) if fold is None else [fold]
    logits = np.stack([answers.probes.logits(both, np.full(2, f)) for f in folds])
    at = logits[..., answers.layer - 1]  # [fold, probe, pass]
    flips = (at[..., 0] > 0) != (at[..., 1] > 0)
    mean = at.mean(axis=0)[answers.group_probe(mode)]  # a mean of linear probes, as mean_logits
    return PathwayVote(
        pathway="Q" if (mean[0] > 0) != (mean[1] > 0) else "A",
        votes=int(flips.sum()),
        probes=flips.size,
        agreement=answers.agreement,
    )
