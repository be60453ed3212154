"""Answers written and scored in the same pass, and answers that are given, in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from anchorscope.detect.binding import Bound, bind
from anchorscope.detect.detector import Scored
from anchorscope.detect.given import answer_tokens, with_log_probs
from anchorscope.detect.reweight import PathwayReweighting, state_name
from anchorscope.detect.written import (
    NOTHING,
    Found,
    find_exact,
    material_of,
    on_host,
    unknown_answer,
)
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.intervene import Row, read_batch, row_for
from anchorscope.engine.interventions import Intervention, Marked
from anchorscope.engine.lease import Lease
from anchorscope.engine.trunk import Prefix, Trunk, grow_trunk
from anchorscope.errors import UserError
from anchorscope.models.prompts import Prompt
from anchorscope.progress import Progress, Quiet

if TYPE_CHECKING:
    from anchorscope.detect.detector import Detector

_CLEAN = Intervention(name="clean")


@dataclass(frozen=True)
class _Asked:
    """One question on its way."""

    number: int
    question: str
    prompt: Prompt
    answer: str | None


@dataclass(frozen=True)
class _Batch:
    """A batch of answers with the states of the layers that are needed, and its trunk."""

    found: list[Found]
    clean: Tensor  # [row, layer, width] at the probe position; rows without E_A hold anything
    trunk: Trunk


def score_all(
    detector: Detector,
    model: Any,
    questions: Sequence[str],
    *,
    answers: Sequence[str | None] | None = None,
    progress: Progress | None = None,
) -> list[Scored]:
    """The scored answers in the order of the questions; given ones where there are any."""
    if answers is not None and len(answers) != len(questions):
        raise UserError(f"{len(questions)} questions and {len(answers)} answers were given.")
    bound = bind(detector, model)
    given = answers or [None] * len(questions)
    asked = [
        _Asked(number, question, bound.prompt(question), answer)
        for number, (question, answer) in enumerate(zip(questions, given, strict=True))
    ]
    work = _Scoring(detector, bound)
    out: dict[int, Scored] = {}
    progress = progress or Quiet()
    progress.start("scores", len(asked))
    budget = Budget.of(bound.model.device)
    with Lease(bound.model) as lease:
        for written in (False, True):
            part = [a for a in asked if (a.answer is None) == written]
            for batch, scored in in_batches(
                part,
                lambda batch: work.score(lease, batch),
                length=lambda a: len(a.prompt.ids),
                then=lambda a: a.number,
                budget=budget,
            ):
                out |= {a.number: s for a, s in zip(batch, scored, strict=True)}
                progress.advance(len(batch))
    return [out[number] for number in range(len(asked))]


@dataclass
class _Scoring:
    """What stays the same over the batches."""

    detector: Detector
    bound: Bound

    def score(self, lease: Lease, batch: Sequence[_Asked]) -> list[Scored]:
        """The scored answers of a batch: all written now, or all given."""
        prefix = self._prefix(lease, batch)
        done = (self._write if batch[0].answer is None else self._read)(lease, prefix, batch)
        rows = [n for n, found in enumerate(done.found) if found.exact]
        readable = [done.found[n] for n in rows]
        states: dict[tuple[str, int], np.ndarray] = {
            ("clean", layer): on_host(done.clean[rows, layer - 1])
            for layer in self.detector.method.needs().get("clean", ())
        }
        if rows and isinstance(self.detector.method, PathwayReweighting):
            states |= self._reweighted(lease, batch, done, rows, states)
        return scored_rows(self.detector, done.found, readable, states)

    def _prefix(self, lease: Lease, batch: Sequence[_Asked]) -> Prefix:
        shared = self.bound.shared
        fits = all(a.prompt.ids[: len(shared)] == shared for a in batch)
        return self.bound.prefix(lease) if fits else Prefix((), None)

    def _write(self, lease: Lease, prefix: Prefix, batch: Sequence[_Asked]) -> _Batch:
        """The model's own answers; their states were computed on the way."""
        ids = [str(a.number) for a in batch]
        done = self.bound.answerer.answer(lease, prefix, ids, [a.prompt.ids for a in batch])
        found = [
            find_exact(self.bound.model, a.question, answer)
            for a, answer in zip(batch, done.answers, strict=True)
        ]
        last = [f.exact[-1] if f.exact else 0 for f in found]
        return _Batch(found, done.states[list(range(len(batch))), last], done.trunk)

    def _read(self, lease: Lease, prefix: Prefix, batch: Sequence[_Asked]) -> _Batch:
        """Given answers, fed once."""
        model, found = self.bound.model, []
        for a in batch:
            ids = answer_tokens(model, a.prompt, self.bound, a.question, str(a.answer))
            answer = unknown_answer(str(a.answer), ids, a.number)
            found.append(find_exact(model, a.question, answer))
        grown = grow_trunk(lease, prefix, [a.prompt.ids for a in batch], room=0, head=False)
        if self.detector.method.reads_tokens:
            found = with_log_probs(lease, prefix, [a.prompt.ids for a in batch], found)
        rows = [_clean_row(n, a, f) for n, (a, f) in enumerate(zip(batch, found, strict=True))]
        return _Batch(found, read_batch(lease, grown.trunk, rows), grown.trunk)

    def _reweighted(
        self,
        lease: Lease,
        batch: Sequence[_Asked],
        done: _Batch,
        rows: Sequence[int],
        clean: dict[tuple[str, int], np.ndarray],
    ) -> dict[tuple[str, int], np.ndarray]:
        """The states under each answer's own sign of β, by one pass over the answers."""
        method = self.detector.method
        assert isinstance(method, PathwayReweighting)
        is_q = method.predicts_q(material_of([done.found[n] for n in rows], clean))
        passes = []
        for n, q in zip(rows, is_q, strict=True):
            beta = method.beta_ if q or method.sign == "fixed" else -method.beta_
            passes.append(self._boosted(n, batch[n], done.found[n], beta, method.kind))
        states = on_host(read_batch(lease, done.trunk, passes)[:, method.layer_ - 1])
        # Each answer was read under one sign; the other name is never looked at for it.
        names = (state_name(method.kind, method.beta_), state_name(method.kind, -method.beta_))
        return {(name, method.layer_): states for name in names}

    def _boosted(self, number: int, asked: _Asked, found: Found, beta: float, kind: str) -> Row:
        written = len(asked.prompt.ids)
        exact = self.bound.exact(asked.question, asked.prompt)
        mark = Marked(
            id=str(asked.number),
            ids=asked.prompt.ids + found.answer.token_ids[: found.exact[-1] + 1],
            answer_at=written,
            question=exact,
            exact=exact,
            exact_answer=tuple(written + token for token in found.exact),
        )
        where = "pre" if kind == "reweight" else "post"
        boost = Intervention(name=state_name(kind, beta), boost=beta, where=where)
        blocks = self.bound.model.blocks
        return row_for(mark, number, boost, blocks=blocks, turn_at=0, seed=0)


def scored_rows(
    detector: Detector,
    found: Sequence[Found],
    readable: Sequence[Found],
    states: dict[tuple[str, int], np.ndarray],
) -> list[Scored]:
    """One `Scored` per answer; those without E_A say so instead of giving a number."""
    by_id: dict[int, tuple[float, float]] = {}
    if readable:
        score, probability = detector.scored(material_of(readable, states))
        pairs = zip(score.tolist(), probability.tolist(), strict=True)
        by_id = {id(f): pair for f, pair in zip(readable, pairs, strict=True)}
    out = []
    for one in found:
        score, probability = by_id.get(id(one), (np.nan, np.nan))
        if id(one) in by_id and not np.isfinite(probability):
            raise UserError(
                f"The answer {one.answer.text!r} got no finite score: the model's state overflows "
                "in this dtype. Use float32."
            )
        out.append(
            Scored(
                question=one.question,
                answer=one.answer.text,
                exact=one.exact_text,
                probability=probability,
                score=score,
                flagged=bool(probability > detector.threshold),
                why="" if id(one) in by_id else NOTHING,
            )
        )
    return out


def _clean_row(number: int, asked: _Asked, found: Found) -> Row:
    """The answer's own tokens up to the probe position, nothing changed."""
    stop = found.exact[-1] + 1 if found.exact else 1
    ids = found.answer.token_ids[:stop] or (0,)
    start = len(asked.prompt.ids)
    return Row(number, _CLEAN, (), ids, tuple(range(start, start + len(ids))), range(0))
