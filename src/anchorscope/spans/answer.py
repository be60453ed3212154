"""Find the characters of an answer that carry its entity, without gold answer or verdict.

The patterns are tried in order on the first sentence that claims something ("Sure!" does not): yes
and no, an agent ("written by"), a name ("is called"), the side of "X is Y" that answers, the part
that is not in the question, else all of it up to a comma (docs/method.md has examples). Sentences
end where pysbd ends them in ten answers with initials and abbreviations, at a fourteenth of its
time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, get_args

from anchorscope.answers.judge import is_abstention
from anchorscope.answers.normalise import MONTH, SCALES, TENS, UNITS
from anchorscope.records import Sample, Span
from anchorscope.spans.characters import STOP, WORD, plain_word, trimmed

YES_OR_NO = re.compile(r"(?:yes|no)\b", re.IGNORECASE)
YES_NO = re.compile(r"(?:yes|no)\b(?=\s*(?:[,.;:!]|$))", re.IGNORECASE)
YES_NO_QUESTION = re.compile(
    r"(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would)\b", re.IGNORECASE
)
# Lower case only: in "The World Is Not Enough" the verb is part of a name.
COPULA = re.compile(
    r"\s(?:is|are|was|were|(?:must|should|will|would) be)\s|"
    r"(?<=\b[Ii]t)['’]s\s|(?<=\w)['’]s\s(?=(?:a|an|the|in)\s)"
)
AGENT = re.compile(r"\s(?:is|are|was|were|been)\s(?:\w+\s){0,4}?by\s+")
NAMED = re.compile(r"\s(?:is|are|was|were|an?|the)\s(?:\w+\s){0,6}?(?:named|called|known as)\s+")
AGENT_END = re.compile(
    r",|;|\(|\s(?:in|on|at|for|from|with|as|to|during|who|which|that|when|while)\s"
)
PLACE = re.compile(
    r"\b(?:in|from|of|near|at)\s+(?:the\s+)?"
    r"([^\W\da-z_][\w’'.-]*(?:\s+(?:of\s+|the\s+|de\s+)*[^\W\da-z_][\w’'.-]*)*)"
)
PLACE_QUESTION = re.compile(
    r"\b(?:where|country|city|town|place|state|continent|province|region|located|nationality)\b",
    re.IGNORECASE,
)
DESCRIBED = re.compile(r"(?:currently\s+)?(?:an?|one|located|situated|based|born|held|found|set)\s")
LEAD = re.compile(
    r"(?:approximately|about|around|roughly|actually|currently|probably|likely)\s+(?=\S)|"
    r"(?:(?:located|situated|based|born|held|found|set|made)\s+)?(?i:in|on|at|by|from)\s+"
    r"(?=(?:the\s+)?[^\Wa-z_])|(?i:an?|the)\s+(?=\S)"
)
PART_END = re.compile(r",\s+|;|\s\(|</|\s(?:who|which|that|where|when|because)\s")
SENTENCE_END = re.compile(r"(?:(?<=[^\W_]{2})|(?<=[\d\"”')]))[.!?]\s+(?=[^\Wa-z_])")
ABBREVIATION = re.compile(r"\b(?:St|Dr|Mr|Mrs|Ms|Mt|Ft|Jr|Sr|No|vs)$")
LINE = re.compile(r"[^\n]+")
_ANSWER = r"(?:[\w’']+\s){0,3}answer(?:\s(?:to|for)(?:\s[\w’']+){1,3})?"
# What comes before a claim and claims nothing: a mark of a list, a tag, "Answer:", "Sure!".
OPENING = re.compile(
    r"\s+|[-*+•>]\s+|\d{1,3}[.)]\s+|#{1,6}\s+|<\w+>|"
    rf"\W*(?:a|{_ANSWER}(?:\s(?:is|was))?)\W*:(?=[\s\"“*]|$)\s*|"
    rf"{_ANSWER}\s(?:is|was|would be|must be)\s+|"
    r"(?:sure(?: thing)?|certainly|of course|absolutely|okay|ok|yes, of course|great question|well|"
    r"good question|happy to help|no problem|hmm+|let(?: me|['’]s) (?:think|see)|"
    r"here (?:is|are)[^.:!\n]*|here['’]s[^.:!\n]*)\s*(?:[!.,:…]+|$)|"
    r"(?:i (?:think|believe|guess|would say)|i['’]d say|probably|perhaps|maybe)\b,?"
    r"(?:\sthat\b(?!\s(?:is|was|must|should|will|would)\b))?",
    re.IGNORECASE,
)


def answer_span(answer_text: str, *, question: str = "") -> Span | None:
    """Find the span of the answer entity; None if the answer is nothing but punctuation."""
    whole = trimmed(answer_text, Span(0, len(answer_text)))
    if whole.start == whole.stop:
        return None
    if is_abstention(answer_text):
        return whole
    word = YES_NO.match(answer_text, whole.start)
    if word is None and YES_NO_QUESTION.match(question.strip()):
        word = YES_OR_NO.match(answer_text, whole.start)
    if word:
        return Span(*word.span())
    # The first sentence that claims something; where none does, the first.
    first, _ = max(sentences(answer_text, whole), key=lambda found: found[1], default=(whole, True))
    return _entity(answer_text, first, question)


def sentences(text: str, span: Span) -> Iterator[tuple[Span, bool]]:
    """The sentences of a text without their openings, and whether each claims something.

    A question, a heading and an abstention claim nothing.
    """
    for line in LINE.finditer(text, *span):
        start = line.start()
        while opening := OPENING.match(text, start, line.end()):
            start = opening.end()
        for sentence in _split(text, Span(start, line.end())):
            bare, own = trimmed(text, sentence), text[sentence.start : sentence.stop].rstrip()
            if bare.start < bare.stop:
                yield sentence, not own.endswith(("?", ":")) and not is_abstention(own)


def _split(text: str, span: Span) -> Iterator[Span]:
    """Split a line where its sentences end."""
    start = span.start
    for end in SENTENCE_END.finditer(text, *span):
        if not ABBREVIATION.search(text, max(start, end.start() - 4), end.start()):
            yield Span(start, end.start() + 1)
            start = end.end()
    yield Span(start, span.stop)


def _entity(text: str, span: Span, question: str) -> Span:
    for pattern in (AGENT, NAMED):
        if lead := pattern.search(text, *span):
            end = AGENT_END.search(text, lead.end(), span.stop)
            return _tidy(text, Span(lead.end(), end.start() if end else span.stop))
    if copula := COPULA.search(text, span.start, span.stop):
        left, right = Span(span.start, copula.start()), Span(copula.end(), span.stop)
        return _side(text, left, right, question)
    new = _longest_new(text, span, question)
    return _tidy(text, _before_comma(text, new or span))


def _side(text: str, left: Span, right: Span, question: str) -> Span:
    """Choose the side of "X is Y" that answers the question.

    The one that holds words the question does not have; Y where both do or X names nothing ("It"),
    X where neither does (a choice the question offered). Of a place's "a city in India" only the
    name.
    """
    names = _is_new(text, left, frozenset())
    if names and not _is_new(text, right, _words_of(question)):
        return _tidy(text, _before_comma(text, left))
    if not question or PLACE_QUESTION.search(question):
        place = PLACE.search(text, *right) if DESCRIBED.match(text, *right) else None
        if place:
            return _tidy(text, Span(*place.span(1)))
    return _tidy(text, _before_comma(text, right))


def _words_of(question: str) -> frozenset[str]:
    return frozenset(plain_word(word[0]) for word in WORD.finditer(question))


def _is_new(text: str, span: Span, in_question: frozenset[str]) -> bool:
    """Whether a content word in the span is not in the question."""
    plain = (plain_word(word[0]) for word in WORD.finditer(text, *span))
    return any(word not in in_question and word not in STOP for word in plain)


def _longest_new(text: str, span: Span, question: str) -> Span | None:
    """Find the longest run without question words, if the text repeats at least two of them.

    One of the two has to be in lower case: a name may well share words with the question.
    """
    in_question = _words_of(question) - STOP
    runs: list[list[re.Match[str]]] = [[]]
    repeated: list[str] = []
    for word in WORD.finditer(text, *span):
        if plain_word(word[0]) in in_question:
            repeated.append(word[0])
            runs.append([])
        elif runs[-1] or plain_word(word[0]) not in STOP:
            runs[-1].append(word)
    for run in runs:
        while run and plain_word(run[-1][0]) in STOP:
            run.pop()
    longest = max(runs, key=len)
    sentence = len(repeated) > 1 and any(word.islower() for word in repeated)
    return Span(longest[0].start(), longest[-1].end()) if longest and sentence else None


def _before_comma(text: str, span: Span) -> Span:
    """Cut the span at a comma, bracket or relative clause, but not inside "December 14, 1972"."""
    for mark in PART_END.finditer(text, *span):
        date = re.search(r"\d\s*$", text[span.start : mark.start()]) and re.match(
            r"\d{3,4}\b", text[mark.end() :]
        )
        if not date and trimmed(text, Span(span.start, mark.start())).stop > span.start:
            return Span(span.start, mark.start())
    return span


def _tidy(text: str, span: Span) -> Span:
    """Strip quotation marks, punctuation, and a leading preposition or article."""
    rest = trimmed(text, span)
    for _ in range(3):  # "currently in the Netherlands"
        lead = LEAD.match(text, *rest)
        rest = trimmed(text, Span(lead.end(), rest.stop)) if lead else rest
    return rest if rest.start < rest.stop else trimmed(text, span)


# --- The kind of an answer by its form: yes/no, date, number, name, other ---


Kind = Literal["yes/no", "date", "number", "name", "other", "none"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_DATE = re.compile(
    rf"(\d{{1,2}}(st|nd|rd|th)?\s+)?{MONTH}(\s+\d|,|$)|(in\s+)?(1\d|20)\d\ds?\W*$|"
    r"\d{1,4}[-/]\d{1,2}[-/]\d{1,4}\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(rf"[-+−$€£]?\d|({'|'.join(UNITS | TENS | SCALES)})\b", re.IGNORECASE)
_FORMS: dict[Kind, re.Pattern[str]] = {"yes/no": YES_OR_NO, "date": _DATE, "number": _NUMBER}


def kind_of_answer(text: str) -> Kind:
    """Classify an answer by its form: yes/no, date, number, name or other.

    A name begins with a capital letter in most of its words; a year alone is a date.
    """
    words = text.strip().strip("\"'“”‘’.()[] ")
    if not words:
        return "none"
    for name, form in _FORMS.items():
        if form.match(words):
            return name
    letters = [word[0] for word in words.split() if word[0].isalpha()]
    capitals = sum(letter == letter.upper() for letter in letters)
    return "name" if letters and 2 * capitals >= len(letters) else "other"


def kind_of(sample: Sample) -> str:
    """The kind of a sample's answer: as given, else by the form of its exact answer."""
    if sample.kind:
        return sample.kind
    span, text = sample.answer_span, sample.answer.text
    return kind_of_answer(text[span.start : span.stop] if span else text)
