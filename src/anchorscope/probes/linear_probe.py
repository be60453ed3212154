"""One linear probe: regularised logistic regression that acts on raw states."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from anchorscope.config import Balance
from anchorscope.errors import UserError, unknown

# For standardised features and the sum (not the mean) of the losses, as scikit-learn counts C.
# On made-up states with falling spectra (n 320 and 1,200, width 576 and 1,536) held-out AUROC
# peaks between 0.001 and 0.01; 0.003 is within 0.005 of the peak in all of them.
DEFAULT_C = 0.003
# Logits are then within 0.001 of the exact solution, for C up to 0.01. Plain L-BFGS takes about
# 15, 40 and 130 ms on [320, 576], [1200, 576] and [1200, 1536] (one slow core). Measured and
# left out: fitting in the row space where width > n (QR 490 ms, Gram matrix 130 ms, before the
# first step of the solver), Newton-Cholesky (5-20 times slower), single precision (a third
# faster at best, and logits off by up to 0.005).
TOLERANCE = 1e-5
MAX_ITERATIONS = 1000


class ProbeInputError(UserError, ValueError):
    """A UserError to the command line; the ValueError that scikit-learn's tools expect."""


class LogitClassifier(ClassifierMixin, BaseEstimator):
    """Two classes told apart by the sign of `decision_function`, in scikit-learn's manner."""

    def predict_proba(self, X) -> np.ndarray:
        """The probability of both classes for each state, [question, 2]."""
        logit = self.decision_function(X)  # type: ignore[attr-defined]
        return np.column_stack([expit(-logit), expit(logit)])

    def predict(self, X) -> np.ndarray:
        """The more likely class of each state, [question]."""
        above = self.decision_function(X) > 0  # type: ignore[attr-defined]
        return self.classes_[above.astype(int)]  # type: ignore[attr-defined]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class LinearProbe(LogitClassifier):
    """Classifier with logit = x · coef_ + intercept_ on states as they come.

    `C` is the inverse strength of the L2 penalty, on standardised features. `balance`: "weights"
    gives both classes the same total weight, "none" leaves every answer its own.

    Features are standardised on the training states, and the standardisation is then folded
    into `coef_` [1, width] and `intercept_` [1]. A feature without spread gets weight 0.
    """

    def __init__(self, *, C: float = DEFAULT_C, balance: Balance = "weights"):
        self.C = C
        self.balance = balance

    def fit(self, X, y) -> LinearProbe:
        """The probe itself, trained on states X [question, width] and their classes y."""
        if self.balance not in get_args(Balance):
            raise unknown("balance", self.balance, get_args(Balance))
        if not self.C > 0:
            raise ProbeInputError(f"C is {self.C}; accepted: any number above 0.")
        checked: Any = validate_data(self, X, y, dtype=np.float64, ensure_all_finite=False)
        X, y = checked
        check_finite(X)
        self.classes_ = _two_classes(y)
        mean, scale = _mean_and_scale(X)
        solver = LogisticRegression(
            C=self.C,
            class_weight="balanced" if self.balance == "weights" else None,
            tol=TOLERANCE,
            max_iter=MAX_ITERATIONS,
        ).fit((X - mean) / scale, y == self.classes_[1])
        self.n_iter_ = int(solver.n_iter_[0])
        # Rounded to single precision here, and the intercept worked out afterwards, so that the
        # probe that is saved is exactly the probe that is used.
        self.coef_ = (solver.coef_ / scale).astype(np.float32)
        self.intercept_ = solver.intercept_ - self.coef_.astype(np.float64) @ mean
        return self

    def decision_function(self, X) -> np.ndarray:
        """The logit of classes_[1] for each state, [question]."""
        check_is_fitted(self)
        states: Any = validate_data(self, X, dtype=np.float64, reset=False, ensure_all_finite=False)
        check_finite(states)
        return states @ self.coef_[0].astype(np.float64) + self.intercept_[0]


def check_finite(X: np.ndarray) -> None:
    """Raise where X [question, width] holds NaN or infinity, naming the first place."""
    if not np.isfinite(X).all():
        rows, columns = np.nonzero(~np.isfinite(X))
        raise ProbeInputError(
            f"The states hold NaN or inf in {len(np.unique(rows))} of {len(X)} rows (first: row "
            f"{rows[0]}, column {columns[0]}). Leave these questions out or compute their "
            "states again."
        )


def _two_classes(y: np.ndarray) -> np.ndarray:
    check_classification_targets(y)
    classes = np.unique(y)
    if len(classes) > 2:
        raise ProbeInputError(
            "Only binary classification is supported. The type of the target is "
            f"{type_of_target(y)}: it has {len(classes)} classes."
        )
    if len(classes) < 2:
        raise ProbeInputError(
            f"All training answers are of one class ({classes[0]}); a probe needs both."
        )
    return classes


def _mean_and_scale(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, scale = X.mean(axis=0), X.std(axis=0)
    # The mean of equal numbers is rounded, so a constant feature can show a spread of the
    # rounding's size; dividing by it would blow that up to a feature. StandardScaler (the same
    # bits else) divides by 1 too, but subtracts the rounded mean: the weight is then not 0.
    constant = np.ptp(X, axis=0) == 0
    mean[constant], scale[constant] = X[0, constant], 1.0
    return mean, scale
