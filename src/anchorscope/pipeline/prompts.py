"""Questions as prompts: chat turns or plain text, as tokens, and the tokens that matter in them.

The style is whichever makes this model answer with the bare answer. An answer that restates the
subject ("Kanpur is a city in ...") puts the question's tokens into the answer, and the knockout
can no longer tell the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from anchorscope.answers.generate import Answerer
from anchorscope.datasets.text import digest
from anchorscope.engine.decode import read_prefix, shared_prefix
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import RETESTED
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.models.prompts import RETEST, USUAL, Prompt, Wording, has_chat, make_prompts
from anchorscope.records import Question, QuestionSet, Verdict
from anchorscope.spans.answer import answer_span
from anchorscope.spans.characters import content_words, tokens_of
from anchorscope.spans.question import QuestionSpans, entity_of

TRIED = 16  # questions of each set
SLACK = 0.05  # chat turns may be this much worse: they are what an instructed model was made for


@dataclass(frozen=True, kw_only=True)
class Prompted:
    """A question as the model will see it."""

    question: Question
    spans: QuestionSpans
    prompt_ids: tuple[int, ...]
    question_tokens: tuple[int, ...]
    exact_question: tuple[int, ...]  # E_Q
    content_tokens: tuple[int, ...] = ()  # the question's content words, those of E_Q included
    verdict: Verdict | None = None  # on the answer to come, where a file gives it


def prompts_of(
    model: Model,
    questions: QuestionSet,
    spans: Sequence[QuestionSpans],
    *,
    style: str,
    shots: int,
    wording: Wording = USUAL,
) -> list[Prompted]:
    """Each question with its prompt, token positions and entity, in the set's order."""
    texts = [question.text for question in questions]
    kept = questions.shots[:shots]
    prompts = make_prompts(model, texts, shots=kept, style=style, wording=wording)
    return [
        _prompted(question, of, prompt)
        for question, of, prompt in zip(questions, spans, prompts, strict=True)
    ]


def retest_prompts(
    model: Model, questions: QuestionSet, prompts: Sequence[Prompted], *, style: str, shots: int
) -> list[Prompted]:
    """Some of a set's questions behind other worked examples, in another wording of the prompt.

    At most 500, those with the smallest hash of their id: neither shards nor the order of the
    questions change them.
    """
    ranked = sorted(prompts, key=lambda p: (digest("retest", p.question.id), p.question.id))
    chosen = ranked[:RETESTED]
    again = replace(
        questions,
        questions=tuple(p.question for p in chosen),
        shots=questions.retest_shots or questions.shots[::-1],
    )
    spans = [p.spans for p in chosen]
    return prompts_of(model, again, spans, style=style, shots=shots, wording=RETEST)


def _prompted(question: Question, of: QuestionSpans, prompt: Prompt) -> Prompted:
    tokens = tokens_of([prompt.question], prompt.offsets)
    exact: tuple[int, ...] = ()
    content: tuple[int, ...] = ()
    if tokens:  # no token outside the question shares a character with a part of it
        offsets = prompt.offsets[tokens[0] : tokens[-1] + 1]
        exact = tokens_of(of.spans, offsets, start=prompt.question.start)
        content = tokens_of(content_words(question.text), offsets, start=prompt.question.start)
    return Prompted(
        question=replace(question, entity=entity_of(question, of)),
        spans=of,
        prompt_ids=prompt.ids,
        question_tokens=tokens,
        exact_question=tuple(tokens[0] + at for at in exact),
        content_tokens=tuple(tokens[0] + at for at in content),
    )


def common_prefix(prompts: Sequence[Prompted]) -> tuple[int, ...]:
    """The tokens in front of every question: the worked examples, never a question's own token."""
    lost = [p.question.id for p in prompts if not p.question_tokens]
    if lost:
        raise UserError(
            f"{len(lost)} questions have no token of their own in the prompt (first: {lost[0]}). "
            "The tokenizer drops their characters: leave them out, or use another model."
        )
    stop = min(p.question_tokens[0] for p in prompts)
    return shared_prefix([p.prompt_ids for p in prompts], stop=stop)


class Style(NamedTuple):
    """The prompt style settled on, and why."""

    name: str  # chat or text
    why: str


def settle_style(
    lease: Lease, sets: Sequence[QuestionSet], *, asked: str, shots: int, max_tokens: int
) -> Style:
    """The style asked for; for `auto` the one that a trial on a few questions speaks for."""
    model = lease.model
    if asked == "text":
        return Style("text", "as asked")
    if not has_chat(model):
        if asked == "chat":
            raise UserError(
                f"{model.name} has no chat template, so the prompt style `chat` cannot be used. "
                "Accepted for it: text, auto."
            )
        return Style("text", "the tokenizer has no chat template")
    if asked == "chat":
        return Style("chat", "as asked")

    def share(style: str) -> float:
        return min(_bare_share(lease, questions, style, shots, max_tokens) for questions in sets)

    chat = share("chat")
    told = f"of {TRIED} answers {chat:.0%} were bare as chat turns"
    if chat == 1:  # nothing can be better
        return Style("chat", told)
    text = share("text")
    return Style("chat" if chat >= text - SLACK else "text", f"{told}, {text:.0%} as text")


def is_bare(answer: str, question: str) -> bool:
    """Whether an answer is nothing but its entity (and what punctuation goes with it)."""
    span = answer_span(answer, question=question)
    return span is not None and len(answer.strip(" .!\"'")) - (span.stop - span.start) <= len(
        "the "
    )


def _bare_share(
    lease: Lease, questions: QuestionSet, style: str, shots: int, max_tokens: int
) -> float:
    """The share of bare answers to the first questions of a set, asked in this style."""
    texts = [question.text for question in questions.questions[:TRIED]]
    kept = questions.shots[:shots]
    ids = [p.ids for p in make_prompts(lease.model, texts, shots=kept, style=style)]
    prefix = read_prefix(lease, shared_prefix(ids, stop=min(map(len, ids)) - 1))
    answerer = Answerer(lease.model, max_tokens=max_tokens)
    answers = answerer.answer(lease, prefix, texts, ids).answers
    bare = [is_bare(a.text, text) for a, text in zip(answers, texts, strict=True)]
    return sum(bare) / len(bare)
