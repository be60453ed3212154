"""Detectors by name: token scores, sampled answers, text controls, probes, and mixtures.

Semantic entropy: Kuhn et al. 2023 and Farquhar et al. 2024, each meaning weighed by how many
answers have it. Self-check: SelfCheckGPT, Manakul et al. 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.stats import entropy
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from anchorscope.answers.judge import is_abstention, judge
from anchorscope.detect.material import PEER, Material, SampledAnswers, Text
from anchorscope.detect.method import Method, choose, inner_logits, layer_scores, whole_probe
from anchorscope.detect.pathway_kinds import MixtureOfProbes, PathwayReweighting, linear
from anchorscope.errors import UserError, unknown
from anchorscope.stats.ranking import auroc

Words = Literal["question", "answer", "both"]
_RANGE = (0.01, 0.99)  # quantiles of the training answers, to clip a score
_RIDGE = 1e-3  # L2 penalty on the mean loss; keeps the weights finite where classes are separable
_LAYERS = 5  # number of probes whose mean `combined` reads
AUTO = "auto"
_NEAR = 0.02  # AUROC by which `auto` lets a preferred candidate fall short


# --- Scores that are a function of an answer ---


class PerAnswer(Method):
    """A score computed from each answer alone, with nothing to learn."""

    learns = False
    single = True

    def __init__(
        self,
        name: str,
        score: Callable[[Text], float],
        *,
        reads_tokens: bool = False,
        extra_passes: float = 0.0,
    ):
        self.name, self.score = name, score
        self.reads_tokens, self.extra_passes = reads_tokens, extra_passes

    def lacks(self, material: Material) -> str:
        if reason := super().lacks(material):
            return reason
        missing = int(np.isnan(self.decision_function(material)).sum())
        return f"{self.name} is missing for {missing} answers" if missing else ""

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        return np.array([self.score(text) for text in material.texts], dtype=float)


def entity_log_prob(text: Text) -> float:
    """Minus the lowest token log-probability in E_A; punctuation around it is ignored."""
    return -min(text.log_probs[n] for n in text.exact_answer)


class Columns(Method):
    """Logistic regression on a few numbers, or texts, of each answer."""

    single = True

    def __init__(self, name: str, columns: Callable[[Text], Sequence[Any]], *, text_only: bool):
        self.name, self.columns, self.text_only = name, columns, text_only

    def _scaler(self) -> Any:
        """The transformer that turns the columns into features."""
        return StandardScaler()

    def _table(self, material: Material) -> pd.DataFrame:
        return pd.DataFrame([self.columns(text) for text in material.texts])

    def _learn(self, material: Material) -> None:
        solver = LogisticRegression(class_weight="balanced", max_iter=1000)
        self.model_ = make_pipeline(self._scaler(), solver).fit(self._table(material), material.z)

    def decision_function(self, material: Material) -> np.ndarray:
        """The logit of each answer, [question]."""
        return np.asarray(self.model_.decision_function(self._table(material)))


class TokenFeatures(Columns):
    """Logistic regression on statistics of token log-probability and entropy, and the length."""

    reads_tokens = True

    def __init__(self) -> None:
        super().__init__("token features", _token_statistics, text_only=False)

    def lacks(self, material: Material) -> str:
        if all(len(text.entropies) == len(text.log_probs) for text in material.texts):
            return super().lacks(material)
        return "the entropy of each token was not kept (collect again)"


def _token_statistics(text: Text) -> list[Any]:
    """Statistics of token log-probability and entropy over the answer and E_A; its log length."""
    both = [np.array(text.log_probs), np.array(text.entropies)]
    exact = list(text.exact_answer)
    return [
        *(f(values) for values in both for f in (np.mean, np.min, np.max, np.std)),
        *(values[place] for values in both for place in (0, -1)),
        *(f(values[exact]) for values in both for f in (np.mean, np.min, np.max)),
        np.log(len(text.log_probs)),
    ]


class Popularity(Columns):
    """Logistic regression on the popularity of the subject, as the dataset gives it."""

    def __init__(self) -> None:
        def columns(text: Text) -> tuple[float, bool]:
            missing = bool(np.isnan(text.popularity))
            return 0.0 if missing else text.popularity, missing

        super().__init__("popularity", columns, text_only=True)

    def lacks(self, material: Material) -> str:
        has_any = any(np.isfinite(text.popularity) for text in material.texts)
        return "" if has_any else "the dataset knows no popularity"


class TfIdf(Columns):
    """Logistic regression on the words of the question, the answer, or both."""

    def __init__(self, words: Words):
        both = [0, 1] if words == "both" else [("question", "answer").index(words)]
        super().__init__(f"TF-IDF {words}", lambda t: (t.question, t.answer), text_only=True)
        self.parts = both

    def _scaler(self) -> ColumnTransformer:
        words = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
        return ColumnTransformer([(str(part), words, part) for part in self.parts])


# --- Several sampled answers to one question ---


class OverSamples(Method):
    """A score from the meanings of the answer and of further sampled answers.

    A deployed detector samples as many, at the same temperature, for every answer that it scores.
    """

    learns = False
    saved = ("samples_", "temperature_")

    def __init__(self, name: str, score: Callable[[np.ndarray], float]):
        self.name = name
        self.score = score  # takes the answer's meaning, then each sampled answer's

    def lacks(self, material: Material) -> str:
        if any(text.sampled is None for text in material.texts):
            return "no answers were drawn (detect collect --samples 10)"
        return ""

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        return np.array([self.score(_meanings(t, t.sampled)) for t in material.texts if t.sampled])

    def cost(self, material: Material) -> tuple[float, float]:
        """The mean forward passes and milliseconds of sampling per answer."""
        costs = [(t.sampled.passes, t.sampled.ms) for t in material.texts if t.sampled]
        passes, ms = np.mean(costs, axis=0).tolist()
        return passes, ms

    def _learn(self, material: Material) -> None:
        sampled = [text.sampled for text in material.texts if text.sampled]
        self.samples_ = max(len(one.texts) for one in sampled)
        self.temperature_ = sampled[0].temperature


def semantic_entropy(meanings: np.ndarray) -> float:
    """The entropy, in nats, of the meanings of the sampled answers."""
    return float(entropy(np.bincount(meanings[1:])))


def disagreement(meanings: np.ndarray) -> float:
    """The share of sampled answers whose meaning differs from the answer's."""
    return float(np.mean(meanings[1:] != meanings[0]))


def _meanings(text: Text, sampled: SampledAnswers) -> np.ndarray:
    """Group the answer and the sampled ones by meaning: numbers from 0, [1 + sampled answer].

    An answer joins the first group whose first member means the same, as in Kuhn et al.
    """
    firsts: list[str] = []
    numbers = []
    for answer in (text.answer, *sampled.texts):
        same = (n for n, one in enumerate(firsts) if same_answer(one, answer, text.question))
        group = next(same, len(firsts))
        if group == len(firsts):
            firsts.append(answer)
        numbers.append(group)
    return np.array(numbers)


@lru_cache(maxsize=2**16)
def same_answer(one: str, other: str, question: str) -> bool:
    """Whether two answers mean the same: one is judged right with the other as gold answer.

    Tried both ways, because one of them may be a sentence. All abstentions are alike.
    """
    if is_abstention(one) or is_abstention(other):
        return is_abstention(one) and is_abstention(other)
    return "right" in (judge(a, [b], question=question) for a, b in ((one, other), (other, one)))


# --- Linear probes ---


class Probes(Method):
    """The mean logit of `size` linear probes, at the layers of highest inner AUROC.

    Layers and strength are chosen on held-out training answers.
    """

    saved = ("layers_", "C_", "coef_", "intercept_")

    def __init__(self, name: str = "probe", *, size: int = 1, states: str = "clean"):
        self.name, self.size, self.states, self.single = name, size, states, size == 1

    def lacks(self, material: Material) -> str:
        if not material.has(self.states):
            return f"there are no states of '{self.states}'"
        return super().lacks(material)

    def decision_function(self, material: Material) -> np.ndarray:
        """The mean logit of each answer, [question]."""
        return self.logit([material.layer(self.states, layer) for layer in self.layers()])

    def logit(self, states: Sequence[np.ndarray]) -> np.ndarray:
        """The mean logit [question] from states [question, width], one array per layer."""
        lines = zip(states, self.coef_, self.intercept_, strict=True)
        return np.mean([linear(*line) for line in lines], axis=0)

    def layers(self) -> tuple[int, ...]:
        return tuple(int(layer) for layer in self.layers_)

    def chosen(self) -> str:
        layers = self.layers()
        where = f"layer {layers[0]}" if self.single else f"layers {list(layers)}"
        return f"{where}, C {self.C_}"

    def _choose(self, material: Material) -> None:
        scores = layer_scores(material, states=self.states)
        best = sorted(scores, key=lambda layer: -scores[layer])[: self.size]
        self.layers_, self.C_ = np.array(sorted(best)), choose(material, states=self.states)[1]

    def _learn(self, material: Material) -> None:
        probes = [
            whole_probe(material, layer, C=self.C_, states=self.states) for layer in self.layers()
        ]
        self.coef_ = np.stack([coef for coef, _ in probes])  # [layer, width]
        self.intercept_ = np.array([intercept for _, intercept in probes])

    def _inner_scores(self, material: Material) -> np.ndarray:
        # The logits that the choice was made on: nothing is trained again.
        logits = [
            inner_logits(material, layer, C=self.C_, states=self.states)["clean"]
            for layer in self.layers()
        ]
        return np.mean(logits, axis=0)


class Combined(Probes):
    """Logistic regression on the probes' held-out logit and minus E_A's lowest log-probability.

    The latter is clipped to its range in training. Probes are better in domain, token probability
    transfers better. With several datasets, layers and weights are therefore chosen with one whole
    dataset held out at a time: the probes' weight reflects their accuracy out of domain.
    """

    reads_tokens = True
    saved = (*Probes.saved, "weights_", "range_")

    def __init__(self) -> None:
        super().__init__("combined", size=_LAYERS)

    def decision_function(self, material: Material) -> np.ndarray:
        """The log-odds of each answer, [question]."""
        return self._weighted(super().decision_function(material), material)

    def _choose(self, material: Material) -> None:
        apart = material.apart()
        tried = [Probes(size=_LAYERS), Probes()]  # several layers or the best one alone
        for one in tried:
            one._choose(apart)
        best = max(tried, key=lambda one: auroc(apart.z, one._inner_scores(apart)))
        self.layers_, self.C_ = best.layers_, best.C_
        least = [entity_log_prob(text) for text in material.texts]
        self.range_ = np.quantile(least, _RANGE)
        columns = self._columns(best._inner_scores(apart), material)
        self.weights_ = fit_weights(columns, material.z)

    def _inner_scores(self, material: Material) -> np.ndarray:
        # On the same folds as every other detector, so that `auto` compares like with like.
        return self._weighted(super()._inner_scores(material), material)

    def _weighted(self, logit: np.ndarray, material: Material) -> np.ndarray:
        return self._columns(logit, material) @ self.weights_[:-1] + self.weights_[-1]

    def _columns(self, logit: np.ndarray, material: Material) -> np.ndarray:
        """The logit and minus E_A's lowest log-probability within its range, [question, 2]."""
        least = [entity_log_prob(text) for text in material.texts]
        return np.column_stack([logit, np.clip(least, *self.range_)])


def fit_weights(scores: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Non-negative logistic weights of scores [question, column], then the intercept.

    Higher scores mean more likely wrong, so a column whose weight would be negative is left out.
    """
    mean, spread = scores.mean(axis=0), scores.std(axis=0)
    x = (scores - mean) / np.where(spread > 0, spread, 1.0)
    weights, used = np.zeros(scores.shape[1]), np.arange(scores.shape[1])
    solver: Any = LogisticRegression(C=1 / (_RIDGE * len(z)), tol=1e-8, max_iter=1000)
    while len(used) and (solver.fit(x[:, used], z).coef_[0] < 0).any():
        used = used[solver.coef_[0] > 0]
    if not len(used):
        return np.append(weights, np.log(z.mean() / (1 - z.mean())))
    weights[used] = solver.coef_[0] / np.where(spread > 0, spread, 1.0)[used]
    return np.append(weights, solver.intercept_[0] - weights @ mean)


# --- By name ---


METHODS: dict[str, Callable[[], Method]] = {
    "mean-log-prob": lambda: PerAnswer(
        "mean log-prob", lambda text: -float(np.mean(text.log_probs)), reads_tokens=True
    ),
    "min-log-prob": lambda: PerAnswer(
        "min log-prob", lambda text: -min(text.log_probs), reads_tokens=True
    ),
    "sum-log-prob": lambda: PerAnswer(
        "sum log-prob", lambda text: -float(np.sum(text.log_probs)), reads_tokens=True
    ),
    "entity-log-prob": lambda: PerAnswer("min log-prob of E_A", entity_log_prob, reads_tokens=True),
    "first-entropy": lambda: PerAnswer(
        "first-token entropy", lambda text: text.first_entropy, reads_tokens=True
    ),
    "token-features": TokenFeatures,
    "p-true": lambda: PerAnswer("P(True)", lambda text: 1 - text.p_true, extra_passes=1.0),
    "semantic-entropy": lambda: OverSamples("semantic entropy", semantic_entropy),
    "self-check": lambda: OverSamples("self-check", disagreement),
    "length": lambda: Columns(
        "length",
        lambda text: (len(text.log_probs), len(text.answer), len(text.question)),
        text_only=True,
    ),
    "popularity": Popularity,
    "tfidf-question": lambda: TfIdf("question"),
    "tfidf-answer": lambda: TfIdf("answer"),
    "tfidf-both": lambda: TfIdf("both"),
    # At the last question token: what can be known before the answer is written.
    "question-only": lambda: Probes("question-only probe", states="question-only"),
    # On a second model's states: what any reader of the question could know.
    PEER: lambda: Probes("probe on the peer's states", states=PEER),
    "probe": Probes,
    "combined": Combined,
    "mop": MixtureOfProbes,
    "pr": PathwayReweighting,
}
# Candidates of `auto` in order of preference: token probability with the probes transfers best to
# other questions.
CHOSEN = ("combined", "probe", "entity-log-prob")
# Detectors that can score answers outside a run folder; the last two sample answers for it.
DEPLOYED = (*CHOSEN, "semantic-entropy", "self-check")


class Auto(Method):
    """Choose the first candidate whose AUROC on held-out training answers is nearly the best.

    Candidates come in the order of preference; `fit_all` fits them.
    """

    name = "auto"

    def take(self, fitted: Sequence[Method]) -> Auto:
        """Choose `best_` among fitted detectors."""
        if not fitted:
            raise UserError("There is no detector to choose from on this material.")
        top = max(one.inner_auroc_ for one in fitted)
        self.best_ = next(one for one in fitted if one.inner_auroc_ >= top - _NEAR)
        self.calibration_, self.inner_auroc_ = self.best_.calibration_, self.best_.inner_auroc_
        return self

    def decision_function(self, material: Material) -> np.ndarray:
        """The chosen detector's score, [question]."""
        return self.best_.decision_function(material)

    def chosen(self) -> str:
        return self.best_.name


def make_method(name: str) -> Method:
    """A new, unfitted detector by its short name."""
    if name == AUTO:
        return Auto()
    if name not in METHODS:
        raise unknown("detector", name, (AUTO, *METHODS))
    return METHODS[name]()


def fit_all(material: Material, names: Sequence[str]) -> dict[str, Method]:
    """Fit detectors on the material, by name; leave out those that it lacks inputs for.

    `auto` chooses among all of CHOSEN, also those that are not in `names`.
    """
    fitted: dict[str, Method] = {}
    for name in dict.fromkeys((*names, *(CHOSEN if AUTO in names else ()))):
        one = make_method(name)
        one.short_name = name
        if name != AUTO and not one.lacks(material):
            fitted[name] = one.fit(material)
    if AUTO in names:
        candidates = [fitted[name] for name in CHOSEN if name in fitted]
        fitted[AUTO] = Auto().take(candidates)
    return {name: fitted[name] for name in names if name in fitted}
