"""Make prompts from questions, also reworded, and samples from answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch.nn.utils.rnn import pad_sequence

from anchorscope.answers.generate import Answered, answer_offsets
from anchorscope.answers.given import GivenAnswer, GivenAnswers, unread_answer
from anchorscope.answers.judge import judge
from anchorscope.datasets.text import digest
from anchorscope.engine.decode import Prefix, read_served, shared_prefix
from anchorscope.engine.interventions import CAUGHT, RETESTED
from anchorscope.engine.lease import Lease
from anchorscope.engine.read import Block, read_given
from anchorscope.engine.transfer import HostCopy, to_device
from anchorscope.engine_vllm import WrittenAnswer
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.models.prompts import (
    RETEST,
    USUAL,
    Prompt,
    Wording,
    answer_tokens,
    make_prompts,
    too_long,
)
from anchorscope.records import Answer, Question, QuestionSet, Sample, Span, Verdict
from anchorscope.spans.answer import answer_span, kind_of_answer
from anchorscope.spans.characters import content_words, tokens_of
from anchorscope.spans.question import QuestionSpans, entity_of


@dataclass(frozen=True, kw_only=True)
class Prompted:
    """A question with its prompt, spans and token positions."""

    question: Question
    spans: QuestionSpans
    prompt_ids: tuple[int, ...]
    question_tokens: tuple[int, ...]
    exact_question: tuple[int, ...]  # E_Q
    content_tokens: tuple[int, ...] = ()  # the question's content words, those of E_Q included
    verdict: Verdict | None = None  # on the answer, where a file gives it
    given: Answer | None = None  # where a file gives it


def prompts_of(
    model: Model,
    questions: QuestionSet,
    spans: Sequence[QuestionSpans],
    *,
    style: str,
    shots: int,
    wording: Wording = USUAL,
    given: GivenAnswers = None,
) -> list[Prompted]:
    """Make the prompt, token positions and entity of each question, in the set's order.

    Where answers are `given`, by question id, each question has its own, behind its prompt.
    """
    texts = [question.text for question in questions]
    examples = questions.shots[:shots]
    prompts = make_prompts(model, texts, shots=examples, style=style, wording=wording)
    found = [locate(*each) for each in zip(questions, spans, prompts, strict=True)]
    if not given:
        return found
    special = style == "text"
    return [
        replace(one, given=_behind(model, prompt, one.question.id, given[one.question.id], special))
        for one, prompt in zip(found, prompts, strict=True)
    ]


def _behind(model: Model, prompt: Prompt, id: str, given: GivenAnswer, special: bool) -> Answer:
    """A given answer as the tokens behind its prompt; their probabilities are not known yet."""
    ids = given.token_ids
    if given.text is not None:
        ids = answer_tokens(model.tokenizer, prompt.pieces, given.text, special=special)[1]
    most = model.lm.config.get_text_config().vocab_size
    if any(token >= most for token in ids):
        raise UserError(
            f"The answer to {id} has the token {max(ids)}, and {model.name} knows {most} tokens. "
            "Give the tokens of its own tokenizer, or the answer as text."
        )
    if reason := too_long(model, id, len(prompt.ids), len(ids)):
        raise UserError(f"{reason}. Shorten it, or leave it out.")
    text = model.tokenizer.decode(ids, skip_special_tokens=True)
    return unread_answer(id, text.strip(), ids)


def locate(question: Question, spans: QuestionSpans, prompt: Prompt) -> Prompted:
    """Find the tokens of a prompt that carry the question's subject and its content words."""
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
    """Make retest prompts: some questions behind other worked examples, in another wording.

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


def common_prefix(prompts: Sequence[Prompted | Sample]) -> tuple[int, ...]:
    """The tokens shared in front of every question: the worked examples, no question's token."""
    lost = [p.question.id for p in prompts if not p.question_tokens]
    if lost:
        raise UserError(
            f"{len(lost)} questions have no token of their own in the prompt (first: {lost[0]}). "
            "The tokenizer drops their characters: leave them out, or use another model."
        )
    stop = min(p.question_tokens[0] for p in prompts)
    return shared_prefix([p.prompt_ids for p in prompts], stop=stop)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A shard, the unit of work: some prompts of one dataset.

    It holds neither the model nor the folder: any process that has both can compute it.
    """

    number: int  # of its files, over all datasets
    dataset: str
    prompts: tuple[Prompted, ...]
    prefix: tuple[int, ...]  # the tokens in front of every question of the dataset
    retest: tuple[Prompted, ...] = ()  # prompts of the questions that are read twice
    retest_prefix: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.prompts)


def cut_into_shards(
    prompts: Sequence[Prompted],
    dataset: str,
    size: int,
    *,
    first: int,
    retest: Sequence[Prompted] = (),
) -> list[Shard]:
    """Cut the prompts of a dataset into shards, numbered from `first` on."""
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


def judged(answer: Answer, question: Question) -> Verdict:
    """Judge an answer by the accepted answers of its question."""
    return judge(answer.text, question.answers, question=question.text)


def mark_answer(model: Model, prompt: Prompted, answer: Answer) -> Sample:
    """Make a sample: judge the answer, and find its entity without the gold answer.

    A verdict given with the prompt replaces the judge's, which needs accepted answers.
    """
    question = prompt.question
    span = answer_span(answer.text, question=question.text)
    tokens = tokens_of([span], answer_offsets(model, answer)) if span else ()
    entity = answer.text[span.start : span.stop] if span else answer.text
    verdict = prompt.verdict or judged(answer, question)
    return Sample(
        question=question,
        answer=answer,
        verdict=verdict,
        finder=prompt.spans.finder,
        spans=prompt.spans.spans,
        answer_span=span,
        prompt_ids=prompt.prompt_ids,
        question_tokens=prompt.question_tokens,
        exact_question=prompt.exact_question,
        exact_answer=tuple(len(prompt.prompt_ids) + token for token in tokens),
        kind=kind_of_answer(entity),
        property_spans=prompt.spans.property_spans,
        content_tokens=prompt.content_tokens,
    )


def read_answers(lease: Lease, prefix: Prefix, batch: Sequence[Prompted]) -> Answered:
    """Read the given answers of a batch of prompts, in one pass, as if they had been decoded."""
    given = [prompt.given for prompt in batch if prompt.given is not None]
    prompts = [prompt.prompt_ids for prompt in batch]
    ends = [prompt.question_tokens[-1] for prompt in batch]
    if lease.server is not None:
        written = [WrittenAnswer(answer.token_ids, True) for answer in given]
        served = read_served(lease, prefix, prompts, written, extra_position=ends)
        pairs = zip(given, served.answers, strict=True)
        answers = tuple(replace(answer, **vars(own)) for answer, own in pairs)
        return Answered(answers, served.states, served.trunk, served.extra)
    read = read_given(
        lease,
        prefix,
        prompts,
        [answer.token_ids for answer in given],
        [range(len(answer.token_ids)) for answer in given],
        extra_position=ends,
    )
    pairs = zip(given, read.answers, strict=True)
    answers = tuple(replace(answer, **vars(own)) for answer, own in pairs)
    states = pad_sequence(list(read.states), batch_first=True)  # [row, token, layer, width]
    return Answered(answers, states, read.trunk, read.extra)


def caught(samples: Sequence[Sample], answered: Answered) -> dict[str, Block]:
    """The states caught while answering, of each sample with a probe position; may be empty."""
    rows = [n for n, s in enumerate(samples) if s.exact_answer and s.exact_question]
    if not rows:
        return {}
    assert answered.extra is not None
    last = [samples[n].exact_answer[-1] - len(samples[n].prompt_ids) for n in rows]
    device = answered.states.device
    at = to_device(rows, device)
    states = (answered.states[at, to_device(last, device)], answered.extra[at])
    ids = [samples[n].id for n in rows]
    return {name: Block(ids, HostCopy(own)) for name, own in zip(CAUGHT, states, strict=True)}


# The same questions in other words.


@dataclass(frozen=True, kw_only=True)
class Rephrasing:
    """A rephrasing: words before and after a question that add nothing to its content."""

    name: str
    before: str = ""
    after: str = ""

    def apply(self, text: str, subjects: Sequence[str] = ()) -> str:
        """Rephrase the text of a question; its subjects stay unchanged."""
        first = text.split(maxsplit=1)[0] if text.strip() else ""
        named = any(subject and text.startswith(subject) for subject in subjects)
        if self.before and first.lower() in _QUESTION_WORDS and not named:
            text = text[0].lower() + text[1:]
        return f"{self.before}{text}{self.after}"

    def spans(self, found: QuestionSpans) -> QuestionSpans:
        """Shift the spans by the length of the words that were added in front."""

        def moved(spans: Sequence[Span]) -> tuple[Span, ...]:
            by = len(self.before)
            return tuple(Span(start + by, stop + by) for start, stop in spans)

        return replace(found, spans=moved(found.spans), property_spans=moved(found.property_spans))


_QUESTION_WORDS = (
    "what", "which", "who", "whose", "whom", "where", "when", "why", "how", "in", "on", "of", "is",
)  # fmt: skip
AS_WRITTEN = Rephrasing(name="as written")
WORDINGS = (
    Rephrasing(name="could-you-tell-me", before="Could you tell me: "),
    Rephrasing(name="i-would-like-to-know", before="I would like to know: "),
    Rephrasing(name="please-tell-me", after=" Please tell me."),
)
