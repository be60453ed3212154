"""Fold probes: one probe per fold, trained on the others, for several tasks on the same states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from anchorscope.config import Balance
from anchorscope.probes.cross_fit import DEFAULT_C
from anchorscope.stats.logistic import check_finite, class_weights, fit_many, to_single

# Weights [width] float32 and intercept by the fold held out; none where the other folds hold too
# few of a class.
FoldProbes = dict[int, tuple[np.ndarray, float]]


class FoldTask(NamedTuple):
    """Labels to learn on some rows of the states, and how weak the penalty is."""

    rows: np.ndarray  # [member], numbers
    label: np.ndarray  # [member], 0 or 1
    fold: np.ndarray  # [member], 0 or above
    C: float


def fit_fold_tasks(
    x: np.ndarray, tasks: Sequence[FoldTask], *, balance: Balance = "weights", least: int = 1
) -> list[FoldProbes]:
    """The probes of several tasks on the same states [question, width], all fitted at once.

    A fold has no probe where the other folds hold fewer than `least` of a class.
    """
    x = np.asarray(x, dtype=np.float64)
    check_finite(x)
    probes: list[FoldProbes] = [{} for _ in tasks]
    places, labels, learns = [], [], []  # of each fit
    for task, own in zip(tasks, probes, strict=True):
        label = np.zeros(len(x))
        label[task.rows] = task.label == 1
        for number in map(int, np.unique(task.fold)):
            rows = task.rows[task.fold != number]
            ones = label[rows].sum()
            if min(ones, len(rows) - ones) >= max(least, 1):
                places.append((own, number, float(task.C)))
                labels.append(label)
                learns.append(np.isin(np.arange(len(x)), rows))
    if places:
        y, member = np.array(labels), np.array(learns)
        C = np.array([C for _, _, C in places])
        fitted = fit_many(x, y, class_weights(y, member, balance), C)
        made = zip(places, *to_single(*fitted, x, member), strict=True)
        for (own, number, _), weights, intercept in made:
            own[number] = weights, float(intercept)
    return probes


def task_logits(
    probes: Sequence[FoldProbes], tasks: Sequence[FoldTask], states: np.ndarray
) -> list[np.ndarray]:
    """Held-out logits of label 1 for the rows of each task, [member], on states [question, width].

    Each row is read by the probe that held its fold out; NaN where the fold has no probe.
    """
    states, logits = states.astype(np.float64), []
    for task, own in zip(tasks, probes, strict=True):
        logits.append(np.full(len(task.rows), np.nan))
        for number, (weights, intercept) in own.items():
            read = task.fold == number
            logits[-1][read] = states[task.rows[read]] @ weights.astype(np.float64) + intercept
    return logits


def fold_logits(
    x: np.ndarray,
    labels: np.ndarray,
    fold: np.ndarray,
    *,
    C: float = DEFAULT_C,
    balance: Balance = "weights",
    least: int = 1,
) -> np.ndarray:
    """Cross-fitted logits [task, question] for labels [task, question] on states x.

    Labels are 0 or 1, NaN where a question is not in the task; its logit is NaN then, and where
    the other folds hold fewer than `least` of a class.
    """
    members = [np.flatnonzero(~np.isnan(label)) for label in labels]
    tasks = [FoldTask(r, own[r], fold[r], C) for own, r in zip(labels, members, strict=True)]
    probes = fit_fold_tasks(x, tasks, balance=balance, least=least)
    logits = np.full(labels.shape, np.nan)
    for row, task, read in zip(logits, tasks, task_logits(probes, tasks, x), strict=True):
        row[task.rows] = read
    return logits
