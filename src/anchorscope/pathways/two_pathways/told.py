"""How far the clean belief alone tells two humps apart: then they are its margin, no pathway."""

from __future__ import annotations

import numpy as np

from anchorscope.pathways.one_law import Known
from anchorscope.stats.ranking import auroc

_FEWEST = 40  # samples of a class below which it is not asked


def told(lower: np.ndarray, known: Known) -> float:
    """AUROC of the clean belief for the humps, the larger of the predicted classes'.

    Each sample is scored by the share of the lower hump among the samples of other folds whose
    belief is nearest, so that any smooth function of the belief counts, not only a rising one.
    """
    areas = []
    for mine in (known.predicted == which for which in np.unique(known.predicted)):
        if mine.sum() >= _FEWEST and 0 < lower[mine].sum() < mine.sum():
            score = _nearest_share(known.belief[mine], lower[mine], known.fold[mine])
            areas.append(auroc(lower[mine].astype(int), score))
    return float(max(areas, default=np.nan))


def _nearest_share(belief: np.ndarray, lower: np.ndarray, fold: np.ndarray) -> np.ndarray:
    score = np.full(len(belief), lower.mean())
    for test in (fold == number for number in np.unique(fold)):
        order = np.argsort(belief[~test])
        x, hits = belief[~test][order], lower[~test][order].astype(float)
        count = min(len(x), max(10, int(np.sqrt(len(belief)))))
        if count:
            total = np.concatenate([[0.0], np.cumsum(hits)])
            start = np.clip(np.searchsorted(x, belief[test]) - count // 2, 0, len(x) - count)
            score[test] = (total[start + count] - total[start]) / count
    return score
