"""Read the states of a run, a shard of questions at a time: answer, judge, locate, intervene.

The answers, the clean states and the states under interventions of a batch come from one trunk.
Each file is saved when it is there, so that a shard is the most a kill can cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from torch import Tensor

from anchorscope.answers.generate import Answered, Answerer, answer_offsets
from anchorscope.answers.judge import judge
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.decode import (
    Prefix,
    Trunk,
    grow_trunk,
    read_prefix,
    states_bytes,
)
from anchorscope.engine.interventions import (
    Intervention,
    TokenPositions,
    positions_of,
    retest_positions,
)
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CAUGHT, passes_of
from anchorscope.engine.read import (
    COLUMNS,
    Row,
    read_rows_with_output,
    row_for,
    unchanged_row,
    with_mass,
)
from anchorscope.engine.transfer import HostCopy, to_device
from anchorscope.evidence.pieces import passes_of_pieces, piece_of
from anchorscope.evidence.shards import HeldOut, Shards
from anchorscope.models import Model
from anchorscope.pathways.band import best_layer
from anchorscope.pipeline.prepare import Prompted, Shard, prompt_maker
from anchorscope.pipeline.request import Run
from anchorscope.probes.labelled import labelled
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.probes.readings import Readings
from anchorscope.records import Answer, Question, Sample, Verdict
from anchorscope.run_folder.samples import answers_name, output_name, stored_answers, to_frame
from anchorscope.run_folder.states import save_states, shard_name
from anchorscope.run_folder.store import Store
from anchorscope.spans.answer import answer_span, kind_of_answer
from anchorscope.spans.characters import tokens_of

Result = TypeVar("Result")
_FILES_AT_ONCE = 3  # a checksum and a copy to the disk keep a core busy each


@dataclass
class Worker:
    """A process that has the model, the run that it reads for, and what its tasks share."""

    run: Run
    lease: Lease
    reader: ShardReader | None = None
    evidence: Shards | None = None

    def finish(self) -> None:
        """Wait until the files of all tasks are written."""
        if self.reader is not None:
            self.reader.finish()


class Task(NamedTuple):
    """Work for any process that has the model: small values travel, never states."""

    name: str  # in messages: "Shard 3"
    work: Callable[[Worker], Any]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Read the shards of a run, in this process or in workers."""

    shards: Sequence[Shard]  # to read: all of the run's, or one rank's share
    count: int  # of all shards of the run
    # Do tasks, anywhere: the number and result of each as it is done, its files on disk.
    map: Callable[[Sequence[Task]], Iterator[tuple[int, Any]]]

    def ask(self, name: str, work: Callable[[Worker], Result]) -> Result:
        """The result of one task."""
        ((_, result),) = self.map([Task(name, work)])
        return result


def read_states(
    run: Run,
    reader: Reader,
    passes: Sequence[Intervention] | None = None,
    *,
    name: str = "answers and states",
    shards: Sequence[Shard] | None = None,
    exact_question: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Answer every question and read it under each pass, a shard at a time.

    What is on disk is not done again. `passes`: others than the run's own. `shards`: others than
    the reader's, as for questions asked again. `exact_question`: the same answers with other exact
    question tokens, by id.
    """
    passes = tuple(passes_of(run.config) if passes is None else passes)
    shards = reader.shards if shards is None else shards
    tasks = []
    for shard in shards:
        exact = exact_question and {
            p.question.id: exact_question[p.question.id] for p in shard.prompts
        }
        work = partial(
            _read_shard, prefix=run.store.prefix, shard=shard, passes=passes, exact_question=exact
        )
        tasks.append(Task(f"Shard {shard.number}", work))
    run.progress.start(name, sum(map(len, shards)))
    with run.stage(name) as stage:
        for number, tokens in reader.map(tasks):
            stage["tokens"] += tokens
            run.progress.advance(len(shards[number]))


def _read_shard(
    worker: Worker,
    *,
    prefix: str,  # of the store's files: none, or a folder in the run's
    shard: Shard,
    passes: tuple[Intervention, ...],
    exact_question: Mapping[str, tuple[int, ...]] | None,
) -> int:
    """Answer one shard and read it under some passes; the number of tokens fed."""
    store, config = worker.run.store, worker.run.config
    reader = worker.reader
    # The reader of the task before has read the worked examples in front of the questions.
    if reader is None or (reader.store.prefix, reader.passes) != (prefix, passes):
        worker.finish()
        reader = worker.reader = ShardReader(
            lease=worker.lease,
            store=store.inside(prefix) if prefix else store,
            answerer=Answerer(worker.lease.model, max_tokens=config.max_tokens),
            passes=passes,
            seed=config.seed,
        )
    reader.exact_question = exact_question
    before = reader.tokens
    reader.read(shard)
    return reader.tokens - before


@dataclass
class ShardReader:
    """Read shards under the same passes in one process.

    A shard's files are written while the next one is computed; all are there after `finish`.
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
    _arriving: list[Block] = field(init=False, default_factory=list, repr=False)
    _writing: list[Future[None]] = field(init=False, default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.budget = Budget.of(self.lease.model)
        self.prefix = self.retest_prefix = Prefix((), None)
        self._threads = ThreadPoolExecutor(_FILES_AT_ONCE, "files")

    def read(self, shard: Shard) -> None:
        """Read one shard, its files on their way; what is on disk is not done again."""
        answers = answers_name(shard.number)
        missing = [cut for cut in self.passes if not self._has_pass(cut, shard)]
        answered = self.store.has(answers) and all(self._has(name, shard) for name in CAUGHT)
        stored = stored_answers(self.store, shard.number) if answered else None
        if stored is not None and not missing:
            return
        self.prefix = self._shared(self.prefix, shard.prefix)
        # All passes again where one is missing: rounding depends on what shares a batch, and a
        # continued run must equal an unbroken one to the last digit.
        samples, first, states = self._read(shard.prompts, stored)
        self._retest(shard, samples, states)
        self.finish()  # the shard before: two at most are in memory
        if stored is None:
            for name in CAUGHT:
                self._submit(self._write_states, shard, name, first[name])
            self._submit(self.store.write, answers, to_frame(samples).to_parquet)
        for cut in missing:
            if cut.has_output:
                self._submit(self._write_output, shard, cut.name, states[cut.name])
            self._submit(self._write_states, shard, cut.name, states[cut.name])

    def finish(self) -> None:
        """Wait until every file is written; raise the first error."""
        writing, self._writing = self._writing, []
        wait(writing)
        for future in writing:
            future.result()

    def _submit(self, write: Callable[..., None], *values: Any) -> None:
        self._writing.append(self._threads.submit(write, *values))

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
        first: Blocks = {name: [] for name in CAUGHT}
        states: Blocks = {cut.name: [] for cut in self.passes}
        passes = [cut for cut in self.passes if not cut.retest]

        def regrow(batch: Sequence[Prompted]) -> tuple[Trunk, None]:
            return self._regrow(self.prefix, batch), None

        # The very batches that answers on disk came from: a continued run equals an unbroken one.
        for batch, (trunk, answered) in in_batches(
            prompts,
            self._answer if stored is None else regrow,
            length=self._own,
            then=lambda p: p.question.id,
            budget=self.budget,
            rows=self._rows(prompts),
        ):
            if stored is not None:
                samples = [by_id[p.question.id] for p in batch]
            else:
                assert answered is not None
                pairs = zip(batch, answered.answers, strict=True)
                samples = [mark_answer(self.lease.model, p, a) for p, a in pairs]
                by_id |= {sample.id: sample for sample in samples}
                self._keep(first, caught(samples, answered))
            positions = [self._positions(sample) for sample in samples]
            self._intervene(trunk, positions, passes, states)
            del trunk, answered  # before the next batch has its own
        return [by_id[p.question.id] for p in prompts], first, states

    def _keep(self, kept: Blocks, blocks: Mapping[str, Block]) -> None:
        """Add one block of each pass; a GPU then holds none of those before.

        It has done them by now, and goes on with these while the next ones are prepared.
        """
        for block in self._arriving:
            block.states.settle()
        self._arriving = list(blocks.values())
        for name, block in blocks.items():
            kept[name].append(block)

    def _rows(self, prompts: Sequence[Prompted]) -> int | None:
        """How many rows may be written to at once."""
        tokens = self.answerer.max_tokens
        return self.prefix.rows_within(
            self.budget.written,
            room=max(map(self._own, prompts)) + tokens,
            beside=states_bytes(self.lease.model, tokens),
            segmented=self.lease.fused,
        )

    def _own(self, prompt: Prompted) -> int:
        return len(prompt.prompt_ids) - len(self.prefix)

    def _answer(self, batch: Sequence[Prompted]) -> tuple[Trunk, Answered | None]:
        ids = [p.question.id for p in batch]
        prompts = [p.prompt_ids for p in batch]
        ends = [p.question_tokens[-1] for p in batch]
        out = self.answerer.answer(self.lease, self.prefix, ids, prompts, extra_position=ends)
        self.tokens += sum(map(self._own, batch)) + sum(len(a.token_ids) for a in out.answers)
        return out.trunk, out

    def _regrow(self, prefix: Prefix, batch: Sequence[Prompted]) -> Trunk:
        """The trunk of prompts whose answers are on disk."""
        prompts = [p.prompt_ids for p in batch]
        self.tokens += sum(len(ids) - len(prefix) for ids in prompts)
        return grow_trunk(self.lease, prefix, prompts).trunk

    def _intervene(
        self,
        trunk: Trunk,
        positions: Sequence[TokenPositions | None],
        passes: Sequence[Intervention],
        states: Blocks,
    ) -> None:
        """Read these samples under each pass, and add their states and outputs to `states`."""
        if _matches(passes):
            positions = with_mass(self.lease, trunk, positions, budget=self.budget)
        rows = [
            row
            for number, places in enumerate(positions)
            for cut in passes
            if places is not None and (row := self._row(places, number, cut, trunk)) is not None
        ]
        self.tokens += sum(len(row.ids) for row in rows)
        ids = ["" if places is None else places.id for places in positions]
        for batch, read, output in read_rows_with_output(
            self.lease, trunk, rows, budget=self.budget
        ):
            self._keep(states, by_pass(passes, ids, batch, read, output))

    def _retest(self, shard: Shard, samples: Sequence[Sample], states: Blocks) -> None:
        """Read some questions again, behind the other prompt, and add their states."""
        passes = [cut for cut in self.passes if cut.retest]
        by_id = {sample.id: sample for sample in samples}
        chosen = [p for p in shard.retest if self._positions(by_id[p.question.id]) is not None]
        if not passes or not chosen:
            return
        prefix = self.retest_prefix = self._shared(self.retest_prefix, shard.retest_prefix)

        def length(prompt: Prompted) -> int:
            return len(prompt.prompt_ids) - len(prefix)

        rows = prefix.rows_within(self.budget.trunk, room=max(map(length, chosen)))
        for batch, trunk in in_batches(
            chosen,
            partial(self._regrow, prefix),
            length=length,
            then=lambda p: p.question.id,
            budget=self.budget,
            rows=rows,
        ):
            positions = [retest_positions(by_id[p.question.id], p) for p in batch]
            self._intervene(trunk, positions, passes, states)

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
        row = row_for(trunk, positions, number, cut, seed=self.seed)
        return row if row.keys or cut.answer_only else None

    def _has_pass(self, cut: Intervention, shard: Shard) -> bool:
        output = output_name(cut.name, shard.number)
        return self._has(cut.name, shard) and (not cut.has_output or self.store.has(output))

    def _has(self, name: str, shard: Shard) -> bool:
        return self.store.has(shard_name(name, shard.number))

    def _write_states(self, shard: Shard, name: str, blocks: Sequence[Block]) -> None:
        model = self.lease.model
        none = np.empty((0, model.blocks, model.parts.width), np.float32)
        ids = [id for block in blocks for id in block.ids]
        arrays = [block.states.array() for block in blocks] or [none]
        save_states(self.store, shard_name(name, shard.number), ids, arrays)

    def _write_output(self, shard: Shard, name: str, blocks: Sequence[Block]) -> None:
        """Write what the model itself makes of a shard's answers under one pass."""
        outputs = [block.output.cpu().numpy() for block in blocks if block.output is not None]
        values = np.concatenate(outputs) if outputs else np.empty((0, len(COLUMNS)), np.float32)
        frame = pd.DataFrame(values, columns=list(COLUMNS))
        frame.insert(0, "id", [id for block in blocks for id in block.ids])
        self.store.write(output_name(name, shard.number), frame.to_parquet)


def _matches(passes: Sequence[Intervention]) -> bool:
    """Whether a pass cuts keys that are matched in attention mass."""
    return any(cut.keys == "neutral" for cut in passes)


class Block(NamedTuple):
    """The states of some questions, which a GPU may still be making."""

    ids: list[str]
    states: HostCopy  # [question, layer, width]
    output: Tensor | None = None  # [question, 3], the model's own; None where the pass has none


Blocks = dict[str, list[Block]]  # of each pass, in the order they came


def caught(samples: Sequence[Sample], answered: Answered) -> dict[str, Block]:
    """The states caught while answering, of each sample with a probe position; none: empty."""
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


def by_pass(
    passes: Sequence[Intervention],
    ids: Sequence[str],
    batch: Sequence[Row],
    states: Tensor,
    output: Tensor | None,
) -> dict[str, Block]:
    """States [row, layer, width] and output [row, 3] of a batch, pass by pass.

    `ids` are those of the questions that the batch is about.

    Row by row they would have to be put together again to be written.
    """
    blocks = {}
    for cut in passes:
        own = [n for n, row in enumerate(batch) if row.intervention is cut]
        if own:
            named = [ids[batch[n].number] for n in own]
            at = to_device(own, states.device)
            own_output = None if output is None else output[at]
            blocks[cut.name] = Block(named, HostCopy(states[at]), own_output)
    return blocks


def judged(answer: Answer, question: Question) -> Verdict:
    """The judge's verdict on an answer, by the accepted answers of its question."""
    return judge(answer.text, question.answers, question=question.text)


def mark_answer(model: Model, prompt: Prompted, answer: Answer) -> Sample:
    """Judge an answer, and find its entity without a look at the gold answer.

    A verdict that comes with the prompt replaces the judge's, who needs accepted answers.
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


# Further evidence: pieces that need no probe, and those that read with one.


def read_evidence(run: Run, reader: Reader) -> None:
    """Read what needs no probe: further passes over the same answers, and what pieces read."""
    if passes := passes_of_pieces(run.config):
        read_states(run, reader, passes, name="further passes")
    read_pieces(run, reader, run.config.evidence)


def read_pieces(run: Run, reader: Reader, names: Sequence[str]) -> None:
    """Read what these pieces need of the model before there are probes.

    Donors, and the tokens in front of the questions, come from all answers of a dataset.
    """
    pieces = [name for name in names if piece_of(name).read is not None]
    if pieces and not all(run.store.has(answers_name(number)) for number in range(reader.count)):
        run.progress.note("further evidence waits for the answers of the other ranks")
        return
    for name in pieces:
        _read_stages(run, reader, name, layers=None)


def read_with_probes(run: Run, reader: Reader, readings: Mapping[str, Readings]) -> None:
    """Read with the probes that never saw the question (saliency, heads); `readings` by dataset."""
    layers = {dataset: best_layer(own) for dataset, own in readings.items()}
    for name in run.config.evidence:
        if piece_of(name).read_with_probes is not None:
            _read_stages(run, reader, name, layers=layers)


def _read_stages(run: Run, reader: Reader, piece: str, *, layers: Mapping[str, int] | None) -> None:
    with run.stage("evidence"):
        for stage in piece_of(piece).stages:
            run.progress.start(stage, sum(map(len, reader.shards)))
            work = partial(
                _read_stage, piece_name=piece, stage=stage, shards=reader.count, layers=layers
            )
            tasks = [
                Task(f"Shard {shard.number} ({stage})", partial(work, number=shard.number))
                for shard in reader.shards
            ]
            for task, _ in reader.map(tasks):
                run.progress.advance(len(reader.shards[task]))


def _read_stage(
    worker: Worker,
    *,
    piece_name: str,
    stage: str,
    number: int,  # of the shard
    shards: int,  # of the run
    layers: Mapping[str, int] | None,  # by dataset, where held-out probes read
) -> None:
    """Read one stage of a piece of evidence on one shard."""
    run, piece = worker.run, piece_of(piece_name)
    if worker.evidence is None:
        run.store.fetch()
        samples = [stored_answers(run.store, each) for each in range(shards)]
        worker.evidence = Shards(worker.lease, run.store, samples, seed=run.config.seed)
    shard = replace(worker.evidence, only=(stage, number))
    if layers is None:
        assert piece.read is not None
        piece.read(shard, prompt_maker(run, worker.lease))
    else:
        assert piece.read_with_probes is not None
        held_out = {name: _held_out(run, shard, name, layer) for name, layer in layers.items()}
        piece.read_with_probes(shard, held_out, run.config)


def _held_out(run: Run, shards: Shards, dataset: str, layer: int) -> HeldOut:
    """Load a layer's stored probes by the question that each holds out."""
    answers = labelled(shards.of_dataset(dataset), dataset, run.config)
    fold = {id: int(f) for id, f in zip(answers.ids, answers.fold, strict=True)}
    probes = ProbeSet.load(run.store.file(f"probes/{dataset}"))
    return HeldOut(probes=probes, fold=fold, layer=layer)
