"""Every detector by name: token scores, drawn answers, text controls, probes, and mixtures.

Semantic entropy: Kuhn et al. 2023 and Farquhar et al. 2024, each meaning weighed by how many
answers have it. Self-check: SelfCheckGPT, Manakul et al. 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import entropy, norm
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from anchorscope.answers.judge import is_abstention, judge
from anchorscope.detect.inner_probes import choose, inner_logits, layer_scores, whole_probe
from anchorscope.detect.material import Material, SampledAnswers, Text
from anchorscope.detect.method import Columns, Method
from anchorscope.detect.pathway_kinds import MixtureOfProbes, PathwayReweighting, linear
from anchorscope.errors import UserError, unknown
from anchorscope.stats.ranking import auroc, auroc_draws

Reduce = Literal["mean", "min", "sum"]
Words = Literal["question", "answer", "both"]
_REDUCE = {"mean": np.mean, "min": np.min, "sum": np.sum}
_RANGE = (0.01, 0.99)  # quantiles of the training answers
_RIDGE = 1e-3  # against the mean of the losses; keeps classes that part altogether finite
_LAYERS = 5  # of the probes whose mean `combined` reads
AUTO = "auto"
_RESAMPLES = 200
_DOUBT = 0.05  # that one of many equals is taken for better


# --- How sure the model was of its tokens ---


class TokenLogProb(Method):
    """Minus the mean, minimum or sum of the log-probabilities of the answer's tokens, or of E_A's.

    Those of E_A alone do not change with a full stop after the answer, or bold around it.
    """

    learns = False
    single = True
    reads_tokens = True

    def __init__(self, *, reduce: Reduce = "mean", entity: bool = False):
        self.reduce: Reduce = reduce
        self.entity = entity

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.reduce} log-prob" + (" of E_A" if self.entity else "")

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        reduce = _REDUCE[self.reduce]

        def score(text: Text) -> float:
            tokens = text.exact_answer if self.entity else range(len(text.log_probs))
            return -float(reduce([text.log_probs[n] for n in tokens]))

        return np.array([score(text) for text in material.texts], dtype=float)


class FirstEntropy(Method):
    """The entropy of the first answer token."""

    name = "first-token entropy"
    learns = False
    single = True
    reads_tokens = True

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        return np.array([text.first_entropy for text in material.texts])


class TokenFeatures(Columns):
    """Logistic regression on statistics of log-probability and entropy, and the length."""

    name = "token features"

    def lacks(self, material: Material) -> str:
        if all(len(text.entropies) == len(text.log_probs) for text in material.texts):
            return ""
        return "the entropy of each token was not kept (collect again)"

    def _columns(self, material: Material) -> np.ndarray:
        """Mean, extremes, spread and ends of both, those of E_A, and the number of tokens."""
        rows = []
        for text in material.texts:
            both = [np.array(text.log_probs), np.array(text.entropies)]
            exact = list(text.exact_answer)
            rows.append([
                *(f(values) for values in both for f in (np.mean, np.min, np.max, np.std)),
                *(values[place] for values in both for place in (0, -1)),
                *(f(values[exact]) for values in both for f in (np.mean, np.min, np.max)),
                np.log(len(text.log_probs)),
            ])  # fmt: skip
        return np.array(rows, dtype=np.float64)


class PTrue(Method):
    """One minus the probability the model itself gives "True" when asked about its answer."""

    name = "P(True)"
    learns = False
    single = True
    extra_passes = 1.0

    def lacks(self, material: Material) -> str:
        missing = sum(np.isnan(text.p_true) for text in material.texts)
        return f"P(True) is missing for {missing} answers" if missing else ""

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        return np.array([1 - text.p_true for text in material.texts])


# --- Several drawn answers to one question ---


class _OverSamples(Method):
    """A score from the meanings of the greedy answer and the sampled answers."""

    learns = False

    def lacks(self, material: Material) -> str:
        if any(text.sampled is None for text in material.texts):
            return "no answers were drawn (detect collect --samples 10)"
        return ""

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        return np.array([self._score(_meanings(t, t.sampled)) for t in material.texts if t.sampled])

    def cost(self, material: Material) -> tuple[float, float]:
        """The mean passes and milliseconds that sampling took for an answer."""
        costs = [(t.sampled.passes, t.sampled.ms) for t in material.texts if t.sampled]
        passes, ms = np.mean(costs, axis=0).tolist()
        return passes, ms

    def _score(self, meanings: np.ndarray) -> float:
        """The score from the meaning of the greedy answer, then of each sampled one."""
        raise NotImplementedError


class SemanticEntropy(_OverSamples):
    """The entropy, in nats, of what the sampled answers mean."""

    name = "semantic entropy"

    def _score(self, meanings: np.ndarray) -> float:
        return float(entropy(np.bincount(meanings[1:])))


class SelfCheck(_OverSamples):
    """The share of sampled answers that do not mean what the greedy answer means."""

    name = "self-check"

    def _score(self, meanings: np.ndarray) -> float:
        return float(np.mean(meanings[1:] != meanings[0]))


def _meanings(text: Text, sampled: SampledAnswers) -> np.ndarray:
    """The meaning of the greedy answer and of each sampled one, [1 + answer]; numbers from 0.

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
    """Whether the judge takes one of two answers for right if the other is accepted.

    Either way round, because one of them may be a sentence. All abstentions are alike.
    """
    if is_abstention(one) or is_abstention(other):
        return is_abstention(one) and is_abstention(other)
    return "right" in (judge(a, [b], question=question) for a, b in ((one, other), (other, one)))


# --- Controls that see the text alone ---


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
        has_any = any(np.isfinite(text.popularity) for text in material.texts)
        return "" if has_any else "the dataset knows no popularity"

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


# --- Linear probes ---


class Probes(Method):
    """The mean logit of `size` linear probes, at the layers of highest inner AUROC."""

    saved = ("layers_", "C_", "coef_", "intercept_")
    states = "clean"

    def __init__(self, *, size: int = _LAYERS):
        self.size = size

    def lacks(self, material: Material) -> str:
        return "" if material.has(self.states) else f"there are no states of '{self.states}'"

    def decision_function(self, material: Material) -> np.ndarray:
        """The mean logit of each answer, [question]."""
        return self.logit([material.layer(self.states, layer) for layer in self.layers()])

    def logit(self, states: Sequence[np.ndarray]) -> np.ndarray:
        """The mean logit [question] from states [question, width] of each of the layers."""
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
        self.layers_, self.C_ = np.array(sorted(best)), choose(material, states=self.states).C

    def _learn(self, material: Material) -> None:
        probes = [
            whole_probe(material, layer, C=self.C_, states=self.states) for layer in self.layers()
        ]
        self.coef_ = np.stack([coef for coef, _ in probes])  # [layer, width]
        self.intercept_ = np.array([intercept for _, intercept in probes])

    def _inner_scores(self, material: Material) -> np.ndarray:
        # The very logits that the choice was made on: nothing is trained again.
        logits = [
            inner_logits(material, layer, C=self.C_, states=self.states)["clean"]
            for layer in self.layers()
        ]
        return np.mean(logits, axis=0)


class SingleProbe(Probes):
    """One linear probe; layer and strength are chosen on held-out training answers."""

    name = "probe"
    single = True

    def __init__(self) -> None:
        super().__init__(size=1)


class QuestionOnly(SingleProbe):
    """A probe at the last question token: what can be known before the answer is written."""

    name = "question-only probe"
    states = "question-only"


class Combined(Method):
    """Logistic regression on the probes' held-out logit and minus E_A's lowest log-probability.

    The latter is kept within the range that training saw. The probes know more where they were
    trained, token probability holds on other questions too: of several datasets a whole one is held
    out at a time when layers and weights are chosen, so that the probes get the weight that they
    deserve on questions unlike those they learnt from.
    """

    name = "combined"
    reads_tokens = True
    saved = ("weights_", "range_")

    def lacks(self, material: Material) -> str:
        return Probes().lacks(material)

    def decision_function(self, material: Material) -> np.ndarray:
        """The log-odds of each answer, [question]."""
        columns = self._columns(self.base_.decision_function(material), material)
        return columns @ self.weights_[:-1] + self.weights_[-1]

    def layers(self) -> tuple[int, ...]:
        return self.base_.layers()

    def chosen(self) -> str:
        return self.base_.chosen()

    def arrays(self) -> dict[str, np.ndarray]:
        return self.base_.arrays() | super().arrays()

    def restore(self, arrays: dict[str, np.ndarray]) -> Method:
        self.base_ = Probes()
        self.base_.restore(arrays)
        return super().restore(arrays)

    def _choose(self, material: Material) -> None:
        apart = material.apart()
        tried = [Probes(), Probes(size=1)]  # several layers or the best one alone
        for one in tried:
            one._choose(apart)
        self.base_ = max(tried, key=lambda one: auroc(apart.z, one._inner_scores(apart)))
        self.range_ = np.quantile(_LEAST.decision_function(material), _RANGE)
        self._held_out = self._inner_columns(apart)
        self.weights_ = fit_weights(self._held_out, material.z)

    def _learn(self, material: Material) -> None:
        self.base_._learn(material)
        self.__dict__.pop("_held_out", None)  # a fitted detector travels without it

    def _inner_scores(self, material: Material) -> np.ndarray:
        # On the folds of every other detector, so that `auto` compares like with like. A fold's
        # weights come from the other folds, put on one scale: their ratio is what was learnt.
        columns = self._inner_columns(material)
        from_middle, spread = columns - columns.mean(axis=0), columns.std(axis=0)
        scores = np.zeros(len(material))
        for fold in np.unique(material.inner):
            held = material.inner == fold
            weights = fit_weights(self._held_out[~held], material.z[~held])[:-1]
            if size := float(np.linalg.norm(weights * spread)):
                scores[held] = from_middle[held] @ weights / size
        size = float(np.linalg.norm(self.weights_[:-1] * spread))
        return size * scores + columns.mean(axis=0) @ self.weights_[:-1] + self.weights_[-1]

    def _inner_columns(self, material: Material) -> np.ndarray:
        """Both scores of the training answers [question, 2], the logit held out."""
        return self._columns(self.base_._inner_scores(material), material)

    def _columns(self, logit: np.ndarray, material: Material) -> np.ndarray:
        """The logit and minus E_A's lowest log-probability within its range, [question, 2]."""
        return np.column_stack([logit, _LEAST.decision_function(material).clip(*self.range_)])


_LEAST = TokenLogProb(reduce="min", entity=True)


def fit_weights(scores: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The weight of each column of scores [question, column], and the intercept; none below 0.

    Higher scores mean more likely wrong, so a weight below 0 would be luck; scikit-learn's
    LogisticRegression cannot rule it out.
    """
    mean, spread = scores.mean(axis=0), scores.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    x = np.column_stack([(scores - mean) / spread, np.ones(len(z))])

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        logit = x @ w
        penalty = _RIDGE * np.append(w[:-1], 0.0)
        value = np.mean(np.logaddexp(0, logit) - z * logit) + penalty @ w / 2
        return float(value), x.T @ (expit(logit) - z) / len(z) + penalty

    bounds = [(0, None)] * scores.shape[1] + [(None, None)]
    found = minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B", bounds=bounds)
    weights = found.x[:-1] / spread
    return np.append(weights, found.x[-1] - weights @ mean)


# --- By name ---


METHODS: dict[str, Callable[[], Method]] = {
    "mean-log-prob": lambda: TokenLogProb(reduce="mean"),
    "min-log-prob": lambda: TokenLogProb(reduce="min"),
    "sum-log-prob": lambda: TokenLogProb(reduce="sum"),
    "entity-log-prob": lambda: TokenLogProb(reduce="min", entity=True),
    "first-entropy": FirstEntropy,
    "token-features": TokenFeatures,
    "p-true": PTrue,
    "semantic-entropy": SemanticEntropy,
    "self-check": SelfCheck,
    "length": Length,
    "popularity": Popularity,
    "tfidf-question": lambda: TfIdf(words="question"),
    "tfidf-answer": lambda: TfIdf(words="answer"),
    "tfidf-both": lambda: TfIdf(words="both"),
    "question-only": QuestionOnly,
    "probe": SingleProbe,
    "combined": Combined,
    "mop": MixtureOfProbes,
    "pr": PathwayReweighting,
}
# Those that can score an answer outside a run folder, in the order in which `auto` prefers them:
# token probability beside the probes is what still holds on other questions.
DEPLOYED = ("combined", "probe", "entity-log-prob")


class Auto(Method):
    """Choose the candidate with the highest AUROC on held-out training answers.

    Candidates come in the order of preference; `fit_all` fits them. The first one is taken
    that the best is not ahead of by more than the luckiest of as many equals would be, in 19 of 20
    cases (Bonferroni).
    """

    name = "auto"

    def take(self, fitted: Sequence[Method], z: np.ndarray) -> Auto:
        """Choose `best_` among detectors fitted on answers of classes z."""
        if not fitted:
            raise UserError("There is no detector to choose from on this material.")
        top = max(fitted, key=lambda one: one.inner_auroc_)
        margin = float(norm.isf(_DOUBT / max(1, len(fitted) - 1)))  # standard errors

        def is_near(one: Method) -> bool:
            scores = [top.inner_scores_, one.inner_scores_]
            draws = auroc_draws(z, scores, seed=0, resamples=_RESAMPLES)
            ahead = top.inner_auroc_ - one.inner_auroc_
            return bool(ahead <= margin * np.std(draws[0] - draws[1]))

        self.best_ = next(one for one in fitted if is_near(one))
        for name in ("calibration_", "inner_auroc_", "inner_scores_"):
            setattr(self, name, getattr(self.best_, name))
        return self

    def decision_function(self, material: Material) -> np.ndarray:
        """The chosen detector's score, [question]."""
        return self.best_.decision_function(material)

    def chosen(self) -> str:
        return self.best_.name


def make_method(name: str) -> Method:
    """A fresh detector by its short name."""
    if name == AUTO:
        return Auto()
    if name not in METHODS:
        raise unknown("detector", name, (AUTO, *METHODS))
    return METHODS[name]()


def short_name(method: Method) -> str:
    """The short name of a detector; of `auto`, that of the one it chose."""
    chosen = method.best_ if isinstance(method, Auto) else method
    return next(name for name, make in METHODS.items() if make().name == chosen.name)


def fit_all(material: Material, names: Sequence[str]) -> dict[str, Method]:
    """Fit fresh detectors on the material, by name; without those that it lacks something for.

    `auto` chooses among all that can be deployed, whether they are asked for or not.
    """
    wanted = dict.fromkeys((*names, *(DEPLOYED if AUTO in names else ())))
    wanted.pop(AUTO, None)
    made = {name: make_method(name) for name in wanted}
    fitted = {name: one.fit(material) for name, one in made.items() if not one.lacks(material)}
    if AUTO in names:
        candidates = [fitted[name] for name in DEPLOYED if name in fitted]
        fitted[AUTO] = Auto().take(candidates, material.z)
    return {name: fitted[name] for name in names if name in fitted}
