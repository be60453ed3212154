"""How far two finders of exact question tokens mark the same characters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from anchorscope.records import Question, Span
from anchorscope.spans.text import characters

COLUMNS = ["dataset", "finder_a", "finder_b", "n", "jaccard", "identical"]
SpansById = Mapping[str, tuple[Span, ...]]


def agreement(
    questions: Sequence[Question], found_by_finder: Mapping[str, SpansById]
) -> pd.DataFrame:
    """One row per dataset and pair of finders, over the questions in which both marked something.

    jaccard: mean over questions of shared / all marked characters; identical: the share of
    questions marked alike. Both are NaN where no question has both.
    """
    rows = []
    for dataset in dict.fromkeys(question.dataset for question in questions):
        ids = [question.id for question in questions if question.dataset == dataset]
        for a, b in combinations(found_by_finder, 2):
            scores = _scores(ids, found_by_finder[a], found_by_finder[b])
            n = len(scores)
            jaccard = float(np.mean(scores)) if n else np.nan
            identical = float(np.mean([s == 1 for s in scores])) if n else np.nan
            rows.append((dataset, a, b, n, jaccard, identical))
    return pd.DataFrame(rows, columns=COLUMNS)


def _scores(ids: Sequence[str], a: SpansById, b: SpansById) -> list[float]:
    both = [(characters(a[i]), characters(b[i])) for i in ids if a.get(i) and b.get(i)]
    return [len(left & right) / len(left | right) for left, right in both]
