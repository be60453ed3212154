"""One shard of questions through the model: answered, judged, marked, and read.

The answers, the clean states and the states under interventions of a batch come from one trunk.
Each file is saved when it is there, so that a shard is the most a kill can cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from anchorscope.answers.generate import Answered, Answerer, answer_offsets
from anchorscope.answers.judge import judge
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.host import to_host
from anchorscope.engine.intervene import Row, row_for
from anchorscope.engine.interventions import Intervention, Marked
from anchorscope.engine.lease import Lease
from anchorscope.engine.mass import with_mass
from anchorscope.engine.read import read_rows
from anchorscope.engine.trunk import Prefix, Trunk, grow_trunk, read_prefix
from anchorscope.models import Model
from anchorscope.prepare import Prepared, common_prefix
from anchorscope.records import Answer, Sample
from anchorscope.samples import from_frame, to_frame
from anchorscope.spans.answer import answer_span
from anchorscope.spans.tokens import tokens_of
from anchorscope.states import save_states, shard_name
from anchorscope.store import Store

# What is caught while the answer is written: the states at the probe position, and at the last
# token of the question, where no answer was seen yet.
CAUGHT = ("clean", "question-only")


@dataclass
class Extraction:
    """What stays the same over the shards of a run."""

    model: Model
    store: Store
    lease: Lease
    answerer: Answerer
    interventions: Sequence[Intervention]
    seed: int
    exact: Mapping[str, tuple[int, ...]] | None = None  # E_Q by question, instead of the samples'
    tokens: int = 0  # fed so far
    budget: Budget = field(init=False)
    prefix: Prefix = field(init=False)

    def __post_init__(self) -> None:
        self.budget = Budget.of(self.model.device)
        self.prefix = Prefix((), None)

    def share_prefix(self, prepared: Sequence[Prepared]) -> None:
        """Reads the tokens in front of all these questions once, for the shards that follow."""
        ids = common_prefix(prepared)
        if ids != self.prefix.ids:
            self.prefix = read_prefix(self.lease, ids)
            self.tokens += len(ids)

    def shard(self, number: int, prepared: Sequence[Prepared]) -> list[Sample]:
        """The samples of one shard; what is on disk already is not done again."""
        answers = f"answers/{number:05d}.parquet"
        missing = [i for i in self.interventions if not self._has(i.name, number)]
        known = self.store.has(answers) and self._has("clean", number)
        if known and not missing:
            return from_frame(pd.read_parquet(self.store.file(answers)))
        stored = from_frame(pd.read_parquet(self.store.file(answers))) if known else None
        # All interventions again where one is missing: rounding depends on what shares a batch,
        # and a continued run must equal an unbroken one to the last digit.
        samples, caught, others = self._read(prepared, stored)
        if not known:
            # Their states first: answers without them would have to be written again.
            for name in CAUGHT:
                self._save(name, number, caught[name])
            frame = to_frame(samples)
            self.store.write(answers, frame.to_parquet)
        for intervention in missing:
            self._save(intervention.name, number, others[intervention.name])
        return samples

    def _read(
        self, prepared: Sequence[Prepared], stored: Sequence[Sample] | None
    ) -> tuple[list[Sample], dict[str, dict[str, np.ndarray]], dict[str, dict[str, np.ndarray]]]:
        """Samples in the shard's order, and states by name and id: caught ones, intervened ones."""
        by_id = {sample.id: sample for sample in stored or ()}
        caught: dict[str, dict[str, np.ndarray]] = {name: {} for name in CAUGHT}
        others: dict[str, dict[str, np.ndarray]] = {i.name: {} for i in self.interventions}
        for batch, answered in in_batches(
            prepared,
            self._answer if stored is None else self._regrow,
            length=self._own,
            then=lambda p: p.question.id,
            budget=self.budget,
            rows=self._rows(prepared),
        ):
            if stored is None:
                pairs = zip(batch, answered.answers, strict=True)
                marked = [mark_answer(self.model, p, answer) for p, answer in pairs]
                by_id |= {sample.id: sample for sample in marked}
                for name, states in _caught(marked, answered).items():
                    caught[name] |= states
            here = [by_id[p.question.id] for p in batch]
            self._intervene(answered.trunk, here, others)
            del answered  # its states and trunk, before the next batch has its own
        return [by_id[p.question.id] for p in prepared], caught, others

    def _rows(self, prepared: Sequence[Prepared]) -> int | None:
        """How many rows may be written to at once."""
        room = max(map(self._own, prepared)) + self.answerer.max_tokens
        return self.prefix.rows_within(self.budget.memory, room=room)

    def _own(self, prepared: Prepared) -> int:
        return len(prepared.prompt_ids) - len(self.prefix)

    def _answer(self, batch: Sequence[Prepared]) -> Answered:
        ids = [p.question.id for p in batch]
        prompts = [p.prompt_ids for p in batch]
        asked = [p.question_tokens[-1] for p in batch]
        out = self.answerer.answer(self.lease, self.prefix, ids, prompts, also_at=asked)
        self.tokens += sum(map(self._own, batch)) + sum(len(a.token_ids) for a in out.answers)
        return out

    def _regrow(self, batch: Sequence[Prepared]) -> Answered:
        """The trunk of answers that are on disk: of the very batch they came from, so that a
        continued run equals an unbroken one.
        """
        prompts = [p.prompt_ids for p in batch]
        self.tokens += sum(map(self._own, batch))
        grown = grow_trunk(self.lease, self.prefix, prompts, room=0, head=False)
        return Answered((), grown.last.states, grown.trunk)

    def _intervene(
        self,
        trunk: Trunk,
        samples: Sequence[Sample],
        others: dict[str, dict[str, np.ndarray]],
    ) -> None:
        """Adds the states of these samples under each intervention to `others`."""
        marks = [self._marked(sample) for sample in samples]
        if any(intervention.keys == "matched" for intervention in self.interventions):
            marks = with_mass(self.lease, trunk, marks, budget=self.budget)
        rows = [
            self._row(mark, number, intervention)
            for number, mark in enumerate(marks)
            for intervention in self.interventions
            if mark is not None
        ]
        self.tokens += sum(len(row.ids) for row in rows)
        for batch, states in read_rows(self.lease, trunk, rows, budget=self.budget):
            for row, state in zip(batch, to_host(states), strict=True):
                others[row.intervention.name][samples[row.number].id] = state

    def _marked(self, sample: Sample) -> Marked | None:
        exact = sample.exact_question if self.exact is None else self.exact[sample.id]
        if not (sample.exact_answer and sample.exact_question and exact):
            return None
        return replace(marked_of(sample), exact=exact)

    def _row(self, mark: Marked, number: int, intervention: Intervention) -> Row:
        return row_for(
            mark,
            number,
            intervention,
            blocks=self.model.blocks,
            turn_at=len(self.prefix),
            seed=self.seed,
        )

    def _has(self, intervention: str, number: int) -> bool:
        return self.store.has(shard_name(intervention, number))

    def _save(self, intervention: str, number: int, states: dict[str, np.ndarray]) -> None:
        shape = (0, self.model.blocks, self.model.parts.width)
        stacked = np.stack(list(states.values())) if states else np.empty(shape, np.float32)
        save_states(self.store, shard_name(intervention, number), list(states), stacked)


def marked_of(sample: Sample) -> Marked:
    """The positions of a sample that interventions speak of."""
    written = len(sample.prompt_ids)
    last = sample.exact_answer[-1] - written
    return Marked(
        id=sample.id,
        ids=sample.prompt_ids + sample.answer.token_ids[: last + 1],
        answer_at=written,
        question=sample.question_tokens,
        exact=sample.exact_question,
        exact_answer=sample.exact_answer,
    )


def mark_answer(model: Model, prepared: Prepared, answer: Answer) -> Sample:
    """The answer judged, and its entity found without a look at the gold answer."""
    question = prepared.question
    span = answer_span(answer.text, question=question.text)
    tokens = tokens_of([span], answer_offsets(model, answer)) if span else ()
    return Sample(
        question=question,
        answer=answer,
        verdict=judge(answer.text, question.answers, question=question.text),
        finder=prepared.found.finder,
        spans=prepared.found.spans,
        answer_span=span,
        prompt_ids=prepared.prompt_ids,
        question_tokens=prepared.question_tokens,
        exact_question=prepared.exact_question,
        exact_answer=tuple(len(prepared.prompt_ids) + token for token in tokens),
    )


def _caught(samples: Sequence[Sample], answered: Answered) -> dict[str, dict[str, np.ndarray]]:
    """States [layer, width] by name and id, of each sample that has a probe position."""
    rows = [n for n, s in enumerate(samples) if s.exact_answer and s.exact_question]
    if not rows:
        return {name: {} for name in CAUGHT}
    assert answered.also is not None
    last = [samples[n].exact_answer[-1] - len(samples[n].prompt_ids) for n in rows]
    found = (answered.states[rows, last], answered.also[rows])
    ids = [samples[n].id for n in rows]
    return {
        name: dict(zip(ids, to_host(states), strict=True))
        for name, states in zip(CAUGHT, found, strict=True)
    }
