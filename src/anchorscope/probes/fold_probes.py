"""One probe per fold, trained on all other folds: the logit of each question from the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorscope.config import Balance
from anchorscope.probes.linear_probe import DEFAULT_C, check_finite
from anchorscope.probes.many_fits import class_weights, fit_many, to_single


@dataclass(frozen=True, kw_only=True)
class FoldProbes:
    """Probes that each held a fold out; NaN where the other folds hold too few of a class."""

    fold: np.ndarray  # [question]
    weights: dict[int, np.ndarray]  # by fold, [width] float32
    intercept: dict[int, float]

    def logits(self, states: np.ndarray) -> np.ndarray:
        """The logit of label 1 [question], each state [question, width] read by its own fold's."""
        logits = np.full(len(states), np.nan)
        for number, weights in self.weights.items():
            rows = self.fold == number
            own = states[rows].astype(np.float64, copy=False)
            logits[rows] = own @ weights.astype(np.float64) + self.intercept[number]
        return logits


def fit_fold_probes(
    x: np.ndarray,
    label: np.ndarray,
    fold: np.ndarray,
    *,
    C: float = DEFAULT_C,
    balance: Balance = "weights",
    least: int = 1,
) -> FoldProbes:
    """The probes of states x [question, width] and labels 0 or 1, all folds fitted at once.

    A fold whose others hold fewer than `least` of a class has no probe.
    """
    x = np.asarray(x, dtype=np.float64)
    check_finite(x)
    numbers = np.unique(fold)
    learns = fold != numbers[:, None]  # [fold, question]
    ones, rows = (learns & (label == 1)).sum(axis=1), learns.sum(axis=1)
    enough = np.minimum(ones, rows - ones) >= max(least, 1)
    numbers, learns = numbers[enough], learns[enough]
    if not len(numbers):
        return FoldProbes(fold=fold, weights={}, intercept={})
    fits = fit_many(x, label, class_weights(label, learns, balance), np.full(len(numbers), C))
    weights, intercept = to_single(*fits, x, learns)
    keys = [int(number) for number in numbers]
    return FoldProbes(
        fold=fold,
        weights=dict(zip(keys, weights, strict=True)),
        intercept=dict(zip(keys, intercept.tolist(), strict=True)),
    )


def fold_logits(
    x: np.ndarray,
    labels: np.ndarray,
    fold: np.ndarray,
    *,
    C: float = DEFAULT_C,
    balance: Balance = "weights",
    least: int = 1,
) -> np.ndarray:
    """The logits [task, question] that fold probes give, for several tasks on the same states.

    `labels` [task, question] are 0 or 1, NaN for a question that is none of the task's. All tasks
    and folds are fitted at once; NaN where the other folds hold fewer than `least` of a class.
    """
    x = np.asarray(x, dtype=np.float64)
    check_finite(x)
    member, ones = ~np.isnan(labels), labels == 1
    task, number = (of.ravel() for of in np.indices((len(labels), int(fold.max(initial=0)) + 1)))
    learns = member[task] & (fold != number[:, None])  # [fit, question]
    reads = member[task] & (fold == number[:, None])
    hits = (learns & ones[task]).sum(axis=1)
    enough = np.minimum(hits, learns.sum(axis=1) - hits) >= max(least, 1)
    kept = enough & reads.any(axis=1)
    logits = np.full(labels.shape, np.nan)
    if not kept.any():
        return logits
    learns, y = learns[kept], ones[task[kept]].astype(np.float64)
    fits = fit_many(x, y, class_weights(y, learns, balance), np.full(len(learns), float(C)))
    weights, intercept = to_single(*fits, x, learns)
    every = weights.astype(np.float64) @ x.T + intercept[:, None]
    for place, rows, own in zip(task[kept], reads[kept], every, strict=True):
        logits[place, rows] = own[rows]
    return logits
