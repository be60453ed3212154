"""The entity of a question, from its dataset or else from the longest marked span."""

from __future__ import annotations

import re
from collections.abc import Sequence

from anchorscope.datasets.text import normalised
from anchorscope.records import Question, Span
from anchorscope.spans.characters import longest
from anchorscope.spans.question import QuestionSpans, find_spans

_ARTICLE = re.compile(r"(?:the|an?)\s+(?=\S)")


def entity_of(question: Question, spans: QuestionSpans) -> str:
    """The entity that folds keep together and bootstraps draw as one.

    The dataset's own where it names one. Else the subject's longest span without case, white space
    and a leading article: it depends on this question alone, so questions added later move no fold.
    A finder that marks whole questions says nothing of their entity: the rules' spans are taken.
    """
    if question.entity and question.entity != normalised(question.text):
        return question.entity
    marked = find_spans([question], finder="auto")[0] if spans.finder == "all" else spans
    return _named(question.text, marked.subject_spans) or normalised(question.text)


def _named(text: str, spans: Sequence[Span]) -> str:
    if not spans:
        return ""
    span = longest(spans)
    return _ARTICLE.sub("", normalised(text[span.start : span.stop]), count=1)
