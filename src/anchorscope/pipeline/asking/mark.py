"""An answer judged, and its entity found."""

from __future__ import annotations

from anchorscope.answers.generate import answer_offsets
from anchorscope.answers.judge import judge
from anchorscope.answers.kind import kind_of_answer
from anchorscope.models import Model
from anchorscope.pipeline.prompts import Prompted
from anchorscope.records import Answer, Sample, Verdict
from anchorscope.spans.answer import answer_span
from anchorscope.spans.characters import tokens_of


def mark_answer(
    model: Model, prompt: Prompted, answer: Answer, *, verdict: Verdict | None = None
) -> Sample:
    """The answer judged, and its entity found without a look at the gold answer.

    A `verdict` that is given, here or with the prompt, stands instead of the judge's, who needs
    accepted answers.
    """
    question, verdict = prompt.question, verdict or prompt.verdict
    span = answer_span(answer.text, question=question.text)
    tokens = tokens_of([span], answer_offsets(model, answer)) if span else ()
    said = answer.text[span.start : span.stop] if span else answer.text
    return Sample(
        question=question,
        answer=answer,
        verdict=verdict or judge(answer.text, question.answers, question=question.text),
        finder=prompt.spans.finder,
        spans=prompt.spans.spans,
        answer_span=span,
        prompt_ids=prompt.prompt_ids,
        question_tokens=prompt.question_tokens,
        exact_question=prompt.exact_question,
        exact_answer=tuple(len(prompt.prompt_ids) + token for token in tokens),
        kind=kind_of_answer(said),
        property_spans=prompt.spans.property_spans,
        content_tokens=prompt.content_tokens,
    )
