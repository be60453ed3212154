"""Records that stages pass to each other: questions, answers, samples, spans, estimates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np

Verdict = Literal["right", "wrong", "abstain"]
Pathway = Literal["Q", "A"]
Mode = Literal["paper", "strict"]
MODES: tuple[Mode, ...] = get_args(Mode)
FindingName = Literal[
    "two-pathways",
    "explained",
    "graded",
    "uniform",
    "no-effect",
    "cannot-tell",
    "too-few",
]


class Span(NamedTuple):
    """Half-open range of characters, [start, stop)."""

    start: int
    stop: int


class Estimate(NamedTuple):
    """A number with its confidence interval and the count it is estimated from."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One worked example in front of the question."""

    question: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question with its accepted answers and the facts that its dataset gives.

    `subjects` are exact substrings of `text` that name the subject, where the dataset gives
    them. `entity` keeps questions about one thing in one fold.

    Examples:
        >>> import anchorscope as anc
        >>> question = anc.Question(
        ...     id="mine:all:1",
        ...     dataset="mine",
        ...     text="Who wrote Emma?",
        ...     answers=("Jane Austen", "Austen"),
        ...     subjects=("Emma",),
        ... )
        >>> len(anc.load_questions([question]))
        1

    """

    id: str  # dataset:split:original-id
    dataset: str  # short name: "popqa", "atlas", or a file's stem
    text: str
    answers: tuple[str, ...]
    subjects: tuple[str, ...] = ()
    relation: str | None = None
    popularity: float | None = None
    entity: str = ""

    @property
    def log_popularity(self) -> float:
        """The base-10 logarithm of the popularity; NaN where it is unknown or not above 0."""
        if self.popularity is None or self.popularity <= 0:
            return math.nan
        return float(np.log10(self.popularity))


@dataclass(frozen=True, kw_only=True)
class QuestionSet:
    """The questions of one dataset, its worked examples, and counts of rows left out by reason."""

    name: str  # "popqa"
    title: str  # "PopQA", as figures write it
    questions: Sequence[Question]
    shots: tuple[Shot, ...]
    retest_shots: tuple[Shot, ...] = ()  # other examples of the same kinds, for the retest
    dropped: Mapping[str, int] = field(default_factory=dict)  # reason -> count

    def __len__(self) -> int:
        return len(self.questions)

    def __iter__(self) -> Iterator[Question]:
        return iter(self.questions)

    def __getitem__(self, place: int) -> Question:
        return self.questions[place]

    def __repr__(self) -> str:
        dropped = f", left out: {dict(self.dropped)}" if self.dropped else ""
        return f"QuestionSet({self.name!r}, {len(self)} questions{dropped})"


@dataclass(frozen=True, kw_only=True)
class DecodedAnswer:
    """The tokens of an answer, with their log-probabilities and entropies at temperature 1."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]  # of each token, when it was chosen
    first_entropy: float  # nats, of the first token's distribution; also where it has no token
    finished: bool  # False where it was cut at the token limit
    entropies: tuple[float, ...] = ()  # nats, of each token's distribution; earlier runs: none
    off_greedy: int = 0  # tokens of a given answer that were not the likeliest


@dataclass(frozen=True, kw_only=True)
class Answer(DecodedAnswer):
    """The model's own greedy answer, or a given one, token by token."""

    id: str
    text: str  # the first line as written, white space stripped


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A question with its answer, verdict and token positions: one row of samples.parquet.

    Positions count the tokens of prompt + answer from 0; `spans` are characters of the
    question, `answer_span` characters of the answer.
    """

    question: Question
    answer: Answer
    verdict: Verdict
    finder: str  # which finder gave the spans
    spans: tuple[Span, ...]
    answer_span: Span | None  # None: no answer entity was found (an empty answer)
    prompt_ids: tuple[int, ...]
    question_tokens: tuple[int, ...]  # all tokens of the question
    exact_question: tuple[int, ...]  # E_Q
    exact_answer: tuple[int, ...]  # E_A; its last one is the probe position
    kind: str = ""  # of the answer, from `kind_of_answer` or from the user's own file
    property_spans: tuple[Span, ...] = ()  # the spans that name the property asked for
    content_tokens: tuple[int, ...] = ()  # the question's content words, those of E_Q included

    @property
    def id(self) -> str:
        return self.question.id

    @property
    def subject_spans(self) -> tuple[Span, ...]:
        return tuple(span for span in self.spans if span not in self.property_spans)

    @property
    def usable(self) -> bool:
        """Whether a probe may use this sample: judged right or wrong, with both spans found."""
        return self.verdict != "abstain" and bool(self.exact_answer) and bool(self.exact_question)
