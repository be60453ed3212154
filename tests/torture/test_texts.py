"""Hostile questions and answers: the judge, the finders of spans, and prompts."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

from anchorscope.answers.judge import judge
from anchorscope.answers.normalise import words
from anchorscope.datasets.text import one_line
from anchorscope.models.prompts import PromptPart, guarded_tokens, make_prompts, tokenise
from anchorscope.records import Question, Shot, Span
from anchorscope.spans.answer import KINDS, answer_span, kind_of_answer
from anchorscope.spans.question import entity_of, find_spans, read_reply
from torture.hostile import fuzz, part, seeded, text
from torture.special_tokens import GEMMA, LLAMA_3, gemma_like, llama_like


def _check_judge(given: tuple[str, list[str], str]) -> None:
    """The verdict is the same for every way to write the same letters; an alias is right."""
    answer, aliases, question = given
    verdict = judge(answer, aliases, question=question)
    for form in ("NFC", "NFD"):
        normal = [unicodedata.normalize(form, alias) for alias in aliases]
        own, wording = (unicodedata.normalize(form, text) for text in (answer, question))
        assert judge(own, normal, question=wording) == verdict, form
        assert [w.text for w in words(own)] == [w.text for w in words(answer)]
    assert judge(f" {answer}\t", aliases, question=question) == verdict, "white space counts"
    assert judge(answer, [*aliases, *aliases], question=question) == verdict, "doubles count"
    for alias in aliases:
        assert judge(alias, aliases, question=question) == "right" or not alias.strip()
    assert kind_of_answer(answer) in KINDS


def _check_spans(given: tuple[str, list[str], str]) -> None:
    """Sorted spans inside the question; of the subject, or of the property, no two touch."""
    wording, subjects, reply = one_line(given[0]), given[1], given[2]
    inside = tuple(s for s in subjects if s and s in wording)
    question = Question(id="q", dataset="d", text=wording, answers=("a",), subjects=inside)
    for finder in ("auto", "given", "rules", "all"):
        (found,) = find_spans([question], finder=finder)
        for spans in (found.subject_spans, found.property_spans):
            _require_apart(spans, wording)
        assert found.spans == tuple(sorted((*found.subject_spans, *found.property_spans)))
        assert all(a.stop <= b.start for a, b in pairwise(found.spans)), found  # they may touch
        assert isinstance(entity_of(question, found), str)
    _require_apart(read_reply(wording, reply), wording)
    for answer, about in ((given[0], reply), (reply, given[0])):
        span = answer_span(answer, question=about)
        assert span is None or 0 <= span.start < span.stop <= len(answer)


def _require_apart(spans: Sequence[Span], text: str) -> None:
    edges = [edge for span in spans for edge in span]
    assert edges == sorted(set(edges)) and all(0 <= edge <= len(text) for edge in edges), spans


def _check_prompt(given: tuple[str, Shot, str, str]) -> None:
    """As many special tokens as around a harmless question, and its text where it belongs."""
    question, shot, style, which = given
    model: Any = {"llama": llama_like, "gemma": gemma_like}[which]()
    guarded = guarded_tokens(model.tokenizer)
    plain = Shot(question="One?", answer="Two")
    prompt, harmless = (
        make_prompts(model, [q], shots=[s], style=style)[0]
        for q, s in ((question, shot), ("Who?", plain))
    )
    special = [[id for id in p.ids if id in guarded] for p in (prompt, harmless)]
    assert special[0] == special[1], "a question wrote a special token"
    own = [
        id
        for id, (a, b) in zip(prompt.ids, prompt.offsets, strict=True)
        if a < prompt.question.stop and b > prompt.question.start
    ]
    assert not set(own) & guarded.keys()
    if which == "llama":  # of bytes: the question comes back whole
        assert model.tokenizer.decode(own) == question
    answer = tokenise(
        model.tokenizer, [[PromptPart(question + shot.answer, False)]], special=False
    )[0]
    assert not set(answer.ids) & guarded.keys()


def _asked(r: Random) -> tuple[str, list[str], str]:
    wording = text(r)
    cut = r.randint(0, len(wording))
    return wording, [part(r), wording[cut : cut + r.randint(1, 9)]], text(r) + ";" + wording[cut:]


def _prompt(r: Random) -> tuple[str, Shot, str, str]:
    first, second = (
        " ".join((text(r) + r.choice((*LLAMA_3, *GEMMA, "x"))).split()) or "x" for _ in range(2)
    )
    shot = Shot(question=first, answer=" ".join(part(r).split()) or "x")
    return second, shot, r.choice(("chat", "text")), r.choice(("llama", "gemma"))


test_the_judge = fuzz(seeded(lambda r: (text(r), [part(r), part(r)], text(r))), _check_judge)
test_spans_of_questions_and_answers = fuzz(seeded(_asked), _check_spans)
test_prompts = fuzz(seeded(_prompt), _check_prompt)
