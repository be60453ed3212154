"""Fold probes: one probe per fold, trained on the others, for several tasks on the same states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anchorscope.config import Balance
from anchorscope.probes.many_fits import (
    DEFAULT_C,
    Request,
    check_finite,
    class_weights,
    fit_many,
    to_single,
)

NO_FOLD = -1  # the key of the probe that held nothing out


@dataclass(frozen=True, kw_only=True)
class FoldProbes:
    """Probes that each held a fold out; none where the other folds hold too few of a class."""

    fold: np.ndarray  # [question]
    weights: dict[int, np.ndarray]  # by fold, [width] float32
    intercept: dict[int, float]


class FoldTask(NamedTuple):
    """Labels to learn on some rows of the states, and how weak the penalty is."""

    rows: np.ndarray  # [member], numbers
    label: np.ndarray  # [member], 0 or 1
    fold: np.ndarray  # [member], 0 or above
    C: float


def fit_fold_tasks(
    x: np.ndarray,
    tasks: Sequence[FoldTask],
    *,
    balance: Balance = "weights",
    least: int = 1,
    everyone: bool = False,
) -> list[FoldProbes]:
    """The probes of several tasks on the same states [question, width], all fitted at once.

    A fold whose others hold fewer than `least` of a class has no probe. `everyone` adds to each
    task a probe of all its rows, under NO_FOLD.
    """
    x = np.asarray(x, dtype=np.float64)
    check_finite(x)
    places, request = _planned(tasks, len(x), balance=balance, least=least, everyone=everyone)
    probes = [FoldProbes(fold=task.fold, weights={}, intercept={}) for task in tasks]
    if places:
        weights, intercept = to_single(*fit_many(x, *request), x, request.weights > 0)
        for fit, (place, number) in enumerate(places):
            probes[place].weights[number] = weights[fit]
            probes[place].intercept[number] = float(intercept[fit])
    return probes


def task_logits(
    probes: Sequence[FoldProbes], tasks: Sequence[FoldTask], states: np.ndarray
) -> list[np.ndarray]:
    """The logit of label 1 of each task's rows of the states [question, width], [member] a task.

    Each row is read by the probe that held its fold out; NaN where the fold has no probe.
    """
    keys = [(place, number) for place, own in enumerate(probes) for number in own.weights]
    logits = [np.full(len(task.rows), np.nan) for task in tasks]
    if not keys:
        return logits
    weights = np.array([probes[place].weights[number] for place, number in keys], dtype=np.float64)
    products = weights @ states.T.astype(np.float64)  # [probe, question]
    for (place, number), product in zip(keys, products, strict=True):
        read = tasks[place].fold == number
        logits[place][read] = product[tasks[place].rows[read]] + probes[place].intercept[number]
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
    """The logits [task, question] of fold probes for labels [task, question] on states x.

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


def _planned(
    tasks: Sequence[FoldTask], n: int, *, balance: Balance, least: int, everyone: bool
) -> tuple[list[tuple[int, int]], Request]:
    """The task and held-out fold of each fit with enough of both classes, and the fits."""
    places, labels, learns = [], [], []
    for place, task in enumerate(tasks):
        label = np.zeros(n)
        label[task.rows] = task.label == 1
        for number in [*np.unique(task.fold), *([NO_FOLD] if everyone else [])]:
            rows = task.rows[task.fold != number]
            ones = label[rows].sum()
            if min(ones, len(rows) - ones) >= max(least, 1):
                places.append((place, int(number)))
                labels.append(label)
                learns.append(np.isin(np.arange(n), rows))
    y, member = np.reshape(labels, (-1, n)), np.reshape(np.array(learns, dtype=bool), (-1, n))
    C = np.array([float(tasks[place].C) for place, _ in places])
    return places, Request(y=y, weights=class_weights(y, member, balance), C=C)
