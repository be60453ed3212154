"""One linear probe: regularised logistic regression that acts on raw states."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from anchorscope.config import Balance
from anchorscope.errors import unknown
from anchorscope.probes.cross_fit import DEFAULT_C
from anchorscope.stats.logistic import (
    ProbeInputError,
    check_finite,
    class_weights,
    fit_many,
    to_single,
)


class LinearProbe(ClassifierMixin, BaseEstimator):
    """Linear probe: a classifier with logit = x · coef_ + intercept_ on raw states.

    `C` is the inverse strength of the L2 penalty, on standardised features and against the mean
    of the losses: probes with the same `C` are penalised alike, whatever number of answers they
    learn from (scikit-learn's C, against the sum, is this one divided by their number). `balance`:
    "weights" gives both classes the same total weight, "none" leaves every answer its own.

    Features are standardised on the training states, and the standardisation is then folded
    into `coef_` [1, width] and `intercept_` [1]. A feature without spread gets weight 0.

    Examples:
        >>> import anchorscope as anc
        >>> import numpy as np
        >>> wrong = np.arange(100) % 2
        >>> states = np.random.default_rng(0).standard_normal((100, 8)) + wrong[:, None]
        >>> anc.LinearProbe().fit(states, wrong).predict_proba(states).shape
        (100, 2)

    """

    def __init__(self, *, C: float = DEFAULT_C, balance: Balance = "weights"):
        self.C = C
        self.balance: Balance = balance

    def fit(self, X, y) -> LinearProbe:
        """Train the probe on states X [question, width] and their classes y; returns itself."""
        if self.balance not in get_args(Balance):
            raise unknown("balance", self.balance, get_args(Balance))
        if not self.C > 0:
            raise ProbeInputError(f"C is {self.C}; accepted: any number above 0.")
        checked: Any = validate_data(self, X, y, dtype=np.float64, ensure_all_finite=False)
        X, y = checked
        check_finite(X)
        self.classes_ = _two_classes(y)
        z = (y == self.classes_[1]).astype(np.float64)
        everyone = np.ones((1, len(z)), dtype=bool)
        fits = fit_many(X, z, class_weights(z, everyone, self.balance), np.array([float(self.C)]))
        self.coef_, self.intercept_ = to_single(*fits, X, everyone)
        return self

    def decision_function(self, X) -> np.ndarray:
        """The logit of classes_[1] for each state, [question]."""
        check_is_fitted(self)
        states: Any = validate_data(self, X, dtype=np.float64, reset=False, ensure_all_finite=False)
        check_finite(states)
        return states @ self.coef_[0].astype(np.float64) + self.intercept_[0]

    def predict_proba(self, X) -> np.ndarray:
        """The probability of both classes for each state, [question, 2]."""
        logit = self.decision_function(X)
        return np.column_stack([expit(-logit), expit(logit)])

    def predict(self, X) -> np.ndarray:
        """The more likely class of each state, [question]."""
        positive = self.decision_function(X) > 0  # raises where there was no fit
        return self.classes_[positive.astype(int)]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


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
