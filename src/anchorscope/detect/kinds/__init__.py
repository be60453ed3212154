"""Every detector by name, in the order of the table: token scores, controls, probes, mixtures."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from anchorscope.detect.kinds.auto import Auto
from anchorscope.detect.kinds.combined import Combined
from anchorscope.detect.kinds.mixture_of_probes import MixtureOfProbes
from anchorscope.detect.kinds.pathway_reweighting import PathwayReweighting
from anchorscope.detect.kinds.probes import QuestionOnly, SingleProbe
from anchorscope.detect.kinds.sampled import SelfCheck, SemanticEntropy
from anchorscope.detect.kinds.text_controls import Length, Popularity, TfIdf
from anchorscope.detect.kinds.token_scores import FirstEntropy, PTrue, TokenFeatures, TokenLogProb
from anchorscope.detect.method import Method
from anchorscope.errors import unknown

METHODS: dict[str, Callable[[], Method]] = {
    "mean-log-prob": lambda: TokenLogProb(reduce="mean"),
    "min-log-prob": lambda: TokenLogProb(reduce="min"),
    "sum-log-prob": lambda: TokenLogProb(reduce="sum"),
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
DEPLOYED = (
    "combined", "probe", "min-log-prob", "sum-log-prob", "mean-log-prob", "first-entropy",
)  # fmt: skip
AUTO = "auto"


def make_method(name: str) -> Method:
    """A fresh detector by its short name."""
    if name == AUTO:
        return Auto(candidates=list(make_methods(DEPLOYED).values()))
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
