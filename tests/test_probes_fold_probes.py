"""Probes of folds fitted together against LinearProbe, fold by fold."""

from __future__ import annotations

import numpy as np
import pytest

from anchorscope.errors import UserError
from anchorscope.probes.fold_probes import FoldTask, fit_fold_tasks, fold_logits, task_logits
from anchorscope.probes.linear_probe import LinearProbe


def world(n: int = 200, width: int = 30) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States, labels that two features carry, and folds 0, 1, 2, 4 of unlike size."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, width)) * np.geomspace(0.1, 10, width)
    label = (x[:, 0] / 0.1 + x[:, -1] / 10 + rng.standard_normal(n) > 0.5).astype(float)
    return x, label, rng.choice([0, 1, 2, 4], p=[0.1, 0.2, 0.3, 0.4], size=n)


@pytest.mark.parametrize("balance", ["weights", "none"])
def test_each_question_is_read_by_the_probe_of_the_other_folds(balance):
    x, label, fold = world()
    tasks = [FoldTask(np.arange(len(x)), label, fold, 2.0)]
    probes = fit_fold_tasks(x, tasks, balance=balance)
    for number in np.unique(fold):
        rows = fold == number
        alone = LinearProbe(C=2.0, balance=balance).fit(x[~rows], label[~rows])
        for states in (x, x + 0.3):
            expected = alone.decision_function(states[rows])
            assert np.allclose(task_logits(probes, tasks, states)[0][rows], expected, atol=2e-5)


def test_a_fold_whose_others_hold_too_few_of_a_class_has_no_probe():
    x, label, fold = world()
    label[fold != 4] = 0
    label[np.flatnonzero(fold == 0)[:3]] = 1
    (few,) = fold_logits(x, label[None], fold, least=4)  # without fold 4 three are left
    assert np.array_equal(np.isnan(few), fold == 4)
    assert not np.isnan(fold_logits(x, label[None], fold, least=3)).any()
    assert np.isnan(fold_logits(x, np.zeros((1, len(x))), fold)).all()


def test_states_that_are_no_numbers_are_named():
    x, label, fold = world()
    x[5, 2] = np.nan
    with pytest.raises(UserError, match="row 5, column 2"):
        fold_logits(x, label[None], fold)


def test_tasks_fitted_together_are_the_tasks_fitted_alone():
    rng = np.random.default_rng(3)
    x, fold = rng.normal(size=(150, 30)), rng.integers(0, 5, size=150)
    labels = (x[:, :2].T + rng.normal(size=(2, 150)) > 0).astype(float)
    labels[1, ::3] = np.nan  # none of the second task's questions
    together = fold_logits(x, labels, fold, C=0.5)
    for task, logits in zip(labels, together, strict=True):
        own = ~np.isnan(task)
        (alone,) = fold_logits(x[own], task[None, own], fold[own], C=0.5)
        assert logits[own] == pytest.approx(alone, abs=1e-4)
        assert np.isnan(logits[~own]).all()


def test_a_task_with_too_few_of_a_class_has_no_logits():
    x, fold = np.random.default_rng(4).normal(size=(60, 10)), np.arange(60) % 3
    labels = np.array([np.arange(60) % 2, np.arange(60) < 3], dtype=float)
    logits = fold_logits(x, labels, fold, least=5)
    assert np.isfinite(logits[0]).all() and np.isnan(logits[1]).all()
