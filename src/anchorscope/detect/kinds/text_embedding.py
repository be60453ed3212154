"""A control that sees the text alone: a sentence encoder of question and answer, and a classifier.

The vectors are computed once, before detectors are fitted, and lie beside the states.
"""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
from sklearn.linear_model import LogisticRegression

from anchorscope.detect.material import Bank, Material
from anchorscope.detect.method import Cost, Method
from anchorscope.errors import UserError

EMBEDDING = "text-embedding"
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"


class TextEmbedding(Method):
    """Logistic regression on the encoder's vector of question and answer, of length 1."""

    name = "text embedding"
    text_only = True
    deployable = False  # a detector's folder holds no encoder
    extra_passes = 1.0  # of the encoder

    def lacks(self, material: Material) -> str:
        if material.has(EMBEDDING):
            return ""
        if find_spec("sentence_transformers") is None:
            return "sentence-transformers is not installed"
        return "the texts were not encoded (--encoder MODEL)"

    def decision_function(self, material: Material) -> np.ndarray:
        """The logit of each answer, [question]."""
        return material.layer(EMBEDDING, 1).astype(np.float64) @ self.coef_ + self.intercept_

    def cost(self, material: Material) -> Cost:
        """The encoder's pass over a text, and its milliseconds."""
        return Cost(self.extra_passes, getattr(material.bank, "ms", 0.0))

    def _learn(self, material: Material) -> None:
        solver = LogisticRegression(class_weight="balanced", max_iter=1000)
        solver.fit(material.layer(EMBEDDING, 1), material.z)
        coef, intercept = np.asarray(solver.coef_), np.asarray(solver.intercept_)
        self.coef_, self.intercept_ = coef[0].astype(np.float64), float(intercept[0])


class _WithVectors:
    """A bank with the texts' vectors beside the states."""

    def __init__(self, bank: Bank, vectors: np.ndarray, ms: float) -> None:
        self.bank, self.vectors, self.ms = bank, vectors, ms

    @property
    def layers(self) -> int:
        return self.bank.layers

    @property
    def names(self) -> frozenset[str]:
        return self.bank.names | {EMBEDDING}

    def layer(self, name: str, layer: int) -> np.ndarray:
        """The states [question, width] of one layer, or the vectors."""
        return self.vectors if name == EMBEDDING else self.bank.layer(name, layer)


def with_vectors(material: Material, encoder: str | None) -> Material:
    """The material with each text's vector; as it was where sentence-transformers is missing.

    Where no encoder is named, the usual one is taken if it is on this machine already: nobody
    who did not ask for it is to wait for a download, least of all where there is no network.
    """
    if find_spec("sentence_transformers") is None:
        if encoder is not None:
            raise UserError(
                "--encoder needs sentence-transformers: pip install sentence-transformers."
            )
        return material
    from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

    try:
        model = SentenceTransformer(encoder or ENCODER, local_files_only=encoder is None)
    except (OSError, ValueError) as error:
        if encoder is None:
            return material
        raise UserError(
            f"No sentence encoder could be loaded from '{encoder}': {error}."
        ) from error
    begun = time.perf_counter()
    texts = [f"{text.question} {text.answer}" for text in material.texts]
    vectors = np.asarray(model.encode(texts, normalize_embeddings=True), dtype=np.float32)
    ms = (time.perf_counter() - begun) * 1000 / max(1, len(texts))
    everywhere = np.full((int(material.rows.max()) + 1, vectors.shape[1]), np.nan, np.float32)
    everywhere[material.rows] = vectors
    return replace(material, bank=_WithVectors(material.bank, everywhere, ms), memo={})
