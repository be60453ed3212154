"""A classifier of a few columns, cross-fitted: what a state has to beat."""

from __future__ import annotations

import numpy as np

from anchorscope.probes.folds import MIN_PER_CLASS
from anchorscope.stats.logistic import fit_logistic


def cross_fitted(x: np.ndarray, label: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """The score of label 1 that each row gets from the other folds; NaN where they hold too few.

    One column needs only the side on which label 1 lies, a few a logistic model.
    """
    score = np.full(len(x), np.nan)
    for number in np.unique(fold):
        rows = fold == number
        learnt = label[~rows]
        if min(np.sum(learnt == 0), np.sum(learnt == 1)) >= MIN_PER_CLASS:
            score[rows] = _score(x[~rows], learnt, x[rows])
    return score


def _score(x: np.ndarray, label: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Higher: more like label 1."""
    middle, spread = x.mean(axis=0), x.std(axis=0)
    spread = np.where(spread > 10 * np.finfo(float).eps * np.abs(middle), spread, 1.0)
    x, at = (x - middle) / spread, (at - middle) / spread
    if x.shape[1] == 1:
        return at[:, 0] * np.sign(x[label == 1].mean() - x[label == 0].mean())
    fitted = fit_logistic(x, label, ridge=1.0)  # enough to keep a separable fold finite
    return np.full(len(at), np.nan) if fitted is None else at @ fitted[0][1:] + fitted[0][0]
