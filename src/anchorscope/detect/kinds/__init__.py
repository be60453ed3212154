"""Every detector by name, in the order of the table: token scores, controls, probes, mixtures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy.stats import norm

from anchorscope.detect.kinds.combined import Combined
from anchorscope.detect.kinds.pathways import MixtureOfProbes, PathwayReweighting
from anchorscope.detect.kinds.probes import QuestionOnly, SingleProbe
from anchorscope.detect.kinds.sampled import SelfCheck, SemanticEntropy
from anchorscope.detect.kinds.text_controls import Length, Popularity, TfIdf
from anchorscope.detect.kinds.token_scores import FirstEntropy, PTrue, TokenFeatures, TokenLogProb
from anchorscope.detect.material import Material
from anchorscope.detect.method import Method
from anchorscope.errors import UserError, unknown
from anchorscope.stats.ranking import auroc_draws

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
AUTO = "auto"
_RESAMPLES = 200
_DOUBT = 0.05  # that one of many equals is taken for better


def make_method(name: str) -> Method:
    """A fresh detector by its short name."""
    if name == AUTO:
        return Auto()
    if name not in METHODS:
        raise unknown("detector", name, (AUTO, *METHODS))
    return METHODS[name]()


def make_methods(names: Iterable[str]) -> dict[str, Method]:
    """Fresh detectors by short name, in the order given."""
    return {name: make_method(name) for name in names}


def short_name(method: Method) -> str:
    """The short name of a detector; of `auto`, that of the one it chose."""
    if isinstance(method, Auto):
        return short_name(method.best_)
    return next(name for name, make in METHODS.items() if make().name == method.name)


class Auto(Method):
    """The candidate of highest AUROC on held-out training answers; never by a test answer.

    Candidates come in the order of preference; `evaluate.fit_all` fits them. The first one is taken
    that the best is not ahead of by more than the luckiest of as many equals would be, in 19 of 20
    cases (Bonferroni).
    """

    name = "auto"

    def take(self, fitted: Sequence[Method], z: np.ndarray) -> Auto:
        """The detector itself; `best_` is chosen among detectors fitted on answers of classes z."""
        if not fitted:
            raise UserError("There is no detector to choose from on this material.")
        top = max(fitted, key=lambda one: one.inner_auroc_)
        margin = float(norm.isf(_DOUBT / max(1, len(fitted) - 1)))  # standard errors
        self.best_ = next(one for one in fitted if self._within(margin, one, top, z))
        for name in ("calibration_", "inner_auroc_", "inner_scores_"):
            setattr(self, name, getattr(self.best_, name))
        return self

    def _within(self, margin: float, one: Method, top: Method, z: np.ndarray) -> bool:
        """Whether `top` is ahead by no more standard errors of the paired difference."""
        scores = [top.inner_scores_, one.inner_scores_]
        draws = auroc_draws(z, scores, seed=0, resamples=_RESAMPLES)
        return bool(top.inner_auroc_ - one.inner_auroc_ <= margin * np.std(draws[0] - draws[1]))

    def decision_function(self, material: Material) -> np.ndarray:
        """The chosen detector's score, [question]."""
        return self.best_.decision_function(material)
