"""One shard of questions through the model: answered, judged, marked, and read.

The answers, the clean states and the states under interventions of a batch come from one trunk.
Each file is saved when it is there, so that a shard is the most a kill can cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Protocol

import numpy as np
import pandas as pd

from anchorscope.answers.generate import Answered, Answerer
from anchorscope.engine.attention_mass import Mass, comes_with_answers, with_mass
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.decode import states_bytes
from anchorscope.engine.interventions import Intervention, TokenPositions, positions_of
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CAUGHT
from anchorscope.engine.read import read_rows
from anchorscope.engine.rows import Row, row_for
from anchorscope.engine.trunk import Prefix, Trunk, grow_trunk, read_prefix
from anchorscope.pipeline.asking.aside import Aside
from anchorscope.pipeline.asking.blocks import Block, Blocks, by_pass, caught
from anchorscope.pipeline.asking.mark import mark_answer
from anchorscope.pipeline.prepare import Shard
from anchorscope.pipeline.prompts import Prompted
from anchorscope.pipeline.stages import Run
from anchorscope.records import Sample
from anchorscope.run_folder.samples import from_frame, to_frame
from anchorscope.run_folder.states import save_states, shard_name
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.writer import Writer

Drawn = Mapping[str, tuple[int, ...]]  # keys of the control `random`, by question id


class OnDataset(Protocol):
    """Hears that all samples of a dataset are read; they are in the first `shards` of the run."""

    def __call__(self, samples: Sequence[Sample], *, shards: int) -> None: ...


def ask_and_read(
    run: Run,
    lease: Lease,
    shards: Sequence[Shard],
    passes: Sequence[Intervention],
    *,
    name: str = "answers and states",
    exact_question: Mapping[str, tuple[int, ...]] | None = None,
    on_dataset: OnDataset | None = None,
) -> list[Sample]:
    """Every question answered and read under each pass, a shard at a time.

    What is on disk is not done again. `exact_question` reads the same answers with other exact
    question tokens, by question id. `on_dataset` hears of every dataset when its files are there;
    the next one is being read by then.
    """
    samples: list[Sample] = []
    run.progress.start(name, sum(map(len, shards)))
    with run.stage(name) as stage:
        if run.hands is not None:
            stage["tokens"] = run.hands.read(run, shards, passes, exact_question)
            return [
                sample for shard in shards for sample in stored_answers(run.store, shard.number)
            ]
        reader = ShardReader(
            lease=lease,
            store=run.store,
            answerer=Answerer(lease.model, max_tokens=run.config.max_tokens),
            passes=passes,
            seed=run.config.seed,
            exact_question=exact_question,
        )
        with reader:
            for shard, after in zip_longest(shards, shards[1:]):
                samples += reader.samples(shard)
                stage["tokens"] = reader.tokens
                run.progress.advance(len(shard))
                if on_dataset is not None and (not after or after.dataset != shard.dataset):
                    own = [s for s in samples if s.question.dataset == shard.dataset]
                    reader.writer.soon(partial(on_dataset, own, shards=shard.number + 1))
    return samples


def answers_name(number: int) -> str:
    """The name of a shard's samples in the run folder."""
    return f"answers/{number:05d}.parquet"


def stored_answers(store: Store, number: int) -> list[Sample]:
    """The samples of a shard that are on disk."""
    return from_frame(pd.read_parquet(store.file(answers_name(number))))


@dataclass
class ShardReader:
    """What stays the same over the shards that one process computes.

    A shard's files are written while the next one is computed; all are there when the `with`
    block ends.
    """

    lease: Lease
    store: Store
    answerer: Answerer
    passes: Sequence[Intervention]
    seed: int
    exact_question: Mapping[str, tuple[int, ...]] | None = None  # E_Q instead of the samples' own
    tokens: int = 0  # fed so far
    budget: Budget = field(init=False)
    prefix: Prefix = field(init=False)
    writer: Writer = field(init=False)
    aside: Aside = field(init=False)
    _coming: list[Block] = field(init=False, default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.budget = Budget.of(self.lease.model)
        self.prefix = Prefix((), None)

    def __enter__(self) -> ShardReader:
        self.writer = Writer()
        self.aside = Aside(apart=self.lease.model.device.type != "cpu").__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.aside.__exit__(*error)
        self.writer.close()

    def samples(self, shard: Shard) -> list[Sample]:
        """The samples of one shard, its files on their way; what is on disk is not done again."""
        answers = answers_name(shard.number)
        missing = [cut for cut in self.passes if not self._has(cut.name, shard)]
        answered = self.store.has(answers) and all(self._has(name, shard) for name in CAUGHT)
        stored = stored_answers(self.store, shard.number) if answered else None
        if stored is not None and not missing:
            return stored
        self._share_prefix(shard.prefix)
        # All passes again where one is missing: rounding depends on what shares a batch, and a
        # continued run must equal an unbroken one to the last digit.
        samples, first, states = self._read(shard.prompts, stored)
        self.writer.wait()  # for the shard before: two at most are in memory
        if stored is None:
            # Their states first: answers without them would have to be written again.
            self.writer.soon(*(self._file(name, shard, first[name]) for name in CAUGHT))
            self.writer.soon(lambda: self.store.write(answers, to_frame(samples).to_parquet))
        self.writer.soon(*(self._file(cut.name, shard, states[cut.name]) for cut in missing))
        return samples

    def _share_prefix(self, ids: tuple[int, ...]) -> None:
        """Reads the tokens in front of a dataset's questions once for all its shards."""
        if ids != self.prefix.ids:
            self.prefix = read_prefix(self.lease, ids)
            self.tokens += len(ids)

    def _read(
        self, prompts: Sequence[Prompted], stored: Sequence[Sample] | None
    ) -> tuple[list[Sample], Blocks, Blocks]:
        """Samples in the shard's order, the states caught on the way, and those of each pass."""
        by_id = {sample.id: sample for sample in stored or ()}
        first, states = Blocks(CAUGHT), Blocks([cut.name for cut in self.passes])
        drawn = any(cut.keys == "random" for cut in self.passes)
        random = self.aside.draw(prompts, self.exact_question, seed=self.seed) if drawn else dict
        for batch, (trunk, answered) in in_batches(
            prompts,
            self._answer if stored is None or self._watches() else self._regrow,
            length=self._own,
            then=lambda p: p.question.id,
            budget=self.budget,
            rows=self._rows(prompts),
        ):
            if stored is not None:
                samples = [by_id[p.question.id] for p in batch]
                self._intervene(trunk, samples, random(), states, _mass(answered, samples))
            else:
                assert answered is not None
                verdicts = self.aside.judge(batch, answered.answers)
                pairs = zip(batch, answered.answers, strict=True)
                samples = [mark_answer(self.lease.model, p, a, verdict="abstain") for p, a in pairs]
                self._coming = first.add(caught(samples, answered), before=self._coming)
                self._intervene(trunk, samples, random(), states, answered.mass)
                for sample, verdict in zip(samples, verdicts(), strict=True):
                    by_id[sample.id] = replace(sample, verdict=verdict)
            del trunk, answered  # before the next batch has its own
        return [by_id[p.question.id] for p in prompts], first, states

    def _rows(self, prompts: Sequence[Prompted]) -> int | None:
        """How many rows may be written to at once."""
        tokens = self.answerer.max_tokens
        return self.prefix.rows_within(
            self.budget.written,
            room=max(map(self._own, prompts)) + tokens,
            beside=states_bytes(self.lease.model, tokens),
            apart=self.lease.apart,
        )

    def _own(self, prompt: Prompted) -> int:
        return len(prompt.prompt_ids) - len(self.prefix)

    def _answer(self, batch: Sequence[Prompted]) -> tuple[Trunk, Answered | None]:
        ids = [p.question.id for p in batch]
        prompts = [p.prompt_ids for p in batch]
        asked = [p.question_tokens[-1] for p in batch]
        how = {"also_at": asked, "mass": self._watches()}
        out = self.answerer.answer(self.lease, self.prefix, ids, prompts, **how)
        self.tokens += sum(map(self._own, batch)) + sum(len(a.token_ids) for a in out.answers)
        return out.trunk, out

    def _watches(self) -> bool:
        """Whether answers are watched while they are written, for the mass of attention.

        Those on disk are then written once more: mass that was read otherwise would be rounded
        otherwise, and a continued run equals an unbroken one.
        """
        return self._matches() and comes_with_answers(self.lease)

    def _matches(self) -> bool:
        return any(cut.keys == "matched" for cut in self.passes)

    def _regrow(self, batch: Sequence[Prompted]) -> tuple[Trunk, Answered | None]:
        """The trunk of answers that are on disk: of the very batch they came from, so that a
        continued run equals an unbroken one.
        """
        prompts = [p.prompt_ids for p in batch]
        self.tokens += sum(map(self._own, batch))
        return grow_trunk(self.lease, self.prefix, prompts, room=0, head=False).trunk, None

    def _intervene(
        self,
        trunk: Trunk,
        samples: Sequence[Sample],
        random: Drawn,
        states: Blocks,
        mass: Mass | None,
    ) -> None:
        """Adds the states of these samples under each pass to `states`."""
        positions = [self._positions(sample, random.get(sample.id)) for sample in samples]
        if self._matches():
            positions = with_mass(self.lease, trunk, positions, budget=self.budget, known=mass)
        rows = [
            self._row(of, number, cut)
            for number, of in enumerate(positions)
            for cut in self.passes
            if of is not None
        ]
        self.tokens += sum(len(row.ids) for row in rows)
        ids = [sample.id for sample in samples]
        for batch, read in read_rows(self.lease, trunk, rows, budget=self.budget):
            self._coming = states.add(by_pass(self.passes, ids, batch, read), before=self._coming)

    def _positions(self, sample: Sample, random: tuple[int, ...] | None) -> TokenPositions | None:
        own = sample.exact_question
        exact = own if self.exact_question is None else self.exact_question[sample.id]
        if not (sample.exact_answer and own and exact):
            return None
        return replace(positions_of(sample), exact_question=exact, random=random)

    def _row(self, positions: TokenPositions, number: int, cut: Intervention) -> Row:
        return row_for(
            positions,
            number,
            cut,
            blocks=self.lease.model.blocks,
            turn_at=len(self.prefix),
            seed=self.seed,
        )

    def _has(self, name: str, shard: Shard) -> bool:
        return self.store.has(shard_name(name, shard.number))

    def _file(self, name: str, shard: Shard, blocks: Sequence[Block]) -> Callable[[], None]:
        """What writes a shard's states under one pass."""
        return partial(self._write, name, shard, blocks)

    def _write(self, name: str, shard: Shard, blocks: Sequence[Block]) -> None:
        model = self.lease.model
        none = np.empty((0, model.blocks, model.parts.width), np.float32)
        ids = [id for block in blocks for id in block.ids]
        arrays = [block.states.array() for block in blocks] or [none]
        save_states(self.store, shard_name(name, shard.number), ids, arrays)


def _mass(answered: Answered | None, samples: Sequence[Sample]) -> Mass | None:
    """The mass of attention at these answers; None where others were written this time.

    Another machine rounds otherwise, and may choose another token.
    """
    if answered is None:
        return None
    pairs = zip(answered.answers, samples, strict=True)
    same = all(now.token_ids == then.answer.token_ids for now, then in pairs)
    return answered.mass if same else None
