"""Baselines that need no state: token probabilities, and controls that see the text alone."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from anchorscope.detect.material import Material, Text
from anchorscope.detect.method import Method
from anchorscope.errors import unknown

Of = Literal["question", "answer", "both"]
_C = 1.0  # scikit-learn's own; rows of TF-IDF have length 1
Over = Literal["answer", "exact"]
Reduce = Literal["mean", "min", "sum"]
_REDUCE = {"mean": np.mean, "min": np.min, "sum": np.sum}


class Columns(Method):
    """Logistic regression on a few standardised numbers of each answer."""

    text_only = True
    single = True

    def _columns(self, material: Material) -> np.ndarray:
        raise NotImplementedError

    def _learn(self, material: Material) -> None:
        x = self._columns(material)
        scaler = StandardScaler().fit(x)
        solver = LogisticRegression(class_weight="balanced").fit(scaler.transform(x), material.z)
        self.coef_ = solver.coef_[0] / np.asarray(scaler.scale_)
        self.intercept_ = float(solver.intercept_[0] - self.coef_ @ scaler.mean_)

    def decision_function(self, material: Material) -> np.ndarray:
        """The logit of each answer, [question]."""
        return self._columns(material) @ self.coef_ + self.intercept_

    def tensors(self) -> dict[str, np.ndarray]:
        return {"coef": self.coef_, "intercept": np.array([self.intercept_])}

    def restore(self, tensors: dict[str, np.ndarray], about: dict[str, Any]) -> Method:
        self.coef_, self.intercept_ = tensors["coef"], float(tensors["intercept"][0])
        return self


class Length(Columns):
    """How long question and answer are."""

    name = "length"

    def _columns(self, material: Material) -> np.ndarray:
        return np.array([_lengths(text) for text in material.texts], dtype=np.float64)


class Popularity(Columns):
    """How much the subject is talked about, as the dataset says."""

    name = "popularity"
    deployable = False  # nobody knows it for a new question

    def lacks(self, material: Material) -> str:
        known = any(np.isfinite(text.popularity) for text in material.texts)
        return "" if known else "the dataset knows no popularity"

    def _columns(self, material: Material) -> np.ndarray:
        values = np.array([text.popularity for text in material.texts])
        missing = np.isnan(values)
        return np.column_stack([np.where(missing, 0.0, values), missing])


class TfIdf(Method):
    """Logistic regression on the words of the question, the answer, or both."""

    text_only = True
    single = True

    def __init__(self, *, of: Of = "both"):
        self.of = of

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"TF-IDF {self.of}"

    def _learn(self, material: Material) -> None:
        self.vectorizers_ = {
            part: TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b").fit(texts)
            for part, texts in self._texts(material).items()
        }
        solver = LogisticRegression(C=_C, class_weight="balanced", max_iter=1000)
        solver.fit(self._matrix(material), material.z)
        coef, intercept = np.asarray(solver.coef_), np.asarray(solver.intercept_)
        self.coef_, self.intercept_ = coef[0], float(intercept[0])

    def decision_function(self, material: Material) -> np.ndarray:
        """The logit of each answer, [question]."""
        return self._matrix(material) @ self.coef_ + self.intercept_

    def tensors(self) -> dict[str, np.ndarray]:
        idf = {f"idf.{part}": v.idf_ for part, v in self.vectorizers_.items()}
        return {**idf, "coef": self.coef_, "intercept": np.array([self.intercept_])}

    def about(self) -> dict[str, Any]:
        words = {p: v.get_feature_names_out().tolist() for p, v in self.vectorizers_.items()}
        return {"words": words}

    def restore(self, tensors: dict[str, np.ndarray], about: dict[str, Any]) -> Method:
        self.vectorizers_ = {}
        for part, words in about["words"].items():
            vectorizer = TfidfVectorizer(
                sublinear_tf=True, token_pattern=r"(?u)\b\w+\b", vocabulary=words
            )
            vectorizer.idf_ = tensors[f"idf.{part}"]
            self.vectorizers_[part] = vectorizer
        self.coef_, self.intercept_ = tensors["coef"], float(tensors["intercept"][0])
        return self

    def _texts(self, material: Material) -> dict[str, list[str]]:
        parts = ("question", "answer") if self.of == "both" else (self.of,)
        return {part: [getattr(text, part) for text in material.texts] for part in parts}

    def _matrix(self, material: Material) -> sparse.csr_matrix:
        texts = self._texts(material)
        matrices = [v.transform(texts[part]) for part, v in self.vectorizers_.items()]
        return sparse.csr_matrix(sparse.hstack(matrices))


def _lengths(text: Text) -> tuple[int, int, int]:
    return len(text.log_probs), len(text.answer), len(text.question)


class TokenLogProb(Method):
    """Minus the mean, minimum or sum of log-probabilities, over the whole answer or E_A alone."""

    learns = False
    single = True
    reads_tokens = True

    def __init__(self, *, reduce: Reduce = "mean", over: Over = "answer"):
        self.reduce = reduce
        self.over = over

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.reduce} log-prob" + (" on E_A" if self.over == "exact" else "")

    def lacks(self, material: Material) -> str:
        if self.over == "exact":
            lost = sum(max(t.exact_answer, default=-1) >= len(t.log_probs) for t in material.texts)
            return f"{lost} answers have no log-probability on E_A" if lost else ""
        return ""

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        if self.reduce not in _REDUCE:
            raise unknown("reduce", self.reduce, tuple(_REDUCE))
        reduce = _REDUCE[self.reduce]
        return np.array([-reduce(self._values(t)) for t in material.texts], dtype=np.float64)

    def _values(self, text: Text) -> list[float]:
        if self.over == "exact":
            return [text.log_probs[n] for n in text.exact_answer]
        return list(text.log_probs)


class Perplexity(Method):
    """The perplexity of the whole answer."""

    name = "perplexity"
    learns = False
    single = True
    reads_tokens = True

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        return np.array([np.exp(-np.mean(text.log_probs)) for text in material.texts])


class FirstEntropy(Method):
    """The entropy of the first answer token."""

    name = "first-token entropy"
    learns = False
    single = True
    reads_tokens = True

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        return np.array([text.first_entropy for text in material.texts])


class PTrue(Method):
    """One minus the probability the model itself gives "True" when asked about its answer."""

    name = "P(True)"
    learns = False
    single = True
    deployable = False
    extra_passes = 1.0

    def lacks(self, material: Material) -> str:
        missing = sum(np.isnan(text.p_true) for text in material.texts)
        return f"P(True) is missing for {missing} answers" if missing else ""

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        return np.array([1 - text.p_true for text in material.texts])
