"""How sure: P(wrong) with its calibration in words, and the pathway with the probes' votes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from anchorscope.detect.deployed.bind import Bound
from anchorscope.detect.deployed.detector import Detector
from anchorscope.detect.deployed.located import Scored, locate_answer
from anchorscope.detect.deployed.running import RunningScore
from anchorscope.engine.passes import CLEAN, KNOCKOUT
from anchorscope.inspection.asking import Asked
from anchorscope.inspection.bands import NEAR, RunAnswers
from anchorscope.models import Model
from anchorscope.records import Mode

_FEW = 10


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """How likely the answer is wrong, who says so, and what that has been worth."""

    probability: float
    by: str  # "detector probe" or "the run's probe at layer 20"
    calibration: str  # a sentence
    scored: Scored | None = None  # where a detector said it


@dataclass(frozen=True, kw_only=True)
class PathwaySaid:
    """The pathway at one layer, and how many of the probes that may be asked say Q."""

    pathway: str  # Q or A
    votes: int  # probes whose prediction flips under the knockout
    probes: int
    agreement: float  # Cohen's κ of two independent probes over the run's answers; NaN: not known

    @property
    def share(self) -> float:
        """The share of the probes that say what is said."""
        return (self.votes if self.pathway == "Q" else self.probes - self.votes) / self.probes

    @property
    def certainty(self) -> str:
        """The same in a word."""
        return "clear" if self.share >= 0.9 else "likely" if self.share >= 0.7 else "unsure"


class Growing:
    """P(wrong) of an answer as it grows, as if it ended with its newest token.

    By the detector where it reads nothing but clean states, else by the run's probe.
    """

    def __init__(self, answers: RunAnswers, detector: Detector | None) -> None:
        self._answers, self._detector = answers, detector
        self.by_detector = detector is not None and detector.reads_states_alone

    def __call__(self, states: np.ndarray, *, fold: int | None) -> list[float]:
        """P(wrong) after each token, from states [token, layer, width]."""
        if not len(states):
            return []
        if self._detector is not None and self.by_detector:
            running = RunningScore(self._detector)
            own = states[:, [layer - 1 for layer in running.layers]].astype(np.float32)
            return running.probabilities(own).tolist()
        logits = self._answers.logits(states, fold)[self._answers.effect_probe("strict")]
        return expit(logits[:, self._answers.layer - 1]).tolist()


def asked_as(detector: Detector, dataset: str) -> str:
    """The dataset itself where the detector knows it, else the first that it does."""
    return dataset if dataset in detector.datasets else detector.datasets[0]


def wrong_by_probe(answers: RunAnswers, mode: Mode, probability: float) -> Wrong:
    """What the run's probe says, and how often it was right when it said as much."""
    share = answers.share_wrong(mode, probability)
    low, high = max(0.0, probability - NEAR), min(1.0, probability + NEAR)
    if share.n < _FEW:
        words = f"Only {share.n} answers of the run were given {low:.0%} to {high:.0%}: too few."
    else:
        words = (
            f"Of the run's {share.n} answers given {low:.0%} to {high:.0%}, {share.value:.0%} "
            f"were wrong (95 % interval {share.low:.0%} to {share.high:.0%})."
        )
    by = f"the run's probe at layer {answers.layer}"
    return Wrong(probability=probability, by=by, calibration=words)


def wrong_by_detector(detector: Detector, model: Model, bound: Bound, asked: Asked) -> Wrong:
    """What the detector says of this very answer, and how well it was calibrated."""
    scored = _scored(detector, model, bound, asked)
    evaluation = detector.evaluation
    words = [f"Calibrated by {detector.calibrated_on}."]
    if scored.why:
        words.insert(0, f"No probability: {scored.why}.")
    if evaluation.get("ece") is not None:
        words.append(
            f"On {evaluation.get('n')} answers about unseen entities its probabilities were off by "
            f"{evaluation['ece']:.0%} on average."
        )
    if evaluation.get("auroc") is not None:
        words.append(f"AUROC {evaluation['auroc']:.2f}.")
    by = f"detector {detector.name}"
    return Wrong(probability=scored.probability, by=by, calibration=" ".join(words), scored=scored)


def _scored(detector: Detector, model: Model, bound: Bound, asked: Asked) -> Scored:
    dataset = asked_as(detector, asked.sample.question.dataset)
    own, clean = detector.bind(model, dataset=dataset), asked.clean
    text, answer = asked.sample.question.text, asked.sample.answer
    same = (own.before, own.after) == (bound.before, bound.after)
    if not (same and detector.reads_states_alone) or clean is None:
        return detector.score(model, text, answer=answer.text, dataset=dataset)
    return detector.score_states([locate_answer(model, text, answer)], clean[None])[0]


def pathway_of(
    answers: RunAnswers,
    mode: Mode,
    states: Mapping[str, np.ndarray],
    *,
    fold: int | None,
) -> PathwaySaid:
    """The pathway by the mode's probe, with the votes of every probe that never saw the question.

    A question of the run is read by its own fold's probes, another one by all of them.
    """
    both = np.stack([states[CLEAN.name], states[KNOCKOUT.name]])
    folds = range(answers.probes.folds) if fold is None else [fold]
    logits = np.stack([answers.probes.logits(both, np.full(2, f)) for f in folds])
    at = logits[..., answers.layer - 1]  # [fold, probe, pass]
    flips = (at[..., 0] > 0) != (at[..., 1] > 0)
    mean = at.mean(axis=0)[answers.group_probe(mode)]  # a mean of linear probes, as mean_logits
    return PathwaySaid(
        pathway="Q" if (mean[0] > 0) != (mean[1] > 0) else "A",
        votes=int(flips.sum()),
        probes=flips.size,
        agreement=answers.agreement,
    )
