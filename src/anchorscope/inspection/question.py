"""A question put and answered as in a run: the same prompt, marked and read the same way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from anchorscope.answers.prompted import Prompted, mark_answer
from anchorscope.config import Config
from anchorscope.detect.prompts import Bound, Example, bind_prompts
from anchorscope.engine.decode import Prefix, Step, shared_prefix
from anchorscope.engine.lease import Lease
from anchorscope.engine.transfer import to_host
from anchorscope.errors import UserError
from anchorscope.evidence.patching import subject_span
from anchorscope.models import Model
from anchorscope.records import Question, Sample, Span
from anchorscope.run_folder.identity import weights_hash
from anchorscope.run_folder.view import RunView
from anchorscope.spans.characters import content_words, tokens_of
from anchorscope.spans.question import QuestionSpans, find_spans

LONGEST = 2000  # characters of a question
_TRIED = 64  # of the run's prompts, made again to prove that they are the run's


# Called with each answer token as it is fed: its id, and its states [layer, width].
OnToken = Callable[[int, np.ndarray], None]


@dataclass(frozen=True)
class RunPrompts:
    """The prompts of one dataset of a run, for one model."""

    model: Model
    samples: tuple[Sample, ...]  # of the dataset
    bound: Bound

    @cached_property
    def by_text(self) -> dict[str, Sample]:
        """The run's own questions by their text."""
        return {sample.question.text: sample for sample in self.samples}

    def prompted(self, text: str, *, own: bool = True) -> Prompted:
        """Prompt a question; one of the run's own keeps its id and spans."""
        text = _checked(text)
        sample = self.by_text.get(text) if own else None
        prompt = self.bound.checked_prompt(text)
        question = sample.question if sample else _new(text, self.samples[0].question.dataset)
        spans = self._spans(question, sample)
        return Prompted(
            question=question,
            spans=spans,
            prompt_ids=prompt.ids,
            question_tokens=tokens_of([prompt.question], prompt.offsets),
            exact_question=tokens_of(spans.spans, prompt.offsets, start=prompt.question.start),
            content_tokens=tokens_of(
                content_words(text), prompt.offsets, start=prompt.question.start
            ),
        )

    def _spans(self, question: Question, sample: Sample | None) -> QuestionSpans:
        """The run's own spans; of a new question those that need neither a model nor a parser."""
        if sample is not None:
            more = sample.property_spans
            return QuestionSpans(
                id=sample.id, finder=sample.finder, spans=sample.spans, property_spans=more
            )
        finder = "auto" if self.bound.finder in ("given", "model", "spacy") else self.bound.finder
        return find_spans([question], finder=finder)[0]

    def prefix(self, lease: Lease, ids: tuple[int, ...]) -> Prefix:
        """The keys and values in front of every question, where this prompt begins with them."""
        fits = ids[: len(self.bound.shared)] == self.bound.shared
        return self.bound.prefix(lease) if fits else Prefix((), None)

    def positions(self, text: str, part: str) -> tuple[int, ...]:
        """The positions in the prompt of every occurrence of a part of the question."""
        text = _checked(text)
        starts = [at for at in range(len(text)) if part and text.startswith(part, at)]
        if not starts:
            raise UserError(f"The question does not contain {part!r}, so it cannot be cut.")
        spans = [Span(at, at + len(part)) for at in starts]
        prompt = self.bound.prompt(text)
        return tokens_of(spans, prompt.offsets, start=prompt.question.start)


def with_subject(sample: Sample, subject: str) -> str:
    """The question's text about another subject: the longest span of its own replaced."""
    subject = " ".join(subject.split())
    if not subject:
        raise UserError("Type another subject first, such as another name.")
    if not sample.subject_spans:
        raise UserError("No subject was found in this question, so none can be replaced.")
    text, span = sample.question.text, subject_span(sample)
    return text[: span.start] + subject + text[span.stop :]


def prompts_of_run(run: RunView, dataset: str, model: Model) -> RunPrompts:
    """How the run put the questions of a dataset; an error where this model is not the run's."""
    _check_same(run, model)
    samples = tuple(s for s in run.answers if s.question.dataset == dataset and s.question_tokens)
    if not samples:
        raise UserError(f"The run in '{run.path}' holds no answered question of {dataset}.")
    config = Config.restore(dict(run.config))
    bound = bind_prompts(
        model,
        [Example(question=s.question.text, prompt_ids=s.prompt_ids) for s in samples[:_TRIED]],
        finder=config.finder,
        max_tokens=config.max_tokens,
    )
    if bound is None:
        raise UserError(
            f"The tokenizer of {model.name} does not give the prompts of the run in '{run.path}'. "
            f"Use the model and revision of the run: {run.model.get('source')}."
        )
    stop = min(sample.question_tokens[0] for sample in samples)
    bound.shared = shared_prefix([sample.prompt_ids for sample in samples], stop=stop)
    return RunPrompts(model, samples, bound)


def _check_same(run: RunView, model: Model) -> None:
    dtype = str(model.dtype).removeprefix("torch.")
    if run.model.get("dtype") != dtype:
        raise UserError(
            f"The run in '{run.path}' was made in {run.model.get('dtype')}, and {model.name} is "
            f"here in {dtype}. Load it with dtype={run.model.get('dtype')!r}."
        )
    noted = run.model.get("weights")
    if noted != weights_hash(model.lm):
        raise UserError(
            f"The probes of '{run.path}' belong to {run.model_name}; {model.name} has other "
            "weights. Use the run's model, or make a run of this one."
        )


def _checked(text: str) -> str:
    text = text.strip()
    if not text:
        raise UserError("Type a question, or pick one of the run's.")
    if len(text) > LONGEST:
        raise UserError(
            f"The question has {len(text)} characters. Accepted: up to {LONGEST}. Shorten it."
        )
    return text


def _new(text: str, dataset: str) -> Question:
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
    return Question(id=f"asked:{digest}", dataset=dataset, text=text, answers=())


@dataclass(frozen=True, kw_only=True)
class RecordedAnswer:
    """A question with the model's answer to it, and the states that were caught on the way."""

    prompt: Prompted
    sample: Sample  # its verdict means nothing where no accepted answer is known
    states: np.ndarray  # [answer token, layer, width], as a run folder would give them back

    @property
    def is_judged(self) -> bool:
        """Whether the accepted answers are known, and with them the verdict."""
        return bool(self.sample.question.answers)

    @property
    def clean(self) -> np.ndarray | None:
        """The states [layer, width] at the probe position; None: no answer entity to read."""
        exact = self.sample.exact_answer
        return self.states[exact[-1] - len(self.sample.prompt_ids)] if exact else None


def ask(prompts: RunPrompts, text: str, on_token: OnToken | None = None) -> RecordedAnswer:
    """The model's greedy answer to a question, marked as a run marks it."""
    prompt, model = prompts.prompted(text), prompts.model
    states: list[np.ndarray] = []

    def keep(step: Step) -> None:
        states.append(to_host(step.states)[0].astype(np.float32))
        if on_token is not None:
            on_token(step.tokens[0], states[-1])

    with Lease(model) as lease:
        prefix = prompts.prefix(lease, prompt.prompt_ids)
        answered = prompts.bound.answerer.answer(
            lease, prefix, [prompt.question.id], [prompt.prompt_ids], on_token=keep
        )
    (answer,) = answered.answers
    stacked = np.stack(states) if states else np.empty((0, model.blocks, model.parts.width))
    if not prompt.question.answers:  # no judge: the sample is neither right nor wrong
        prompt = replace(prompt, verdict="abstain")
    sample = mark_answer(model, prompt, answer)
    return RecordedAnswer(prompt=prompt, sample=sample, states=stacked)
