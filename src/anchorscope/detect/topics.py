"""Kinds of questions within one dataset, found in their words.

A detector that is to be used on other questions is judged by topics that it did not learn from:
folds by entity only change the names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

TOPICS = 5
_DIRECTIONS = 20  # of largest spread: distances in thousands of words are all alike


def topics_of(questions: Sequence[str], entities: Sequence[str], *, seed: int) -> np.ndarray:
    """The topic of each question, [question] int from 0; all questions of an entity share one."""
    count = min(TOPICS, len(set(questions)))
    labels: Any = KMeans(n_clusters=count, n_init=cast(Any, 4), random_state=seed).fit_predict(
        _points(questions, seed)
    )
    home: dict[str, int] = {}
    for entity, label in zip(entities, labels, strict=True):
        home.setdefault(entity, int(label))
    _, numbers = np.unique([home[entity] for entity in entities], return_inverse=True)
    return numbers


def _points(questions: Sequence[str], seed: int) -> np.ndarray:
    """Questions as points on a sphere, [question, direction]."""
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b")
    counts: Any = words.fit_transform(questions)
    if min(counts.shape) <= _DIRECTIONS:
        return np.asarray(counts.todense())
    reduce = TruncatedSVD(n_components=_DIRECTIONS, random_state=seed)
    return normalize(reduce.fit_transform(counts))
