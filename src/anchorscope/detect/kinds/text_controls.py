"""Controls that see the text alone: length, popularity, and the words of question and answer."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from anchorscope.detect.material import Material
from anchorscope.detect.method import Columns, Method

Words = Literal["question", "answer", "both"]


class Length(Columns):
    """How long question and answer are."""

    name = "length"
    text_only = True

    def _columns(self, material: Material) -> np.ndarray:
        lengths = [(len(t.log_probs), len(t.answer), len(t.question)) for t in material.texts]
        return np.array(lengths, dtype=np.float64)


class Popularity(Columns):
    """How much the subject is talked about, as the dataset says."""

    name = "popularity"
    text_only = True

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

    def __init__(self, *, words: Words = "both"):
        self.words: Words = words

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"TF-IDF {self.words}"

    def _learn(self, material: Material) -> None:
        self.vectorizers_ = {
            part: TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b").fit(texts)
            for part, texts in self._texts(material).items()
        }
        self.solver_ = LogisticRegression(class_weight="balanced", max_iter=1000)
        self.solver_.fit(self._matrix(material), material.z)

    def decision_function(self, material: Material) -> np.ndarray:
        """The logit of each answer, [question]."""
        return np.asarray(self.solver_.decision_function(self._matrix(material)))

    def _texts(self, material: Material) -> dict[str, list[str]]:
        parts = ("question", "answer") if self.words == "both" else (self.words,)
        return {part: [getattr(text, part) for text in material.texts] for part in parts}

    def _matrix(self, material: Material) -> sparse.csr_matrix:
        texts = self._texts(material)
        matrices = [v.transform(texts[part]) for part, v in self.vectorizers_.items()]
        return sparse.csr_matrix(sparse.hstack(matrices))
