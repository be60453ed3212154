"""Choose the prompt style that makes a model answer with the entity alone.

An answer that restates the subject ("Kanpur is a city in ...") puts the question's tokens into the
answer, and the knockout can no longer tell the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anchorscope.answers.generate import Answerer
from anchorscope.engine.decode import read_prefix, shared_prefix
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError
from anchorscope.models.prompts import has_chat, make_prompts
from anchorscope.records import QuestionSet
from anchorscope.spans.answer import answer_span

TRIED = 16  # questions of each set on which a prompt style is tried
SLACK = 0.05  # chat turns may be this much worse: they are what an instructed model was made for


class Style(NamedTuple):
    """The prompt style of a run, and why it was chosen."""

    name: str  # chat or text
    why: str


def settle_style(
    lease: Lease, sets: Sequence[QuestionSet], *, wanted: str, shots: int, max_tokens: int
) -> Style:
    """Choose the prompt style; `auto` takes the one with more bare answers on a few questions."""
    chats = has_chat(lease.model)
    if wanted == "chat" and not chats:
        raise UserError(
            f"{lease.model.name} has no chat template, so the prompt style `chat` cannot be used. "
            "Accepted for it: text, auto."
        )
    if wanted != "auto":
        return Style(wanted, "as asked")
    if not chats:
        return Style("text", "the tokenizer has no chat template")

    def share(style: str) -> float:
        return min(_bare_share(lease, questions, style, shots, max_tokens) for questions in sets)

    chat = share("chat")
    why = f"of {TRIED} answers {chat:.0%} were bare as chat turns"
    if chat == 1:  # nothing can be better
        return Style("chat", why)
    text = share("text")
    return Style("chat" if chat >= text - SLACK else "text", f"{why}, {text:.0%} as text")


def _bare_share(
    lease: Lease, questions: QuestionSet, style: str, shots: int, max_tokens: int
) -> float:
    """Measure the share of bare answers to the first questions of a set in this prompt style."""
    texts = [question.text for question in questions.questions[:TRIED]]
    examples = questions.shots[:shots]
    ids = [p.ids for p in make_prompts(lease.model, texts, shots=examples, style=style)]
    prefix = read_prefix(lease, shared_prefix(ids, stop=min(map(len, ids)) - 1))
    answerer = Answerer(lease.model, max_tokens=max_tokens)
    answers = answerer.answer(lease, prefix, texts, ids).answers
    bare = [is_bare(a.text, text) for a, text in zip(answers, texts, strict=True)]
    return sum(bare) / len(bare)


def is_bare(answer: str, question: str) -> bool:
    """Whether an answer is its entity alone, apart from punctuation and an article."""
    span = answer_span(answer, question=question)
    return span is not None and len(answer.strip(" .!\"'")) - (span.stop - span.start) <= len(
        "the "
    )
