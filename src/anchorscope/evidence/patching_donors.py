"""Donors for token patching: whose exact question tokens a sample gets instead of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anchorscope.answers.normalise import words
from anchorscope.records import Sample, Span
from anchorscope.spans.characters import longest

Kind = Literal["matched", "random", "other"]


@dataclass(frozen=True, kw_only=True)
class Donor:
    """Whose tokens one sample gets; "" where the dataset holds nobody else."""

    id: str
    kind: Kind
    donor: str
    same_relation: bool
    popularity_gap: float  # difference of the logarithms to base 10; NaN where one is unknown


def subject_span(sample: Sample) -> Span:
    """The longest span of the subject, of equals the first."""
    return longest(sample.subject_spans)


def subject_text(sample: Sample) -> str:
    """What the sample asks about, in the question's own words."""
    span = subject_span(sample)
    return sample.question.text[span.start : span.stop]


def choose_donors(samples: Sequence[Sample], *, seed: int) -> list[Donor]:
    """A matched and a random donor for every usable sample of one dataset, and the control's.

    `matched`: of the same relation where that is known and somebody shares it, with as many spans
    where somebody has, then the nearest in log popularity and number of exact question tokens,
    each counted in its standard deviation over the dataset. A candidate of unknown popularity
    counts as one deviation away. `random`: anybody. Both are about another entity, name another
    subject, whatever its case, and share no accepted answer: with "the capital of France" for "the
    city of the Louvre" the sample's own answer would stay as right as it was. `other`, the control
    on tokens outside E_Q, takes them from the random donor. Ties and draws are settled by seed and
    id, so neither the order of the samples nor shards change them.
    """
    pool = _Pool(sorted((s for s in samples if s.subject_spans), key=lambda sample: sample.id))
    out = []
    for own, sample in enumerate(pool.samples):
        if not sample.usable:
            continue
        random = _draw(pool.others(own), seed, "random", sample.id)
        matched = _draw(pool.nearest(own), seed, "matched", sample.id)
        out += [
            pool.donor(own, matched, "matched"),
            pool.donor(own, random, "random"),
            pool.donor(own, random, "other"),
        ]
    return out


class _Pool:
    """The samples of a dataset as columns, so that each one's distances are one array."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        questions = [sample.question for sample in samples]
        self.subject = np.array([subject_text(sample).casefold() for sample in samples])
        self.entity = np.array([question.entity for question in questions])
        self.relation = np.array([question.relation or "" for question in questions])
        self.log = np.array([question.log_popularity for question in questions])
        self.tokens = np.array([len(sample.exact_question) for sample in samples], dtype=float)
        self.spans = np.array([len(sample.subject_spans) for sample in samples])
        self.accepted = [accepted_answers(sample) for sample in samples]
        self.accepting: dict[str, list[int]] = {}  # answer -> the numbers of those it is right for
        for number, answers in enumerate(self.accepted):
            for answer in answers:
                self.accepting.setdefault(answer, []).append(number)

    def others(self, own: int) -> np.ndarray:
        """The numbers of the samples about somebody else, with other answers."""
        # Without an entity nothing is known but the text.
        same = (self.entity == self.entity[own]) & (self.entity != "")
        same |= self.subject == self.subject[own]
        for answer in self.accepted[own]:
            same[self.accepting[answer]] = True
        return np.flatnonzero(~same)

    def nearest(self, own: int) -> np.ndarray:
        """The best matches, all that are equally near."""
        others = self.others(own)
        alike = others[(self.relation[others] == self.relation[own]) & (self.relation[own] != "")]
        others = alike if len(alike) else others
        whole = others[self.spans[others] == self.spans[own]]
        others = whole if len(whole) else others
        if not len(others):
            return others
        popularity = _in_deviations(self.log, own, others)
        distance = np.where(np.isnan(popularity), 1.0, popularity)
        distance += _in_deviations(self.tokens, own, others)
        return others[distance <= distance.min() + 1e-9]

    def donor(self, own: int, other: int | None, kind: Kind) -> Donor:
        if other is None:
            nobody = {"donor": "", "same_relation": False, "popularity_gap": np.nan}
            return Donor(id=self.samples[own].id, kind=kind, **nobody)
        relation = self.relation[own]
        return Donor(
            id=self.samples[own].id,
            kind=kind,
            donor=self.samples[other].id,
            same_relation=bool(relation and relation == self.relation[other]),
            popularity_gap=float(abs(self.log[own] - self.log[other])),
        )


def accepted_answers(sample: Sample) -> frozenset[str]:
    """The accepted answers of a sample's question as the judge spells them."""
    spelt = (" ".join(word.text for word in words(alias)) for alias in sample.question.answers)
    return frozenset(spelt) - {""}


def generator(*of: object) -> np.random.Generator:
    """A generator that these words alone decide."""
    digest = hashlib.sha256(":".join(map(str, of)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def _draw(candidates: np.ndarray, *of: object) -> int | None:
    return int(generator(*of).choice(candidates)) if len(candidates) else None


def _in_deviations(values: np.ndarray, own: int, others: np.ndarray) -> np.ndarray:
    finite = values[np.isfinite(values)]
    spread = float(finite.std()) if len(finite) else 0.0
    return np.abs(values[others] - values[own]) / (spread or 1.0)
