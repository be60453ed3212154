"""Every detector by name, in the order of the table: baselines, controls, probes, mixtures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anchorscope.detect.kinds.auto import Auto
from anchorscope.detect.kinds.baselines import (
    FirstEntropy,
    Length,
    Perplexity,
    Popularity,
    PTrue,
    TfIdf,
    TokenLogProb,
)
from anchorscope.detect.kinds.combined import Combined
from anchorscope.detect.kinds.mixture_of_probes import MixtureOfProbes
from anchorscope.detect.kinds.pathway_reweighting import PathwayReweighting
from anchorscope.detect.kinds.probes import Ensemble, Mlp, QuestionOnly, SingleProbe
from anchorscope.detect.kinds.text_embedding import TextEmbedding
from anchorscope.detect.kinds.token_features import MeanEntropy, TokenFeatures
from anchorscope.detect.method import Method
from anchorscope.detect.sampled.methods import LexicalSimilarity, SelfCheck, SemanticEntropy
from anchorscope.errors import unknown

METHODS: dict[str, Callable[[], Method]] = {
    "mean-log-prob": lambda: TokenLogProb(reduce="mean"),
    "min-log-prob": lambda: TokenLogProb(reduce="min"),
    "sum-log-prob": lambda: TokenLogProb(reduce="sum"),
    "mean-log-prob-exact": lambda: TokenLogProb(reduce="mean", over="exact"),
    "min-log-prob-exact": lambda: TokenLogProb(reduce="min", over="exact"),
    "first-entropy": FirstEntropy,
    "mean-entropy": MeanEntropy,
    "perplexity": Perplexity,
    "token-features": TokenFeatures,
    "p-true": PTrue,
    "semantic-entropy": SemanticEntropy,
    "semantic-entropy-likelihood": lambda: SemanticEntropy(weights="likelihood"),
    "semantic-entropy-nli": lambda: SemanticEntropy(by="nli"),
    "self-check": SelfCheck,
    "self-check-nli": lambda: SelfCheck(by="nli"),
    "lexical-similarity": LexicalSimilarity,
    "length": Length,
    "popularity": Popularity,
    "tfidf-question": lambda: TfIdf(of="question"),
    "tfidf-answer": lambda: TfIdf(of="answer"),
    "tfidf-both": lambda: TfIdf(of="both"),
    "text-embedding": TextEmbedding,
    "question-only": QuestionOnly,
    "probe": SingleProbe,
    "ensemble": Ensemble,
    "combined": Combined,
    "combined-shrunk": lambda: Combined(shrink=True),
    "combined-cautious": lambda: Combined(cautious=True),
    "mlp": Mlp,
    "mop": MixtureOfProbes,
    "mop-random-gate": lambda: MixtureOfProbes(gate="random"),
    "mop-no-labels": lambda: MixtureOfProbes(experts="cluster"),
    "mop-oracle": lambda: MixtureOfProbes(gate="oracle"),
    "pr": PathwayReweighting,
    "pr-fixed": lambda: PathwayReweighting(sign="fixed"),
    "pr-scaled": lambda: PathwayReweighting(kind="rescale"),
}
AUTO = "auto"
# Of those that the training answers cannot tell apart: token probability beside the probes is what
# still holds on other questions, and the mean over layers is steadier than the one layer that
# looks best, which is partly luck.
_AUTO_FIRST = ("combined", "ensemble", "probe")


def make_method(name: str) -> Method:
    """A fresh detector by its short name."""
    if name == AUTO:
        return Auto(candidates=auto_candidates(make_methods(METHODS)))
    if name not in METHODS:
        raise unknown("detector", name, (AUTO, *METHODS))
    return METHODS[name]()


def make_methods(names: Sequence[str] | dict) -> dict[str, Method]:
    """Fresh detectors by short name, in the order given."""
    return {name: make_method(name) for name in names}


def auto_candidates(methods: dict[str, Method]) -> list[Method]:
    """Those that `auto` may choose from: what can score an answer outside a run folder."""
    first = [methods[name] for name in _AUTO_FIRST if name in methods]
    rest = [one for name, one in methods.items() if name not in (*_AUTO_FIRST, AUTO)]
    return [one for one in (*first, *rest) if one.deployable]


def short_name(method: Method) -> str:
    """The short name of a detector; of `auto`, that of the one it chose."""
    if isinstance(method, Auto):
        return short_name(method.best_)
    return next(name for name, make in METHODS.items() if make().name == method.name)
