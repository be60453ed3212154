"""Whether the pathway is only the predicted class under another name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorscope.pathways.effects import Delta, delta_p, flips, prediction
from anchorscope.records import Estimate
from anchorscope.stats.intervals import bootstrap_mean, rate
from anchorscope.stats.ranking import auroc

# Where ŷ takes this share of the group's entropy away, the group is the predicted class. 0.75 is
# reached when about 96 % of one class flip and 4 % of the other.
EXPLAINED = 0.75
# Or where the signed clean logit alone orders the two groups all but perfectly.
SEPARATED = 0.97


@dataclass(frozen=True, kw_only=True)
class ClassCollapse:
    """Flips and effects within each predicted class, and what that class says of the group."""

    flip_right: Estimate  # share that flips of those predicted right
    flip_wrong: Estimate
    delta_right: Estimate  # mean ΔP of those predicted right
    delta_wrong: Estimate
    group_auroc: float  # of the signed clean logit for the group, 0.5 to 1; NaN for one group
    explained: float  # share of the group's entropy that ŷ explains, 0 to 1; NaN for one group

    @property
    def collapsed(self) -> bool:
        """Whether ŷ says nearly all there is to say about the group."""
        return bool(self.explained >= EXPLAINED or self.group_auroc >= SEPARATED)


def class_collapse(
    clean: np.ndarray,
    knockout: np.ndarray,
    *,
    delta: Delta = "points",
    seed: int = 0,
    resamples: int = 1000,
    entity: np.ndarray | None = None,
) -> ClassCollapse:
    """What the predicted class explains at one layer, from one probe's logits [question].

    With `entity` [question] the intervals come from draws of entities, not of questions.
    """
    read = ~np.isnan(knockout)
    clean, knockout = clean[read], knockout[read]
    about = np.arange(len(clean)) if entity is None else entity[read]
    flipped, predicted = flips(clean, knockout), prediction(clean)
    effect = delta_p(clean, knockout, delta=delta)
    right, wrong = predicted == 0, predicted == 1
    area = auroc(flipped.astype(int), clean)
    drawn = {"seed": seed, "resamples": resamples}
    return ClassCollapse(
        flip_right=rate(flipped[right], entity=about[right]),
        flip_wrong=rate(flipped[wrong], entity=about[wrong]),
        delta_right=bootstrap_mean(effect[right], **drawn, entity=about[right]),
        delta_wrong=bootstrap_mean(effect[wrong], **drawn, entity=about[wrong]),
        group_auroc=max(area, 1 - area),  # which side flips is not the point
        explained=explained(flipped, predicted),
    )


def explained(group: np.ndarray, by: np.ndarray) -> float:
    """I(group; by) / H(group) of two 0/1 lists; NaN where there is one group only.

    scikit-learn's homogeneity_score (the same to 2e-15, tested) calls one group only 1: all
    explained. scipy's entropy differs from ours in the last digit in 1 of 1,000 shares.
    """
    group, by = np.asarray(group) == 1, np.asarray(by) == 1
    whole = _entropy(group)
    if not whole > 0:
        return np.nan
    parts = [by, ~by]
    left = sum(part.mean() * _entropy(group[part]) for part in parts if part.any())
    return float(min(max(1 - left / whole, 0.0), 1.0))


def _entropy(hits: np.ndarray) -> float:
    """Nats; NaN for an empty list."""
    if not len(hits):
        return np.nan
    shares = np.array([hits.mean(), 1 - hits.mean()])
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())
