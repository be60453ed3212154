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
from anchorscope.engine.interventions import (
    Intervention,
    TokenPositions,
    positions_of,
    retest_positions,
)
from anchorscope.engine.lease import Lease
from anchorscope.engine.output import COLUMNS
from anchorscope.engine.passes import CAUGHT
from anchorscope.engine.read import read_rows_with_output
from anchorscope.engine.rows import Row, row_for, unchanged_row
from anchorscope.engine.trunk import Prefix, Trunk, grow_trunk, read_prefix
from anchorscope.pipeline.asking.aside import Aside
from anchorscope.pipeline.asking.blocks import Block, Blocks, by_pass, caught
from anchorscope.pipeline.asking.mark import mark_answer
from anchorscope.pipeline.prepare import Shard
from anchorscope.pipeline.prompts import Prompted
from anchorscope.pipeline.stages import Run
from anchorscope.records import Sample
from anchorscope.run_folder.outputs import output_name
from anchorscope.run_folder.samples import from_frame, to_frame
from anchorscope.run_folder.states import save_states, shard_name
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.writer import Writer


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
    retest_prefix: Prefix = field(init=False)
    writer: Writer = field(init=False)
    aside: Aside = field(init=False)
    _coming: list[Block] = field(init=False, default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.budget = Budget.of(self.lease.model)
        self.prefix = self.retest_prefix = Prefix((), None)

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
        missing = [cut for cut in self.passes if not self._has_pass(cut, shard)]
        answered = self.store.has(answers) and all(self._has(name, shard) for name in CAUGHT)
        stored = stored_answers(self.store, shard.number) if answered else None
        if stored is not None and not missing:
            return stored
        self.prefix = self._shared(self.prefix, shard.prefix)
        # All passes again where one is missing: rounding depends on what shares a batch, and a
        # continued run must equal an unbroken one to the last digit.
        samples, first, states = self._read(shard.prompts, stored)
        self._retest(shard, samples, states)
        self.writer.wait()  # for the shard before: two at most are in memory
        if stored is None:
            # Their states first: answers without them would have to be written again.
            self.writer.soon(*(self._file(name, shard, first[name]) for name in CAUGHT))
            self.writer.soon(lambda: self.store.write(answers, to_frame(samples).to_parquet))
        for cut in missing:
            if cut.has_output:
                self.writer.soon(partial(self._write_output, cut.name, shard, states[cut.name]))
            self.writer.soon(self._file(cut.name, shard, states[cut.name]))
        return samples

    def _shared(self, before: Prefix, ids: tuple[int, ...]) -> Prefix:
        """The tokens in front of a dataset's questions, read once for all its shards."""
        if ids == before.ids:
            return before
        self.tokens += len(ids)
        return read_prefix(self.lease, ids)

    def _read(
        self, prompts: Sequence[Prompted], stored: Sequence[Sample] | None
    ) -> tuple[list[Sample], Blocks, Blocks]:
        """Samples in the shard's order, the states caught on the way, and those of each pass."""
        by_id = {sample.id: sample for sample in stored or ()}
        first, states = Blocks(CAUGHT), Blocks([cut.name for cut in self.passes])
        passes = [cut for cut in self.passes if not cut.retest]
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
                own = [self._positions(sample) for sample in samples]
                self._intervene(trunk, own, passes, states, _mass(answered, samples))
            else:
                assert answered is not None
                verdicts = self.aside.judge(batch, answered.answers)
                pairs = zip(batch, answered.answers, strict=True)
                samples = [mark_answer(self.lease.model, p, a, verdict="abstain") for p, a in pairs]
                self._coming = first.add(caught(samples, answered), before=self._coming)
                own = [self._positions(sample) for sample in samples]
                self._intervene(trunk, own, passes, states, answered.mass)
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
        return _matches(self.passes) and comes_with_answers(self.lease)

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
        positions: Sequence[TokenPositions | None],
        passes: Sequence[Intervention],
        states: Blocks,
        mass: Mass | None,
    ) -> None:
        """Adds the states and outputs of these samples under each pass to `states`."""
        if _matches(passes):
            positions = with_mass(self.lease, trunk, positions, budget=self.budget, known=mass)
        rows = [
            row
            for number, of in enumerate(positions)
            for cut in passes
            if of is not None and (row := self._row(of, number, cut, trunk)) is not None
        ]
        self.tokens += sum(len(row.ids) for row in rows)
        ids = ["" if of is None else of.id for of in positions]
        for batch, read, output in read_rows_with_output(
            self.lease, trunk, rows, budget=self.budget
        ):
            blocks = by_pass(passes, ids, batch, read, output)
            self._coming = states.add(blocks, before=self._coming)

    def _retest(self, shard: Shard, samples: Sequence[Sample], states: Blocks) -> None:
        """Adds the states of the questions that are read again, behind the other prompt."""
        passes = [cut for cut in self.passes if cut.retest]
        by_id = {sample.id: sample for sample in samples}
        chosen = [p for p in shard.retest if self._positions(by_id[p.question.id]) is not None]
        if not passes or not chosen:
            return
        prefix = self.retest_prefix = self._shared(self.retest_prefix, shard.retest_prefix)

        def grown(batch: Sequence[Prompted]) -> Trunk:
            prompts = [p.prompt_ids for p in batch]
            return grow_trunk(self.lease, prefix, prompts, room=0, head=False).trunk

        def length(prompt: Prompted) -> int:
            return len(prompt.prompt_ids) - len(prefix)

        rows = prefix.rows_within(self.budget.trunk, room=max(map(length, chosen)))
        for batch, trunk in in_batches(
            chosen,
            grown,
            length=length,
            then=lambda p: p.question.id,
            budget=self.budget,
            rows=rows,
        ):
            self.tokens += sum(map(length, batch))
            positions = [retest_positions(by_id[p.question.id], p) for p in batch]
            self._intervene(trunk, positions, passes, states, None)

    def _positions(self, sample: Sample) -> TokenPositions | None:
        own = sample.exact_question
        exact = own if self.exact_question is None else self.exact_question[sample.id]
        if not (sample.exact_answer and own and exact):
            return None
        return replace(positions_of(sample), exact_question=exact)

    def _row(
        self, positions: TokenPositions, number: int, cut: Intervention, trunk: Trunk
    ) -> Row | None:
        """The row of a question under a pass; None where the question has no key to cut."""
        if cut.heads == ():
            return unchanged_row(positions, number, cut)
        row = row_for(
            positions,
            number,
            cut,
            blocks=self.lease.model.blocks,
            turn_at=len(trunk.prefix),
            seed=self.seed,
        )
        return row if row.keys or cut.answer_only else None

    def _has_pass(self, cut: Intervention, shard: Shard) -> bool:
        output = output_name(cut.name, shard.number)
        return self._has(cut.name, shard) and (not cut.has_output or self.store.has(output))

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

    def _write_output(self, name: str, shard: Shard, blocks: Sequence[Block]) -> None:
        """Writes what the model itself makes of a shard's answers under one pass."""
        outputs = [block.output.cpu().numpy() for block in blocks if block.output is not None]
        values = np.concatenate(outputs) if outputs else np.empty((0, len(COLUMNS)), np.float32)
        frame = pd.DataFrame(values, columns=list(COLUMNS))
        frame.insert(0, "id", [id for block in blocks for id in block.ids])
        self.store.write(output_name(name, shard.number), frame.to_parquet)


def _matches(passes: Sequence[Intervention]) -> bool:
    """Whether a pass cuts keys that are matched in attention mass."""
    return any(cut.keys == "neutral" for cut in passes)


def _mass(answered: Answered | None, samples: Sequence[Sample]) -> Mass | None:
    """The mass of attention at these answers; None where others were written this time.

    Another machine rounds otherwise, and may choose another token.
    """
    if answered is None:
        return None
    pairs = zip(answered.answers, samples, strict=True)
    same = all(now.token_ids == then.answer.token_ids for now, then in pairs)
    return answered.mass if same else None
