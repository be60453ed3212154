"""Prepare questions for the model: prompts, their tokens, and the shards that any process reads.

The prompt style is whichever makes this model answer with the bare answer. An answer that restates
the subject ("Kanpur is a city in ...") puts the question's tokens into the answer, and the knockout
can no longer tell the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import pandas as pd

from anchorscope.answers.generate import Answerer, write_lines
from anchorscope.answers.verdicts import count_verdicts, read_verdicts
from anchorscope.config import Finder
from anchorscope.datasets.text import digest
from anchorscope.engine.decode import read_prefix, shared_prefix
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import RETESTED
from anchorscope.errors import UserError
from anchorscope.evidence.pieces import PromptMaker
from anchorscope.models import Model
from anchorscope.models.parts import check_row
from anchorscope.models.prompts import RETEST, USUAL, Prompt, Wording, has_chat, make_prompts
from anchorscope.pipeline.request import Run
from anchorscope.records import Question, QuestionSet, Verdict
from anchorscope.spans.answer import answer_span
from anchorscope.spans.characters import content_words, tokens_of
from anchorscope.spans.question import QuestionSpans, agreement, entity_of, find_spans

TRIED = 16  # questions of each set on which a prompt style is tried
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


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The unit of work: some questions of one dataset as the model will see them.

    A value without the model or the folder in it: a process that has both can compute it.
    """

    number: int  # of its files, over all datasets
    dataset: str
    prompts: tuple[Prompted, ...]
    prefix: tuple[int, ...]  # the tokens in front of every question of the dataset
    retest: tuple[Prompted, ...] = ()  # those of its questions that are read a second time
    retest_prefix: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.prompts)


def prepare(run: Run, lease: Lease) -> list[Shard]:
    """All questions as prompts in shards, dataset after dataset; the same in every process."""
    with run.stage("preparation"):
        verdicts = read_verdicts(run.config.verdicts)
        if verdicts:
            ids = (question.id for each in run.sets for question in each)
            counts, sentence = count_verdicts(verdicts, ids, str(run.config.verdicts))
            run.progress.note(sentence)
            run.store.save_info({"verdicts": counts})
        style, shots = style_of(run, lease).name, run.config.shots
        size, shards = run.store.info["shard"], []
        for questions in run.sets:
            prompts = prompts_by(run, lease, questions, run.config.finder)
            if verdicts:
                prompts = [replace(p, verdict=verdicts.get(p.question.id)) for p in prompts]
            again = retest_prompts(lease.model, questions, prompts, style=style, shots=shots)
            shards += cut_into_shards(
                prompts, questions.name, size, first=len(shards), retest=again
            )
        found = [prompt.spans for shard in shards for prompt in shard.prompts]
        table = spans_table([question for each in run.sets for question in each], found)
        run.store.write("tables/spans.csv", partial(table.to_csv, index=False))
    return shards


def cut_into_shards(
    prompts: Sequence[Prompted],
    dataset: str,
    size: int,
    *,
    first: int,
    retest: Sequence[Prompted] = (),
) -> list[Shard]:
    """The prompts of a dataset in shards, numbered from `first` on."""
    prefix, retest_prefix = common_prefix(prompts), common_prefix(retest) if retest else ()
    again = {prompt.question.id: prompt for prompt in retest}
    parts = [tuple(prompts[start : start + size]) for start in range(0, len(prompts), size)]
    return [
        Shard(
            number=number,
            dataset=dataset,
            prompts=part,
            prefix=prefix,
            retest=tuple(again[p.question.id] for p in part if p.question.id in again),
            retest_prefix=retest_prefix,
        )
        for number, part in enumerate(parts, start=first)
    ]


def spans_table(questions: Sequence[Question], found: Sequence[QuestionSpans] = ()) -> pd.DataFrame:
    """How far the finders that need no model agree, by dataset; spans already `found` are used."""
    finders: tuple[Finder, ...] = ("given", "rules", "all")
    by_finder = {}
    for name in finders:
        spans = {each.id: each.spans for each in found if each.finder == name}
        others = [question for question in questions if question.id not in spans]
        by_finder[name] = spans | {q.id: q.spans for q in find_spans(others, finder=name)}
    return agreement(questions, by_finder)


def prompt_maker(run: Run, lease: Lease) -> PromptMaker:
    """Make a function that prompts questions like those of the run."""
    shots = {questions.name: questions.shots[: run.config.shots] for questions in run.sets}
    style = style_of(run, lease).name
    return PromptMaker(model=lease.model, style=style, seed=run.config.seed, shots=shots)


# Prompts of one question set.


def prompts_by(run: Run, lease: Lease, questions: QuestionSet, finder: Finder) -> list[Prompted]:
    """The prompts of a question set as the run has them, their spans found by `finder`."""
    generate = partial(write_lines, lease, max_tokens=24)
    spans = find_spans(questions.questions, finder=finder, generate=generate)
    style = style_of(run, lease).name
    prompts = prompts_of(lease.model, questions, spans, style=style, shots=run.config.shots)
    longest = max((len(prompt.prompt_ids) for prompt in prompts), default=0)
    check_row(lease.model.lm, lease.model.name, longest + run.config.max_tokens)
    return prompts


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
    examples = questions.shots[:shots]
    prompts = make_prompts(model, texts, shots=examples, style=style, wording=wording)
    return [_prompted(*each) for each in zip(questions, spans, prompts, strict=True)]


def _prompted(question: Question, spans: QuestionSpans, prompt: Prompt) -> Prompted:
    tokens = tokens_of([prompt.question], prompt.offsets)
    exact: tuple[int, ...] = ()
    content: tuple[int, ...] = ()
    if tokens:  # no token outside the question shares a character with a part of it
        offsets = prompt.offsets[tokens[0] : tokens[-1] + 1]
        exact = tokens_of(spans.spans, offsets, start=prompt.question.start)
        content = tokens_of(content_words(question.text), offsets, start=prompt.question.start)
    return Prompted(
        question=replace(question, entity=entity_of(question, spans)),
        spans=spans,
        prompt_ids=prompt.ids,
        question_tokens=tokens,
        exact_question=tuple(tokens[0] + at for at in exact),
        content_tokens=tuple(tokens[0] + at for at in content),
    )


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


# The prompt style.


class Style(NamedTuple):
    """The prompt style of a run, and why it was chosen."""

    name: str  # chat or text
    why: str


def style_of(run: Run, lease: Lease) -> Style:
    """The prompt style, settled once and kept when the run is continued."""
    facts, c = run.store.info["model"], run.config
    if "prompt" in facts:
        return Style(facts["prompt"], facts["prompt_why"])
    style = settle_style(lease, run.sets, wanted=c.prompt, shots=c.shots, max_tokens=c.max_tokens)
    run.progress.note(f"prompts as {style.name}: {style.why}")
    run.store.save_info({"model": facts | {"prompt": style.name, "prompt_why": style.why}})
    return style


def settle_style(
    lease: Lease, sets: Sequence[QuestionSet], *, wanted: str, shots: int, max_tokens: int
) -> Style:
    """The wanted style; for `auto` the one with more bare answers on a few questions."""
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
    """The share of bare answers to the first questions of a set, prompted in this style."""
    texts = [question.text for question in questions.questions[:TRIED]]
    examples = questions.shots[:shots]
    ids = [p.ids for p in make_prompts(lease.model, texts, shots=examples, style=style)]
    prefix = read_prefix(lease, shared_prefix(ids, stop=min(map(len, ids)) - 1))
    answerer = Answerer(lease.model, max_tokens=max_tokens)
    answers = answerer.answer(lease, prefix, texts, ids).answers
    bare = [is_bare(a.text, text) for a, text in zip(answers, texts, strict=True)]
    return sum(bare) / len(bare)


def is_bare(answer: str, question: str) -> bool:
    """Whether an answer is nothing but its entity (and what punctuation goes with it)."""
    span = answer_span(answer, question=question)
    return span is not None and len(answer.strip(" .!\"'")) - (span.stop - span.start) <= len(
        "the "
    )
