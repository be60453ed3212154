"""Answers written and scored in the same pass, and answers that are given, in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from anchorscope.detect.deployed.bind import Bound
from anchorscope.detect.deployed.located import (
    LocatedAnswer,
    Scored,
    States,
    locate_answer,
    on_host,
    scored_answers,
    unknown_answer,
)
from anchorscope.detect.deployed.teacher_forced import read_tokens
from anchorscope.detect.deployed.trained import Trained
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.check import require_understood
from anchorscope.engine.decode import states_bytes
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CLEAN
from anchorscope.engine.rows import Row, read_batch
from anchorscope.engine.trunk import Prefix, grow_trunk
from anchorscope.errors import UserError
from anchorscope.models.prompts import Prompt
from anchorscope.progress import Progress, Quiet


@dataclass(frozen=True)
class _Asked:
    """One question on its way."""

    number: int
    question: str
    prompt: Prompt
    answer: str | None
    answer_ids: tuple[int, ...] = ()  # of a given answer


@dataclass(frozen=True)
class _Batch:
    """A batch of answers with their states at the probe position."""

    answers: list[LocatedAnswer]
    clean: Tensor  # [row, layer, width]; rows without E_A hold anything


def score_all(
    trained: Trained,
    bound: Bound,
    questions: Sequence[str],
    *,
    answers: Sequence[str | None] | None = None,
    progress: Progress | None = None,
) -> list[Scored]:
    """The scored answers in the order of the questions; given ones where there are any."""
    if answers is not None and len(answers) != len(questions):
        raise UserError(f"{len(questions)} questions and {len(answers)} answers were given.")
    given = answers or [None] * len(questions)
    asked = [
        _asked(bound, number, question, answer)
        for number, (question, answer) in enumerate(zip(questions, given, strict=True))
    ]
    work = _Scoring(trained, bound)
    out: dict[int, Scored] = {}
    progress = progress or Quiet()
    progress.start("scores", len(asked))
    require_understood(bound.model)
    budget = Budget.of(bound.model)
    states = states_bytes(bound.model, bound.answerer.max_tokens)
    rows = Prefix((), None).rows_within(budget.written, room=0, beside=states)
    with Lease(bound.model) as lease:
        for written in (False, True):
            part = [a for a in asked if (a.answer is None) == written]
            for batch, scored in in_batches(
                part,
                lambda batch: work.score(lease, batch),
                length=lambda a: len(a.prompt.ids) + len(a.answer_ids),
                then=lambda a: a.number,
                budget=budget,
                rows=rows if written else None,
            ):
                out |= {a.number: s for a, s in zip(batch, scored, strict=True)}
                progress.advance(len(batch))
    return [out[number] for number in range(len(asked))]


def _asked(bound: Bound, number: int, question: str, answer: str | None) -> _Asked:
    if answer is None:
        return _Asked(number, question, bound.checked_prompt(question), None)
    ids = bound.answer_tokens(question, answer)
    return _Asked(number, question, bound.checked_prompt(question, ids), answer, ids)


@dataclass
class _Scoring:
    """What stays the same over the batches."""

    trained: Trained
    bound: Bound

    def score(self, lease: Lease, batch: Sequence[_Asked]) -> list[Scored]:
        """The scored answers of a batch: all written now, or all given."""
        prefix = self._prefix(lease, batch)
        done = (self._write if batch[0].answer is None else self._read)(lease, prefix, batch)
        rows = [n for n, one in enumerate(done.answers) if one.exact_answer]
        clean = on_host(done.clean[rows])
        needed = self.trained.method.needs()
        states: States = {("clean", k): clean[:, k - 1] for k in needed.get("clean", ())}
        return scored_answers(self.trained, done.answers, rows, states, clean)

    def _prefix(self, lease: Lease, batch: Sequence[_Asked]) -> Prefix:
        shared = self.bound.shared
        fits = all(a.prompt.ids[: len(shared)] == shared for a in batch)
        return self.bound.prefix(lease) if fits else Prefix((), None)

    def _write(self, lease: Lease, prefix: Prefix, batch: Sequence[_Asked]) -> _Batch:
        """The model's own answers; their states were computed on the way."""
        ids = [str(a.number) for a in batch]
        done = self.bound.answerer.answer(lease, prefix, ids, [a.prompt.ids for a in batch])
        answers = [
            locate_answer(self.bound.model, a.question, answer)
            for a, answer in zip(batch, done.answers, strict=True)
        ]
        last = [one.exact_answer[-1] if one.exact_answer else 0 for one in answers]
        return _Batch(answers, done.states[list(range(len(batch))), last])

    def _read(self, lease: Lease, prefix: Prefix, batch: Sequence[_Asked]) -> _Batch:
        """Given answers, fed once: to the probe position, or whole where every token is judged."""
        answers = [
            locate_answer(
                self.bound.model,
                a.question,
                unknown_answer(str(a.answer), a.answer_ids, a.number),
            )
            for a in batch
        ]
        tokens = self.trained.method.reads_tokens
        prompts = [a.prompt.ids for a in batch]
        grown = grow_trunk(lease, prefix, prompts, room=0, head=tokens)
        if tokens:
            answers, clean = read_tokens(lease, grown, prompts, answers)
            return _Batch(answers, clean)
        rows = [_clean_row(n, a, f) for n, (a, f) in enumerate(zip(batch, answers, strict=True))]
        return _Batch(answers, read_batch(lease, grown.trunk, rows))


def _clean_row(number: int, asked: _Asked, one: LocatedAnswer) -> Row:
    """The answer's own tokens up to the probe position, nothing changed."""
    stop = one.exact_answer[-1] + 1 if one.exact_answer else 1
    ids = one.answer.token_ids[:stop] or (0,)
    start = len(asked.prompt.ids)
    return Row(number, CLEAN, (), ids, tuple(range(start, start + len(ids))), range(0))
