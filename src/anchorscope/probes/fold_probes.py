"""One probe per fold, trained on all other folds: the logit of each question from the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anchorscope.config import Balance
from anchorscope.probes.many_fits import (
    DEFAULT_C,
    Made,
    Request,
    check_finite,
    class_weights,
    fit_many,
    to_single,
)

NO_FOLD = -1  # what the probe that held nothing out is kept under


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


class FoldTask(NamedTuple):
    """Fold probes that are asked for: of which rows of the states, and how strong a penalty."""

    rows: np.ndarray  # [member], numbers
    label: np.ndarray  # [member], 0 or 1
    fold: np.ndarray  # [member], 0 or above
    C: float


def fit_fold_probes(
    x: np.ndarray,
    label: np.ndarray,
    fold: np.ndarray,
    *,
    C: float = DEFAULT_C,
    balance: Balance = "weights",
    least: int = 1,
    fits: Made | None = None,
) -> FoldProbes:
    """The probes of states x [question, width] and labels 0 or 1, all folds fitted at once.

    A fold whose others hold fewer than `least` of a class has no probe. `fits` are those of
    `task_request`, where somebody has made them already.
    """
    task = FoldTask(np.arange(len(x)), label, fold, C)
    return fit_fold_tasks(x, [task], balance=balance, least=least, fits=fits)[0]


def label_tasks(labels: np.ndarray, fold: np.ndarray, *, C: float) -> list[FoldTask]:
    """The tasks of labels [task, question], NaN for a question that is none of the task's."""
    member = ~np.isnan(labels)
    return [
        FoldTask(np.flatnonzero(own), label[own], fold[own], C)
        for label, own in zip(labels, member, strict=True)
    ]


def task_request(
    tasks: Sequence[FoldTask], n: int, *, balance: Balance = "weights", least: int = 1
) -> Request | None:
    """The fits of tasks on n questions, which may be made beforehand; None where there is none."""
    asked = _asked(tasks, n, balance=balance, least=least, everyone=False)
    return asked.request if asked.who else None


def fit_fold_tasks(
    x: np.ndarray,
    tasks: Sequence[FoldTask],
    *,
    balance: Balance = "weights",
    least: int = 1,
    everyone: bool = False,
    fits: Made | None = None,
) -> list[FoldProbes]:
    """The probes of several tasks on the same states [question, width], all fitted at once.

    With `everyone` each task has a probe of all its rows too, as that of fold NO_FOLD. `fits` are
    those of `task_request`, where somebody has made them already.
    """
    x = np.asarray(x, dtype=np.float64)
    check_finite(x)
    asked = _asked(tasks, len(x), balance=balance, least=least, everyone=everyone)
    found = [FoldProbes(fold=task.fold, weights={}, intercept={}) for task in tasks]
    if not asked.who:
        return found
    made = fits or fit_many(x, *asked.request)
    weights, intercept = to_single(*made, x, asked.request.weights > 0)
    for fit, (place, number) in enumerate(asked.who):
        found[place].weights[number] = weights[fit]
        found[place].intercept[number] = float(intercept[fit])
    return found


class _Asked(NamedTuple):
    who: list[tuple[int, int]]  # the task of each fit, and the fold it holds out
    request: Request


def _asked(
    tasks: Sequence[FoldTask], n: int, *, balance: Balance, least: int, everyone: bool
) -> _Asked:
    """The fits behind several tasks on n questions, those with enough of both classes."""
    asked = [
        (place, int(number), task.rows[task.fold != number])
        for place, task in enumerate(tasks)
        for number in [*np.unique(task.fold), *([NO_FOLD] if everyone else [])]
    ]
    label = np.zeros((len(tasks), n))
    for place, task in enumerate(tasks):
        label[place, task.rows] = task.label == 1
    ones = np.array([label[place, rows].sum() for place, _, rows in asked])
    count = np.array([len(rows) for _, _, rows in asked])
    enough = np.flatnonzero(np.minimum(ones, count - ones) >= max(least, 1))
    asked = [asked[fit] for fit in enough]
    learns = np.zeros((len(asked), n), dtype=bool)
    for fit, (_, _, rows) in enumerate(asked):
        learns[fit, rows] = True
    who = [(place, number) for place, number, _ in asked]
    y = label[[place for place, _ in who]]
    C = np.array([float(tasks[place].C) for place, _ in who])
    return _Asked(who, Request(y=y, weights=class_weights(y, learns, balance), C=C))


def task_logits(
    probes: Sequence[FoldProbes], tasks: Sequence[FoldTask], states: np.ndarray
) -> list[np.ndarray]:
    """What `FoldProbes.logits` gives for the rows of each task, [member], in one product."""
    own = [(place, number) for place, of in enumerate(probes) for number in of.weights]
    found = [np.full(len(task.rows), np.nan) for task in tasks]
    if not own:
        return found
    weights = np.array([probes[place].weights[number] for place, number in own], dtype=np.float64)
    every = weights @ states.T.astype(np.float64)  # [probe, question]
    for (place, number), of in zip(own, every, strict=True):
        read = tasks[place].fold == number
        found[place][read] = of[tasks[place].rows[read]] + probes[place].intercept[number]
    return found


def fold_logits(
    x: np.ndarray,
    labels: np.ndarray,
    fold: np.ndarray,
    *,
    C: float = DEFAULT_C,
    balance: Balance = "weights",
    least: int = 1,
    fits: Made | None = None,
) -> np.ndarray:
    """The logits [task, question] that fold probes give, for several tasks on the same states.

    `labels` [task, question] are 0 or 1, NaN for a question that is none of the task's. All tasks
    and folds are fitted at once; NaN where the other folds hold fewer than `least` of a class.
    `fits` are those of `task_request`, where somebody has made them already.
    """
    tasks = label_tasks(labels, fold, C=C)
    probes = fit_fold_tasks(x, tasks, balance=balance, least=least, fits=fits)
    logits = np.full(labels.shape, np.nan)
    for own, task, read in zip(logits, tasks, task_logits(probes, tasks, x), strict=True):
        own[task.rows] = read
    return logits
