"""Who is tested on what: folds at random, and folds disjoint by entity, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from sklearn.model_selection import StratifiedKFold

from anchorscope.errors import UserError, unknown
from anchorscope.probes.splits import entity_folds

Split = Literal["random", "entity"]
SPLITS: tuple[Split, ...] = get_args(Split)
MIN_PER_CLASS = 20  # of all answers: an inner fold then trains on about ten of each class


def outer_folds(
    z: np.ndarray, entities: Sequence[str], *, split: Split, folds: int, seed: int
) -> np.ndarray:
    """The fold that tests each question, [question] int."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if split == "random":
        return random_folds(z, folds=folds, seed=seed)
    return entity_folds(entities, folds=folds, seed=seed)


def random_folds(z: np.ndarray, *, folds: int, seed: int) -> np.ndarray:
    """Folds with like shares of wrong answers, [question] int, whatever the entities."""
    fold = np.zeros(len(z), dtype=np.int64)
    splitter = StratifiedKFold(n_splits=folds, shuffle=True, random_state=seed)
    for number, (_, held) in enumerate(splitter.split(z, z)):
        fold[held] = number
    return fold


def check_classes(z: np.ndarray, *, dataset: str) -> None:
    """Raise a UserError where there are too few right or wrong answers to learn from."""
    wrong, right = int(np.sum(z == 1)), int(np.sum(z == 0))
    if min(wrong, right) < MIN_PER_CLASS:
        raise UserError(
            f"{dataset}: {wrong} wrong and {right} right answers; a detector needs at least "
            f"{MIN_PER_CLASS} of each. Ask more questions."
        )
